"""The writer's side of a ring in Python: what `ring.h` and `_ring.c` do, for machines without a compiler."""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from messagehub.shm.layout import CHECKSUM, CLAIM, HEAD, HINT, LENGTH, SEQUENCE, SHAPE, Shape

from . import python_primitives as primitives
from .python_primitives import CURSOR, GROUP_LINE_WORDS, LOSSLESS, PINS_OFFSET, TICKET, Spin, fence, places_in

REFRESH: Final = 1
LOOK: Final = 2
FULL: Final = 3

_UNLIMITED: Final = (1 << 64) - 1
_LOOK_SECONDS: Final = 0.01


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
        self.is_taken = self.has_dropped = False  # `put` of the C core looks at them
        self.head = head
        self._data, self._words, self._line, self._offset = places_in(
            block, table=table, data_offset=data_offset, stride_bytes=stride_bytes, slot_count=slot_count
        )
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
        self._spin = Spin()
        self._fork_count = primitives.fork_count

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
        if self._fork_count != primitives.fork_count or not 1 <= count <= self._slot_count:
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
        if self._fork_count != primitives.fork_count:
            return 0
        is_bytes = type(payload) is bytes
        source = payload if is_bytes else memoryview(payload)
        size = len(payload) if is_bytes else source.nbytes
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
            self._data[offset : offset + size] = source if is_bytes else source.cast("B")
        return self.publish(slots[0], size, 0, shape)

    def accept(self, *_: Any) -> None:
        """Do nothing: see `put`."""

    def put(self, _payload: Any) -> int:
        """Return 0: nothing here is one step to other threads, so the mutex is needed."""
        return 0

    def abandon(self, slot: int) -> None:
        """Give a claimed slot back. It is empty, and the first to be taken again."""
        if self._fork_count == primitives.fork_count:
            self._order.appendleft(slot)
            self.wake()

    def skip(self, count: int) -> None:
        """Use up so many numbers without an item."""
        if self._fork_count == primitives.fork_count:
            self.head += count
            self._words[HEAD] = self.head
            self.wake()

    def wake(self) -> None:
        """Wake every reader that sleeps, once for each ticket."""
        if self._fork_count != primitives.fork_count:
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
