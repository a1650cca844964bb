"""The one process that stores into a ring.

Write: lock a slot exclusively → sequence = 0 → payload → length, checksum, hint → sequence = n → head = n →
unlock → wake who sleeps. Dying between any two of these leaves a slot that is either whole or empty.

Rule 1: sequences are not tied to slots: the oldest slot that nobody holds is next, so a reader that keeps a
view never stops an overwriting writer.
Rule 2: a number is never used twice, over all epochs of a block.
Rule 3: with BLOCK and ERROR no slot is taken before every live lossless lane and every group is done with it.
"""

import ctypes
import struct
import threading
import time
import weakref
import zlib
from collections import deque
from types import TracebackType
from typing import Any, Final, NamedTuple

from .errors import HandleClosed, PayloadLargerThanRing, PayloadLargerThanSlot, PayloadRefused, RingFull
from .identity import ProcessIdentity
from .lanes import WRITER_BELL, LaneBoard
from .layout import (
    CHECKSUM,
    EPOCH,
    FLAT,
    HEAD,
    HINT,
    LENGTH,
    SEQUENCE,
    SHAPE,
    STATE,
    WRITER_PID,
    WRITER_START,
    WRITER_TICKET,
    Checksum,
    PayloadFormat,
    Shape,
    State,
    WhenFull,
)
from .locks import FIRST_SLOT, OFD_SETLK, exclusive, free, set_lock, unlock
from .payloads import Codec
from .segment import Segment
from .wakeup import Bell

_UNLIMITED: Final = (1 << 64) - 1
# How often a writer that waits for room looks whether the reader it waits for still lives.
_PROBE_SECONDS: Final = 0.05


class Written(NamedTuple):
    """The sequences one payload got; more than one if it was split."""

    first: int
    last: int


