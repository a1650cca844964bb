"""Lanes: what a writer knows of its readers.

A lane is a small file made by one reader and mapped read-only by the writer: the reader's cursor, its ticket
(not 0 while it sleeps), whether it must not lose anything, its process and how many slots it keeps. Beside it
lies the reader's bell. The lanes of a block share a directory and an index file.

Rule 1: a lane's owner holds its lock from before it has a name, so a lane with a free lock is dead.
Rule 2: lane, then bell, then a new random token in the index. A writer that reads the token before it lists
the directory misses no lane: a later one changes the token again. (Counting fails: two increments can meet.)
Rule 3: only lanes of the writer's own user, or of its group in a group's place, are mapped; anybody else could shorten
the file under it.
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
from .wake_up import Bell, NoBell, Ringer

CURSOR: Final = 0
TICKET: Final = 8
LOSSLESS: Final = 16
PID: Final = 24  # 0 in lanes of earlier versions, which do not count their slots either
HELD: Final = 32
LANE_BYTES: Final = 4096
INDEX: Final = "index"
WRITER_BELL: Final = "writer.bell"
_UNLIMITED: Final = (1 << 64) - 1
_OWNED: Final = exclusive(OWNER)


def make_lane_directory(directory: str) -> None:
    if group_of(directory) is None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    else:
        make_own_directory(os.path.dirname(directory))
        make_own_directory(directory)
    index = Segment.create(os.path.join(directory, INDEX), LANE_BYTES)
    try:
        index.publish()
    except NameTaken:
        pass  # a writer before this one made it; lanes in it stay valid


def announce(directory: str) -> None:
    """Tell the writer to look at the lanes again."""
    index = Segment.attach(os.path.join(directory, INDEX), writable=True)
    index.words[0] = secrets.randbits(64)


def has_lane_index(directory: str) -> bool:
    """Whether readers can announce themselves there."""
    return os.path.lexists(os.path.join(directory, INDEX))


def remove_lane_directory(directory: str) -> None:
    """For a block that is gone. Readers that still have a lane here keep it, without its name."""
    try:
        for name in list_directory(directory):
            remove_file(os.path.join(directory, name))
        with parent_of(directory) as (parent, name):
            os.rmdir(name, dir_fd=parent)
    except (SymlinkRefused, RootUnusable):
        remove_file(directory)  # a member put it there; what it leads to is not ours
    except FileNotFoundError:
        return  # another cleaner was here first
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # a reader came in between; the next cleaner has another go
            raise


class ReaderFile:
    """The reader's side: one file, one bell, removed when the reader closes."""

    def __init__(self, directory: str, *, lossless: bool) -> None:
        name = secrets.token_hex(16)
        self.directory = directory
        self._path = os.path.join(directory, f"{name}.lane")
        self._segment = Segment.create(self._path, LANE_BYTES)
        self.words = self._segment.words
        self.words[LOSSLESS] = lossless
        self.words[PID] = os.getpid()
        if not try_lock(self._segment.descriptor.fd, _OWNED):
            raise HandleClosed("lane")
        self._segment.publish()
        self.bell = Bell(_bell_path(self._path))
        try:
            announce(directory)
        except BaseException:
            self.close()  # nobody would, and its files would stay
            raise

    def set_lossless(self, lossless: bool) -> None:
        """Whether a blocking writer waits for this reader from now on; it looks at the lanes again before it writes."""
        if self._segment.descriptor.fd >= 0 and bool(self.words[LOSSLESS]) != lossless:
            self.words[LOSSLESS] = lossless
            with contextlib.suppress(NothingThere):  # the ring was replaced: nobody writes it any more
                announce(self.directory)

    def close(self) -> None:
        if self._segment.descriptor.fd >= 0:  # in a forked child the files are the parent's
            self.bell.close(remove=True)
            remove_file(self._path)
            self._segment.descriptor.close()
            with contextlib.suppress(DataBlockError):  # the ring is gone too
                announce(self.directory)  # so that the writer closes what it has open of this lane


