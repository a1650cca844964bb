"""Remove the files of dead producers: data first, entry last.

A cleaner may die at any point: a producer whose files are not all removed still has its entry, so the next cleaner
finds it. Two cleaners take turns on the channel's lock, and removing a file that is gone already is no error.

Rule 1: a cleaner never touches an entry whose lock is held, nor a ring that a writer or a reader holds. It probes the
lock of an entry and does not take it: whoever looks meanwhile would see a dead member alive. Locks of entries are taken
on a locked channel only, so none is taken while a cleaner works there.
Rule 2: a ring stays for the linger time after the first cleaner saw its producer dead.
Rule 3: a cleaner removes the directory of a channel that has held nothing but empty directories for the linger time.
Rule 4: in a group's place any member may clean. It removes nothing outside of the channel's directory, whatever
entries, headers and links of other members say.
"""

import contextlib
import errno
import os
from dataclasses import dataclass, field
from typing import Final

from messagehub.shm.channel_directory.directory import CHANNEL_LOCK, Directory, LockedChannel, read_small_file
from messagehub.shm.channel_directory.ownership import list_directory, parent_of
from messagehub.shm.errors import Busy, DataBlockError, NothingThere
from messagehub.shm.locks import OWNER, exclusive, is_locked, try_lock
from messagehub.shm.mapped_file import open_trusted, read_head, read_header, remove_file, write_file
from messagehub.shm.rings.ended_rings import note_ended
from messagehub.shm.rings.reader_files import reader_directory, remove_reader_directory
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.tables import COMMIT_LOCK, TableStore

LINGER_SECONDS: Final = 30.0
_READERS: Final = "readers"
_OLD_READERS: Final = "lanes"  # of rings of layout 2
_CONSUMERS: Final = "consumers"
_TABLES: Final = "tables"
_TICK_SECONDS: Final = 1.0
Stamps = tuple[int, int]
_NEVER: Final[Stamps] = (-1, -1)
_GONE: Final[Stamps] = (0, 0)
_OWNED: Final = exclusive(OWNER)
_OWNER_AND_READERS: Final = exclusive(OWNER, 2)


@dataclass
class Cleaned:
    """What a cleaning did, for logs and people."""

    channels: list[str] = field(default_factory=list)
    producers: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)  # channels someone else was changing: try again later
    flaws: list[str] = field(default_factory=list)  # what kept a channel from being cleaned


def clean(
    directory: Directory,
    *,
    now: float,
    linger_seconds: float = LINGER_SECONDS,
    retention: Retention | None = None,
    lock_seconds: float = 0.5,
    settled: dict[str, Stamps] | None = None,
) -> Cleaned:
    """Remove everything of this domain that is dead and has lingered. Paused processes are alive.

    Pass `settled` to clean again and again: it notes the channels of which only the number of their last table is
    left, and they are skipped until they change.
    """
    report = Cleaned()
    settled = {} if settled is None else settled
    channels = directory.channels()
    for gone in settled.keys() - set(channels):
        del settled[gone]
    for channel in channels:
        if settled.get(channel, _NEVER) == _stamps(directory, channel):
            continue
        settled.pop(channel, None)
        try:
            with directory.locked(channel, lock_seconds, must_exist=True) as locked:
                clean_channel(locked, report, now=now, linger_seconds=linger_seconds)
                _clean_consumers(locked)
                if _remove_if_empty(locked, now=now, linger_seconds=linger_seconds):
                    report.channels.append(channel)
                    continue
            if os.path.isdir(directory.tables_path(channel)):
                TableStore(directory.tables_path(channel)).sweep(now=now, retention=retention)
                _settle(directory, channel, settled, now)
        except NothingThere:
            continue  # another cleaner was here first
        except Busy:
            report.busy.append(channel)
        except (DataBlockError, OSError) as error:  # damage in one channel is no reason to leave the others
            report.flaws.append(str(error))
    return report


def clean_channel(locked: LockedChannel, report: Cleaned, *, now: float, linger_seconds: float) -> None:
    names = os.listdir(locked.path)
    for producer_id in sorted({name[:-5] for name in names if name.endswith((".lock", ".json", ".dead"))}):
        if producer_id != "channel":
            _clean_producer(locked, producer_id, report, now, linger_seconds)
    _clean_ring_without_entry(locked, report)
    _clean_reader_directories(locked)


def _clean_ring_without_entry(locked: LockedChannel, report: Cleaned) -> None:
    """Remove the exclusive ring of a channel that has no producers any more: one that was killed after it had made the
    ring and before its entry named it."""
    left = {os.path.splitext(name)[0] for name in os.listdir(locked.path) if name.endswith((".lock", ".json"))}
    path = locked.directory.exclusive_block(locked.channel)
    if not left - {"channel"} and locked.directory.may_hold(locked.channel, path):
        _remove_ring(locked.directory, path, report)


def _clean_producer(
    locked: LockedChannel, producer_id: str, report: Cleaned, now: float, linger_seconds: float
) -> None:
    base = os.path.join(locked.path, producer_id)
    try:
        lock = open_trusted(f"{base}.lock", os.O_RDWR)
    except NothingThere:  # the last step of a cleaner that died
        remove_file(f"{base}.dead")
        remove_file(f"{base}.json")
        return
    try:
        if is_locked(lock.fd, _OWNED):
            return
        if now - _dead_since(f"{base}.dead", now) < linger_seconds:
            return
        listed = next((p for p in locked.producers() if p.producer_id == producer_id), None)
        blocks = listed.entry.blocks if listed and listed.entry else ()
        paths = [os.path.join(locked.directory.root, name) for name in blocks]
        paths = [path for path in paths if locked.directory.may_hold(locked.channel, path)]
        is_gone = [_remove_ring(locked.directory, path, report) for path in paths]
        if not all(is_gone):
            return
        for suffix in (".json.new", ".json", ".dead", ".lock"):
            remove_file(base + suffix)
        report.producers.append(producer_id)
    finally:
        lock.close()


