"""The one process that stores into a ring.

Write: claim the oldest slot that no reader needs or pins → payload → publish it as item n → wake who sleeps. `core`
does that for every item, `ring.h` says how; dying between any two stores leaves a slot that is either whole or empty.
What is here is rare: waiting for room, payloads of several items, loans. `writer_reports` tells people
who is in the way.

Rule 1: sequences are not tied to slots: the oldest slot that nobody holds is next, so a reader that keeps a
view never stops an overwriting writer. If readers hold every slot, an overwriting writer skips the item: its number is
used up, so that readers count it as missed, and `skipped` counts it too.
Rule 2: a number is never used twice, over all epochs of a block.
Rule 3: with BLOCK and ERROR no slot is taken before every live lossless reader and every group is done with it.
Rule 4: a payload of several items gets all its slots before the first of them is changed: it is written, or not.
"""

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from messagehub.runtime.event_loop import LoopShare
from messagehub.shm import core
from messagehub.shm.errors import (
    DataBlockError,
    HandleClosed,
    PayloadLargerThanRing,
    PayloadLargerThanSlot,
    PayloadRefused,
)
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import (
    CLAIM,
    EPOCH,
    FLAT,
    HEAD,
    SEQUENCE,
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
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads import Codec
from messagehub.shm.payloads.codec import Piece
from messagehub.shm.rings.holders import most_of, slots_for
from messagehub.shm.rings.loans import Loan, check_whole_items
from messagehub.shm.rings.reader_files import WRITER_FIFO, ReaderFiles
from messagehub.shm.rings.wake_up import WakeUp
from messagehub.shm.rings.writer_reports import WriterReports

# How often a writer that waits for room looks whether the reader it waits for still lives.
_PROBE_SECONDS: Final = 0.05
# How long an overwriting writer waits for readers that hold every slot, perhaps only while they copy; and for how long
# after that it does not wait again.
_GRACE_SECONDS: Final = 0.01
_NO_GRACE_SECONDS: Final = 1.0
# A writer that waits for so long says for whom.
_TELL_SECONDS: Final = 1.0
# How soon a task that waits for room looks again; each time twice as long, up to _PROBE_SECONDS.
_FIRST_PAUSE_SECONDS: Final = 0.001


class Written(NamedTuple):
    """The sequences one payload got; more than one if it was split."""

    first: int
    last: int


class RingWriter:
    """Made by `ring.open_writer`, which has taken the writer lock on `segment`. Safe to use from threads."""

    def __init__(self, segment: Segment, codec: Codec, readers_path: str, *, spin_us: int = 0) -> None:
        """`spin_us`: how long to wait for room without sleeping, where that pays."""
        self.header = segment.header()
        self.path = segment.path
        self._segment = segment
        self._descriptor = segment.descriptor
        self._words = segment.words
        self._codec = codec
        self._encode = codec.encoder(segment)
        self._spin_us = spin_us
        self._plain_spin_us = spin_us if self.header.when_full == WhenFull.BLOCK else 0
        geometry = self.header.geometry
        slots = range(geometry.slot_count)
        self._slot_bytes = geometry.slot_bytes
        self._slot_count = geometry.slot_count
        self._offset = [geometry.slot_offset(slot) for slot in slots]
        self._has_checksum = self.header.checksum != Checksum.NONE
        self._has_shapes = self.header.payload_format == PayloadFormat.NUMPY
        self._honours_readers = self.header.when_full != WhenFull.OVERWRITE
        self._mutex = threading.Lock()
        self._share = LoopShare()
        self._is_closing = False
        self._dropped: deque[int] = deque()
        self._no_grace_until = 0.0
        self._readers = ReaderFiles(readers_path, geometry.slot_count)
        self._wake_up = WakeUp(f"{readers_path}/{WRITER_FIFO}")
        self._wake_up.stop_listening()
        sequences = self._recovered([geometry.line(slot) + SEQUENCE for slot in slots])
        self._begin_epoch(max(self._words[HEAD], *sequences))
        # No reader has seen these tickets from a writer before: it would not wake this one.
        self._wake_up.ticket = (self._words[EPOCH] & 0xFFFFFFFF) << 32
        self._core = core.Writer(
            block=segment.mapping,
            **geometry.places(),
            honours_readers=self._honours_readers,
            head=self._words[HEAD],
            order=sorted(slots, key=sequences.__getitem__),
            index=self._readers.index,
            wake_unopened=self._readers.wake_unopened,
        )
        self._reports = WriterReports(self.header, self.path, self._readers, self._core)
        if codec.plain_type is not None and not self._has_checksum:
            self._core.accept(codec.plain_type, codec.schema, _with(self._mutex, self._readers.wake_unopened))
        self.put: Callable[[Any], int] = self._core.put
        """Publish a payload that needs no more than copying if that takes a moment; 0: call `write`."""
        self._readers.tell(self._core)
        self._core.wake()

    def _recovered(self, lines: Sequence[int]) -> list[int]:
        """Return the slots' sequences. A writer before this one may have died after it claimed a slot, without having
        touched it."""
        for line in lines:
            if self._words[line] & CLAIM:
                self._words[line] &= ~CLAIM
        return [self._words[line] for line in lines]

    @property
    def head(self) -> int:
        return self._core.head

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
        sequence = self.put(payload) or self.write_plain(payload, may_wait=timeout_seconds != 0)
        return Written(sequence, sequence) if sequence else self.write_pieces(payload, timeout_seconds)

    def write_pieces(self, payload: Any, timeout_seconds: float | None) -> Written:
        """As `write`, for what `write_plain` does not do."""
        pieces = self._codec.pieces(payload, self._slot_bytes)
        self._check_open()  # before the mutex: in a forked child it may be held for ever
        if len(pieces) > 1:
            self._check_fits(len(pieces))
        with self._mutex:
            self._take_back()
            slots = self._claim(len(pieces)) or self._wait_for_slots(len(pieces), timeout_seconds)
            return self._fill(slots, pieces) if slots else self._skip(len(pieces))

    def write_plain(self, payload: Any, *, may_wait: bool) -> int:
        """Publish a payload that needs no more than copying, if there is room at once; 0: call `write_pieces`.

        With `may_wait`, a blocking writer waits a moment for it, where that paid lately.
        """
        plain = self._codec.plain(payload)
        if plain is None or self._has_checksum or self._dropped or self._descriptor.fd < 0:
            return 0
        with self._mutex:
            return (
                0 if self._is_closing else self._core.write(plain[0], plain[1], self._plain_spin_us if may_wait else 0)
            )

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
                raise self._reports.full(waited)
            if waited >= _TELL_SECONDS and not has_told:
                has_told = True
                self._reports.tell_of_wait(waited)
            await asyncio.sleep(pause if timeout_seconds is None else min(pause, timeout_seconds - waited))
            pause = min(2 * pause, _PROBE_SECONDS)
            self._share.restart()
        return written

    def _write_at_once(self, pieces: Sequence[Piece]) -> Written | None:
        """Write, or return None if that is not possible now: no room, or another thread writes or waits for room."""
        self._check_open()
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            self._look_for_room()
            slots = self._claim(len(pieces))
            return self._fill(slots, pieces) if slots else None
        finally:
            self._mutex.release()

    def _check_fits(self, count: int) -> None:
        most = most_of(self._slot_count)
        if count > max(most, 1):
            raise PayloadLargerThanRing(count, most, self._slot_bytes, slots_for(count))

    def _fill(self, slots: Sequence[int], pieces: Sequence[Piece]) -> Written:
        """Publish one piece in each of the claimed slots, or nothing."""
        try:
            for slot, (piece, size, _) in zip(slots, pieces, strict=True):
                self._encode(piece, self._offset[slot], size)
        except BaseException:
            for slot in slots:
                self._core.abandon(slot)
            raise
        self._core.is_taken = len(slots) > 1  # their numbers follow each other
        try:
            numbers = [self._publish(slot, size, shape) for slot, (_, size, shape) in zip(slots, pieces, strict=True)]
        finally:
            self._core.is_taken = False
        return Written(numbers[0], numbers[-1])

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
            self._take_back()
            slots = self._claim(1) or self._wait_for_slots(1, timeout_seconds)
            self._core.wake()  # a loan may last: who has seen the claim only, and sleeps, has lost the item now
        slot = slots[0] if slots else None
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
        """End the stream: a reader that has read everything gets StreamEnded. The block stays for its linger time.

        A write that waits for room meanwhile raises HandleClosed.
        """
        if self._descriptor.fd < 0:
            return
        self._is_closing = True
        with self._mutex:
            if self._descriptor.fd < 0:
                return  # another thread was quicker
            self._core.is_taken = True
            self._words[STATE] = State.ENDED
            with contextlib.suppress(OSError, DataBlockError):  # who cannot be listed is not woken, and looks by itself
                self._readers.refresh()
            self._descriptor.close()
            self._core.wake()
            self._readers.close()
            self._wake_up.close(remove=False)

    def __enter__(self) -> "RingWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin_epoch(self, head: int) -> None:
        words, me = self._words, ProcessIdentity.current()
        words[WRITER_TICKET] = 0
        words[WRITER_PID] = me.pid
        words[WRITER_START] = me.start_time
        words[EPOCH] += 1
        words[HEAD] = head
        words[STATE] = State.OPEN

    def _check_open(self) -> None:
        if self._descriptor.fd < 0:
            raise HandleClosed("writer")

    def _claim(self, count: int, spin_us: int = 0) -> tuple[int, ...]:
        """Take and empty so many slots, or none."""
        self._check_open()
        while True:
            found = self._core.spin_claim(count, spin_us) if spin_us else self._core.claim(count)
            if found == core.REFRESH:
                self._readers.refresh()
            elif found == core.LOOK:
                self._readers.drop_dead()
            else:
                return () if isinstance(found, int) else found

    def _wait_for_slots(self, count: int, timeout_seconds: float | None) -> tuple[int, ...]:
        """Wait until `count` slots can be taken, and return them.

        Return none when the ring overwrites and readers hold too many: the caller skips its items. Raise RingFull when
        a blocking ring has no room in time.
        """
        if self.header.when_full == WhenFull.ERROR:
            timeout_seconds = 0.0
        elif self._spin_us and timeout_seconds != 0 and (slots := self._claim(count, self._spin_us)):
            return slots
        started = time.monotonic()
        skips_at = started + (_GRACE_SECONDS if started >= self._no_grace_until else 0.0)
        has_told = False
        self._wake_up.listen()
        try:
            self._core.is_taken = True  # who came first gets the room
            while True:
                if self._is_closing:
                    raise HandleClosed("producer")
                self._words[WRITER_TICKET] = self._wake_up.next_ticket()
                self._core.wake()  # a fence too: who frees a slot from now on sees the ticket
                self._look_for_room()
                slots = self._claim(count)
                if slots:
                    return slots
                now = time.monotonic()
                waited = now - started
                may_skip = not self._honours_readers and count <= self._slot_count - self._core.lent
                if may_skip and (now >= skips_at or (timeout_seconds is not None and waited >= timeout_seconds)):
                    return ()
                if timeout_seconds is not None and waited >= timeout_seconds:
                    raise self._reports.full(waited)
                if waited >= _TELL_SECONDS and not has_told:
                    has_told = True
                    self._reports.tell_of_wait(waited)
                left = _PROBE_SECONDS if timeout_seconds is None else timeout_seconds - waited
                self._wake_up.sleep(min(left, _PROBE_SECONDS, max(skips_at - now, 0.0) if may_skip else left))
        finally:
            self._core.is_taken = False
            self._words[WRITER_TICKET] = 0
            self._wake_up.stop_listening()

    def _look_for_room(self) -> None:
        """Look anew at which readers there are and how far they are."""
        self._readers.refresh()
        self._readers.drop_dead()
        self._core.find_floor()
        self._take_back()

    def _skip(self, count: int) -> Written:
        """Count items as skipped. Their sequence numbers are used up, so that readers see a gap."""
        self._no_grace_until = time.monotonic() + _NO_GRACE_SECONDS
        first = self._core.head + 1
        self._words[SKIPPED] += count
        self._core.skip(count)
        self._reports.tell_of_skip(first, count, self._words[SKIPPED])
        return Written(first, self._core.head)

    def _publish(self, slot: int, size: int, shape: Shape = FLAT) -> int:
        crc = 0
        if self._has_checksum:
            start = self._offset[slot]
            crc = checksum(self._segment.data[start : start + size], self._core.head + 1, shape)
        return self._core.publish(slot, size, crc, shape if self._has_shapes else None)

    def _take_back(self) -> None:
        """The slots of dropped loans; the caller has the mutex."""
        self._core.has_dropped = False  # before looking: a finalizer may drop one meanwhile
        while self._dropped:
            self._core.abandon(self._dropped.popleft())

    def _loan_dropped(self, slot: int | None) -> bool:
        """Whether a slot is given back. Runs in finalizers, so perhaps inside a write of this very thread: it never
        waits for the mutex. Whoever holds that takes the slot back with the next claim."""
        if self._descriptor.fd < 0 or slot is None:
            return False
        self._dropped.append(slot)
        self._core.has_dropped = True
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
                    self._core.abandon(slot)
                return None
            return self._skip(1).last if slot is None else self._publish(slot, size)


def _with(mutex: threading.Lock, act: Callable[[], None]) -> Callable[[], None]:
    """Return a function that acts with the mutex. It refers to no writer, so that dropping one frees it at once."""

    def acts() -> None:
        with mutex:
            act()

    return acts
