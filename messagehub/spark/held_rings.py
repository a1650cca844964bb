"""A ring of this host that a streaming query holds from its last committed offset on; tasks read for themselves."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from messagehub.errors import DataLost
from messagehub.shm.errors import NothingThere
from messagehub.shm.identity import host
from messagehub.shm.layout import WhenFull
from messagehub.shm.rings.read_results import Gap, Item, Position, Start
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import open_reader
from messagehub.spark.backlog import behind
from messagehub.spark.rings import Ring, ring_at, rows_of

PATIENCE_SECONDS: Final = 30.0


class HeldRing:
    """A blocking producer waits for it, and the ring is not removed before it was read."""

    def __init__(self, reader: RingReader) -> None:
        self._reader = reader
        self._committed_ns: int | None = None
        header = reader.header
        self.block_id, self.channel, self.path, self.host = header.block_id, header.channel, reader.path, host()
        self.capacity = header.geometry.slot_count
        self.overwrites = header.when_full == WhenFull.OVERWRITE

    @property
    def position(self) -> Position:
        return self._reader.position

    @property
    def head(self) -> int:
        return self._reader.head

    def is_writer_alive(self) -> bool:
        return self._reader.is_writer_alive()

    def is_replaced(self) -> bool:
        """Whether it has to be held anew."""
        return self._reader.is_replaced()

    def release(self, sequence: int) -> None:
        """Let go of the items up to one."""
        while self.position.sequence < sequence and (found := self._reader.take()) is not None:
            if isinstance(found, Item):
                self._committed_ns = found.written_ns

    def behind(self) -> dict[str, float]:
        """Return what lies between the last item that was let go of and the head."""
        return behind(self._reader, self._committed_ns)

    def close(self) -> None:
        self._reader.close()


def hold(ring: Ring, start: Start) -> HeldRing | None:
    """Return None where the ring was removed or replaced meanwhile."""
    try:
        reader = open_reader(ring.path, start=start, wait_for_writer=True)
    except NothingThere:
        return None
    if reader.header.block_id == ring.block_id:
        return HeldRing(reader)
    reader.close()
    return None


def items(path: str, start: Position, last: int) -> Iterator[pa.RecordBatch | Gap]:
    """Give what is there of a ring after a position, up to an item, and what is not."""
    ring = ring_at(path)
    if ring is None or ring.block_id != start.block_id:
        yield Gap(start.sequence + 1, last)
        return
    with open_reader(path, start=start, lossless=False, wait_for_writer=True) as reader:
        while reader.position.sequence < last:
            found = reader.read(PATIENCE_SECONDS)
            if found is None:
                raise DataLost(f"{path} does not give sequence {reader.position.sequence + 1}")
            if isinstance(found, Gap):
                yield found
            elif found.sequence <= last:
                yield rows_of(found.value)
