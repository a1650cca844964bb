"""A reader of a ring: maps it read-only, pins what it hands out.

Read: is the slot's sequence the one wanted? → pin the slot → look again → a view whose last reference releases the pin,
or a copy of what is small, and once this process keeps its share of the slots (see `holders`). `core` does that for
every item, `ring.h` says how. What is not there any more is reported as a `Gap`, never skipped in silence.

Rule 1: before sleeping: store a ticket (and a fence), probe the writer's lock, look again.
Rule 2: an item that its writer has claimed is not lost: the writer gives it back, and wakes its readers then, or
overwrites it. A writer that died has not touched it.
"""

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

from messagehub.runtime.event_loop import LoopShare

from . import core
from .errors import (
    ChecksumMismatch,
    HandleClosed,
    HeaderInconsistent,
    NothingThere,
    ReaderFilesGone,
    RootUnusable,
    StreamEnded,
    WriterGone,
)
from .groups import MemberShare, Membership
from .holders import held_count, most_of_all, share_of
from .layout import (
    CLAIM,
    EPOCH,
    FLAT,
    HEAD,
    HINT,
    LENGTH,
    SEQUENCE,
    STATE,
    WRITER_PID,
    WRITER_START,
    WRITER_TICKET,
    Checksum,
    State,
    WhenFull,
    checksum,
    successors,
)
from .locks import ATTACHED, OWNER, Descriptor, exclusive, is_locked, shared, try_lock
from .mapped_file import Segment
from .payloads import Codec
from .read_results import Gap, Item, Position, Producers, Start
from .reader_files import (
    WRITER_FIFO,
    NoReaderFile,
    ReaderFile,
    has_reader_index,
    held_slots,
    live_readers,
)
from .reader_start import live_items, start_after
from .wake_up import PROBE_SECONDS, ProcessWatch, WriterWakeUp, sleep_async

log = logging.getLogger("messagehub")

_WRITER = exclusive(OWNER)
_LATEST_ATTEMPTS = 64
# How long what other processes hold is believed; longer where looking takes longer than a fiftieth of it.
_ROOM_NS = 10_000_000
Copy = Literal["auto", "never"]
"""`auto`: copies once this process keeps its share of the slots. `never`: always the slot's own memory."""


