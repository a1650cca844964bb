"""A reader's side of a ring in Python: what `ring.h` and `_ring.c` do, for machines without a compiler."""

import threading
import time
from collections.abc import Callable
from typing import Any

from messagehub.shm.layout import (
    CHECKSUM,
    CLAIM,
    EPOCH,
    HEAD,
    HINT,
    LENGTH,
    SEQUENCE,
    SHAPE,
    WRITER_TICKET,
    Shape,
)

from . import python_primitives as primitives
from .python_primitives import CURSOR, HELD, PINS_OFFSET, TICKET, Spin, fence, places_in


class _Pin:
    """Holds one slot, and the mapping its view points into, for as long as anything refers to it."""

    __slots__ = ("_mapping", "_reader", "_slot")

    def __init__(self, reader: "Reader", slot: int, mapping: object) -> None:
        self._reader = reader
        self._slot = slot
        self._mapping = mapping

    def __del__(self) -> None:
        self._reader._view_gone(self._slot)


class Reader:
    """A reader's side of a ring. One thread reads; views may be dropped in any."""

    def __init__(
        self,
        *,
        block: Any,
        table: int,
        times: int,
        data_offset: int,
        stride_bytes: int,
        slot_bytes: int,
        slot_count: int,
        file: Any,
        process_held: Any,
        most_held: int,
        room_most: int,
        small_bytes: int,
        look_for_room: Callable[[], tuple[int, int]],
        writer_waits: Callable[[], None],
        last_released: Callable[[], None],
    ) -> None:
        import pyarrow as pa

        self.sequence = self.written_ns = self.checksum = self.cursor = 0
        self.shape: Shape | None = None
        self.value_sequence = 0
        self._last_read: Any = None
        self._epoch, self._producers = 0, ()
        self._decode: Callable[[Any, Any], Any] | None = None
        self._ticket = 0
        self._mapping = block
        self._data, self._words, self._line, self._offset = places_in(
            block, table=table, data_offset=data_offset, stride_bytes=stride_bytes, slot_count=slot_count
        )
        self._foreign_buffer = pa.foreign_buffer
        self._address = pa.py_buffer(block).address
        self._times = times
        self._slot_bytes = slot_bytes
        self._slot_count = slot_count
        memory = memoryview(file).cast("B")
        self._file = memory[:PINS_OFFSET].cast("Q")
        self._pins = memory[PINS_OFFSET:]
        self._process_held = memoryview(process_held).cast("B").cast("q")
        self._most_held = most_held
        self._room_most = room_most
        self._room_own = self._room_others = 0
        self._room_until = 0.0
        self._small_bytes = small_bytes
        self._look_for_room = look_for_room
        self._writer_waits = writer_waits
        self._last_released = last_released
        self._counts = [0] * slot_count
        self._views = 0
        self._mutex = threading.Lock()
        self._returned: list[int] = []
        self._is_closing = False
        self._spin = Spin()
        self._fork_count = primitives.fork_count
        fence()  # the file was announced; what the caller sees in the block from now on, the writer keeps for it

    def take(self) -> Any:
        """The next item's payload if it is where it should be, else None: search for it."""
        wanted, words = self.cursor + 1, self._words
        if wanted >= CLAIM or words[HEAD] < wanted or self._is_closing or self._fork_count != primitives.fork_count:
            return None
        slot = words[self._line[wanted % self._slot_count] + HINT]
        if slot >= self._slot_count or words[self._line[slot] + SEQUENCE] != wanted:
            return None
        found = self._hand_out(slot, wanted, self._small_bytes)
        if found is not None:
            self.advance(wanted)
        return found

    def follow(self, last_read: Any, epoch: int, producers: Any, decode: Callable[[Any, Any], Any] | None) -> None:
        """Have `take_value` note the origins of values in `last_read`, in this epoch."""
        self._last_read, self._epoch, self._producers, self._decode = last_read, epoch, producers, decode
        self.value_sequence = 0

    def take_value(self) -> Any:
        """As `take`, decoded, its origin noted. None too in another epoch: `follow` it."""
        if self._last_read is None or self._words[EPOCH] != self._epoch:
            return None
        found = self.take()
        if found is None:
            return None
        self.value_sequence = self.sequence
        self._last_read.origin = self.sequence, self.written_ns, self._producers
        if self._decode is not None:
            return self._decode(found, self.shape)
        return found if type(found) is bytes and len(found) <= self._small_bytes else memoryview(found)

    def pin(self, sequence: int, slot: int, is_pinned: bool = False) -> Any:
        """Return the item's payload, or None if it is not there any more. `is_pinned`: as a view, however small."""
        if self._is_closing or self._fork_count != primitives.fork_count:
            return None
        return self._hand_out(slot, sequence, 0 if is_pinned else self._small_bytes)

    def advance(self, sequence: int) -> None:
        """Note that everything up to it is read or lost."""
        if self._fork_count == primitives.fork_count:
            self.cursor = self._file[CURSOR] = sequence
            fence()
            if self._words[WRITER_TICKET]:
                self._writer_waits()

    def set_ticket(self, ticket: int) -> None:
        """Say that this reader sleeps; 0: that it does not."""
        if self._fork_count == primitives.fork_count:
            self._file[TICKET] = ticket
            fence()

    def next_ticket(self) -> None:
        """Say that this reader sleeps."""
        self._ticket += 1
        self.set_ticket(self._ticket)

    def spin(self, microseconds: int) -> bool:
        """Return whether an item came meanwhile."""
        words, cursor = self._words, self.cursor
        return self._spin.until(microseconds, lambda: words[HEAD] > cursor)

    def wait(self, spin_us: int, _seconds: float | None, *_fds: int) -> bool:
        """Return whether an item came without sleeping. Whoever gets False sleeps by itself."""
        return self.spin(spin_us)

    def close(self) -> None:
        """Hand out nothing any more, and call `last_released` once the last view is gone."""
        with self._mutex:
            is_first = not self._is_closing
            self._is_closing = True
            is_last = is_first and self._views == 0
        if is_last:
            self._last_released()
        self._settle()

    def _hand_out(self, slot: int, wanted: int, small_bytes: int) -> Any:
        words, line, offset = self._words, self._line[slot], self._offset[slot]
        length = words[line + LENGTH]
        if length <= small_bytes and length <= self._slot_bytes:
            content = bytes(self._data[offset : offset + length])
            self._note_origin(slot, wanted)
            return content if self._is_unchanged(slot, wanted) else None
        if not self._pin(slot, wanted):
            return None
        length = words[line + LENGTH]
        if length > self._slot_bytes:
            self._unpin(slot)
            return None
        self._note_origin(slot, wanted)
        try:
            has_room = self._has_room()
        except BaseException:
            self._unpin(slot)
            raise
        if not has_room:
            content = bytes(self._data[offset : offset + length])
            is_whole = self._is_unchanged(slot, wanted)
            self._unpin(slot)
            return content if is_whole else None
        if self._is_closing:
            self._unpin(slot)
            return None
        return self._foreign_buffer(self._address + offset, length, base=_Pin(self, slot, self._mapping))

    def _is_unchanged(self, slot: int, wanted: int) -> bool:
        return not (self._words[self._line[slot] + SEQUENCE] ^ wanted) & ~CLAIM

    def _note_origin(self, slot: int, sequence: int) -> None:
        words, line = self._words, self._line[slot]
        self.sequence = sequence
        self.checksum = words[line + CHECKSUM]
        self.written_ns = words[self._times + slot]
        if words[line + SHAPE]:
            kind, first, second, third = words[line + SHAPE : line + SHAPE + 4].tolist()
            self.shape = kind, first, second, third
        else:
            self.shape = None

    def _has_room(self) -> bool:
        own = self._process_held[0]
        if own > self._most_held:
            return False
        if self._room_most < 0:
            return True
        now = time.monotonic()
        if own > self._room_own or now >= self._room_until:
            self._room_others, nanoseconds = self._look_for_room()
            self._room_own, self._room_until = own, now + nanoseconds / 1e9
        return self._room_others + own <= self._room_most

    def _pin(self, slot: int, wanted: int) -> bool:
        with self._mutex:
            self._views += 1
            self._counts[slot] += 1
            if self._counts[slot] == 1:
                self._file[HELD] += 1
                self._process_held[0] += 1
                self._pins[slot] = 1
        # Letting go of the mutex was the fence.
        if self._returned:
            self._settle()
        if self._words[self._line[slot] + SEQUENCE] == wanted:
            return True
        self._unpin(slot)
        return False

    def _drop(self, slot: int) -> bool:
        """With the mutex. To let go of it is the fence before the caller looks whether the writer waits."""
        self._views -= 1
        self._counts[slot] -= 1
        if self._counts[slot]:
            return False
        self._file[HELD] -= 1
        self._process_held[0] -= 1
        self._pins[slot] = 0
        return True

    def _view_gone(self, slot: int) -> None:
        """Runs in finalizers, perhaps inside a locked part of this very thread: it never waits for the mutex."""
        if self._fork_count == primitives.fork_count:
            self._unpin(slot)

    def _unpin(self, slot: int) -> None:
        self._returned.append(slot)
        self._settle()

    def _settle(self) -> None:
        """Whoever holds the mutex looks at the queue after letting go, so nothing in it is forgotten."""
        is_freed = is_last = False
        while self._returned and self._mutex.acquire(False):
            try:
                while self._returned:
                    is_freed |= self._drop(self._returned.pop())
                is_last = self._is_closing and self._views == 0
            finally:
                self._mutex.release()
        if is_freed and self._words[WRITER_TICKET]:
            self._writer_waits()
        if is_last:
            self._last_released()
