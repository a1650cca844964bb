"""A reader of a ring: maps it read-only, pins what it hands out.

Read: is the slot's sequence the one wanted? → pin the slot → look again → a view whose last reference releases the pin,
or a copy of what is small, and once this process keeps its share of the slots (see `holders`). `core` does that for
every item, `ring.h` says how. `reader_items` finds items that are not where they should be.

Rule: an item that its writer has claimed is not lost: the writer gives it back, and wakes its readers then, or
overwrites it. A writer that died has not touched it. How a reader sleeps is in `reader_sleep`.
"""

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, TypedDict

from messagehub.runtime.event_loop import LoopShare
from messagehub.shm import core
from messagehub.shm.errors import (
    HandleClosed,
    NothingThere,
    ReaderFilesGone,
    RootUnusable,
    StreamEnded,
)
from messagehub.shm.layout import (
    EPOCH,
    FLAT,
    HEAD,
    STATE,
    WRITER_TICKET,
    Checksum,
    Shape,
    State,
    WhenFull,
)
from messagehub.shm.locks import ATTACHED, Descriptor, shared, try_lock
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads import Codec
from messagehub.shm.rings.groups import MemberShare, Membership
from messagehub.shm.rings.holders import held_count, most_of_all, share_of
from messagehub.shm.rings.read_results import Gap, Item, Position, Start
from messagehub.shm.rings.reader_files import (
    SHARES,
    WRITER_FIFO,
    NoReaderFile,
    ReaderFile,
    ReadsFor,
    has_reader_index,
)
from messagehub.shm.rings.reader_items import ReaderItems
from messagehub.shm.rings.reader_probe import held_slots, live_readers
from messagehub.shm.rings.reader_sleep import ReaderSleep
from messagehub.shm.rings.reader_start import start_after
from messagehub.shm.rings.wake_up import WriterWakeUp

log = logging.getLogger("messagehub")

# How long what other processes hold is believed; longer where looking takes longer than a fiftieth of it.
_ROOM_NS = 10_000_000
Copy = Literal["auto", "never"]
"""`auto`: copies once this process keeps its share of the slots. `never`: always the slot's own memory."""


