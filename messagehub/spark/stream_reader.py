"""Streaming read of the rings of a channel, or of all channels that match a pattern.

Rule 1: an offset is, per block, its channel, the epoch and the last sequence that was taken: {block id: {channel,
epoch, sequence}}, and in a site its host. A block that the start does not name is read from its first sequence on.
Rule 2: this process holds every ring from the last committed offset on: a blocking writer waits for the query, and a
ring whose producer is gone is not cleaned before it was read. Tasks read for themselves.
Rule 3: what was overwritten before it was read fails the query, or, with failOnDataLoss=false, is logged and counted
in the offset (`lost`), which the query's progress shows.
Rule 4: `complete` in an offset says that the block had no writer and nothing unread: it may vanish without loss.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from messagehub.errors import DataLost
from messagehub.shm.identity import host
from messagehub.shm.rings.ended_rings import last_sequence
from messagehub.shm.rings.read_results import Gap, Position, Start
from messagehub.spark.admission import Budget
from messagehub.spark.channels import CHANNEL, check_streamed
from messagehub.spark.elsewhere import channels_of_site, may_be_elsewhere, short_gateways
from messagehub.spark.held_rings import HeldRing, hold, items
from messagehub.spark.options import Options
from messagehub.spark.ring_starts import check_checkpoint, starts
from messagehub.spark.rings import Ring, rings
from messagehub.spark.schema_mapping import check_columns, conform, read_schema
from messagehub.spark.tracebacks import messages_only

if TYPE_CHECKING:
    from messagehub.spark.rings_elsewhere import RingHeldElsewhere, RingOnOtherHost, RingsElsewhere

    Held = HeldRing | RingHeldElsewhere

log = logging.getLogger("messagehub")

RingOffset = dict[str, Any]
Offset = dict[str, RingOffset]
_BEGINNING: Final[RingOffset] = {"epoch": 0, "sequence": 0}


@dataclass(frozen=True)
class Stretch(InputPartition):
    """Sequences `first` to `last` of one ring."""

    channel: str
    path: str
    host: str
    block_id: str
    epoch: int
    first: int
    last: int


@messages_only
class RingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = StructType([field for field in schema if not self._is_channel(field.name)])
        self._schema = read_schema(schema)
        self._held: dict[str, Held] = {}
        self._elsewhere: RingsElsewhere | None = None  # not before it is needed: a task gets this object by pickle
        self._names_hosts = may_be_elsewhere(options)
        self._finished: set[str] = set()
        self._is_late: set[str] = set()
        self._target: dict[str, int] | None = None
        self._turn = 0

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        check_streamed(self._options)  # not when a query goes on from its checkpoint: its producer may come back
        found = self._rings({})
        start = starts(self._options, found)
        for ring in found:
            self._hold(ring, start[ring.block_id])
        return {block_id: self._ring_offset(reader) for block_id, reader in sorted(self._held.items())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = {ring.block_id: ring.state()["head"] for ring in self._rings({})}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        self._attach(start)
        end: Offset = {block_id: start[block_id] for block_id in self._finished}
        for block_id in start.keys() - self._held.keys() - self._finished:
            if self._is_unreachable(start[block_id]):
                end[block_id] = start[block_id]
            elif not start[block_id].get("complete"):
                self._check_read_to_its_end(block_id, start[block_id])
        budget = Budget(limit)
        for block_id in self._in_turn():
            end[block_id] = self._advance(self._held[block_id], start.get(block_id), budget)
        return dict(sorted(end.items()))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  Spark's name
        """Where the rings have come to, shown in the query's progress beside the offset that the query has come to.

        `behind` counts from what the query has committed.
        """
        return {block_id: self._head(reader) for block_id, reader in sorted(self._held.items())} or None

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        self._attach(start)
        found: list[InputPartition] = []
        for block_id, reached in sorted(end.items()):
            before = start.get(block_id, _BEGINNING)
            first, last = before["sequence"] + 1, reached["sequence"]
            if first > last:
                continue
            if block_id in self._held:
                held = self._held[block_id]
                found.append(Stretch(held.channel, held.path, held.host, block_id, before["epoch"], first, last))
            else:
                self._lose(block_id, first, last, "its ring is gone")
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stretch)
        for found in self._items(partition):
            if isinstance(found, Gap):
                self._lose(partition.block_id, found.first, min(found.last, partition.last), "overwritten")
            else:
                yield conform(self._named(found, partition.channel), self._schema)

    def commit(self, end: Offset) -> None:
        """Let go of what was processed."""
        for block_id, reached in end.items():
            if block_id in self._held:
                self._held[block_id].release(reached["sequence"])

    def stop(self) -> None:
        for reader in self._held.values():
            reader.close()
        self._held = {}
        if self._elsewhere is not None:
            self._elsewhere.close()

    # --- inside

    def _rings(self, start: Offset) -> "list[Ring | RingOnOtherHost]":
        """Return the rings of this host, and those of other hosts of the site, by block id."""
        found: list[Ring | RingOnOtherHost] = [*rings(self._options)]
        if may_be_elsewhere(self._options):
            if self._elsewhere is None:
                from messagehub.spark.rings_elsewhere import RingsElsewhere

                self._elsewhere = RingsElsewhere(self._options)
            found += self._elsewhere.rings(channels_of_site(self._options), start)
        return sorted(found, key=lambda ring: ring.block_id)

    def _is_unreachable(self, place: RingOffset) -> bool:
        return self._elsewhere is not None and place.get("host") in self._elsewhere.unreachable

    def _ring_offset(self, held: "Held") -> RingOffset:
        """Return where a ring is read; in a site with its host, on which a query that goes on later may not be."""
        position = held.position
        found: RingOffset = {"channel": held.channel, "epoch": position.epoch, "sequence": position.sequence}
        return found | {"host": held.host} if self._names_hosts else found

    def _head(self, held: "Held") -> RingOffset:
        return self._ring_offset(held) | {"sequence": held.head, "behind": held.behind()}

    def _is_channel(self, column: str) -> bool:
        return self._options.is_of_many_channels and column == CHANNEL.name

    def _named(self, batch: pa.RecordBatch, channel: str) -> pa.RecordBatch:
        """Return the batch with the column that says where it comes from, where many channels are read."""
        if not self._options.is_of_many_channels:
            return batch
        columns = [pa.repeat(pa.scalar(channel), batch.num_rows), *batch.columns]
        return pa.RecordBatch.from_arrays(columns, names=[CHANNEL.name, *batch.schema.names])

    def _attach(self, start: Offset) -> None:
        """Hold what is there and unfinished; let go of what is over, so that it can be cleaned."""
        check_checkpoint(self._options, start)
        found = {ring.block_id: ring for ring in self._rings(start)}
        for block_id, held in self._held.items():
            ring = found.get(block_id)
            if ring is not None and not isinstance(ring, Ring) and not isinstance(held, HeldRing):
                held.seen(ring.listed)
        self._finished = {block_id for block_id, ring in found.items() if _is_finished(ring, start.get(block_id))}
        for block_id in [block_id for block_id, reader in self._held.items() if reader.is_replaced()]:
            if block_id in found:  # by a ring that goes on with its numbers: what is missing there is seen as lost
                self._held.pop(block_id).close()
        for block_id in self._held.keys() - (found.keys() - self._finished):
            if self._is_unreachable({"host": self._held[block_id].host}):
                continue
            reader = self._held.pop(block_id)
            done, head = start.get(block_id, _BEGINNING)["sequence"], reader.head
            reader.close()
            if head > done:
                self._lose(block_id, done + 1, head, "its ring was replaced")
        for block_id in found.keys() - self._held.keys() - self._finished:
            reached = start.get(block_id)
            begin: Start = Position(block_id, reached["epoch"], reached["sequence"]) if reached else "oldest"
            self._hold(found[block_id], begin)

    def _hold(self, ring: "Ring | RingOnOtherHost", start: Start) -> None:
        check_columns(ring.schema(), self._columns, f"channel {ring.channel!r}")
        held = hold(ring, start) if isinstance(ring, Ring) else ring.hold(start)
        if held is not None:
            self._held[ring.block_id] = held

    def _in_turn(self) -> list[str]:
        """Another block first each time, so that none starves under a limit."""
        order = sorted(self._held)
        self._turn += 1
        shift = self._turn % len(order) if order else 0
        return order[shift:] + order[:shift]

    def _advance(self, reader: "Held", start: RingOffset | None, budget: Budget) -> RingOffset:
        before = start or _BEGINNING
        block_id, last, is_over = reader.block_id, reader.head, not reader.is_writer_alive()
        if self._target is not None:
            last = max(before["sequence"], min(last, self._target.get(block_id, 0)))
        self._warn_if_late(reader, reader.head - before["sequence"])
        lost = 0
        if last > before["sequence"] and not (budget.is_unlimited and self._options.fail_on_data_loss):
            place = (reader.channel, reader.path, reader.host, block_id)
            asked = Stretch(*place, before["epoch"], before["sequence"] + 1, last)
            last, lost = budget.spend(self._items(asked), before["sequence"], last)
        reached = (
            self._ring_offset(reader) | {"sequence": last} if last > before["sequence"] or not start else dict(start)
        )
        if before.get("lost", 0) + lost and not self._options.fail_on_data_loss:
            reached["lost"] = before.get("lost", 0) + lost
        if is_over and last == reader.head:
            reached["complete"] = True
        return reached

    def _warn_if_late(self, held: "Held", unread: int) -> None:
        """Once for each block, in time: before its writer overwrites what the query has not read."""
        capacity = held.capacity
        if not held.overwrites or 2 * unread <= capacity or held.block_id in self._is_late:
            return
        self._is_late.add(held.block_id)
        log.warning(
            "channel %r: the query is %d payloads behind in a ring of %d, whose producer overwrites the oldest: give it"
            " a larger capacity or when_full='block', or trigger more often",
            held.channel,
            unread,
            capacity,
        )

    def _items(self, stretch: Stretch) -> Iterator["pa.RecordBatch | Gap"]:
        """What is there of a stretch, and what is not, from where it is."""
        start = Position(stretch.block_id, stretch.epoch, stretch.first - 1)
        if stretch.host == host():
            yield from items(stretch.path, start, stretch.last)
            return
        from messagehub.spark.rings_elsewhere import items_elsewhere

        with short_gateways(self._options) as gateways:
            yield from items_elsewhere(gateways, stretch.channel, stretch.host, stretch.path, start, stretch.last)

    def _check_read_to_its_end(self, block_id: str, place: RingOffset) -> None:
        """A ring that is gone has lost nothing if its last item was read: the query was not there when it ended."""
        at, sequence = place.get("host", host()), place["sequence"]
        if at == host() or self._elsewhere is None:
            last = last_sequence(self._options.directory(), block_id)
        else:
            last = self._elsewhere.last_sequence(place["channel"], at, block_id)
        if last is None or last > sequence:
            self._lose(block_id, sequence + 1, last, "its ring is gone")

    def _lose(self, block_id: str, first: int, last: int | None, why: str) -> None:
        until = "the end" if last is None else str(last)
        said = f"channel {self._options.channel!r}: sequences {first} to {until} of block {block_id} are lost ({why})"
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{said}. Give the producer a larger ring (capacity) or when_full='block', trigger more often, "
                "or accept the loss with failOnDataLoss=false.",
                channel=self._options.channel,
                block_id=block_id,
                first=first,
                last=last,
            )
        log.warning("%s", said)


def _is_finished(ring: "Ring | RingOnOtherHost", reached: RingOffset | None) -> bool:
    """Read to its end, and nobody is writing it now."""
    if reached is None or not reached.get("complete"):
        return False
    state = ring.state()
    return not state["has_writer"] and state["head"] == reached["sequence"]
