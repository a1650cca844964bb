"""Where a consumer begins: what `start` means, and positions that a program can save as JSON."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from messagehub.errors import ConfigurationError
from messagehub.shm.rings.read_results import Position

Positions = dict[str, Position]
"""By block id: where a consumer stands in every block it has read."""
SavedPositions = Mapping[str, Sequence[str | int]]
"""The same as it comes back from JSON."""
Start = Literal["oldest", "latest"] | int | Positions
"""A checked `start`; a negative number is how many of the last items are wanted."""

_RULE = (
    "start takes 'latest' (from now on), 'oldest' (what is still there, too), -N (the last N items of each producer,"
    " too), or the `position` of a consumer, also through JSON"
)


def checked_start(start: Any) -> Start:
    if start == "oldest" and isinstance(start, str):
        return "oldest"
    if start == "latest" and isinstance(start, str):
        return "latest"
    if isinstance(start, Mapping):
        return {_block(block_id): _position(block_id, saved) for block_id, saved in start.items()}
    last = _whole(start)
    if last is None or last >= 0:
        raise ConfigurationError(f"{_RULE}, not {start!r:.100}")
    return last


def _block(block_id: Any) -> str:
    if not isinstance(block_id, str):
        raise ConfigurationError(f"{_RULE}: a position has block ids as keys, not {block_id!r:.100}")
    return block_id


def _position(block_id: str, saved: Any) -> Position:
    if isinstance(saved, Sequence) and not isinstance(saved, str) and len(saved) == 3:
        epoch, sequence = _whole(saved[1]), _whole(saved[2])
        if saved[0] == block_id and epoch is not None and sequence is not None and min(epoch, sequence) >= 0:
            return Position(block_id, epoch, sequence)
    raise ConfigurationError(f"{_RULE}: block {block_id!r:.50} has {saved!r:.100}, not [block id, epoch, sequence]")


def _whole(given: Any) -> int | None:
    """An integer of Python or NumPy; None of anything else."""
    try:
        return None if isinstance(given, bool) else int(operator.index(given))
    except TypeError:
        return None
