"""A reader of a ring: maps it read-only, pins what it hands out.

Read: is the slot's sequence the one wanted (no system call)? → shared lock → look again → a view whose last
reference unlocks, or a copy once this process keeps its share of the slots (see `holders`). What is not there any
more is reported as a `Gap`, never skipped in silence.

Rule 1: before sleeping: store a ticket, probe the writer's lock (which is the barrier too), look again.
Rule 2: a slot that is published but still locked is not lost: its writer will unlock it, and ring then.
"""

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from messagehub.runtime.event_loop import LoopShare

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
from .holders import RoomForMore, held_slots, share_of
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
    checksum,
    successors,
    times_of,
)
from .locks import ATTACHED, FIRST_SLOT, OWNER, Descriptor, Pins, exclusive, is_locked, share_locked, shared, try_lock
from .mapped_file import Segment
from .payloads import Codec
from .read_results import Gap, Item, Position, Producers, Start
from .reader_files import CURSOR, HELD, TICKET, WRITER_FIFO, NoReaderFile, ReaderFile, has_reader_index
from .reader_start import live_items, start_after
from .wake_up import PROBE_SECONDS, ProcessWatch, Waker, WriterWakeUp, sleep_async

log = logging.getLogger("messagehub")

_WRITER = exclusive(OWNER)
_LATEST_ATTEMPTS = 64
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
    ) -> None:
        """`lossless`: a blocking writer waits for this reader. `wait_for_writer`: sleep over its restarts."""
        import pyarrow as pa

        self.header = segment.header()
        self.path = path = segment.path
        self._codec = codec
        self._words, self._data = segment.words, segment.data
        self._descriptor = segment.descriptor
        self._wait_for_writer = wait_for_writer
        self._verify = self.header.checksum == Checksum.VERIFY or (verify and self.header.checksum == Checksum.WRITE)
        self._has_shapes = self.header.payload_format == PayloadFormat.NUMPY
        geometry = self.header.geometry
        self._slot_bytes, self._slot_count = geometry.slot_bytes, geometry.slot_count
        self._first_line = geometry.line(0)
        self._line = [geometry.line(slot) for slot in range(geometry.slot_count)]
        self._offset = [geometry.slot_offset(slot) for slot in range(geometry.slot_count)]
        self._times = times_of(self.header, self._words, path)
        self._epoch, self._producers = 0, self._known_producers()
        self._address = pa.py_buffer(segment.mapping).address
        self._foreign_buffer, self._own_buffer = pa.foreign_buffer, pa.py_buffer
        if not try_lock(self._descriptor.fd, shared(ATTACHED)) or not segment.is_published():
            raise NothingThere(path)  # a cleaner has it, and is about to unlink it, or has done so
        self._pins = Pins(self._descriptor, segment.mapping, geometry.slot_count, held_slots(self.header.block_id))
        self._most_held = geometry.slot_count if copy == "never" else share_of(geometry.slot_count)
        self._room = None if copy == "never" else _room_for_more(self._descriptor, geometry.slot_count)
        self._writer_wake_up = WriterWakeUp(segment.words, Waker(f"{readers_path}/{WRITER_FIFO}"))
        self._pins.on_free = self._writer_wake_up.wake
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
                self._file = ReaderFile(readers_path, lossless=honoured)
                undo.pop_all()
        except (RootUnusable, NothingThere):
            self._file = self._without_files(segment, readers_path, is_needed=honoured or group is not None)
        self._file_words = self._file.words
        self._pins.held_word = self._file_words[HELD : HELD + 1]
        # Until here the cursor in the file was 0: a blocking writer overwrites nothing once it sees the file.
        self._cursor = start_after(segment, self.header, start) if self._member is None else self._member.position
        self._file_words[CURSOR] = self._cursor

    def _without_files(self, segment: Segment, readers_path: str, *, is_needed: bool) -> NoReaderFile:
        """What to read with where the readers' files cannot be used, unless the writer or a group relies on them."""
        if not segment.is_published() or has_reader_index(readers_path):
            raise NothingThere(self.path) from None  # replaced, cleaned or shared out anew at this moment
        if is_needed:
            raise ReaderFilesGone(readers_path) from None
        return NoReaderFile()

    # --- reading

    def read(self, timeout_seconds: float | None = None) -> Item | Gap | None:
        """The next item or what was lost before it; None at the timeout (0: at once).

        Raises StreamEnded or WriterGone when nothing unread is left and nothing more will come.
        """
        found = self._take()
        if found is not None:
            return found
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            found = self._arm()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._file_words[TICKET] = 0
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
                self._file_words[TICKET] = 0
                return None
            self._watch_fired = await sleep_async(self._file.wake_up, left, self._watch)
            self._share.restart()

    def latest(self) -> Item | None:
        """The newest item, wherever this reader stands; None if there is none (yet)."""
        for _ in range(_LATEST_ATTEMPTS):
            live = self._live(1)
            if not live:
                return None
            sequence, slot = live[-1]
            item = self._pinned(sequence, slot)
            if item is not None:
                return item
        return None

    def newest_ns(self) -> int:
        """When the item that `latest` would give was written; -1 if there is none."""
        live = self._live(1)
        if not live:
            return -1
        return self._words[self._times + live[-1][1]] if self._times else 0

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

    # --- reading several at once (see `waiting.Sleeper`)

    def take(self) -> Item | Gap | None:
        """The next item or gap if it can be had without waiting."""
        return self._take()

    def arm(self) -> Item | Gap | None:
        """Ask to be woken, then look once more. None: sleep on `wake_fds`, and `disarm` or `take` afterwards."""
        return self._arm()

    def disarm(self) -> None:
        self._file_words[TICKET] = 0

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
        return Position(self.header.block_id, self._words[EPOCH], self._cursor)

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
        head = max(self._words[HEAD], self._cursor)
        if self._member is None:
            return head - self._cursor
        count, index = self._member.assignment.count, self._member.assignment.index
        return (head - index) // count - (self._cursor - index) // count

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
        want = self._cursor + 1 if self._member is None else self._member.next_after(self._cursor)
        return self._words[HEAD] >= want

    def is_replaced(self) -> bool:
        """Whether a ring of another shape has taken its name."""
        return os.fstat(self._descriptor.fd).st_nlink == 0

    def close(self) -> None:
        """Views that were handed out stay valid and keep their slots."""
        if self._descriptor.fd < 0:
            return
        self._file.close()
        if self._member is not None:
            self._member.close()
        if self._watch is not None:
            self._watch.close()
        self._pins.close()

    def __enter__(self) -> "RingReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _take(self) -> Item | Gap | None:
        """The next item or gap if it can be had at once."""
        member = self._member
        if member is None:
            want = self._cursor + 1
        else:
            member.check()
            want = member.next_after(self._cursor)
        words = self._words
        if words[HEAD] < want:
            return None
        slot = words[self._line[want % self._slot_count] + HINT]
        if slot < self._slot_count and words[self._line[slot]] == want:
            item = self._pinned(want, slot)
            if item is not None:
                return self._advance(item)
        return self._search(want)

    def _search(self, want: int) -> Item | Gap | None:
        """The hint failed: the item is elsewhere, being unlocked, or lost."""
        head = self._words[HEAD]
        live = [pair for pair in self._live(want) if pair[0] <= head]
        if not live:
            return self._lost(want, head)
        sequence, slot = live[0]
        if sequence > want:
            return self._lost(want, sequence - 1)
        item = self._pinned(sequence, slot)
        return None if item is None else self._advance(item)

    def _pinned(self, sequence: int, slot: int) -> Item | None:
        pin = self._pins.take(slot)
        words, line = self._words, self._line[slot]
        if pin is None or words[line + SEQUENCE] != sequence:
            return None
        length = words[line + LENGTH]
        if length > self._slot_bytes:
            raise HeaderInconsistent(self.path, f"slot {slot} claims {length} bytes of {self._slot_bytes}")
        shape = self._shape(line) if self._has_shapes else FLAT
        offset = self._offset[slot]
        if self._verify and words[line + CHECKSUM] != checksum(self._data[offset : offset + length], sequence, shape):
            raise ChecksumMismatch(self.path, f"sequence {sequence}")
        held = len(self._pins.held_slots)
        if held > self._most_held or (self._room is not None and not self._room.is_there(held)):
            buffer = self._own_buffer(bytes(self._data[offset : offset + length]))
        else:
            buffer = self._foreign_buffer(self._address + offset, length, base=pin)
        epoch = words[EPOCH]
        if epoch != self._epoch:
            self._epoch, self._producers = epoch, self._known_producers()
        written_ns = words[self._times + slot] if self._times else 0
        return Item(sequence, epoch, buffer, self._codec, shape, written_ns, self._producers)

    def _known_producers(self) -> Producers:
        return ((0, self.header.producer_id), *successors(self._words, self._data))

    def _shape(self, line: int) -> Shape:
        kind, first, second, third = self._words[line + SHAPE : line + SHAPE + 4].tolist()
        return kind, first, second, third

    def _advance(self, item: Item) -> Item:
        self._cursor = self._file_words[CURSOR] = item.sequence
        if self._words[WRITER_TICKET]:
            self._writer_wake_up.wake()
        return item

    def _lost(self, first: int, last: int) -> Gap:
        self._cursor = self._file_words[CURSOR] = last
        if self._words[WRITER_TICKET]:
            self._writer_wake_up.wake()
        return Gap(first, last)

    def _live(self, lowest: int) -> list[tuple[int, int]]:
        return live_items(self._words, self._first_line, self._slot_count, lowest)

    def _arm(self) -> Item | Gap | None:
        """Say that this reader sleeps, then look once more; raises if nothing can come any more."""
        self._check_open()
        self._file_words[TICKET] = self._file.wake_up.next_ticket()
        is_alive = is_locked(self._descriptor.fd, _WRITER)
        has_ended = self._words[STATE] == State.ENDED
        found = self._take()
        if found is not None:
            self._file_words[TICKET] = 0
            return found
        if has_ended:
            raise StreamEnded(self.path)
        if not is_alive and not self._wait_for_writer:
            raise WriterGone(self.path)
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
        if self._descriptor.fd < 0:
            raise HandleClosed("reader")


def _room_for_more(descriptor: Descriptor, slot_count: int) -> RoomForMore:
    return RoomForMore(slot_count, lambda: share_locked(descriptor.fd, FIRST_SLOT, slot_count))
