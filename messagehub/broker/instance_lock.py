"""The broker's private directory, the locks that keep other brokers out, and its endpoints."""

import grp
import os
import socket
import stat
from collections.abc import Iterable, Iterator
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
from messagehub.settings import Settings, broker_socket
from messagehub.shm.channel_directory.location import say_location
from messagehub.shm.channel_directory.ownership import is_member
from messagehub.shm.locks import OWNER, Descriptor, exclusive, try_lock

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
"""Files that clients read; the hub's group may read them, if it has one."""


class InstanceLock:
    """The locks of a broker, held from before its sockets are bound until after they are closed.

    An ipc bind silently takes the socket away from a running broker, so only locks keep two brokers apart: one in the
    directory, and one beside every ipc socket, since a broker of another directory may name that socket.
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
        for path, forbidden in private_files(settings.dir, is_shared=bool(settings.group)):
            check_private(path, forbidden=forbidden)
        self.is_first = not settings.lock_path.exists()
        """True if no broker ran here before, so that no clients of an earlier one come back."""
        try:
            self._take(settings.lock_path, f"directory {settings.dir}")
            say_location(self._locks[0].fd, self.gid, settings.domain)
            used = [endpoint for each in _bound(settings) for endpoint in (each.endpoint, each.events_endpoint)]
            for path in _sockets(used):
                if path.parent != settings.dir:
                    _socket_directory(path.parent)
                self._take(path.with_name(path.name + ".lock"), f"endpoint ipc://{path}")
        except BaseException:
            self.release()
            raise

    def share(self, *endpoints: str) -> None:
        """Give the sockets the mode for those who may connect: the user alone, or the hub's group."""
        for endpoint in endpoints:
            if endpoint.startswith("ipc://"):
                if self.gid >= 0:
                    os.chown(endpoint[6:], -1, self.gid)
                os.chmod(endpoint[6:], 0o600 if self.gid < 0 else 0o660)

    def leave(self) -> None:
        """Remove the sockets after a clean end, then release the locks: later the sockets could be a successor's."""
        for settings in _bound(self._settings):
            for path in _sockets((settings.endpoint, settings.events_endpoint, *settings.topic_endpoints)):
                path.unlink(missing_ok=True)
            if settings.local_socket is not None:
                settings.local_socket.unlink(missing_ok=True)
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
    """Return the mode of the directory: the group may list and enter it, and only the hub's user may change it."""
    return 0o750 if settings.group else 0o700


def private_files(directory: Path, *, is_shared: bool) -> Iterator[tuple[Path, int]]:
    """Yield the files that a broker checks before it starts, each with the mode bits that it refuses."""
    for name in SECRET_FILES:
        yield directory / name, OTHERS
    for name in SHARED_FILES:
        yield directory / name, GROUP_MAY_READ if is_shared else OTHERS
    yield directory / "messagehub.toml", OTHERS_WRITE


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
    """Refuse a TCP endpoint that other hosts can reach, since without keys nobody is authenticated."""
    if endpoint.startswith("tcp://") and not is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0]):
        raise ConfigurationError(
            f"endpoint {endpoint!r} is not on the loopback interface: peers beyond this host need keys,"
            " so add --curve and list them with `messagehub keys`, or use tcp://127.0.0.1:PORT or ipc://"
        )


def is_listening(path: Path) -> bool:
    """Return whether some process accepts connections on a unix socket."""
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
    if settings.group and broker_socket(settings.dir).parent != settings.dir:
        raise ConfigurationError(f"{settings.dir} is too long for the sockets of a group: choose a shorter --dir")


def _socket_directory(path: Path) -> None:
    """Make the directory of a socket: of a chosen endpoint, or below /tmp where the hub's own path is too long."""
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
    """Return the settings of the endpoints to bind: with keys on TCP, the ipc endpoints of the directory too."""
    return [settings, settings.local] if settings.curve else [settings]


def _sockets(endpoints: Iterable[str]) -> list[Path]:
    return [Path(endpoint.removeprefix("ipc://")) for endpoint in endpoints if endpoint.startswith("ipc://")]