class RingWriter:
    """Made by `ring.open_writer`, which has taken the writer lock on `segment`. Safe to use from threads."""

    def __init__(self, segment: Segment, codec: Codec, lanes: str) -> None:
        self.header = segment.header()
        self.path = segment.path
        self._segment = segment
        self._descriptor = segment.descriptor
        self._words = segment.words
        self._codec = codec
        self._encode = codec.encoder(segment)
        geometry = self.header.geometry
        slots = range(geometry.slot_count)
        self._slot_bytes = geometry.slot_bytes
        self._slot_count = geometry.slot_count
        self._line = [geometry.line(slot) for slot in slots]
        self._offset = [geometry.slot_offset(slot) for slot in slots]
        self._lock = [exclusive(FIRST_SLOT + slot) for slot in slots]
        self._unlock = [free(FIRST_SLOT + slot) for slot in slots]
        self._has_checksum = self.header.checksum != Checksum.NONE
        self._has_shapes = self.header.payload_format == PayloadFormat.NUMPY
        self._honours_lanes = self.header.when_full != WhenFull.OVERWRITE
        self._mutex = threading.Lock()
        self._dropped: deque[int] = deque()
        self._board = LaneBoard(lanes)
        self._index = self._board.index
        self._bell = Bell(f"{lanes}/{WRITER_BELL}")
        self._sequences = [self._words[line + SEQUENCE] for line in self._line]
        self._order = deque(sorted(slots, key=self._sequences.__getitem__))
        self._head = max(self._words[HEAD], *self._sequences)
        self._begin_epoch()
        self._floor = self._board.floor() if self._honours_lanes else _UNLIMITED
        self._board.ring()

    @property
    def head(self) -> int:
        return self._head

    @property
    def epoch(self) -> int:
        return self._words[EPOCH]

    def write(self, payload: Any, timeout_seconds: float | None = None) -> Written:
        """Publish a payload: one item, or several where its codec splits rows.

        Nothing is published if it is refused. If the ring stays full in the middle of a split payload,
        RingFull says how many pieces are out.
        """
        pieces = self._codec.pieces(payload, self._slot_bytes)
        if len(pieces) > self._slot_count:
            raise PayloadLargerThanRing(len(pieces), self._slot_count, self._slot_bytes)
        if self._descriptor.fd < 0:  # before the mutex: in a forked child it may be held for ever
            raise HandleClosed("writer")
        with self._mutex:
            first = sequence = self._head + 1
            for piece, size, shape in pieces:
                slot = self._claim(timeout_seconds, self._head + 1 - first)
                try:
                    self._encode(piece, self._offset[slot], size)
                except BaseException:
                    self._abandon(slot)
                    raise
                sequence = self._publish(slot, size, shape)
        return Written(first, sequence)

    def loan(self, size: int, timeout_seconds: float | None = None) -> "Loan":
        """A slot to fill in place (raw and NumPy): `with writer.loan(n) as loan: loan.buffer[:] = …`."""
        if self._codec.payload_format not in (PayloadFormat.RAW, PayloadFormat.NUMPY):
            raise PayloadRefused("an Arrow block takes record batches: use write(batch) instead of a loan.")
        if size > self._slot_bytes:
            raise PayloadLargerThanSlot(size, self._slot_bytes)
        self._check_open()
        with self._mutex:
            slot = self._claim(timeout_seconds, 0)
        # An exporter of its own: it lives as long as the last view of the loan's buffer.
        lent = (ctypes.c_ubyte * size).from_buffer(self._segment.mapping, self._offset[slot])
        return Loan(self, slot, lent)

    def close(self) -> None:
        """End the stream: who has read everything gets StreamEnded. The block stays for its linger time."""
        if self._descriptor.fd < 0:
            return
        with self._mutex:
            self._words[STATE] = State.ENDED
            self._board.refresh()
            self._descriptor.close()
            self._board.ring()
            self._board.close()
            self._bell.close(remove=False)

    def __enter__(self) -> "RingWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin_epoch(self) -> None:
        words, me = self._words, ProcessIdentity.current()
        words[WRITER_TICKET] = 0
        words[WRITER_PID] = me.pid
        words[WRITER_START] = me.start_time
        words[EPOCH] += 1
        words[HEAD] = self._head
        words[STATE] = State.OPEN

    def _check_open(self) -> None:
        if self._descriptor.fd < 0:
            raise HandleClosed("writer")

    def _claim(self, timeout_seconds: float | None, published: int) -> int:
        self._take_back()
        slot = self._free_slot()
        if slot is None:
            slot = self._wait_for_slot(timeout_seconds, published)
        self._words[self._line[slot] + SEQUENCE] = 0
        self._sequences[slot] = 0
        return slot

    def _free_slot(self) -> int | None:
        fd = self._descriptor.fd
        if fd < 0:
            raise HandleClosed("writer")
        order = self._order
        for place, slot in enumerate(order):
            if self._sequences[slot] > self._floor:
                self._floor = self._board.floor()
                if self._sequences[slot] > self._floor:
                    return None  # all that follow are newer still
            try:
                set_lock(fd, OFD_SETLK, self._lock[slot])
            except BlockingIOError:
                continue  # a reader holds it
            # Only now: a new reader announces its lane, then looks which slots are locked. So either it is
            # seen here, or it sees that this slot is taken.
            if self._index[0] != self._board.token and self._is_needed(slot):
                unlock(fd, self._unlock[slot])
                self._board.ring()  # who found the slot locked meanwhile sleeps, with unread data in it
                return None
            del order[place]
            return slot
        return None

    def _is_needed(self, slot: int) -> bool:
        """Whether a lane that has just appeared is not done with a slot."""
        self._board.refresh()
        if self._honours_lanes:
            self._floor = self._board.floor()
        return self._sequences[slot] > self._floor

    def _wait_for_slot(self, timeout_seconds: float | None, published: int) -> int:
        if self.header.when_full == WhenFull.ERROR:
            timeout_seconds = 0.0
        started = time.monotonic()
        try:
            while True:
                self._words[WRITER_TICKET] = self._bell.next_ticket()
                self._board.refresh()
                self._board.drop_dead()
                if self._honours_lanes:
                    self._floor = self._board.floor()
                self._take_back()
                slot = self._free_slot()
                if slot is not None:
                    return slot
                waited = time.monotonic() - started
                if timeout_seconds is not None and waited >= timeout_seconds:
                    raise RingFull(self.path, self._slot_count, waited, published)
                left = _PROBE_SECONDS if timeout_seconds is None else timeout_seconds - waited
                self._bell.sleep(min(left, _PROBE_SECONDS))
        finally:
            self._words[WRITER_TICKET] = 0

    def _publish(self, slot: int, size: int, shape: Shape = FLAT) -> int:
        words, line, sequence = self._words, self._line[slot], self._head + 1
        words[line + LENGTH] = size
        if self._has_shapes:
            words[line + SHAPE], words[line + SHAPE + 1], words[line + SHAPE + 2], words[line + SHAPE + 3] = shape
        if self._has_checksum:
            start = self._offset[slot]
            words[line + CHECKSUM] = checksum(self._segment.data[start : start + size], sequence, shape)
        words[self._line[sequence % self._slot_count] + HINT] = slot
        words[line + SEQUENCE] = sequence
        words[HEAD] = sequence
        self._head = sequence
        self._sequences[slot] = sequence
        self._order.append(slot)
        # The unlock is also the barrier between storing the head and reading the readers' tickets.
        set_lock(self._descriptor.fd, OFD_SETLK, self._unlock[slot])
        self._board.ring()
        return sequence

    def _abandon(self, slot: int) -> None:
        """Give back a claimed slot; it is empty now and the first to be used again."""
        self._order.appendleft(slot)
        unlock(self._descriptor.fd, self._unlock[slot])
        self._board.ring()

    def _take_back(self) -> None:
        """The slots of dropped loans; the caller has the mutex."""
        while self._dropped:
            self._abandon(self._dropped.popleft())

    def _loan_dropped(self, slot: int) -> None:
        """Runs in finalizers, so perhaps inside a write of this very thread: it never waits for the mutex. Whoever
        holds that takes the slot back with the next claim."""
        if self._descriptor.fd < 0:
            return
        self._dropped.append(slot)
        if self._mutex.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._mutex.release()

    def _finish_loan(self, slot: int, size: int | None) -> int | None:
        self._check_open()
        with self._mutex:
            if size is None:
                self._abandon(slot)
                return None
            return self._publish(slot, size)


