"""The directory of a domain: who produces what, readable without a broker.

    <root>/messagehub-<uid>/<domain>/channels/<channel>/
        channel.lock             around read, apply, write, and around cleaning
        <producer_id>.json       the entry: replaced whole or not at all
        <producer_id>.lock       held while the producer lives; never replaced
        <producer_id>.dead       when a cleaner first saw that lock free
        <producer_id>.ring       the block of a producer that shares its channel
        lanes/<block_id>/        its readers
        tables/                  committed tables (see `tables`)

Rule 1: the entry comes before the blocks it names, and goes after them, so no block is ever without an entry.
Rule 2: a producer is alive exactly while its lock is held; pid and times in the entry are for people.
Rule 3: reading takes no lock. Whatever changes the set of producers happens on a `LockedChannel`.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .errors import (
    EntryDamaged,
    NameRefused,
    NameTaken,
    NameTooLong,
    NothingThere,
)
from .identity import ProcessIdentity
from .layout import LAYOUT_VERSION
from .locks import OWNER, Descriptor, exclusive, is_locked, lock_within, try_lock
from .segment import DEFAULT_ROOT, make_own_directory, open_trusted, read_file, refusal, remove_file, replace_file

DEFAULT_DOMAIN: Final = "default"
CHANNEL_LOCK: Final = "channel.lock"
_OWNED: Final = exclusive(OWNER)
_COMPONENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+,-]*")
_NAME_BYTES: Final = 200
_REMEMBERED: Final = 4096


@dataclass(frozen=True)
class ProducerEntry:
    """What a producer says of itself. `blocks` are relative to the root; `details` belong to the caller."""

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
            return cls(**value)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EntryDamaged(path, repr(error)) from None


@dataclass(frozen=True)
class Listed:
    """One producer as the directory shows it. A damaged entry has a flaw instead of an entry."""

    producer_id: str
    is_alive: bool
    entry: ProducerEntry | None
    flaw: str | None = None


class Directory:
    """One domain of one user."""

    def __init__(
        self,
        domain: str = DEFAULT_DOMAIN,
        root: str = DEFAULT_ROOT,
        uid: int | None = None,
        *,
        is_group_readable: bool = False,
    ) -> None:
        """`uid` names another user whose group-readable directory is to be read."""
        self.domain = component(domain)
        self.is_group_readable = is_group_readable
        self._entries: dict[str, tuple[tuple[int, int, int], ProducerEntry | None, str | None]] = {}
        self.root = root
        self.uid = os.geteuid() if uid is None else uid
        self.path = os.path.join(root, f"messagehub-{self.uid}", domain, "channels")

    def channel_path(self, channel: str) -> str:
        return os.path.join(self.path, component(channel))

    def shared_block(self, channel: str, producer_id: str) -> str:
        return os.path.join(self.channel_path(channel), f"{component(producer_id)}.ring")

    def exclusive_block(self, channel: str) -> str:
        """The name that a consumer can derive from the channel alone; '@' cannot be part of a channel."""
        suffix = "" if self.domain == DEFAULT_DOMAIN else f"@{self.domain}"
        name = f"pylabhub_{component(channel)}{suffix}"
        if len(name) > 255:
            raise NameTooLong(name, 255)
        return os.path.join(self.root, name)

    def lanes(self, block: str, channel: str) -> str:
        """Where the readers of a block put their lanes, relative to the directory of the block."""
        return os.path.relpath(os.path.join(self.channel_path(channel), "lanes"), os.path.dirname(block))

    def tables_path(self, channel: str) -> str:
        return os.path.join(self.channel_path(channel), "tables")

    def relative(self, block: str) -> str:
        """As `ProducerEntry.blocks` wants it."""
        return os.path.relpath(block, self.root)

    def channels(self) -> list[str]:
        try:
            with os.scandir(self.path) as found:
                names = [item.name for item in found if item.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if _COMPONENT.fullmatch(name))

    def producers(self, channel: str) -> list[Listed]:
        """Everyone with an entry, alive or not, without waiting for anything."""
        path = self.channel_path(channel)
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return []
        found = [self.producer(channel, name[:-5]) for name in sorted(names) if name.endswith(".json")]
        return [listed for listed in found if listed is not None]

    def producer(self, channel: str, producer_id: str) -> Listed | None:
        """One producer, alive or not; None if it has no entry (any more)."""
        base = os.path.join(self.channel_path(channel), component(producer_id))
        try:
            entry, flaw = self._entry(f"{base}.json")
            descriptor = open_trusted(f"{base}.lock", os.O_RDONLY, self.uid)
        except (NothingThere, FileNotFoundError):
            return None  # cleaned meanwhile
        is_alive = is_locked(descriptor.fd, _OWNED)
        descriptor.close()
        return Listed(producer_id, is_alive, entry, flaw)

    def _entry(self, path: str) -> tuple[ProducerEntry | None, str | None]:
        """Read again only if the file was replaced: entries never change in place."""
        status = os.lstat(path)
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._entries.get(path)
        if known is None or known[0] != version:
            try:
                known = (version, ProducerEntry.from_json(read_small_file(path, self.uid), path), None)
            except EntryDamaged as error:
                known = (version, None, str(error))
            if len(self._entries) >= _REMEMBERED:
                self._entries.clear()  # those of producers long gone too
            self._entries[path] = known
        return known[1:]

    @contextlib.contextmanager
    def locked(self, channel: str, timeout_seconds: float = 5.0) -> Iterator["LockedChannel"]:
        """Exclude every other registration and cleaning of this channel."""
        path = self.make_channel(channel)
        lock_path = os.path.join(path, CHANNEL_LOCK)
        try:
            descriptor = Descriptor.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            raise refusal(error, lock_path) from None
        try:
            lock_within(descriptor, _OWNED, lock_path, timeout_seconds)
            yield LockedChannel(self, channel, path)
        finally:
            descriptor.close()

    def make_channel(self, channel: str) -> str:
        """The channel's directory, made if needed; nothing of another user is accepted on the way."""
        path = self.root
        for name in (f"messagehub-{self.uid}", self.domain, "channels", component(channel)):
            path = os.path.join(path, name)
            make_own_directory(path, 0o750 if self.is_group_readable else 0o700, self.uid)
        return path


