"""The one process that stores into a ring.

Write: lock a slot exclusively → sequence = 0 → payload → length, checksum, hint → sequence = n → head = n →
unlock → wake who sleeps. Dying between any two of these leaves a slot that is either whole or empty.

Rule 1: sequences are not tied to slots: the oldest slot that nobody holds is next, so a reader that keeps a
view never stops an overwriting writer. If readers hold every slot, an overwriting writer skips the item: its number is
used up, so that readers count it as missed, and `skipped` counts it too.
Rule 2: a number is never used twice, over all epochs of a block.
Rule 3: with BLOCK and ERROR no slot is taken before every live lossless reader and every group is done with it.
Rule 4: a payload of several items gets all its slots before the first of them is changed: it is written, or not.
"""

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from messagehub.runtime.event_loop import LoopShare

from .errors import HandleClosed, PayloadLargerThanRing, PayloadLargerThanSlot, PayloadRefused, RingFull
from .holders import most_of, slots_for, told
from .identity import ProcessIdentity
from .layout import (
    CHECKSUM,
    EPOCH,
    FLAT,
    HEAD,
    HINT,
    LENGTH,
    SEQUENCE,
    SHAPE,
    SKIPPED,
    STATE,
    WRITER_PID,
    WRITER_START,
    WRITER_TICKET,
    Checksum,
    PayloadFormat,
    Shape,
    State,
    WhenFull,
    checksum,
)
from .loans import Loan, check_whole_items
from .locks import FIRST_SLOT, OFD_SETLK, exclusive, free, set_lock, unlock
from .mapped_file import Segment
from .payloads import Codec, Piece
from .reader_files import WRITER_FIFO, ReaderFiles
from .wake_up import WakeUp

_UNLIMITED: Final = (1 << 64) - 1
# How often a writer that waits for room looks whether the reader it waits for still lives.
_PROBE_SECONDS: Final = 0.05
# How soon a slot that a reader held is tried again while there are others: each attempt costs a system call.
_HELD_SECONDS: Final = 0.01
# How long an overwriting writer waits for readers that hold every slot, perhaps only while they copy; and for how long
# after that it does not wait again.
_GRACE_SECONDS: Final = 0.01
_NO_GRACE_SECONDS: Final = 1.0
# A writer that waits for so long says for whom, and how often one that skips items says so.
_TELL_SECONDS: Final = 1.0
# How soon a task that waits for room looks again; each time twice as long, up to _PROBE_SECONDS.
_FIRST_PAUSE_SECONDS: Final = 0.001
_TELL_AGAIN_SECONDS: Final = 10.0

log = logging.getLogger("messagehub")


class Written(NamedTuple):
    """The sequences one payload got; more than one if it was split."""

    first: int
    last: int