class ReaderOptions(TypedDict, total=False):
    """How a ring is read: the keyword arguments of a `RingReader`, which says what they mean."""

    start: Start
    lossless: bool
    group: str | None
    assignment: MemberShare | None
    wait_for_writer: bool
    verify: bool
    copy: Copy
    spin_us: int
    consumer_id: str
    read_for: ReadsFor | None


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
        consumer_id: str = "",
        read_for: ReadsFor | None = None,
    ) -> None:
        """`lossless`: a blocking writer waits for this reader. `wait_for_writer`: sleep over its restarts.

        `spin_us`: how long to wait for an item without sleeping, where that pays. `consumer_id`: whose reader it is,
        and `read_for` for whom elsewhere, for people who look at the ring's readers.
        """
        self.header = segment.header()
        self.path = path = segment.path
        self._codec = codec
        self._words = segment.words
        self._descriptor = segment.descriptor
        verify = self.header.checksum == Checksum.VERIFY or (verify and self.header.checksum == Checksum.WRITE)
        geometry = self.header.geometry
        self._is_closed = False
        if not try_lock(self._descriptor.fd, shared(ATTACHED)) or not segment.is_published():
            raise NothingThere(path)  # a cleaner has it, and is about to unlink it, or has done so
        self._writer_wake_up = WriterWakeUp(segment.words, f"{readers_path}/{WRITER_FIFO}")
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
                self._file = ReaderFile(
                    readers_path,
                    geometry.slot_count,
                    lossless=honoured,
                    consumer_id=consumer_id,
                    read_for=read_for,
                )
                undo.pop_all()
        except (RootUnusable, NothingThere):
            self._file = self._without_files(segment, readers_path, is_needed=honoured or group is not None)
        if assignment is not None:
            self._file.words[SHARES] = assignment.count
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
        self._is_plain = self._member is None and not verify
        self._is_raw = codec.copied_bytes > 0
        self._sleep = ReaderSleep(
            self._core,
            self._words,
            self._descriptor,
            self._file.wake_up,
            header=self.header,
            path=path,
            wait_for_writer=wait_for_writer,
            spin_us=spin_us,
        )
        self._items = ReaderItems(
            self._core,
            segment,
            codec,
            header=self.header,
            verify=verify,
            is_writer_alive=self._sleep.is_writer_alive,
            file_words=self._file.words,
        )
        # Not methods of this class: both are called for every item.
        self.take_value: Callable[[], Any] = self._core.take_value
        self.wait: Callable[..., bool] = self._sleep.wait
        # Until here the cursor in the file was 0: a blocking writer overwrites nothing once it sees the file.
        self._core.advance(start_after(segment, self.header, start) if self._member is None else self._member.position)

    def _without_files(self, segment: Segment, readers_path: str, *, is_needed: bool) -> NoReaderFile:
        """What to read with where the readers' files cannot be used, unless the writer or a group relies on them."""
        if not segment.is_published() or has_reader_index(readers_path):
            raise NothingThere(self.path) from None  # replaced, cleaned or shared out anew at this moment
        if is_needed:
            raise ReaderFilesGone(readers_path) from None
        return NoReaderFile(self.header.geometry.slot_count)

    # --- reading

    def read(self, timeout_seconds: float | None = None) -> Item | Gap | None:
        """The next item or what was lost before it; None at the timeout (0: at once).

        Raises StreamEnded or WriterGone when nothing unread is left and nothing more will come.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if self._is_plain:
            buffer = self._core.take()
            if buffer is None and timeout_seconds != 0 and self.wait(timeout_seconds):
                buffer = self._core.take()
            if buffer is not None:
                return self._items.item(buffer)
        found = self._take()
        if found is not None:
            return found
        while True:
            found = self._arm()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._sleep.cancel()
                return None
            self._sleep.sleep(left)
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
                self._sleep.cancel()
                return None
            await self._sleep.sleep_async(left)
            self._share.restart()

    def latest(self) -> Item | None:
        """Return the newest item, wherever this reader stands; None if there is none (yet)."""
        found = self._items.newest()
        if found is None:
            self._check_open()
        return found

    def newest_ns(self) -> int:
        """Return when the item that `latest` would give was written; -1 if there is none."""
        return self._items.newest_ns()

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

    def skip_to(self, sequence: int) -> None:
        """Go on after this item, if that is further on. Of a group: what is passed over is not acknowledged."""
        if sequence > self._core.cursor:
            self._core.advance(sequence)

    def leave_group(self) -> None:
        """Give the place in the group to whoever takes it now. Any thread may call this; read no more afterwards."""
        if self._member is not None:
            self._member.close()

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

    def follow(self, last_read: Any) -> bool:
        """Have `take_value` give the next item's value, and note in `last_read.origin` where it comes from.

        It gives None where there is more to it: a gap, a new producer, or nothing yet; call `take` then. Return False
        where it never does: for groups, and where checksums are looked at.
        """
        if self._is_plain:
            epoch, producers = self._items.known_epoch()
            self._core.follow(last_read, epoch, producers, None if self._is_raw else _decoder(self._codec))
        return self._is_plain

    def is_quiet(self) -> bool:
        """Return whether everything was read of a ring whose producer has not ended it."""
        return self._is_plain and self._words[HEAD] <= self._core.cursor and self._words[STATE] == State.OPEN

    @property
    def value_sequence(self) -> int:
        """The number of the value that `take_value` gave last; 0 if it gave none since `follow`."""
        return self._core.value_sequence

    # --- reading several at once (see `waiting.Sleeper`)

    def take(self) -> Item | Gap | None:
        """The next item or gap if it can be had without waiting."""
        return self._take()

    def arm(self) -> Item | Gap | None:
        """Ask to be woken, then look once more. None: sleep on `wake_fds`, and `disarm` or `take` afterwards."""
        return self._arm()

    def disarm(self) -> None:
        self._sleep.cancel()

    def wake_fds(self) -> list[int]:
        """Return the descriptor that wakes this reader, and that of the writer's process while it can be watched."""
        return self._sleep.wake_fds()

    def woken(self, fd: int) -> None:
        """Take note that one of `wake_fds` was ready."""
        self._sleep.woken(fd)

    def look_seconds(self) -> float | None:
        """Return how long to sleep on `wake_fds` at most, or None for any time."""
        return self._sleep.look_seconds()

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
        return self._sleep.is_writer_alive()

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
        self._sleep.close()
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
            if self._is_plain:
                buffer = self._core.take()
                if buffer is not None:
                    return self._items.item(buffer)
            want = self._core.cursor + 1
        else:
            member.check()
            want = member.next_after(self._core.cursor)
        if self._words[HEAD] < want:
            return None
        self._check_open()
        found = self._items.take(want)
        if found is None:
            self._check_open()  # another thread may have closed it meanwhile
        return found

    def _arm(self) -> Item | Gap | None:
        """Say that this reader sleeps, then look once more. Raise if nothing can come any more."""
        self._check_open()
        self._sleep.announce()
        found = self._take()
        if found is None:
            self._sleep.check_writer()
        else:
            self._sleep.cancel()
        return found

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


def _decoder(codec: Codec) -> Callable[[Any, Shape | None], Any]:
    """Return a function that decodes an item. It refers to no reader either."""
    return lambda buffer, shape: codec.decode(buffer, shape or FLAT)


def _held_by_others(readers_path: str, slot_count: int) -> Callable[[], tuple[int, int]]:
    """Return a function that tells how many slots other processes hold, and for how many nanoseconds to believe it."""

    def look() -> tuple[int, int]:
        started, me = time.monotonic_ns(), os.getpid()
        others = [reader for reader in live_readers(readers_path, slot_count, 0) if reader.holder.holding_pid != me]
        return held_slots(others, slot_count), max(_ROOM_NS, 50 * (time.monotonic_ns() - started))

    return look
