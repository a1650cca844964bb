"""The broker's place: a private directory, the lock that makes it the only one there, and its endpoints."""

import ipaddress
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from messagehub.datablock.locks import OWNER, Descriptor, exclusive, try_lock
from messagehub.errors import BrokerAlreadyRunning, ConfigurationError
from messagehub.settings import Settings


class Place:
    """Held from before the sockets are bound until after they are closed.

    An ipc bind silently takes the socket away from a running broker, so only the locks keep two apart:
    one of the directory, and one beside every ipc socket, since another directory's broker may name that socket.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._locks: list[Descriptor] = []
        for endpoint in (settings.endpoint, settings.events_endpoint):
            check_loopback(endpoint)
        private_directory(settings.dir)
        try:
            self._take(settings.lock_path, f"directory {settings.dir}")
            for path in _sockets((settings.endpoint, settings.events_endpoint)):
                if path.parent != settings.dir:
                    private_directory(path.parent, strict=False)
                self._take(path.with_name(path.name + ".lock"), f"endpoint ipc://{path}")
        except BaseException:
            self.release()
            raise

    def leave(self) -> None:
        """After a clean end: nothing stale stays behind. Before the locks go, or it could be a successor's."""
        endpoints = (self._settings.endpoint, self._settings.events_endpoint, *self._settings.topic_endpoints)
        for path in _sockets(endpoints):
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


def private_directory(path: Path, *, strict: bool = True) -> None:
    """Make the directory 0700; refuse one that others could tamper with."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(f"cannot use directory {path}: {error.strerror}") from error
    if found.st_uid not in (os.getuid(), 0) or (strict and found.st_uid != os.getuid()):
        raise ConfigurationError(f"directory {path} belongs to another user: choose another with --dir")
    if strict and stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(f"directory {path} is open to other users: chmod 700 {path}")


def check_loopback(endpoint: str) -> None:
    """Without authentication nobody beyond this host may connect."""
    if not endpoint.startswith("tcp://"):
        return
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigurationError(
            f"endpoint {endpoint!r} is not on the loopback interface: peers are not authenticated yet,"
            " so use tcp://127.0.0.1:PORT or ipc://"
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


def _sockets(endpoints: Iterable[str]) -> list[Path]:
    return [Path(endpoint.removeprefix("ipc://")) for endpoint in endpoints if endpoint.startswith("ipc://")]
