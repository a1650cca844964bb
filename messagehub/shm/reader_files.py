"""Reader files: what a writer knows of its readers.

A reader makes a small file, which the writer maps read-only: the reader's cursor, its ticket (not 0 while it sleeps),
whether it must not lose anything, its process and how many slots it keeps. Beside it lies the FIFO that wakes the
reader. The reader files of a block share a directory and an index file. Their names on disk are those of the first
version: `.lane` for the file, `.bell` for the FIFO.

Rule 1: a reader holds the lock of its file from before the file has a name, so a file with a free lock is dead.
Rule 2: a reader makes its file, then its FIFO, and then stores a new random token in the index. A writer that reads the
token before it lists the directory misses no file: a later one changes the token again. (A counter would not do: two
increments at the same time can count as one.)
Rule 3: a writer maps only files of its own user or, in a group's place, of its group: anybody else could shorten the
file under it.
"""

import contextlib
import errno
import os
import secrets
from typing import Final

from .errors import (
    AccessRefused,
    DamagedBlock,
    DataBlockError,
    HandleClosed,
    NameTaken,
    NothingThere,
    RootUnusable,
    SymlinkRefused,
    TruncatedBlock,
)
from .groups import GroupCursors, group_files, group_floor, group_name, member_count
from .holders import Holder
from .locks import OWNER, exclusive, is_locked, try_lock
from .mapped_file import Segment, make_own_directory, map_file, open_trusted, remove_file
from .ownership import group_of, list_directory, parent_of
from .wake_up import NoWakeUp, Waker, WakeUp

CURSOR: Final = 0
TICKET: Final = 8
LOSSLESS: Final = 16
PID: Final = 24  # 0 in files of earlier versions, which do not count their slots either
HELD: Final = 32
READER_FILE_BYTES: Final = 4096
INDEX: Final = "index"
WRITER_FIFO: Final = "writer.bell"
_UNLIMITED: Final = (1 << 64) - 1
_OWNED: Final = exclusive(OWNER)


def make_reader_directory(directory: str) -> None:
    if group_of(directory) is None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    else:
        make_own_directory(os.path.dirname(directory))
        make_own_directory(directory)
    index = Segment.create(os.path.join(directory, INDEX), READER_FILE_BYTES)
    try:
        index.publish()
    except NameTaken:
        pass  # a writer before this one made it; reader files in it stay valid


def announce(directory: str) -> None:
    """Tell the writer to list the reader files again."""
    index = Segment.attach(os.path.join(directory, INDEX), writable=True)
    index.words[0] = secrets.randbits(64)


def has_reader_index(directory: str) -> bool:
    """Return whether readers can announce themselves there."""
    return os.path.lexists(os.path.join(directory, INDEX))


def remove_reader_directory(directory: str) -> None:
    """Remove the reader files of a block that is gone. Readers that still use one keep it, without its name."""
    try:
        for name in list_directory(directory):
            remove_file(os.path.join(directory, name))
        with parent_of(directory) as (parent, name):
            os.rmdir(name, dir_fd=parent)
    except (SymlinkRefused, RootUnusable):
        remove_file(directory)  # a member put a link there; its target is not ours
    except FileNotFoundError:
        return  # another cleaner was here first
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # a reader came in between; the next cleaner tries again
            raise


class ReaderFile:
    """The reader's side: its file and its FIFO, which are removed when the reader closes."""

    def __init__(self, directory: str, *, lossless: bool) -> None:
        name = secrets.token_hex(16)
        self.directory = directory
        self._path = os.path.join(directory, f"{name}.lane")
        self._segment = Segment.create(self._path, READER_FILE_BYTES)
        self.words = self._segment.words
        self.words[LOSSLESS] = lossless
        self.words[PID] = os.getpid()
        if not try_lock(self._segment.descriptor.fd, _OWNED):
            raise HandleClosed("reader file")
        self._segment.publish()
        self.wake_up = WakeUp(_fifo_path(self._path))
        try:
            announce(directory)
        except BaseException:
            self.close()  # the caller has no object to close, and the files would stay
            raise

    def set_lossless(self, lossless: bool) -> None:
        """Set whether a blocking writer waits for this reader. It lists the reader files again before it writes."""
        if self._segment.descriptor.fd >= 0 and bool(self.words[LOSSLESS]) != lossless:
            self.words[LOSSLESS] = lossless
            with contextlib.suppress(NothingThere):  # the ring was replaced and has no writer any more
                announce(self.directory)

    def close(self) -> None:
        if self._segment.descriptor.fd >= 0:  # in a forked child the files are the parent's
            self.wake_up.close(remove=True)
            remove_file(self._path)
            self._segment.descriptor.close()
            with contextlib.suppress(DataBlockError):  # the ring is gone too
                announce(self.directory)  # so that the writer closes this file too


class NoReaderFile:
    """Stands in for a reader file whose directory is gone: the writer neither knows nor wakes the reader."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(READER_FILE_BYTES)).cast("Q")
        self.wake_up = NoWakeUp()

    def set_lossless(self, lossless: bool) -> None:
        """Do nothing: the writer cannot wait for this reader."""

    def close(self) -> None:
        """Do nothing: there is no file."""


class _Seen:
    """The writer's side of one reader file."""

    __slots__ = ("descriptor", "path", "waker", "woken_ticket", "words")

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = open_trusted(path, os.O_RDONLY)
        size = os.fstat(self.descriptor.fd).st_size
        if size < READER_FILE_BYTES:
            raise TruncatedBlock(path, READER_FILE_BYTES, size)
        self.words = memoryview(map_file(self.descriptor.fd, READER_FILE_BYTES, writable=False)).cast("Q")
        self.waker = Waker(_fifo_path(path))
        self.woken_ticket = 0

    def is_dead(self) -> bool:
        return not is_locked(self.descriptor.fd, _OWNED)

    def close(self) -> None:
        self.waker.close()
        self.descriptor.close()


