"""Where a new streaming query over rings begins, and whether a checkpoint is of the channels that it reads."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from messagehub.shm.rings.read_results import Position, Start
from messagehub.spark.errors import BadOption
from messagehub.spark.options import EARLIEST, LATEST, Options
from messagehub.spark.rings import Ring
from registry.topics.patterns import Patterns

if TYPE_CHECKING:
    from messagehub.spark.rings_elsewhere import RingOnOtherHost

_AHEAD_SECONDS = 60.0


def starts(options: Options, rings: "Sequence[Ring | RingOnOtherHost]") -> dict[str, Start]:
    """Return, for each ring that is there when the query is new, what of it is read first."""
    if options.starting_at is not None:
        if options.starting_at > time.time() + _AHEAD_SECONDS:
            raise BadOption("option startingTimestamp is a time that has not come yet: it is in milliseconds")
        return {ring.block_id: ring.since(int(options.starting_at * 1e9)) for ring in rings}
    said = options.starting_offsets
    wanted = said if isinstance(said, dict) else {}
    unknown = sorted(wanted.keys() - {ring.block_id for ring in rings})
    if unknown:
        known = ", ".join(ring.block_id for ring in rings) or "none"
        raise BadOption(
            f"option startingOffsets names block {unknown[0]!r}; blocks of channel {options.channel!r} are: {known}"
        )
    other = LATEST if said == "latest" else EARLIEST
    return {ring.block_id: _at(ring, wanted.get(ring.block_id, other)) for ring in rings}


def _at(ring: "Ring | RingOnOtherHost", sequence: int) -> Start:
    if sequence in (EARLIEST, LATEST):
        return "oldest" if sequence == EARLIEST else "latest"
    state = ring.state()
    if sequence > state["head"] + 1:
        raise BadOption(
            f"sequence {sequence} is beyond the end of block {ring.block_id!r}, whose next one is {state['head'] + 1}"
        )
    return Position(ring.block_id, state["epoch"], max(sequence, 1) - 1)


def check_checkpoint(options: Options, start: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an offset of other channels, or of topics: what it says about blocks means nothing here."""
    for place in start.values():
        if "sequence" not in place:
            raise BadOption(
                f"the checkpoint is of topics, and this query reads channel {options.channel!r}: give it a"
                " checkpointLocation of its own"
            )
        channel = place.get("channel", options.channel)  # older checkpoints do not name it
        if channel != options.channel and not _matches(options, channel):
            raise BadOption(
                f"the checkpoint is of channel {channel!r}, and this query reads {options.channel!r}: give it a"
                " checkpointLocation of its own"
            )


def _matches(options: Options, channel: str) -> bool:
    return options.is_of_many_channels and Patterns(options.channel).matches(channel)
