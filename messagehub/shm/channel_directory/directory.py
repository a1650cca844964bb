"""The directory of a domain: who produces what, readable without a broker.

    <root>/messagehub-<uid>/<domain>/channels/<channel>/        (of a group: messagehub@<gid>, see `ownership`)
        channel.lock             around read, apply, write, and around cleaning
        <producer_id>.json       the entry: replaced whole or not at all
        <producer_id>.lock       held while the producer lives (see `entry_locks`)
        <producer_id>.dead       when a cleaner first saw that lock free
        <producer_id>.ring       the block of a producer that shares its channel
        readers/<block_id>/      the files of its readers (see `reader_files`)
        tables/                  committed tables (see `tables`)
    <root>/messagehub-<uid>/<domain>/ended-rings                how far rings went that are gone (see `ended_rings`)
    <root>/messagehub-<uid>/<domain>/pending-tables             not yet registered with a broker elsewhere
    <root>/messagehub-<uid>/<domain>/brokers.lock               held by each broker that serves it (see `domain_lock`)

Rule 1: the entry comes before the blocks it names, and goes after them, so no block is ever without an entry.
Rule 2: a producer is alive exactly while its lock is held; pid and times in the entry are for people.
Rule 3: reading takes no lock. Whatever changes the set of producers happens on a `LockedChannel`.
Rule 4: the directory of a channel is removed, with its lock, when nothing is left in it. A process that waited for
the lock makes both again; a process that needs the directory without holding the lock keeps a file in it.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from messagehub.shm.channel_directory.entry_locks import ProcessLock, take_lock
from messagehub.shm.channel_directory.ownership import is_member, place_name
from messagehub.shm.errors import (
    DataBlockError,
    EntryDamaged,
    NameRefused,
    NameTaken,
    NameTooLong,
    NothingThere,
    NotInGroup,
    RootUnusable,
)
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import LAYOUT_VERSION
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked, lock_within
from messagehub.shm.mapped_file import (
    DEFAULT_ROOT,
    SMALL_BYTES,
    make_own_directory,
    open_lock,
    open_trusted,
    read_file,
    remove_file,
    replace_file,
)

DEFAULT_DOMAIN: Final = "default"
DEFAULT_SHM_PREFIX: Final = "pylabhub_"
CHANNEL_LOCK: Final = "channel.lock"
_OWNED: Final = exclusive(OWNER)
_COMPONENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+,-]*")
_NAME_BYTES: Final = 200
_EXCLUSIVE: Final = "_exclusive.ring"  # members' names begin with a letter
_REMEMBERED: Final = 4096
_ENTRY_BYTES: Final = 4 << 20  # a registration has at most 1 MiB; escaped as JSON its schema may take more


@dataclass(frozen=True)
class ProducerEntry:
    """A producer's description of itself. `blocks` are relative to the root; `details` belong to the caller."""

    channel: str
    producer_id: str
    process: ProcessIdentity
    registered_at: float
    blocks: tuple[str, ...] = ()
    schema_hash: str = ""
    schema: Any = None
    layout_version: int = LAYOUT_VERSION
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps({**asdict(self), "process": self.process.to_json()}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, path: str) -> "ProducerEntry":
        try:
            value = json.loads(content)
            value["process"] = ProcessIdentity.from_json(value["process"])
            value["blocks"] = tuple(_inside(name) for name in value["blocks"])
            value["registered_at"] = float(value["registered_at"])
            for name, kind in _KINDS.items():
                if not isinstance(value.get(name, kind()), kind):
                    raise TypeError(f"{name} is {value[name]!r}")
            return cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise EntryDamaged(path, repr(error)) from None


# Types that are checked when an entry is read, because another member of the group may have written it.
_KINDS: Final[dict[str, type]] = {"channel": str, "producer_id": str, "schema_hash": str, "details": dict}


@dataclass(frozen=True)
class Listed:
    """One producer as the directory shows it. A damaged entry has a flaw instead of an entry."""

    producer_id: str
    is_alive: bool
    entry: ProducerEntry | None
    flaw: str | None = None
    uid: int = -1  # who wrote the entry, as the kernel says