class ReaderFiles:
    """All reader files of a block as its writer sees them; cheap while nothing changes."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        index = Segment.attach(os.path.join(directory, INDEX))
        index.descriptor.close()  # a process may have a thousand writers; the mapping needs none
        self.index = index.words
        self.token: int | None = None
        self._files: dict[str, _Seen] = {}
        self._groups: dict[str, GroupCursors] = {}
        self._all: list[_Seen] = []
        self.refresh()

    def refresh(self) -> bool:
        """List the files again if a reader announced a change, and return whether one did."""
        token = self.index[0]
        if token == self.token:
            return False
        self.token = token
        names = os.listdir(self.directory)
        while not self._follow_groups(names):
            names = os.listdir(self.directory)
        for name in names:
            if name.endswith(".lane") and name not in self._files:
                self._add(name)
        for gone in self._files.keys() - set(names):
            self._files.pop(gone).close()
        for name in [name for name, file in self._files.items() if file.is_dead()]:
            self._remove(name)
        self._all = list(self._files.values())
        return True

    def floor(self) -> int:
        """Return the highest sequence that every lossless reader and every group is done with."""
        lowest = _UNLIMITED
        for file in self._all:
            if file.words[LOSSLESS]:
                cursor = file.words[CURSOR]  # read once: a second read may be larger than the minimum so far
                lowest = min(lowest, cursor)
        for group in self._groups.values():
            lowest = min(lowest, group.floor())
        return lowest

    def drop_dead(self) -> bool:
        """Remove the files of dead readers, and return whether there were any."""
        dead = [name for name, file in self._files.items() if file.is_dead()]
        for name in dead:
            self._remove(name)
        if dead:
            self._all = list(self._files.values())
        return bool(dead)

    def holders(self, head: int) -> list[Holder]:
        """Return every reader and group, with the slots and items that it holds of a writer that has come to `head`."""
        found = [_holder(file.words, head) for file in self._all]
        for name, group in self._groups.items():
            with contextlib.suppress(NothingThere):  # it was deleted
                members = member_count(os.path.join(self.directory, name))
                unread = max(0, head - group.floor())
                found.append(Holder(None, 0, unread, group_name(name), members, unread))
        return found

    def wake(self) -> None:
        """Wake every reader whose ticket says that it sleeps, once for each ticket."""
        for file in self._all:
            ticket = file.words[TICKET]
            if ticket and ticket != file.woken_ticket:
                file.woken_ticket = ticket
                file.waker.wake()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for group in self._groups.values():
            group.close()
        self._files, self._groups, self._all = {}, {}, []

    def _follow_groups(self, names: list[str]) -> bool:
        """Open the cursors of new groups and close those that are gone.

        False if a new epoch replaced a file since the names were listed: they have to be listed again, because no group
        may be missed.
        """
        wanted = group_files(names)
        for name in [name for name, group in self._groups.items() if group.is_superseded()]:
            self._groups.pop(name).close()  # it was deleted; a file with its name is a new one
        for name in wanted - self._groups.keys():
            try:
                self._groups[name] = GroupCursors(os.path.join(self.directory, name))
            except NothingThere:
                return False
        for name in self._groups.keys() - wanted:
            self._groups.pop(name).close()
        return True

    def _add(self, name: str) -> None:
        try:
            self._files[name] = _Seen(os.path.join(self.directory, name))
        except (NothingThere, AccessRefused, DamagedBlock):
            return  # its reader left meanwhile, or the file is not this user's

    def _remove(self, name: str) -> None:
        file = self._files.pop(name)
        file.close()
        remove_file(_fifo_path(file.path))
        remove_file(file.path)


def live_readers(directory: str, head: int) -> list[Holder]:
    """Return the living readers and the groups of a ring. Their files are read, not mapped: another process could
    shorten one."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = []
    for name in sorted(names):
        if name.endswith(".lane"):
            try:
                descriptor = open_trusted(os.path.join(directory, name), os.O_RDONLY)
            except NothingThere:
                continue
            if is_locked(descriptor.fd, _OWNED):
                content = os.pread(descriptor.fd, READER_FILE_BYTES, 0).ljust(READER_FILE_BYTES, b"\0")
                found.append(_holder(memoryview(content).cast("Q"), head))
            descriptor.close()
    for name in sorted(group_files(names)):
        with contextlib.suppress(NothingThere):
            path = os.path.join(directory, name)
            unread = max(0, head - group_floor(path))
            found.append(Holder(None, 0, unread, group_name(name), member_count(path), unread))
    return found


def _holder(words: memoryview, head: int) -> Holder:
    lag = max(0, head - words[CURSOR])
    return Holder(words[PID] or None, words[HELD], lag if words[LOSSLESS] else None, lag=lag)


def _fifo_path(file_path: str) -> str:
    return file_path.removesuffix(".lane") + ".bell"