class RingReader:
    """Made by `ring.open_reader`. One thread reads; views may be dropped in any."""

    def __init__(
        self,
        segment: Segment,
        codec: Codec,
        readers_path: str,
        *,
        start: Start = "latest",
        lossless: bool = True,
        group: str | None = None,
        assignment: MemberShare | None = None,
        wait_for_writer: bool = False,
        verify: bool = False,
        copy: Copy = "auto",
        spin_us: int = 0,
    ) -> None:
        """`lossless`: a blocking writer waits for this reader. `wait_for_writer`: sleep over its restarts.

        `spin_us`: how long to wait for an item without sleeping, where that pays.
        """
        self.header = segment.header()
        self.path = path = segment.path
        self._codec = codec
        self._words, self._data = segment.words, segment.data
        self._descriptor = segment.descriptor
        self._wait_for_writer = wait_for_writer
        self._verify = self.header.checksum == Checksum.VERIFY or (verify and self.header.checksum == Checksum.WRITE)
        geometry = self.header.geometry
        self._slot_bytes, self._slot_count = geometry.slot_bytes, geometry.slot_count
        self._line = [geometry.line(slot) for slot in range(geometry.slot_count)]
        self._times = geometry.times
        self._epoch, self._producers = 0, self._known_producers()
        self._spin_us = spin_us
        self._is_closed = False
        if not try_lock(self._descriptor.fd, shared(ATTACHED)) or not segment.is_published():
            raise NothingThere(path)  # a cleaner has it, and is about to unlink it, or has done so
        self._writer_wake_up = WriterWakeUp(segment.words, f"{readers_path}/{WRITER_FIFO}")
        self._watch: ProcessWatch | None = None
        self._watch_fired, self._told_epoch = False, 0
        self._share = LoopShare()
        self._member: Membership | None = None
        if (group is None) != (assignment is None):
            raise ValueError("a group and an assignment go together")
        self._may_be_lossless = group is None and self.header.when_full != WhenFull.OVERWRITE
        honoured = lossless and self._may_be_lossless
        self._file: ReaderFile | NoReaderFile
        try:
            with contextlib.ExitStack() as undo:  # a member without a file leaves its place
                if group is not None and assignment is not None:
                    new_after = start_after(segment, self.header, start)
                    self._member = Membership(readers_path, group, assignment, new_after)
                    undo.callback(self._member.close)
                self._file = ReaderFile(readers_path, geometry.slot_count, lossless=honoured)
                undo.pop_all()
        except (RootUnusable, NothingThere):
            self._file = self._without_files(segment, readers_path, is_needed=honoured or group is not None)
        self._held = held_count(self.header.block_id)
        self._core = core.Reader(
            block=segment.mapping,
            **geometry.places(),
            file=self._file.memory,
            process_held=self._held.memory,
            # Nobody sees the pins of a reader without a file: it copies everything.
            most_held=(geometry.slot_count if copy == "never" else share_of(geometry.slot_count))
            if self.is_known
            else -1,
            room_most=-1 if copy == "never" else most_of_all(geometry.slot_count),
            small_bytes=codec.copied_bytes if self.is_known else geometry.slot_bytes,
            look_for_room=_held_by_others(readers_path, geometry.slot_count),
            writer_waits=self._writer_wake_up.wake,
            last_released=_Release(self._descriptor, self._file),
        )
        self._is_plain = self._member is None and not self._verify
        self._is_raw = codec.copied_bytes > 0
        # Until here the cursor in the file was 0: a blocking writer overwrites nothing once it sees the file.
        self._core.advance(start_after(segment, self.header, start) if self._member is None else self._member.position)

    def _without_files(self, segment: Segment, readers_path: str, *, is_needed: bool) -> NoReaderFile:
        """What to read with where the readers' files cannot be used, unless the writer or a group relies on them."""
        if not segment.is_published() or has_reader_index(readers_path):
            raise NothingThere(self.path) from None  # replaced, cleaned or shared out anew at this moment
        if is_needed:
            raise ReaderFilesGone(readers_path) from None
        return NoReaderFile(self._slot_count)

    # --- reading

    def read(self, timeout_seconds: float | None = None) -> Item | Gap | None:
        """The next item or what was lost before it; None at the timeout (0: at once).

        Raises StreamEnded or WriterGone when nothing unread is left and nothing more will come.
        """
        found = self._take()
        if found is not None:
            return found
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if timeout_seconds != 0 and self.spin():
            found = self._take()
            if found is not None:
                return found
        while True:
            found = self._arm()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._core.set_ticket(0)
                return None
            self._watch_fired = self._file.wake_up.sleep(left, self._watch)
            found = self._take()
            if found is not None:
                return found

    async def read_async(self, timeout_seconds: float | None = None) -> Item | Gap | None:
        """As `read`, sleeping in the running event loop, which other tasks share however much there is to read."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if self._share.is_due():
            await self._share
        while True:
            found = self._take() or self._arm()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._core.set_ticket(0)
                return None
            self._watch_fired = await sleep_async(self._file.wake_up, left, self._watch)
            self._share.restart()

    def latest(self) -> Item | None:
        """The newest item, wherever this reader stands; None if there is none (yet)."""
        for attempt in range(_LATEST_ATTEMPTS):
            live = self._live(1, claimed=attempt < _LATEST_ATTEMPTS - 1)  # at last what the writer wants does not count
            if not live:
                return None
            sequence, slot = live[-1]
            item = self._pinned(sequence, slot) or self._left_by_the_dead(sequence, slot)
            if item is not None:
                return item
        return None

    def newest_ns(self) -> int:
        """When the item that `latest` would give was written; -1 if there is none."""
        live = self._live(1, claimed=True)
        if not live:
            return -1
        return self._words[self._times + live[-1][1]]

    def set_lossless(self, lossless: bool) -> None:
        """Whether a blocking writer waits for this reader from now on."""
        if self._may_be_lossless:
            self._file.set_lossless(lossless)
            if self._words[WRITER_TICKET]:
                self._writer_wake_up.wake()

    def acknowledge(self, sequence: int) -> None:
        """For members of a group: this share is done up to `sequence`. Unacknowledged items go to others."""
        if self._member is not None:
            self._member.acknowledge(sequence)
            core.fence()
            if self._words[WRITER_TICKET]:
                self._writer_wake_up.wake()

    def __iter__(self) -> Iterator[Item | Gap]:
        while True:
            try:
                found = self.read()
            except StreamEnded:
                return
            if found is not None:
                yield found

    async def __aiter__(self) -> AsyncIterator[Item | Gap]:
        while True:
            try:
                found = await self.read_async()
            except StreamEnded:
                return
            if found is not None:
                yield found

    def take_value(self) -> Any:
        """The next item's value, if that is all there is to it: no gap, group or checksum. None: call `take`.

        `origin` tells where the value comes from.
        """
        if self._is_plain:
            buffer = self._core.take()
            if buffer is not None:
                return buffer if self._is_raw and type(buffer) is bytes else self._decode(buffer)
        return None

    def _decode(self, buffer: Any) -> Any:
        return self._codec.decode(buffer, self._core.shape or FLAT)

    def is_quiet(self) -> bool:
        """Return whether everything was read of a ring whose producer has not ended it."""
        return self._is_plain and self._words[HEAD] <= self._core.cursor and self._words[STATE] == State.OPEN

    @property
    def origin(self) -> tuple[int, int, Producers]:
        """Number, time and producers of the item that was handed out last."""
        if self._words[EPOCH] != self._epoch:
            self._epoch, self._producers = self._words[EPOCH], self._known_producers()
        return self._core.sequence, self._core.written_ns, self._producers

    # --- reading several at once (see `waiting.Sleeper`)

    def take(self) -> Item | Gap | None:
        """The next item or gap if it can be had without waiting."""
        return self._take()

    def arm(self) -> Item | Gap | None:
        """Ask to be woken, then look once more. None: sleep on `wake_fds`, and `disarm` or `take` afterwards."""
        return self._arm()

    def disarm(self) -> None:
        self._core.set_ticket(0)

    def spin(self) -> bool:
        """Wait a moment without sleeping, where that paid lately, and return whether there is something to take."""
        return self._spin_us > 0 and self._core.spin(self._spin_us)

    def wake_fds(self) -> list[int]:
        """Return the descriptor that wakes this reader, and that of the writer's process while it can be watched."""
        watched = -1 if self._watch is None else self._watch.fileno()
        return [fd for fd in (self._file.wake_up.fileno(), watched) if fd >= 0]

    def woken(self, fd: int) -> None:
        """One of `wake_fds` was ready."""
        if fd == self._file.wake_up.fileno():
            self._file.wake_up.was_woken = True  # else it would stay readable, and no sleep would last
        else:
            self._watch_fired = True

    def look_seconds(self) -> float | None:
        """How long at most to sleep on `wake_fds`: its writer does not know of this reader, or cannot be watched."""
        is_unwatched = self._watch is not None and self._watch.fileno() < 0
        return self._file.wake_up.look_seconds or (PROBE_SECONDS if is_unwatched else None)

    # --- what it knows

    @property
    def position(self) -> Position:
        """Resume with `start=position` to go on after the last item read."""
        return Position(self.header.block_id, self._words[EPOCH], self._core.cursor)

    @property
    def head(self) -> int:
        return self._words[HEAD]

    @property
    def schema(self) -> Any:
        """An Arrow schema, a NumPy dtype, or None for raw bytes."""
        return self._codec.schema

    @property
    def lag(self) -> int:
        """How many items were written after the one read last; of a group's member, how many of its share."""
        head = max(self._words[HEAD], self._core.cursor)
        if self._member is None:
            return head - self._core.cursor
        count, index = self._member.assignment.count, self._member.assignment.index
        return (head - index) // count - (self._core.cursor - index) // count

    @property
    def is_known(self) -> bool:
        """Whether the writer can know of this reader. If not, the reader looks for new items now and then."""
        return isinstance(self._file, ReaderFile)

    def is_writer_alive(self) -> bool:
        self._check_open()
        return is_locked(self._descriptor.fd, _WRITER)

    def is_spent(self) -> bool:
        """Nobody writes it and nothing in it is unread."""
        return not self.is_writer_alive() and not self.has_unread()

    def has_unread(self) -> bool:
        want = self._core.cursor + 1 if self._member is None else self._member.next_after(self._core.cursor)
        return self._words[HEAD] >= want

    def is_replaced(self) -> bool:
        """Whether a ring of another shape has taken its name."""
        return os.fstat(self._descriptor.fd).st_nlink == 0

    def close(self) -> None:
        """Views that were handed out stay valid and keep their slots."""
        if self._is_closed or self._descriptor.fd < 0:
            return
        self._is_closed = True
        self._file.stop()
        if self._member is not None:
            self._member.close()
        if self._watch is not None:
            self._watch.close()
        self._core.close()

    def __enter__(self) -> "RingReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _take(self) -> Item | Gap | None:
        """The next item or gap if it can be had at once."""
        member = self._member
        if member is None:
            if not self._verify:
                buffer = self._core.take()
                if buffer is not None:
                    return self._item(buffer)
            want = self._core.cursor + 1
        else:
            member.check()
            want = member.next_after(self._core.cursor)
        words = self._words
        if words[HEAD] < want:
            return None
        self._check_open()
        slot = words[self._line[want % self._slot_count] + HINT]
        if slot < self._slot_count and words[self._line[slot]] == want:
            item = self._pinned(want, slot)
            if item is not None:
                return self._advance(item)
        return self._search(want)

    def _search(self, want: int) -> Item | Gap | None:
        """The hint failed: the item is elsewhere, claimed by the writer, or lost."""
        head = self._words[HEAD]
        if head >= CLAIM:
            raise HeaderInconsistent(self.path, f"it claims {head} items")
        core.fence()  # the slots are looked at after the head: what was published until then is in them, or lost
        live = [pair for pair in self._live(want, claimed=True) if pair[0] <= head]
        if not live:
            return self._lost(want, head)
        sequence, slot = live[0]
        if sequence > want:
            return self._lost(want, sequence - 1)
        item = self._pinned(sequence, slot) or self._left_by_the_dead(sequence, slot)
        return None if item is None else self._advance(item)

    def _left_by_the_dead(self, sequence: int, slot: int) -> Item | None:
        """An item that a writer claimed before it died. It is pinned first: a writer that comes now sees the pin."""
        buffer = self._core.pin(sequence | CLAIM, slot, True)
        if buffer is None or self.is_writer_alive() or self._words[self._line[slot] + SEQUENCE] != sequence | CLAIM:
            return None
        return self._verified(buffer, sequence)

    def _pinned(self, sequence: int, slot: int) -> Item | None:
        words, line = self._words, self._line[slot]
        buffer = self._core.pin(sequence, slot, self._verify)
        if buffer is None:
            self._check_open()
            length = words[line + LENGTH]
            if length > self._slot_bytes and words[line + SEQUENCE] == sequence:
                raise HeaderInconsistent(self.path, f"slot {slot} claims {length} bytes of {self._slot_bytes}")
            return None
        return self._verified(buffer, sequence)

    def _verified(self, buffer: Any, sequence: int) -> Item:
        if self._verify and self._core.checksum != checksum(buffer, sequence, self._core.shape or FLAT):
            raise ChecksumMismatch(self.path, f"sequence {sequence}")
        return self._item(buffer, sequence)

    def _item(self, buffer: Any, sequence: int | None = None) -> Item:
        """Return what the core has just handed out."""
        epoch, found = self._words[EPOCH], self._core
        if epoch != self._epoch:
            self._epoch, self._producers = epoch, self._known_producers()
        return Item(
            sequence or found.sequence,
            epoch,
            buffer,
            self._codec,
            found.shape or FLAT,
            found.written_ns,
            self._producers,
        )

    def _known_producers(self) -> Producers:
        return ((0, self.header.producer_id), *successors(self._words, self._data))

    def _advance(self, item: Item) -> Item:
        self._core.advance(item.sequence)
        return item

    def _lost(self, first: int, last: int) -> Gap:
        self._core.advance(last)
        return Gap(first, last)

    def _live(self, lowest: int, *, claimed: bool = False) -> list[tuple[int, int]]:
        return live_items(self._words, self._line[0], self._slot_count, lowest, claimed=claimed)

    def _arm(self) -> Item | Gap | None:
        """Say that this reader sleeps, then look once more; raises if nothing can come any more."""
        self._check_open()
        self._core.set_ticket(self._file.wake_up.next_ticket())
        is_alive = is_locked(self._descriptor.fd, _WRITER)
        has_ended = self._words[STATE] == State.ENDED
        found = self._take()
        if found is not None:
            self._core.set_ticket(0)
            return found
        if has_ended:
            raise StreamEnded(self.path)
        if not is_alive and not self._wait_for_writer and not self.is_writer_alive():
            raise WriterGone(self.path)  # if another has come meanwhile, it wakes this reader
        self._watch_writer(is_alive)
        if not is_alive and self._told_epoch != self._words[EPOCH]:
            self._told_epoch = self._words[EPOCH]
            log.warning(
                "channel %r: its producer, pid %d, has ended without closing its stream; what it had written is read,"
                " and its reader waits for the next producer",
                self.header.channel,
                self._words[WRITER_PID],
            )
        return None

    def _watch_writer(self, is_alive: bool) -> None:
        pid, start_time = self._words[WRITER_PID], self._words[WRITER_START]
        watch = self._watch
        if not is_alive:
            self._watch = None  # a new writer wakes all readers
        elif watch is None or (watch.pid, watch.start_time) != (pid, start_time):
            self._watch = ProcessWatch(pid, start_time)
        elif self._watch_fired:
            watch.close()  # the process is gone, its lock is not (yet): probe it from now on
        self._watch_fired = False

    def _check_open(self) -> None:
        if self._is_closed or self._descriptor.fd < 0:
            raise HandleClosed("reader")


class _Release:
    """Lets go of a ring when the reader is closed and its last view is gone. It refers to no reader, so that dropping a
    reader frees it at once."""

    def __init__(self, descriptor: Descriptor, file: ReaderFile | NoReaderFile) -> None:
        self._descriptor = descriptor
        self._file = file

    def __call__(self) -> None:
        self._file.remove()
        self._descriptor.close()


def _held_by_others(readers_path: str, slot_count: int) -> Callable[[], tuple[int, int]]:
    """Return a function that tells how many slots other processes hold, and for how many nanoseconds to believe it."""

    def look() -> tuple[int, int]:
        started, me = time.monotonic_ns(), os.getpid()
        others = [reader for reader in live_readers(readers_path, slot_count, 0) if reader.holder.pid != me]
        return held_slots(others, slot_count), max(_ROOM_NS, 50 * (time.monotonic_ns() - started))

    return look