class Directory:
    """One domain of one user, or of a group."""

    def __init__(
        self,
        domain: str = DEFAULT_DOMAIN,
        root: str = DEFAULT_ROOT,
        *,
        gid: int | None = None,
        shm_prefix: str = DEFAULT_SHM_PREFIX,
    ) -> None:
        """`gid` is the group that shares the domain; names of exclusive rings begin with `shm_prefix`."""
        self.domain = component(domain)
        self._entries: dict[str, tuple[tuple[int, int, int, int], ProducerEntry | None, str | None]] = {}
        self.root = root
        self.gid = gid
        self.shm_prefix = shm_prefix
        self.place = place_name(os.geteuid(), gid)
        self.path = os.path.join(root, self.place, domain, "channels")
        if gid is not None and not is_member(gid):
            raise NotInGroup(self.path, gid)

    def channel_path(self, channel: str) -> str:
        return os.path.join(self.path, component(channel))

    def shared_block(self, channel: str, producer_id: str) -> str:
        return os.path.join(self.channel_path(channel), f"{component(producer_id)}.ring")

    def exclusive_block(self, channel: str) -> str:
        """Return the path of the exclusive ring, which a consumer derives from the channel alone.

        No channel has an '@' in its name. A group's ring is in the group's place: where everybody can make files,
        another user could take the name first.
        """
        if self.gid is not None:
            return os.path.join(self.channel_path(channel), _EXCLUSIVE)
        suffix = "" if self.domain == DEFAULT_DOMAIN else f"@{self.domain}"
        name = f"{self.shm_prefix}{component(channel)}{suffix}"
        if len(name) > 255:
            raise NameTooLong(name, 255)
        return os.path.join(self.root, name)

    def readers_path(self, block: str, channel: str) -> str:
        """Return where the readers of a block put their files, relative to the directory of the block."""
        return os.path.relpath(os.path.join(self.channel_path(channel), "readers"), os.path.dirname(block))

    def tables_path(self, channel: str) -> str:
        return os.path.join(self.channel_path(channel), "tables")

    def may_hold(self, channel: str, block: str) -> bool:
        """Return whether an entry of the channel may name this path: in a group, only paths of the channel itself."""
        return self.gid is None or os.path.dirname(block) == self.channel_path(channel)

    def relative(self, block: str) -> str:
        """Return the path relative to the root, as `ProducerEntry.blocks` has it."""
        return os.path.relpath(block, self.root)

    def channels(self) -> list[str]:
        try:
            with os.scandir(self.path) as found:
                names = [item.name for item in found if item.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted(filter(is_component, names))

    def producers(self, channel: str, *, with_refused: bool = False) -> list[Listed]:
        """Return every producer that has an entry, alive or not, without taking a lock.

        An entry that is refused (for its owner, its mode or its type of file) raises the refusal; with `with_refused`
        it is listed with its flaw, so that it hides no other producer.
        """
        path = self.channel_path(channel)
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return []
        ids = sorted(name[:-5] for name in names if name.endswith(".json"))
        look = self._listed if with_refused else self.producer
        found = [look(channel, producer_id) for producer_id in ids if is_component(producer_id)]
        return [listed for listed in found if listed is not None]

    def _listed(self, channel: str, producer_id: str) -> Listed | None:
        try:
            return self.producer(channel, producer_id)
        except DataBlockError as error:
            return Listed(producer_id, is_alive=True, entry=None, flaw=str(error))

    def producer(self, channel: str, producer_id: str) -> Listed | None:
        """Return one producer, alive or not, or None if it has no entry."""
        base = os.path.join(self.channel_path(channel), component(producer_id))
        try:
            entry, flaw, uid = self._entry(f"{base}.json")
            descriptor = open_trusted(f"{base}.lock", os.O_RDONLY)
        except (NothingThere, FileNotFoundError):
            return None  # cleaned meanwhile
        is_alive = is_locked(descriptor.fd, _OWNED)
        descriptor.close()
        return Listed(producer_id, is_alive, entry, flaw, uid)

    def _entry(self, path: str) -> tuple[ProducerEntry | None, str | None, int]:
        """Return the entry, its flaw and its owner.

        The file is read again only if it was replaced: entries never change in place.
        """
        status = os.lstat(path)
        version = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_uid)
        known = self._entries.get(path)
        if known is None or known[0] != version:
            try:
                known = (version, ProducerEntry.from_json(read_small_file(path, _ENTRY_BYTES), path), None)
            except EntryDamaged as error:
                known = (version, None, str(error))
            if len(self._entries) >= _REMEMBERED:
                self._entries.clear()  # this also forgets producers that ended long ago
            self._entries[path] = known
        return *known[1:], status.st_uid

    @contextlib.contextmanager
    def locked(
        self, channel: str, timeout_seconds: float = 5.0, *, must_exist: bool = False
    ) -> Iterator["LockedChannel"]:
        """Exclude every other registration and cleaning of this channel.

        The channel's directory is made if needed; with `must_exist`, NothingThere is raised instead.
        """
        path = self.channel_path(channel)
        deadline = time.monotonic() + timeout_seconds
        descriptor = None
        while descriptor is None:
            descriptor = self._lock(channel, deadline, must_exist=must_exist)
        try:
            yield LockedChannel(self, channel, path)
        finally:
            descriptor.close()

    def _lock(self, channel: str, deadline: float, *, must_exist: bool) -> Descriptor | None:
        """Take the channel's lock; None when a cleaner removed the directory meanwhile."""
        path = self.channel_path(channel)
        lock_path = os.path.join(path, CHANNEL_LOCK)
        try:
            if not must_exist:
                self.make_channel(channel)
            descriptor = open_lock(lock_path)
        except (NothingThere, RootUnusable):
            if must_exist or os.path.isdir(path) or not os.path.isdir(self.path) or time.monotonic() >= deadline:
                raise
            return None
        try:
            lock_within(descriptor, _OWNED, lock_path, max(deadline - time.monotonic(), 0.0))
            if os.fstat(descriptor.fd).st_nlink:
                return descriptor
        except BaseException:
            descriptor.close()
            raise
        descriptor.close()
        return None

    def make_tables(self, channel: str) -> None:
        """Make the directory of the channel's tables if needed."""
        with self.locked(channel):
            make_own_directory(self.tables_path(channel))

    def make_channel(self, channel: str) -> str:
        """Make the channel's directory if needed, and return its path. No directory on the way is another user's."""
        self.make()
        path = self.channel_path(channel)
        make_own_directory(path)
        return path

    def make(self) -> None:
        """Make the directory of all channels if needed, so that it can be watched."""
        path = self.root
        for name in (self.place, self.domain, "channels"):
            path = os.path.join(path, name)
            make_own_directory(path)