class RingWriter:
    """Made by `ring.open_writer`, which has taken the writer lock on `segment`. Safe to use from threads."""

    def __init__(self, segment: Segment, codec: Codec, readers_path: str) -> None:
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
        self._honours_readers = self.header.when_full != WhenFull.OVERWRITE
        self._mutex = threading.Lock()
        self._share = LoopShare()
        self._is_closing = False
        self._dropped: deque[int] = deque()
        self._board = ReaderFiles(readers_path)
        self._index = self._board.index
        self._wake_up = WakeUp(f"{readers_path}/{WRITER_FIFO}")
        self._wake_up.stop_listening()
        self._sequences = [self._words[line + SEQUENCE] for line in self._line]
        self._order = deque(sorted(slots, key=self._sequences.__getitem__))
        self._held: list[int] = []  # slots that a reader held when their turn came; tried again at `_look_at`
        self._look_at = self._no_grace_until = self._tell_at = 0.0
        self._times = geometry.times
        self._head = max(self._words[HEAD], *self._sequences)
        self._begin_epoch()
        self._floor = self._board.floor() if self._honours_readers else _UNLIMITED
        self._board.wake()

    @property
    def head(self) -> int:
        return self._head

    @property
    def schema(self) -> Any:
        """An Arrow schema, a NumPy dtype, or None for raw bytes."""
        return self._codec.schema

    @property
    def epoch(self) -> int:
        return self._words[EPOCH]

    @property
    def skipped(self) -> int:
        """How many items of this ring were not written because readers held every slot."""
        return self._words[SKIPPED]

    def write(self, payload: Any, timeout_seconds: float | None = None) -> Written:
        """Publish a payload: one item, or several where its codec splits rows. Nothing is published if it is refused.

        An overwriting writer never waits for readers: if they hold every slot, the item is skipped.
        """
        pieces = self._codec.pieces(payload, self._slot_bytes)
        if self._descriptor.fd < 0:  # before the mutex: in a forked child it may be held for ever
            raise HandleClosed("writer")
        if len(pieces) > 1:
            return self._write_several(pieces, timeout_seconds)
        piece, size, shape = pieces[0]
        with self._mutex:
            slot = self._claim(timeout_seconds)
            if slot is None:
                return self._skip(1)
            try:
                self._encode(piece, self._offset[slot], size)
            except BaseException:
                self._abandon(slot)
                raise
            sequence = self._publish(slot, size, shape)
        return Written(sequence, sequence)

    async def write_async(self, payload: Any, timeout_seconds: float | None = None) -> Written:
        """As `write`, sleeping in the running event loop while a blocking ring has no room. Nothing is written when the
        task is cancelled."""
        if self._share.is_due():
            await self._share
        if self.header.when_full != WhenFull.BLOCK:
            return self.write(payload, timeout_seconds)
        import asyncio  # which takes longer to load than all else that a writer needs

        pieces = self._codec.pieces(payload, self._slot_bytes)
        self._check_fits(len(pieces))
        started, pause, has_told = time.monotonic(), _FIRST_PAUSE_SECONDS, False
        while (written := self._write_at_once(pieces)) is None:
            waited = time.monotonic() - started
            if timeout_seconds is not None and waited >= timeout_seconds:
                raise self._full(waited, self._lent())
            if waited >= _TELL_SECONDS and not has_told:
                has_told = True
                self._tell_of_wait(waited, self._lent())
            await asyncio.sleep(pause if timeout_seconds is None else min(pause, timeout_seconds - waited))
            pause = min(2 * pause, _PROBE_SECONDS)
            self._share.restart()
        return written

    def _write_at_once(self, pieces: Sequence[Piece]) -> Written | None:
        """None where that is not possible now: there is no room, or another thread writes, or waits for room."""
        self._check_open()
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            self._look_for_room()
            slots = self._free_slots(len(pieces))
            return self._fill(slots, pieces) if slots else None
        finally:
            self._mutex.release()

    def _check_fits(self, count: int) -> None:
        most = most_of(self._slot_count)
        if count > max(most, 1):
            raise PayloadLargerThanRing(count, most, self._slot_bytes, slots_for(count))

    def _write_several(self, pieces: Sequence[Piece], timeout_seconds: float | None) -> Written:
        count = len(pieces)
        self._check_fits(count)
        with self._mutex:
            self._take_back()
            slots = self._free_slots(count) or self._wait_for_slots(count, timeout_seconds)
            return self._fill(slots, pieces) if slots else self._skip(count)

    def _fill(self, slots: Sequence[int], pieces: Sequence[Piece]) -> Written:
        """Publish one piece in each of the locked slots, or nothing."""
        for slot in slots:
            self._clear(slot)
        try:
            for slot, (piece, size, _) in zip(slots, pieces, strict=True):
                self._encode(piece, self._offset[slot], size)
        except BaseException:
            for slot in slots:
                self._abandon(slot)
            raise
        first = self._head + 1
        for slot, (_, size, shape) in zip(slots, pieces, strict=True):
            self._publish(slot, size, shape)
        return Written(first, self._head)

    def loan(self, size: int, timeout_seconds: float | None = None) -> Loan:
        """A slot to fill in place (raw and NumPy): `with writer.loan(n) as loan: loan.buffer[:] = …`."""
        if self._codec.payload_format not in (PayloadFormat.RAW, PayloadFormat.NUMPY):
            raise PayloadRefused("an Arrow block takes record batches: use write(batch) instead of a loan.")
        if size > self._slot_bytes:
            raise PayloadLargerThanSlot(size, self._slot_bytes)
        item_bytes = getattr(self._codec.schema, "itemsize", 1)
        check_whole_items(size, item_bytes)
        self._check_open()
        with self._mutex:
            slot = self._claim(timeout_seconds)
        # An exporter of its own: it lives as long as the last view of the loan's buffer.
        kind = ctypes.c_ubyte * size
        lent = kind() if slot is None else kind.from_buffer(self._segment.mapping, self._offset[slot])
        return Loan(
            slot,
            lent,
            channel=self.header.channel,
            item_bytes=item_bytes,
            finish=self._finish_loan,
            when_dropped=self._loan_dropped,
        )

    def close(self) -> None:
        """End the stream: who has read everything gets StreamEnded. The block stays for its linger time.

        A write that waits for room meanwhile raises HandleClosed.
        """
        if self._descriptor.fd < 0:
            return
        self._is_closing = True
        with self._mutex:
            if self._descriptor.fd < 0:
                return  # another thread was quicker
            self._words[STATE] = State.ENDED
            self._board.refresh()
            self._descriptor.close()
            self._board.wake()
            self._board.close()
            self._wake_up.close(remove=False)

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

    def _claim(self, timeout_seconds: float | None) -> int | None:
        """Lock a slot, empty it and return it; None when the ring overwrites and readers hold every slot."""
        self._take_back()
        slot = self._free_slot()
        if slot is None:
            found = self._wait_for_slots(1, timeout_seconds)
            if not found:
                return None
            slot = found[0]
        self._clear(slot)
        return slot

    def _clear(self, slot: int) -> None:
        self._words[self._line[slot] + SEQUENCE] = 0
        self._sequences[slot] = 0

    def _free_slots(self, count: int) -> list[int]:
        """Lock `count` slots and return them, with the items in them untouched; or lock none, and return none."""
        found: list[int] = []
        while len(found) < count:
            slot = self._free_slot()
            if slot is None:
                for taken in found:
                    unlock(self._descriptor.fd, self._unlock[taken])
                if found:
                    self._held += found
                    self._look_again()  # which sorts them among those that are held, by age
                    self._board.wake()  # who found one of them locked meanwhile sleeps
                return []
            found.append(slot)
        return found

    def _free_slot(self) -> int | None:
        fd = self._descriptor.fd
        if fd < 0:
            raise HandleClosed("writer")
        if self._held and time.monotonic() >= self._look_at:
            self._look_again()
        order = self._order
        while order:
            slot = order[0]
            if self._sequences[slot] > self._floor:
                self._floor = self._board.floor()
                if self._sequences[slot] > self._floor:
                    return None  # all that follow are newer still
            try:
                set_lock(fd, OFD_SETLK, self._lock[slot])
            except BlockingIOError:  # a reader holds it
                self._held.append(order.popleft())
                self._look_at = time.monotonic() + _HELD_SECONDS
                continue
            # Only now: a new reader announces its file, then looks which slots are locked. So either it is
            # seen here, or it sees that this slot is taken.
            if self._index[0] != self._board.token and self._is_needed(slot):
                unlock(fd, self._unlock[slot])
                self._board.wake()  # who found the slot locked meanwhile sleeps, with unread data in it
                return None
            order.popleft()
            return slot
        return None

    def _look_again(self) -> None:
        """Try the slots in `_held` again: put them into `_order`, by age, after the empty slots and before all others.

        Each of them was the oldest when its turn came, and what was written since is newer.
        """
        order, empty = self._order, []
        while order and self._sequences[order[0]] == 0:
            empty.append(order.popleft())
        order.extendleft(sorted(self._held, key=self._sequences.__getitem__, reverse=True))
        order.extendleft(empty)
        self._held = []

    def _is_needed(self, slot: int) -> bool:
        """Return whether a reader that has just appeared is not done with a slot."""
        self._board.refresh()
        if self._honours_readers:
            self._floor = self._board.floor()
        return self._sequences[slot] > self._floor

    def _wait_for_slots(self, count: int, timeout_seconds: float | None) -> list[int]:
        """Wait until `count` slots can be locked, and return them.

        Return none when the ring overwrites and readers hold too many: the caller skips its items. Raise RingFull when
        a blocking ring has no room in time.
        """
        if self.header.when_full == WhenFull.ERROR:
            timeout_seconds = 0.0
        started = time.monotonic()
        skips_at = started + (_GRACE_SECONDS if started >= self._no_grace_until else 0.0)
        has_told = False
        self._wake_up.listen()
        try:
            while True:
                if self._is_closing:
                    raise HandleClosed("producer")
                self._words[WRITER_TICKET] = self._wake_up.next_ticket()
                self._look_for_room()
                slots = self._free_slots(count)
                if slots:
                    return slots
                now = time.monotonic()
                waited = now - started
                lent = self._lent()
                may_skip = not self._honours_readers and count <= self._slot_count - lent
                if may_skip and (now >= skips_at or (timeout_seconds is not None and waited >= timeout_seconds)):
                    return []
                if timeout_seconds is not None and waited >= timeout_seconds:
                    raise self._full(waited, lent)
                if waited >= _TELL_SECONDS and not has_told:
                    has_told = True
                    self._tell_of_wait(waited, lent)
                left = _PROBE_SECONDS if timeout_seconds is None else timeout_seconds - waited
                self._wake_up.sleep(min(left, _PROBE_SECONDS, max(skips_at - now, 0.0) if may_skip else left))
        finally:
            self._words[WRITER_TICKET] = 0
            self._wake_up.stop_listening()

    def _look_for_room(self) -> None:
        """Look anew at which readers there are, how far they are, and which slots they hold."""
        self._board.refresh()
        self._board.drop_dead()
        if self._honours_readers:
            self._floor = self._board.floor()
        self._take_back()
        self._look_again()

    def _lent(self) -> int:
        return self._slot_count - len(self._order) - len(self._held)

    def _tell_of_wait(self, waited: float, lent: int) -> None:
        log.warning(
            "the producer of channel %r has waited %.0f s for room: %s",
            self.header.channel,
            waited,
            self._held_back_by(lent),
        )

    def _full(self, waited: float, lent: int) -> RingFull:
        held_back_by = self._held_back_by(lent)
        return RingFull(self.path, self._slot_count, waited, held_back_by, overwrites=not self._honours_readers)

    def _held_back_by(self, lent: int) -> str:
        if lent == self._slot_count or (lent and not self._honours_readers):
            return f"loans of this producer that were not committed hold {lent} of them"
        return told(self._board.holders(self._head), self.header.channel)

    def _skip(self, count: int) -> Written:
        """Count items as skipped. Their sequence numbers are used up, so that readers see a gap."""
        now = time.monotonic()
        self._no_grace_until = now + _NO_GRACE_SECONDS
        first, self._head = self._head + 1, self._head + count
        self._words[SKIPPED] += count
        self._words[HEAD] = self._head
        self._board.wake()
        if now >= self._tell_at:
            self._tell_at = now + _TELL_AGAIN_SECONDS
            log.warning(
                "channel %r: item %d was skipped, because readers hold %s %d slots (%s). The producer goes on; it has"
                " skipped %d items so far. Let the readers keep fewer values, or give the producer more capacity",
                self.header.channel,
                first,
                "all" if count == 1 else "too many of the",
                self._slot_count,
                told(self._board.holders(self._head), self.header.channel),
                self._words[SKIPPED],
            )
        return Written(first, self._head)

    def _publish(self, slot: int, size: int, shape: Shape = FLAT) -> int:
        words, line, sequence = self._words, self._line[slot], self._head + 1
        words[line + LENGTH] = size
        words[self._times + slot] = time.time_ns()
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
        self._board.wake()
        return sequence

    def _abandon(self, slot: int) -> None:
        """Give back a claimed slot; it is empty now and the first to be used again."""
        self._order.appendleft(slot)
        unlock(self._descriptor.fd, self._unlock[slot])
        self._board.wake()

    def _take_back(self) -> None:
        """The slots of dropped loans; the caller has the mutex."""
        while self._dropped:
            self._abandon(self._dropped.popleft())

    def _loan_dropped(self, slot: int | None) -> bool:
        """Whether a slot is given back. Runs in finalizers, so perhaps inside a write of this very thread: it never
        waits for the mutex. Whoever holds that takes the slot back with the next claim."""
        if self._descriptor.fd < 0 or slot is None:
            return False
        self._dropped.append(slot)
        if self._mutex.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._mutex.release()
        return True

    def _finish_loan(self, slot: int | None, size: int | None) -> int | None:
        self._check_open()
        with self._mutex:
            if size is None:
                if slot is not None:
                    self._abandon(slot)
                return None
            return self._skip(1).last if slot is None else self._publish(slot, size)
