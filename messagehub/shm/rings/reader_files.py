"""Reader files: what a writer knows of its readers.

A reader makes a small file, which the writer maps read-only: the reader's cursor, its ticket (not 0 while it sleeps),
whether it must not lose anything, how many slots it holds, its process, and how many items it missed; then a byte for
each slot, which is 1 while the reader holds it (`core/ring.h`). Beside it lies the FIFO that wakes the reader. The
reader files of a block share a directory and an index file.

Rule 1: a reader holds the lock of its file from before the file has a name until its last view is gone, so a file with
a free lock is dead, and what it pins is free.
Rule 2: a reader makes its file, then its FIFO, and then stores a new random token in the index. A writer that reads the
token before it lists the directory misses no file: a later one changes the token again. (A counter would not do: two
increments at the same time can count as one.)
Rule 3: only the reader stores into its file, with one exception: whoever evicts its consumer stores 0 into the word
that says that a writer waits for it (`reader_probe.end_waiting_for`). Pins stay the reader's own.
Rule 4: a writer maps only files of its own user or, in a group's place, of its group: anybody else could shorten the
file under it.
"""

import contextlib
import errno
import os
import secrets
import sys
from typing import Any, Final, NamedTuple

from messagehub.shm.channel_directory.ownership import group_of, list_directory, parent_of
from messagehub.shm.core import Writer
from messagehub.shm.errors import (
    AccessRefused,
    DamagedBlock,
    DataBlockError,
    HandleClosed,
    HeaderInconsistent,
    NameTaken,
    NothingThere,
    RootUnusable,
    SymlinkRefused,
    TruncatedBlock,
)
from messagehub.shm.layout import Header
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked, try_lock
from messagehub.shm.mapped_file import Segment, make_own_directory, map_file, open_fifo, open_trusted, remove_file
from messagehub.shm.rings.groups import GroupCursors, group_files, group_floor, group_name, member_count
from messagehub.shm.rings.holders import Holder
from messagehub.shm.rings.wake_up import NoWakeUp, WakeUp, wake

# Words of a file: all on one cache line, since all have one writer.
CURSOR: Final = 0
TICKET: Final = 1
LOSSLESS: Final = 2
HELD: Final = 3
PID: Final = 4
MISSED: Final = 5  # items that were overwritten before this reader came to them
SHARES: Final = 6  # of a member of a group: how many share the items; 0 for a reader that reads all
PINS_OFFSET: Final = 64
_READS_FOR_BYTES: Final = 4096
_HOST_BYTES: Final = 256  # the pid is a word, and the host's name follows, ended by a zero
INDEX: Final = "index"
WRITER_FIFO: Final = "writer.fifo"
_INDEX_BYTES: Final = 4096
_READER: Final = ".reader"
_FIFO: Final = ".fifo"
_OWNED: Final = exclusive(OWNER)