class NoReaderFile:
    """In the place of a lane whose directory is gone: its writer does not know of the reader, and does not wake it."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(LANE_BYTES)).cast("Q")
        self.bell = NoBell()

    def set_lossless(self, lossless: bool) -> None:
        """Its writer cannot wait for it."""

    def close(self) -> None:
        """There is nothing to close."""


class _Seen:
    """The writer's side of one lane."""

    __slots__ = ("descriptor", "path", "ringer", "rung", "words")

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = open_trusted(path, os.O_RDONLY)
        size = os.fstat(self.descriptor.fd).st_size
        if size < LANE_BYTES:
            raise TruncatedBlock(path, LANE_BYTES, size)
        self.words = memoryview(map_file(self.descriptor.fd, LANE_BYTES, writable=False)).cast("Q")
        self.ringer = Ringer(_bell_path(path))
        self.rung = 0

    def is_dead(self) -> bool:
        return not is_locked(self.descriptor.fd, _OWNED)

    def close(self) -> None:
        self.ringer.close()
        self.descriptor.close()


class ReaderFiles:
    """All lanes of a block as its writer sees them; cheap while nothing changes."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        index = Segment.attach(os.path.join(directory, INDEX))
        index.descriptor.close()  # a process may have a thousand writers; the mapping needs none
        self.index = index.words
        self.token: int | None = None
        self._lanes: dict[str, _Seen] = {}
        self._groups: dict[str, GroupCursors] = {}
        self._all: list[_Seen] = []
        self.refresh()

    def refresh(self) -> bool:
        """Look for new lanes if any reader announced one; True if it did."""
        token = self.index[0]
        if token == self.token:
            return False
        self.token = token
        names = os.listdir(self.directory)
        while not self._follow_groups(names):
            names = os.listdir(self.directory)
        for name in names:
            if name.endswith(".lane") and name not in self._lanes:
                self._add(name)
        for gone in self._lanes.keys() - set(names):
            self._lanes.pop(gone).close()
        for name in [name for name, lane in self._lanes.items() if lane.is_dead()]:
            self._remove(name)
        self._all = list(self._lanes.values())
        return True

    def floor(self) -> int:
        """The highest sequence that every lossless lane and every group is done with."""
        lowest = _UNLIMITED
        for lane in self._all:
            if lane.words[LOSSLESS]:
                cursor = lane.words[CURSOR]  # once: read again it may have passed a slower reader's
                lowest = min(lowest, cursor)
        for group in self._groups.values():
            lowest = min(lowest, group.floor())
        return lowest

    def drop_dead(self) -> bool:
        """Forget lanes whose reader died; True if there were any."""
        dead = [name for name, lane in self._lanes.items() if lane.is_dead()]
        for name in dead:
            self._remove(name)
        if dead:
            self._all = list(self._lanes.values())
        return bool(dead)

    def holders(self, head: int) -> list[Holder]:
        """Every reader and group, with what it keeps from a writer that has come to `head`."""
        found = [_holder(lane.words, head) for lane in self._all]
        for name, group in self._groups.items():
            with contextlib.suppress(NothingThere):  # it was deleted
                members = member_count(os.path.join(self.directory, name))
                unread = max(0, head - group.floor())
                found.append(Holder(None, 0, unread, group_name(name), members, unread))
        return found

    def ring(self) -> None:
        """Wake every reader that says it sleeps, once a ticket."""
        for lane in self._all:
            ticket = lane.words[TICKET]
            if ticket and ticket != lane.rung:
                lane.rung = ticket
                lane.ringer.ring()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        for group in self._groups.values():
            group.close()
        self._lanes, self._groups, self._all = {}, {}, []

    def _follow_groups(self, names: list[str]) -> bool:
        """False if a new epoch took a file's place since they were listed: the group must not be without one."""
        wanted = group_files(names)
        for name in [name for name, group in self._groups.items() if group.is_superseded()]:
            self._groups.pop(name).close()  # deleted; a file that is there under its name now is another one
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
            self._lanes[name] = _Seen(os.path.join(self.directory, name))
        except (NothingThere, AccessRefused, DamagedBlock):
            return  # its reader left meanwhile, or it is no lane of this user

    def _remove(self, name: str) -> None:
        lane = self._lanes.pop(name)
        lane.close()
        remove_file(_bell_path(lane.path))
        remove_file(lane.path)


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
                content = os.pread(descriptor.fd, LANE_BYTES, 0).ljust(LANE_BYTES, b"\0")
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


def _bell_path(lane_path: str) -> str:
    return lane_path.removesuffix(".lane") + ".bell"
