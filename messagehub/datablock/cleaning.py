"""Removing what dead producers left: data first, entry last.

A cleaner may die at any point: what it had not finished still has its entry, so the next one finds it. Two
may race: they take turns on the channel's lock, and removing what is gone already is no error.

Rule 1: an entry whose lock is held is never touched; nor a ring that a writer or a reader holds.
Rule 2: a ring stays for the linger time after the first cleaner saw its producer dead.
Rule 3: in a group's place any member may clean, and removes nothing that lies outside of the channel's directory,
whatever entries, headers and links of other members say.
"""

import os
from dataclasses import dataclass, field
from typing import Final

from .directory import Directory, LockedChannel, read_small_file
from .entry_locks import has_other_names
from .errors import Busy, DataBlockError, NothingThere
from .lanes import remove_lane_directory
from .locks import OWNER, Descriptor, exclusive, is_locked, try_lock
from .manifests import Retention
from .ring import lane_directory
from .segment import open_trusted, read_header, remove_file, write_file
from .tables import TableStore

LINGER_SECONDS: Final = 30.0
_OWNED: Final = exclusive(OWNER)
_OWNER_AND_READERS: Final = exclusive(OWNER, 2)


@dataclass
class Cleaned:
    """What a cleaning did, for logs and people."""

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
) -> Cleaned:
    """Everything of this domain that is dead and has lingered. Paused processes are alive."""
    report = Cleaned()
    for channel in directory.channels():
        try:
            with directory.locked(channel, lock_seconds) as locked:
                clean_channel(locked, report, now=now, linger_seconds=linger_seconds)
            if os.path.isdir(directory.tables_path(channel)):
                TableStore(directory.tables_path(channel)).sweep(now=now, retention=retention)
        except Busy:
            report.busy.append(channel)
        except DataBlockError as error:  # damage in one channel is no reason to leave the others
            report.flaws.append(str(error))
    return report


def clean_channel(locked: LockedChannel, report: Cleaned, *, now: float, linger_seconds: float) -> None:
    names = os.listdir(locked.path)
    for producer_id in sorted({name[:-5] for name in names if name.endswith((".lock", ".json", ".dead"))}):
        if producer_id != "channel":
            _clean_producer(locked, producer_id, report, now, linger_seconds)
    _clean_lanes(locked)


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
        if not (_is_free(lock) if has_other_names(lock) else try_lock(lock.fd, _OWNED)):
            return
        if now - _dead_since(f"{base}.dead", now) < linger_seconds:
            return
        listed = next((p for p in locked.producers() if p.producer_id == producer_id), None)
        blocks = listed.entry.blocks if listed and listed.entry else ()
        paths = [os.path.join(locked.directory.root, name) for name in blocks]
        paths = [path for path in paths if locked.directory.may_hold(locked.channel, path)]
        is_gone = [_remove_ring(path, report) for path in paths]
        if not all(is_gone):
            return
        for suffix in (".json.new", ".json", ".dead", ".lock"):
            remove_file(base + suffix)
        report.producers.append(producer_id)
    finally:
        lock.close()


def _is_free(lock: Descriptor) -> bool:
    """Locking it would bring the other entries of its process back to life."""
    return not is_locked(lock.fd, _OWNED)


def _remove_ring(path: str, report: Cleaned) -> bool:
    """False while readers hold it. A ring that another writer has taken over is that writer's."""
    try:
        descriptor = open_trusted(path, os.O_RDWR)
    except NothingThere:
        return True
    except DataBlockError:
        return True  # a symlink, or another user's: not ours to remove, and not what the entry meant
    try:
        if not try_lock(descriptor.fd, _OWNER_AND_READERS):
            return is_locked(descriptor.fd, _OWNED)
        lanes = _lanes_of(path)
        if remove_file(path):
            report.blocks.append(path)
        if lanes is not None:
            remove_lane_directory(lanes)
        return True
    finally:
        descriptor.close()


def _lanes_of(path: str) -> str | None:
    try:
        return lane_directory(path, read_header(path))
    except DataBlockError:
        return None  # nothing there, damaged, or another user's: its lanes are found as orphans


def _clean_lanes(locked: LockedChannel) -> None:
    """Directories of lanes whose block is gone (its remover died in between)."""
    parent = os.path.join(locked.path, "lanes")
    try:
        orphans = set(os.listdir(parent))
    except FileNotFoundError:
        return
    candidates = [os.path.join(locked.path, name) for name in os.listdir(locked.path) if name.endswith(".ring")]
    for path in [*candidates, locked.directory.exclusive_block(locked.channel)]:
        lanes = _lanes_of(path)
        if lanes is not None:
            orphans.discard(os.path.basename(lanes))
    for listed in locked.producers():
        for name in listed.entry.blocks if listed.entry else ():
            lanes = _lanes_of(os.path.join(locked.directory.root, name))
            if lanes is not None:
                orphans.discard(os.path.basename(lanes))
    for orphan in orphans:
        remove_lane_directory(os.path.join(parent, orphan))


def _dead_since(path: str, now: float) -> float:
    try:
        return float(read_small_file(path))
    except NothingThere:
        write_file(path, repr(now).encode())
        return now
    except ValueError:
        remove_file(path)
        return _dead_since(path, now)