def reader_file_bytes(slot_count: int) -> int:
    return -(-(PINS_OFFSET + slot_count) // 4096) * 4096


class ReadsFor(NamedTuple):
    """The process of another host that a gateway of this one reads for."""

    host: str
    pid: int


def reads_for(descriptor: Descriptor, slot_count: int) -> ReadsFor | None:
    """Return whom a reader file is read for, which is in a page behind the pins; None where it reads for itself."""
    content = os.pread(descriptor.fd, 8 + _HOST_BYTES, reader_file_bytes(slot_count))
    if len(content) <= 8:
        return None
    host = content[8:].partition(b"\0")[0].decode(errors="replace")
    return ReadsFor(host, int.from_bytes(content[:8], sys.byteorder)) if host else None


def make_reader_directory(directory: str) -> None:
    if group_of(directory) is None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    else:
        make_own_directory(os.path.dirname(directory))
        make_own_directory(directory)
    index = Segment.create(os.path.join(directory, INDEX), _INDEX_BYTES)
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


def reader_directory(path: str, header: Header) -> str:
    """Return the directory of a ring's reader files.

    In a group's place it follows from the block's id: no member can choose another by what it writes into a header.
    """
    if group_of(path) is not None and header.readers_path != f"readers/{header.block_id}":
        raise HeaderInconsistent(path, f"reader files at {header.readers_path!r}")
    return os.path.join(os.path.dirname(path), header.readers_path)


class ReaderFile:
    """The reader's side: its file and its FIFO, which are removed when the reader closes and its last view is gone."""

    def __init__(
        self,
        directory: str,
        slot_count: int,
        *,
        lossless: bool,
        consumer_id: str = "",
        read_for: ReadsFor | None = None,
    ) -> None:
        """`consumer_id` and `read_for` are for whoever looks at the directory; the first is part of the file's name."""
        name = f"{consumer_id}@{secrets.token_hex(16)}"
        self.directory = directory
        self._path = os.path.join(directory, f"{name}{_READER}")
        size = reader_file_bytes(slot_count)
        self._segment = Segment.create(self._path, size if read_for is None else size + _READS_FOR_BYTES)
        self.words = self._segment.words
        self.memory: Any = self._segment.mapping
        self.words[LOSSLESS] = lossless
        self.words[PID] = os.getpid()
        if read_for is not None:
            host = read_for.host.encode()[: _HOST_BYTES - 1]
            self.words[size // 8] = read_for.pid
            self._segment.data[size + 8 : size + 8 + len(host)] = host
        if not try_lock(self._segment.descriptor.fd, _OWNED):
            raise HandleClosed("reader file")
        self._segment.publish()
        self.wake_up = WakeUp(_fifo_path(self._path))
        try:
            announce(directory)
        except BaseException:
            self.stop()  # the caller has no object to close, and the files would stay
            self.remove()
            raise

    def set_lossless(self, lossless: bool) -> None:
        """Set whether a blocking writer waits for this reader. It lists the reader files again before it writes."""
        if self._segment.descriptor.fd >= 0 and bool(self.words[LOSSLESS]) != lossless:
            self.words[LOSSLESS] = lossless
            with contextlib.suppress(NothingThere):  # the ring was replaced and has no writer any more
                announce(self.directory)

    def stop(self) -> None:
        """Nobody reads any more: the writer neither waits for this reader nor wakes it. What it holds stays held."""
        if self._segment.descriptor.fd >= 0:  # in a forked child the files are the parent's
            self.words[TICKET] = self.words[LOSSLESS] = 0
            self.wake_up.close(remove=True)

    def remove(self) -> None:
        """Nothing is held any more. Finalizers call it, so it waits for nobody."""
        if self._segment.descriptor.fd >= 0:
            with contextlib.suppress(OSError, DataBlockError):  # the ring and its files are gone too
                remove_file(self._path)
            self._segment.descriptor.close()
            with contextlib.suppress(OSError, DataBlockError):
                announce(self.directory)  # so that the writer closes this file too


class NoReaderFile:
    """Stands in for a reader file whose directory is gone: the writer neither knows nor wakes the reader.

    Nobody sees what it pins, so what is read must be copied.
    """

    def __init__(self, slot_count: int) -> None:
        self.memory: Any = bytearray(reader_file_bytes(slot_count))
        self.words = memoryview(self.memory).cast("Q")
        self.wake_up = NoWakeUp()

    def set_lossless(self, lossless: bool) -> None:
        """Do nothing: the writer cannot wait for this reader."""

    def stop(self) -> None:
        """Do nothing: there is no file."""

    def remove(self) -> None:
        """Do nothing: there is no file."""


class _Seen:
    """The writer's side of one reader file."""

    __slots__ = ("descriptor", "fifo", "memory", "path", "read_for", "words")

    def __init__(self, path: str, slot_count: int) -> None:
        self.path = path
        self.descriptor = open_trusted(path, os.O_RDONLY)
        size, least = os.fstat(self.descriptor.fd).st_size, reader_file_bytes(slot_count)
        if size < least:
            self.descriptor.close()
            raise TruncatedBlock(path, least, size)
        self.memory = map_file(self.descriptor.fd, least, writable=False)
        self.words = memoryview(self.memory)[:PINS_OFFSET].cast("Q")
        self.read_for = reads_for(self.descriptor, slot_count) if size > least else None
        self.fifo: Descriptor | None = None  # opened at the first wake-up, because it may not exist before that

    def is_dead(self) -> bool:
        return not is_locked(self.descriptor.fd, _OWNED)

    def open_fifo(self) -> int:
        """Return the descriptor that wakes the reader; -1 if that cannot be had now."""
        if self.fifo is None:
            try:
                self.fifo = open_fifo(_fifo_path(self.path), os.O_WRONLY)
            except (OSError, DataBlockError):
                return -1  # no owner, no FIFO, or no descriptor left
        return self.fifo.fd

    def close(self) -> None:
        if self.fifo is not None:
            self.fifo.close()
        self.descriptor.close()


class ReaderFiles:
    """All reader files of a block as its writer sees them; cheap while nothing changes."""

    def __init__(self, directory: str, slot_count: int) -> None:
        self.directory = directory
        index = Segment.attach(os.path.join(directory, INDEX))
        index.descriptor.close()  # a process may have a thousand writers; the mapping needs none
        self.index: Any = index.mapping
        self._slot_count = slot_count
        self._word = index.words
        self._token: int | None = None
        self._files: dict[str, _Seen] = {}
        self._groups: dict[str, GroupCursors] = {}
        self._core: Writer | None = None
        self.refresh()

    def tell(self, core: Writer) -> None:
        """Tell the writer's core about every reader that comes or goes from now on."""
        self._core = core
        self._tell(self._token)

    def refresh(self) -> bool:
        """List the files again if a reader announced a change, and return whether one did."""
        token = self._word[0]
        if token == self._token:
            return False
        names = os.listdir(self.directory)
        while not self._follow_groups(names):
            names = os.listdir(self.directory)
        for name in names:
            if name.endswith(_READER) and name not in self._files:
                self._add(name)
        self.drop_dead()
        self._tell(token)
        self._token = token  # last: where anything fails before, the next refresh lists them again
        return True

    def drop_dead(self) -> bool:
        """Remove the files of dead readers, and return whether there were any."""
        dead = [name for name, file in self._files.items() if file.is_dead()]
        if not dead:
            return False
        gone = [self._files.pop(name) for name in dead]
        self._tell(self._token)  # before their FIFOs are closed: the core has the numbers of the descriptors
        for file in gone:
            file.close()
        for file in gone:
            remove_file(_fifo_path(file.path))
            remove_file(file.path)
        return True

    def holders(self, head: int) -> list[Holder]:
        """Return every reader and group, with the slots and items that it holds of a writer that has come to `head`."""
        found = [holder_of(file.words, head, read_for=file.read_for) for file in self._files.values()]
        for name, group in self._groups.items():
            with contextlib.suppress(NothingThere):  # it was deleted
                members = member_count(os.path.join(self.directory, name))
                position = group.floor()
                unread = max(0, head - position)
                found.append(Holder(None, 0, unread, group_name(name), members, unread, position))
        return found

    def wake_unopened(self) -> None:
        """Open the FIFOs of readers that sleep, and wake these readers. A reader without one may be dead."""
        has_failed = False
        for place, file in enumerate(self._files.values()):
            ticket = file.words[TICKET]
            if ticket and file.fifo is None:
                fd = file.open_fifo()
                if fd >= 0:
                    wake(fd)
                    if self._core is not None:
                        self._core.set_fifo(place, fd, ticket)
                has_failed |= fd < 0
        if has_failed:
            with contextlib.suppress(OSError, DataBlockError):  # an item was written all the same
                self.drop_dead()

    def wake_all(self) -> None:
        """Wake every reader, for a ring that has no writer any more."""
        for file in self._files.values():
            if file.words[TICKET]:
                fd = file.open_fifo()
                if fd >= 0:
                    wake(fd)

    def close(self) -> None:
        if self._core is not None:
            self._core.set_peers(0, [], [])
            self._core = None
        for file in self._files.values():
            file.close()
        for group in self._groups.values():
            group.close()
        self._files, self._groups = {}, {}

    def _tell(self, token: int | None) -> None:
        if self._core is None:
            return
        peers = [(file.memory, -1 if file.fifo is None else file.fifo.fd, 0) for file in self._files.values()]
        groups = [(group.segment.mapping, group.count) for group in self._groups.values()]
        self._core.set_peers(token or 0, peers, groups)

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
            self._files[name] = _Seen(os.path.join(self.directory, name), self._slot_count)
        except (NothingThere, AccessRefused, DamagedBlock):
            return  # its reader left meanwhile, or the file is not this user's


def is_reader_file(name: str) -> bool:
    return name.endswith(_READER)


def group_holder(directory: str, name: str, head: int) -> Holder:
    """Return the group whose cursors are in this file."""
    path = os.path.join(directory, name)
    position = group_floor(path)
    unread = max(0, head - position)
    return Holder(None, 0, unread, group_name(name), member_count(path), unread, position)


def names_in(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def holder_of(words: memoryview, head: int, consumer_id: str | None = None, read_for: ReadsFor | None = None) -> Holder:
    position = words[CURSOR]
    lag = max(0, head - position)
    unread = lag if words[LOSSLESS] else None
    pid = words[PID] or None
    return Holder(
        read_for.pid or None if read_for is not None else pid,
        words[HELD],
        unread,
        lag=lag,
        position=position,
        consumer_id=consumer_id,
        missed=words[MISSED],
        shares=max(words[SHARES], 1),
        host=read_for.host if read_for is not None else None,
        holding_pid=pid,
    )


def _fifo_path(file_path: str) -> str:
    return file_path.removesuffix(_READER) + _FIFO