class LockedChannel:
    """The operations that need the channel's lock."""

    def __init__(self, directory: Directory, channel: str, path: str) -> None:
        self.directory = directory
        self.channel = channel
        self.path = path

    def producers(self) -> list[Listed]:
        return self.directory.producers(self.channel)

    def register(self, entry: ProducerEntry, process_lock: ProcessLock | None = None) -> "EntryRegistration":
        """Write the entry and hold its lock. A dead producer with this id is replaced; a live one is a NameTaken.

        With `process_lock` the entry lives until that lock ends or the entry is removed.
        """
        base = os.path.join(self.path, component(entry.producer_id))
        lock = f"{base}.lock"
        descriptor = take_lock(lock) if process_lock is None else None
        if descriptor is None and (process_lock is None or not process_lock.hold(lock)):
            before = self.directory.producer(self.channel, entry.producer_id)
            raise NameTaken(f"{base}.json", before.entry.process.pid if before and before.entry else None)
        remove_file(f"{base}.dead")
        replace_file(f"{base}.json", entry.to_json())
        return EntryRegistration(entry, descriptor)


class EntryRegistration:
    """A live entry. Cleaners may remove it when it was closed, or its process died, and it has lingered."""

    def __init__(self, entry: ProducerEntry, descriptor: Descriptor | None) -> None:
        """Without a `descriptor`, the lock of the process keeps the entry alive."""
        self.entry = entry
        self._descriptor = descriptor

    @property
    def is_held(self) -> bool:
        return self._descriptor is None or self._descriptor.fd >= 0

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()

    def __enter__(self) -> "EntryRegistration":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_component(name: str) -> bool:
    return len(name) <= _NAME_BYTES and _COMPONENT.fullmatch(name) is not None


def component(name: str) -> str:
    """Return the name if it is one harmless path component with room for our suffixes; refuse it otherwise."""
    if not _COMPONENT.fullmatch(name):
        raise NameRefused(name, "it must begin with a letter, digit or '_' and hold no '/', '@' or spaces")
    if len(name) > _NAME_BYTES:
        raise NameTooLong(name, _NAME_BYTES)
    return name


def read_small_file(path: str, limit: int = SMALL_BYTES) -> bytes:
    descriptor = open_trusted(path, os.O_RDONLY)
    try:
        return read_file(descriptor, path, limit)
    finally:
        descriptor.close()


def _inside(name: str) -> str:
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise ValueError(f"block {name!r} is outside the root")
    os.fsencode(name)  # a ValueError for text that JSON can hold and a path cannot
    return name