def _remove_ring(directory: Directory, path: str, report: Cleaned) -> bool:
    """Remove a ring, and return False while readers hold it. True also for a ring that another writer has taken over:
    it belongs to that writer now."""
    try:
        descriptor = open_trusted(path, os.O_RDWR)
    except NothingThere:
        return True
    except DataBlockError:
        return True  # a symlink, or another user's: not ours to remove, and not what the entry meant
    try:
        if not try_lock(descriptor.fd, _OWNER_AND_READERS):
            return is_locked(descriptor.fd, _OWNED)
        readers_path = _reader_directory_of(path)
        with contextlib.suppress(DataBlockError):  # a damaged ring, or one that cannot be noted, is removed too
            header, head = read_head(path)
            note_ended(directory, header.block_id, head)
        if remove_file(path):
            report.blocks.append(path)
        if readers_path is not None:
            remove_reader_directory(readers_path)
        return True
    finally:
        descriptor.close()


def _reader_directory_of(path: str) -> str | None:
    try:
        return reader_directory(path, read_header(path))
    except DataBlockError:
        return None  # nothing there, damaged, or another user's: its reader files are found as orphans


def _clean_reader_directories(locked: LockedChannel) -> None:
    """Remove the directories of reader files whose block is gone (a cleaner died in between)."""
    parent = os.path.join(locked.path, _READERS)
    try:
        orphans = set(os.listdir(parent))
    except FileNotFoundError:
        return
    candidates = [os.path.join(locked.path, name) for name in os.listdir(locked.path) if name.endswith(".ring")]
    for path in [*candidates, locked.directory.exclusive_block(locked.channel)]:
        readers_path = _reader_directory_of(path)
        if readers_path is not None:
            orphans.discard(os.path.basename(readers_path))
    for listed in locked.producers():
        for name in listed.entry.blocks if listed.entry else ():
            readers_path = _reader_directory_of(os.path.join(locked.directory.root, name))
            if readers_path is not None:
                orphans.discard(os.path.basename(readers_path))
    for orphan in orphans:
        remove_reader_directory(os.path.join(parent, orphan))


def _clean_consumers(locked: LockedChannel) -> None:
    """Remove the files of dead consumers that had found no broker."""
    parent = os.path.join(locked.path, _CONSUMERS)
    try:
        names = list_directory(parent)
    except FileNotFoundError:
        return
    for consumer_id in sorted({os.path.splitext(name)[0] for name in names}):
        base = os.path.join(parent, consumer_id)
        try:
            lock = open_trusted(f"{base}.lock", os.O_RDWR)
        except NothingThere:
            remove_file(f"{base}.json")
            continue
        if not is_locked(lock.fd, _OWNED):
            remove_file(f"{base}.json")
            remove_file(f"{base}.lock")
        lock.close()


def _remove_if_empty(locked: LockedChannel, *, now: float, linger_seconds: float) -> bool:
    """Remove the channel's directory, and its lock just before: a process that waits for the lock sees it removed."""
    names = set(list_directory(locked.path))
    if not names <= {CHANNEL_LOCK, _READERS, _OLD_READERS, _CONSUMERS, _TABLES}:
        return False
    if abs(now - os.stat(locked.path).st_mtime) < linger_seconds:  # also where a clock was set back
        return False
    try:
        if _OLD_READERS in names:  # nobody is left who could read there
            for block_id in list_directory(os.path.join(locked.path, _OLD_READERS)):
                remove_reader_directory(os.path.join(locked.path, _OLD_READERS, block_id))
        for name in (_READERS, _OLD_READERS, _CONSUMERS):
            with contextlib.suppress(FileNotFoundError):
                _remove_directory(os.path.join(locked.path, name))
        if _TABLES in names:
            return False  # its commit lock holds the number of the last generation
        remove_file(os.path.join(locked.path, CHANNEL_LOCK))
        _remove_directory(locked.path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EACCES, errno.EPERM):
            raise
        return False  # somebody came in between, or it is not ours to remove
    return True


def _stamps(directory: Directory, channel: str) -> Stamps:
    """Return when the directories of a channel and of its tables changed last."""
    try:
        paths = (directory.channel_path(channel), directory.tables_path(channel))
        channel_ns, tables_ns = (os.stat(path).st_mtime_ns for path in paths)
    except OSError:
        return _GONE
    return channel_ns, tables_ns


def _settle(directory: Directory, channel: str, settled: dict[str, Stamps], now: float) -> None:
    """Note a channel of which only the number of its last table is left, once its times are old enough that a change
    gives it others."""
    stamps = _stamps(directory, channel)
    if now - max(stamps) / 1e9 > _TICK_SECONDS and stamps != _GONE:
        left = set(list_directory(directory.channel_path(channel))), set(list_directory(directory.tables_path(channel)))
        if left == ({CHANNEL_LOCK, _TABLES}, {COMMIT_LOCK}) and stamps == _stamps(directory, channel):
            settled[channel] = stamps


def _remove_directory(path: str) -> None:
    with parent_of(path) as (parent, name):
        os.rmdir(name, dir_fd=parent)


def _dead_since(path: str, now: float) -> float:
    try:
        since = float(read_small_file(path))
        if since <= now:
            return since
        raise ValueError("the clock was set back, or this is no time")
    except NothingThere:
        write_file(path, repr(now).encode())
        return now
    except ValueError:
        remove_file(path)
        return _dead_since(path, now)
