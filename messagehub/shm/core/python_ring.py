"""The ring's protocol in Python: what `ring.h` and `_ring.c` do, for machines without a compiler.

Rule 1: a word is stored with one aligned 8-byte store (`memoryview.cast("Q")`), never with `struct`.
Rule 2: stores become visible in program order, which x86-64 promises. Where the protocol needs a fence, a lock is taken
and released, which is one there (an atomic instruction). `core.check_usable` refuses other machines.
"""

import os
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from messagehub.shm.layout import CHECKSUM, CLAIM, HEAD, HINT, LENGTH, LINE_WORDS, SEQUENCE, SHAPE, WRITER_TICKET, Shape

REFRESH: Final = 1
LOOK: Final = 2
FULL: Final = 3

CURSOR: Final = 0
TICKET: Final = 1
LOSSLESS: Final = 2
HELD: Final = 3
PINS_OFFSET: Final = 64
GROUP_LINE_WORDS: Final = 8

_UNLIMITED: Final = (1 << 64) - 1
_LOOK_SECONDS: Final = 0.01

_generation = 0


def fence() -> None:
    """Take a lock, with an atomic instruction. A new one each time: a finalizer may run in the middle of another."""
    allocate_lock().acquire(blocking=False)


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


class _Spin:
    """Whether a short wait without sleeping is worth it: only where it paid lately."""

    def __init__(self) -> None:
        self._credit = self._waits = 0

    def until(self, spin_us: int, is_there: Callable[[], bool]) -> bool:
        self._waits += 1
        if spin_us <= 0 or (self._credit <= 0 and self._waits % 32):
            return False
        end = time.monotonic() + spin_us / 1e6
        came = is_there()
        while not came and time.monotonic() < end:
            came = is_there()
        self._credit = min(8, self._credit + 2) if came else max(0, self._credit - 1)
        return came


class _Peer:
    __slots__ = ("fifo", "pins", "woken_ticket", "words")

    def __init__(self, memory: memoryview, fifo: int, woken_ticket: int) -> None:
        data = memoryview(memory).cast("B")
        self.words = data[:PINS_OFFSET].cast("Q")
        self.pins = data[PINS_OFFSET:]
        self.fifo = fifo
        self.woken_ticket = woken_ticket