class LockedChannel:
    """What may only be done while nobody else changes the channel."""

    def __init__(self, directory: Directory, channel: str, path: str) -> None:
        self.directory = directory
        self.channel = channel
        self.path = path
        self._mode = 0o640 if directory.is_group_readable else 0o600

    def producers(self) -> list[Listed]:
        return self.directory.producers(self.channel)

    def register(self, entry: ProducerEntry) -> "Registration":
        """Write the entry and hold its lock. A dead producer of this id is succeeded, a live one is not."""
        base = os.path.join(self.path, component(entry.producer_id))
        try:
            descriptor = Descriptor.open(f"{base}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, self._mode)
        except OSError as error:
            raise refusal(error, f"{base}.lock") from None
        if not try_lock(descriptor.fd, _OWNED):
            before = self.directory.producer(self.channel, entry.producer_id)
            raise NameTaken(f"{base}.json", before.entry.process.pid if before and before.entry else None)
        remove_file(f"{base}.dead")
        replace_file(f"{base}.json", entry.to_json(), self._mode)
        return Registration(entry, descriptor)


class Registration:
    """A live entry. After closing it, or dying, cleaners may remove it when it has lingered."""

    def __init__(self, entry: ProducerEntry, descriptor: Descriptor) -> None:
        self.entry = entry
        self._descriptor = descriptor

    @property
    def is_held(self) -> bool:
        return self._descriptor.fd >= 0

    def close(self) -> None:
        self._descriptor.close()

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def component(name: str) -> str:
    """A name that is one harmless path component, with room for our suffixes."""
    if len(name.encode()) > _NAME_BYTES:
        raise NameTooLong(name, _NAME_BYTES)
    if not _COMPONENT.fullmatch(name):
        raise NameRefused(name, "it must begin with a letter, digit or '_' and hold no '/', '@' or spaces")
    return name


def read_small_file(path: str, uid: int | None = None) -> bytes:
    descriptor = open_trusted(path, os.O_RDONLY, uid)
    try:
        return read_file(descriptor, path)
    finally:
        descriptor.close()


def _inside(name: str) -> str:
    if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise ValueError(f"block {name!r} is outside the root")
    os.fsencode(name)  # what JSON can say and a path cannot is a ValueError too
    return name
