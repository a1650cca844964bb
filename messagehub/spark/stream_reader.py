"""Streaming read of the rings of a channel, or of all channels that match a pattern.

Rule 1: an offset is, per block, its channel, the epoch and the last sequence that was taken: {block id: {channel,
epoch, sequence}}. A block that the start does not name is read from its first sequence on.
Rule 2: this process holds every ring from the last committed offset on: a blocking writer waits for the query, and a
ring whose producer is gone is not cleaned before it was read. Tasks read for themselves.
Rule 3: what was overwritten before it was read fails the query, or, with failOnDataLoss=false, is logged and counted
in the offset (`lost`), which the query's progress shows.
Rule 4: `complete` in an offset says that the block had no writer and nothing unread: it may vanish without loss.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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
from messagehub.shm.errors import BlockOnOtherHost, NothingThere
from messagehub.shm.identity import host
from messagehub.shm.layout import WhenFull
from messagehub.shm.rings.ended_rings import last_sequence
from messagehub.shm.rings.read_results import Gap, Item, Position, Start
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import open_reader
from messagehub.spark.admission import Budget
from messagehub.spark.backlog import behind
from messagehub.spark.channels import CHANNEL, check_streamed
from messagehub.spark.options import Options
from messagehub.spark.ring_starts import check_checkpoint, starts
from messagehub.spark.rings import Ring, ring_at, rings, rows_of
from messagehub.spark.schema_mapping import check_columns, conform, read_schema
from messagehub.spark.tracebacks import messages_only

log = logging.getLogger("messagehub")

RingOffset = dict[str, Any]
Offset = dict[str, RingOffset]
_BEGINNING: Final[RingOffset] = {"epoch": 0, "sequence": 0}
_PATIENCE_SECONDS: Final = 30.0


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
        self._held: dict[str, RingReader] = {}
        self._committed_ns: dict[str, int] = {}
        self._finished: set[str] = set()
        self._is_late: set[str] = set()
        self._target: dict[str, int] | None = None
        self._turn = 0

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        check_streamed(self._options)  # not when a query goes on from its checkpoint: its producer may come back
        found = rings(self._options)
        start = starts(self._options, found)
        for ring in found:
            self._hold(ring, start[ring.block_id])
        return {block_id: _ring_offset(reader) for block_id, reader in sorted(self._held.items())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = {ring.block_id: ring.state()["head"] for ring in rings(self._options)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        self._attach(start)
        end: Offset = {block_id: start[block_id] for block_id in self._finished}
        for block_id in start.keys() - self._held.keys() - self._finished:
            if not start[block_id].get("complete"):
                self._check_read_to_its_end(block_id, start[block_id]["sequence"])
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
                found.append(_stretch(self._held[block_id], before["epoch"], first, last))
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
            reader = self._held.get(block_id)
            while reader is not None and reader.position.sequence < reached["sequence"]:
                found = reader.take()
                if found is None:
                    break
                if isinstance(found, Item):
                    self._committed_ns[block_id] = found.written_ns

    def stop(self) -> None:
        for reader in self._held.values():
            reader.close()
        self._held = {}

    # --- inside

    def _head(self, reader: RingReader) -> RingOffset:
        lag = behind(reader, self._committed_ns.get(reader.header.block_id))
        return _ring_offset(reader) | {"sequence": reader.head, "behind": lag}

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
        found = {ring.block_id: ring for ring in rings(self._options)}
        self._finished = {block_id for block_id, ring in found.items() if _is_finished(ring, start.get(block_id))}
        for block_id in [block_id for block_id, reader in self._held.items() if reader.is_replaced()]:
            if block_id in found:  # by a ring that goes on with its numbers: what is missing there is seen as lost
                self._held.pop(block_id).close()
        for block_id in self._held.keys() - (found.keys() - self._finished):
            reader = self._held.pop(block_id)
            done, head = start.get(block_id, _BEGINNING)["sequence"], reader.head
            reader.close()
            if head > done:
                self._lose(block_id, done + 1, head, "its ring was replaced")
        for block_id in found.keys() - self._held.keys() - self._finished:
            reached = start.get(block_id)
            begin: Start = Position(block_id, reached["epoch"], reached["sequence"]) if reached else "oldest"
            self._hold(found[block_id], begin)

    def _hold(self, ring: Ring, start: Start) -> None:
        check_columns(ring.schema(), self._columns, f"channel {ring.channel!r}")
        try:
            reader = open_reader(ring.path, start=start, wait_for_writer=True)
        except NothingThere:
            return
        if reader.header.block_id == ring.block_id:  # else replaced between the look and the opening
            self._held[ring.block_id] = reader
        else:
            reader.close()

    def _in_turn(self) -> list[str]:
        """Another block first each time, so that none starves under a limit."""
        order = sorted(self._held)
        self._turn += 1
        shift = self._turn % len(order) if order else 0
        return order[shift:] + order[:shift]

    def _advance(self, reader: RingReader, start: RingOffset | None, budget: Budget) -> RingOffset:
        before = start or _BEGINNING
        block_id, last, is_over = reader.header.block_id, reader.head, not reader.is_writer_alive()
        if self._target is not None:
            last = max(before["sequence"], min(last, self._target.get(block_id, 0)))
        self._warn_if_late(reader, reader.head - before["sequence"])
        lost = 0
        if last > before["sequence"] and not (budget.is_unlimited and self._options.fail_on_data_loss):
            asked = _stretch(reader, before["epoch"], before["sequence"] + 1, last)
            last, lost = budget.spend(self._items(asked), before["sequence"], last)
        reached = _ring_offset(reader) | {"sequence": last} if last > before["sequence"] or not start else dict(start)
        if before.get("lost", 0) + lost and not self._options.fail_on_data_loss:
            reached["lost"] = before.get("lost", 0) + lost
        if is_over and last == reader.head:
            reached["complete"] = True
        return reached

    def _warn_if_late(self, reader: RingReader, unread: int) -> None:
        """Once for each block, in time: before its writer overwrites what the query has not read."""
        header, capacity = reader.header, reader.header.geometry.slot_count
        if header.when_full != WhenFull.OVERWRITE or 2 * unread <= capacity or header.block_id in self._is_late:
            return
        self._is_late.add(header.block_id)
        log.warning(
            "channel %r: the query is %d payloads behind in a ring of %d, whose producer overwrites the oldest: give it"
            " a larger capacity or when_full='block', or trigger more often",
            header.channel,
            unread,
            capacity,
        )

    def _items(self, stretch: Stretch) -> Iterator["pa.RecordBatch | Gap"]:
        """What is there of a stretch, and what is not."""
        if stretch.host != host():
            raise BlockOnOtherHost(stretch.path, stretch.host, host())
        ring = ring_at(stretch.path)
        if ring is None or ring.block_id != stretch.block_id:
            yield Gap(stretch.first, stretch.last)
            return
        start = Position(stretch.block_id, stretch.epoch, stretch.first - 1)
        with open_reader(stretch.path, start=start, lossless=False, wait_for_writer=True) as reader:
            while reader.position.sequence < stretch.last:
                found = reader.read(_PATIENCE_SECONDS)
                if found is None:
                    raise DataLost(f"{stretch.path} does not give sequence {reader.position.sequence + 1}")
                if isinstance(found, Gap):
                    yield found
                elif found.sequence <= stretch.last:
                    yield rows_of(found.value)

    def _check_read_to_its_end(self, block_id: str, sequence: int) -> None:
        """A ring that is gone has lost nothing if its last item was read: the query was not there when it ended."""
        last = last_sequence(self._options.directory(), block_id)
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


def _stretch(reader: RingReader, epoch: int, first: int, last: int) -> Stretch:
    return Stretch(reader.header.channel, reader.path, host(), reader.header.block_id, epoch, first, last)


def _ring_offset(reader: RingReader) -> RingOffset:
    position = reader.position
    return {"channel": reader.header.channel, "epoch": position.epoch, "sequence": position.sequence}


def _is_finished(ring: Ring, reached: RingOffset | None) -> bool:
    """Read to its end, and nobody is writing it now."""
    if reached is None or not reached.get("complete"):
        return False
    state = ring.state()
    return not state["has_writer"] and state["head"] == reached["sequence"]