class Loan:
    """A claimed slot. Keep no array over `buffer` after the end: it would change what readers see.

    One that is neither committed nor aborted gives its slot back when it and the last view of its buffer are gone.
    """

    def __init__(self, writer: RingWriter, slot: int, lent: "ctypes.Array[ctypes.c_ubyte]") -> None:
        self.buffer = memoryview(lent).cast("B")
        self.sequence: int | None = None
        self._writer = writer
        self._slot = slot
        self._when_dropped = weakref.finalize(lent, writer._loan_dropped, slot)
        self._when_dropped.atexit = False

    def commit(self, size: int | None = None) -> int | None:
        """Publish the first `size` bytes (all by default) and return the sequence."""
        size = self.buffer.nbytes if size is None else size
        if not 0 <= size <= self.buffer.nbytes:
            raise PayloadLargerThanSlot(size, self.buffer.nbytes)
        return self._end(size)

    def abort(self) -> None:
        self._end(None)

    def _end(self, size: int | None) -> int | None:
        if self._when_dropped.detach() is not None:
            self.sequence = self._writer._finish_loan(self._slot, size)
        return self.sequence

    def __enter__(self) -> "Loan":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


def checksum(payload: Any, sequence: int, shape: Shape = FLAT) -> int:
    """Covers the sequence, so that a whole payload under a wrong number is noticed, and the shape if there is one."""
    found = zlib.crc32(payload, sequence & 0xFFFFFFFF)
    return found if shape == FLAT else zlib.crc32(struct.pack("=4Q", *shape), found)