class Writer:
    """The writer's side of a ring. Use it under a mutex."""

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
        honours_readers: bool,
        head: int,
        order: Sequence[int],
        index: Any,
        wake_unopened: Callable[[], None],
    ) -> None:
        self.head = head
        self._data = memoryview(block).cast("B")
        self._words = self._data[: len(self._data) // 8 * 8].cast("Q")
        self._line = [table + slot * LINE_WORDS for slot in range(slot_count)]
        self._offset = [data_offset + slot * stride_bytes for slot in range(slot_count)]
        self._times = times
        self._slot_bytes = slot_bytes
        self._slot_count = slot_count
        self._honours_readers = honours_readers
        self._index = memoryview(index).cast("B")[:8].cast("Q")
        self._wake_unopened = wake_unopened
        self._sequences = [self._words[line + SEQUENCE] for line in self._line]
        self._order = deque(order)
        self._floor = _UNLIMITED
        self._token = 0
        self._peers: list[_Peer] = []
        self._groups: list[tuple[memoryview, int]] = []
        self._look_at = 0.0
        self._spin = _Spin()
        self._generation = _generation

    @property
    def lent(self) -> int:
        """How many slots were claimed and neither published nor abandoned."""
        return self._slot_count - len(self._order)

    def set_peers(self, token: int, peers: Sequence[tuple[Any, int, int]], groups: Sequence[tuple[Any, int]]) -> None:
        """Note who reads from now on: (file, FIFO or -1, woken ticket) of readers, (file, members) of groups."""
        new_peers = [_Peer(*peer) for peer in peers]
        new_groups = [(memoryview(memory).cast("B").cast("Q"), members) for memory, members in groups]
        if any(len(peer.pins) < self._slot_count for peer in new_peers) or any(
            len(words) < (1 + members) * GROUP_LINE_WORDS for words, members in new_groups
        ):
            raise ValueError("a reader's file: too few bytes")
        self._peers, self._groups = new_peers, new_groups
        self._token = token
        self.find_floor()

    def set_fifo(self, peer: int, fifo: int, woken_ticket: int) -> None:
        if peer < len(self._peers):
            self._peers[peer].fifo = fifo
            self._peers[peer].woken_ticket = woken_ticket

    def find_floor(self) -> None:
        """Look anew how far the readers are."""
        if self._honours_readers:
            self._floor = self._find_floor()

    def claim(self, count: int) -> tuple[int, ...] | int:  # noqa: PLR0912  as in ring.h, to be compared with it
        """Take slots, empty them and return them; or change nothing and return why: REFRESH, LOOK or FULL."""
        if self._generation != _generation or not 1 <= count <= self._slot_count:
            raise ValueError("not that many slots, or not in this process")
        if self._index[0] != self._token:
            return REFRESH
        words, result = self._words, FULL
        found: list[int] = []
        was_restored = has_passed_over = False
        for slot in self._order:
            if len(found) == count:
                break
            line, old = self._line[slot] + SEQUENCE, self._sequences[slot]
            if self._honours_readers and old > self._floor:
                self._floor = self._find_floor()
                if old > self._floor:
                    break  # all that follow are newer still
            if self._is_pinned(slot):
                now = time.monotonic()
                if not has_passed_over and now >= self._look_at:
                    self._look_at = now + _LOOK_SECONDS
                    result = LOOK
                    break
                has_passed_over = True
                continue
            words[line] = old | CLAIM
            fence()
            if self._index[0] != self._token:
                words[line] = old
                was_restored, result = True, REFRESH
                break
            if self._is_pinned(slot):
                words[line] = old
                was_restored = has_passed_over = True
                continue
            found.append(slot)
        is_enough = len(found) == count
        if not is_enough:
            for slot in found:
                words[self._line[slot] + SEQUENCE] = self._sequences[slot]
                was_restored = True
        if was_restored:  # whoever saw a claim sleeps perhaps, with unread data in the slot
            self.wake()
        if not is_enough:
            return result
        for slot in found:
            self._order.remove(slot)  # it is at the beginning, or nearly so
            self._sequences[slot] = 0
            words[self._line[slot] + SEQUENCE] = 0
        return tuple(found)

    def spin_claim(self, count: int, spin_us: int) -> tuple[int, ...] | int:
        """As `claim`, trying for so many microseconds."""
        result: tuple[int, ...] | int = FULL

        def is_settled() -> bool:
            nonlocal result
            result = self.claim(count)
            return result != FULL

        self._spin.until(spin_us, is_settled)
        return result

    def publish(self, slot: int, length: int, checksum: int, shape: Shape | None) -> int:
        """Make a slot, whose payload is complete, the next item, and return its number."""
        words, line, sequence = self._words, self._line[slot], self.head + 1
        words[line + CHECKSUM] = checksum
        if shape is not None:
            words[line + SHAPE], words[line + SHAPE + 1], words[line + SHAPE + 2], words[line + SHAPE + 3] = shape
        words[line + LENGTH] = length
        words[self._times + slot] = time.time_ns()
        words[self._line[sequence % self._slot_count] + HINT] = slot
        words[line + SEQUENCE] = sequence
        words[HEAD] = sequence
        self.head = sequence
        self._sequences[slot] = sequence
        self._order.append(slot)
        self.wake()
        return sequence

    def write(self, payload: Any, shape: Shape | None, spin_us: int) -> int:
        """Return the item's number, or 0 if no slot can be had in that time or the payload is too large."""
        if self._generation != _generation:
            return 0
        source = memoryview(payload)
        size = source.nbytes
        if size > self._slot_bytes:
            return 0
        slots = self.claim(1)
        if slots == FULL and spin_us:
            slots = self.spin_claim(1, spin_us)
        if isinstance(slots, int):
            if slots == LOOK:
                self._look_at = 0.0  # nobody looks now: the claim that follows says it again
            return 0
        offset = self._offset[slots[0]]
        if size:
            self._data[offset : offset + size] = source.cast("B")
        return self.publish(slots[0], size, 0, shape)

    def abandon(self, slot: int) -> None:
        """Give a claimed slot back. It is empty, and the first to be taken again."""
        if self._generation == _generation:
            self._order.appendleft(slot)
            self.wake()

    def skip(self, count: int) -> None:
        """Use up so many numbers without an item."""
        if self._generation == _generation:
            self.head += count
            self._words[HEAD] = self.head
            self.wake()

    def wake(self) -> None:
        """Wake every reader that sleeps, once for each ticket."""
        if self._generation != _generation:
            return  # the numbers of the FIFOs are those of other files by now
        fence()
        has_unopened = False
        for peer in self._peers:
            ticket = peer.words[TICKET]
            if ticket and ticket != peer.woken_ticket:
                if peer.fifo < 0:
                    has_unopened = True
                    continue
                peer.woken_ticket = ticket
                try:
                    os.write(peer.fifo, b"!")
                except OSError:
                    continue  # full of wake-ups that were not read yet, or no owner
        if has_unopened:
            self._wake_unopened()

    def _is_pinned(self, slot: int) -> bool:
        for peer in self._peers:  # noqa: SIM110  a generator takes twice as long
            if peer.pins[slot]:
                return True
        return False

    def _find_floor(self) -> int:
        lowest = _UNLIMITED
        for peer in self._peers:
            if peer.words[LOSSLESS]:
                lowest = min(lowest, peer.words[CURSOR])
        for words, members in self._groups:
            for member in range(1, members + 1):
                lowest = min(lowest, words[member * GROUP_LINE_WORDS])
        return lowest


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
        self._mapping = block
        self._data = memoryview(block).cast("B")
        self._words = self._data[: len(self._data) // 8 * 8].cast("Q")
        self._foreign_buffer = pa.foreign_buffer
        self._address = pa.py_buffer(block).address
        self._line = [table + slot * LINE_WORDS for slot in range(slot_count)]
        self._offset = [data_offset + slot * stride_bytes for slot in range(slot_count)]
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
        self._spin = _Spin()
        self._generation = _generation
        fence()  # the file was announced; what the caller sees in the block from now on, the writer keeps for it

    def take(self) -> Any:
        """The next item's payload if it is where it should be, else None: search for it."""
        wanted, words = self.cursor + 1, self._words
        if wanted >= CLAIM or words[HEAD] < wanted or self._is_closing or self._generation != _generation:
            return None
        slot = words[self._line[wanted % self._slot_count] + HINT]
        if slot >= self._slot_count or words[self._line[slot] + SEQUENCE] != wanted:
            return None
        found = self._hand_out(slot, wanted, self._small_bytes)
        if found is not None:
            self.advance(wanted)
        return found

    def pin(self, sequence: int, slot: int, is_pinned: bool = False) -> Any:
        """Return the item's payload, or None if it is not there any more. `is_pinned`: as a view, however small."""
        if self._is_closing or self._generation != _generation:
            return None
        return self._hand_out(slot, sequence, 0 if is_pinned else self._small_bytes)

    def advance(self, sequence: int) -> None:
        """Note that everything up to it is read or lost."""
        if self._generation == _generation:
            self.cursor = self._file[CURSOR] = sequence
            fence()
            if self._words[WRITER_TICKET]:
                self._writer_waits()

    def set_ticket(self, ticket: int) -> None:
        """Say that this reader sleeps; 0: that it does not."""
        if self._generation == _generation:
            self._file[TICKET] = ticket
            fence()

    def spin(self, microseconds: int) -> bool:
        """Return whether an item came meanwhile."""
        words, cursor = self._words, self.cursor
        return self._spin.until(microseconds, lambda: words[HEAD] > cursor)

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
        # Another thread may have closed the reader meanwhile: then nobody sees the pin, as without a file.
        if not has_room:
            content = bytes(self._data[offset : offset + length])
            is_whole = self._is_unchanged(slot, wanted)
            self._unpin(slot)
            return content if is_whole else None
        with self._mutex:
            is_closing = self._is_closing
            self._views += not is_closing
        if is_closing:
            self._unpin(slot)
            return None
        if self._returned:
            self._settle()
        return self._foreign_buffer(self._address + offset, length, base=_Pin(self, slot, self._mapping))

    def _is_unchanged(self, slot: int, wanted: int) -> bool:
        return not (self._words[self._line[slot] + SEQUENCE] ^ wanted) & ~CLAIM

    def _note_origin(self, slot: int, sequence: int) -> None:
        words, line = self._words, self._line[slot]
        self.sequence = sequence
        self.checksum = words[line + CHECKSUM]
        self.written_ns = words[self._times + slot]
        kind, first, second, third = words[line + SHAPE : line + SHAPE + 4].tolist()
        self.shape = (kind, first, second, third) if kind else None

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
            self._counts[slot] += 1
            if self._counts[slot] == 1:
                self._file[HELD] += 1
                self._process_held[0] += 1
                self._pins[slot] = 1
                fence()
        if self._returned:
            self._settle()
        if self._words[self._line[slot] + SEQUENCE] == wanted:
            return True
        self._unpin(slot)
        return False

    def _unpin(self, slot: int) -> None:
        with self._mutex:
            is_free = self._drop(slot)
        if self._returned:
            self._settle()
        if is_free and self._words[WRITER_TICKET]:
            self._writer_waits()

    def _drop(self, slot: int) -> bool:
        self._counts[slot] -= 1
        if self._counts[slot]:
            return False
        self._file[HELD] -= 1
        self._process_held[0] -= 1
        self._pins[slot] = 0
        fence()
        return True

    def _view_gone(self, slot: int) -> None:
        """Runs in finalizers, perhaps inside a locked part of this very thread: it never waits for the mutex."""
        if self._generation == _generation:
            self._returned.append(slot)
            self._settle()

    def _settle(self) -> None:
        """Whoever holds the mutex looks at the queue after letting go, so nothing in it is forgotten."""
        is_freed = is_last = False
        while self._returned and self._mutex.acquire(blocking=False):
            try:
                while self._returned:
                    is_freed |= self._drop(self._returned.pop())
                    self._views -= 1
                    is_last = self._is_closing and self._views == 0
            finally:
                self._mutex.release()
        if is_freed and self._words[WRITER_TICKET]:
            self._writer_waits()
        if is_last:
            self._last_released()
