"""The broker's place: a private directory, the lock that makes it the only one there, and its endpoints."""

import grp
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from messagehub.errors import BrokerAlreadyRunning, ConfigurationError
from messagehub.security.private_files import (
    GROUP_MAY_READ,
    OTHERS,
    OTHERS_WRITE,
    check_private,
    is_planted,
    private_directory,
)
from messagehub.setting_checks import is_loopback
from messagehub.settings import Settings, socket_path
from messagehub.shm.location import say_shared_with
from messagehub.shm.locks import OWNER, Descriptor, exclusive, try_lock
from messagehub.shm.ownership import is_member

SECRET_FILES = (
    "registry.db",
    "registry.db-wal",
    "registry.db-shm",
    "http.token",
    "access.json",
    "audit.log",
    "audit-http.log",
    "audit-access.log",
)
SHARED_FILES = ("broker.lock", "broker.json")
"""What clients read: to be seen by the hub's group, if it has one."""


class InstanceLock:
    """Held from before the sockets are bound until after they are closed.

    An ipc bind silently takes the socket away from a running broker, so only the locks keep two apart:
    one of the directory, and one beside every ipc socket, since another directory's broker may name that socket.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._locks: list[Descriptor] = []
        _check_sharing(settings)
        self.gid = group_id(settings.group) if settings.group else -1
        if not settings.curve:
            for endpoint in (settings.endpoint, settings.events_endpoint):
                check_loopback(endpoint)
        private_directory(settings.dir, mode=directory_mode(settings), gid=self.gid)
        _check_files(settings)
        self.is_first = not settings.lock_path.exists()
        """Whether no broker was here before, whose clients may be coming back."""
        try:
            self._take(settings.lock_path, f"directory {settings.dir}")
            say_shared_with(self._locks[0].fd, self.gid)
            used = [endpoint for each in _bound(settings) for endpoint in (each.endpoint, each.events_endpoint)]
            for path in _sockets(used):
                if path.parent != settings.dir:
                    _socket_directory(path.parent)
                self._take(path.with_name(path.name + ".lock"), f"endpoint ipc://{path}")
        except BaseException:
            self.release()
            raise

    def share(self, *endpoints: str) -> None:
        """Let those in who may come: the user alone, or the hub's group."""
        for endpoint in endpoints:
            if endpoint.startswith("ipc://"):
                if self.gid >= 0:
                    os.chown(endpoint[6:], -1, self.gid)
                os.chmod(endpoint[6:], 0o600 if self.gid < 0 else 0o660)

    def leave(self) -> None:
        """After a clean end: nothing stale stays behind. Before the locks go, or it could be a successor's."""
        for settings in _bound(self._settings):
            for path in _sockets((settings.endpoint, settings.events_endpoint, *settings.topic_endpoints)):
                path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        for lock in self._locks:
            lock.close()

    def _take(self, path: Path, what: str) -> None:
        lock = Descriptor.open(str(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        self._locks.append(lock)
        if not try_lock(lock.fd, exclusive(OWNER)):
            raise BrokerAlreadyRunning(
                f"another broker holds {what}: stop it, or choose another --dir and --endpoint", lock=str(path)
            )
        if self.gid >= 0:
            os.fchown(lock.fd, -1, self.gid)
            os.fchmod(lock.fd, 0o640)


def directory_mode(settings: Settings) -> int:
    """The group looks and passes through; only the hub's own user makes, moves and removes what is in it."""
    return 0o750 if settings.group else 0o700


def group_id(name: str) -> int:
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigurationError(f"there is no group {name!r} on this host: groupadd {name}") from None
    if not is_member(gid):
        raise ConfigurationError(
            f"this process is not in group {name!r}: have root run usermod -aG {name}, log in again"
        )
    return gid


def check_loopback(endpoint: str) -> None:
    """Without authentication nobody beyond this host may connect."""
    if endpoint.startswith("tcp://") and not is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0]):
        raise ConfigurationError(
            f"endpoint {endpoint!r} is not on the loopback interface: peers beyond this host need keys,"
            " so add --curve and list them with `messagehub keys`, or use tcp://127.0.0.1:PORT or ipc://"
        )


def is_listening(path: Path) -> bool:
    """Whether some process accepts connections on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _check_sharing(settings: Settings) -> None:
    is_tcp = settings.endpoint.startswith("tcp://")
    if settings.curve and not is_tcp:
        raise ConfigurationError("keys (--curve) are for TCP: say where with --endpoint tcp://HOST:PORT")
    if settings.group and is_tcp and not settings.curve:
        raise ConfigurationError("a hub of a group takes ipc:// endpoints, or TCP with keys (--curve)")
    if settings.group and socket_path(settings.dir, "broker.sock").parent != settings.dir:
        raise ConfigurationError(f"{settings.dir} is too long for the sockets of a group: choose a shorter --dir")


def _check_files(settings: Settings) -> None:
    for name in SECRET_FILES:
        check_private(settings.dir / name)
    for name in SHARED_FILES:
        check_private(settings.dir / name, forbidden=GROUP_MAY_READ if settings.group else OTHERS)
    check_private(settings.dir / "messagehub.toml", forbidden=OTHERS_WRITE)


def _socket_directory(path: Path) -> None:
    """Of a chosen endpoint, or the one below /tmp that stands in for a directory whose name is too long."""
    for place in (path.parent, path):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = place.stat()
        except OSError as error:
            raise ConfigurationError(f"cannot use directory {place}: {error.strerror}") from error
        if found.st_uid not in (os.geteuid(), 0) or is_planted(place):
            raise ConfigurationError(f"directory {place} belongs to another user: choose another endpoint")
        if found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise ConfigurationError(f"directory {place} can be changed by other users: choose another endpoint")


def _bound(settings: Settings) -> list[Settings]:
    """With keys on TCP, the ipc endpoints of the directory are bound too."""
    return [settings, settings.local] if settings.curve else [settings]


def _sockets(endpoints: Iterable[str]) -> list[Path]:
    return [Path(endpoint.removeprefix("ipc://")) for endpoint in endpoints if endpoint.startswith("ipc://")]
