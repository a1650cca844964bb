"""What a running broker says of itself in `broker.json`, so that clients of the directory find its endpoints."""

import os
from pathlib import Path

import msgspec

from messagehub.security.private_files import write_private
from messagehub.settings import Settings
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked
from messagehub.version import __version__
from registry.decoding import decodable


@decodable
class BrokerStatus(msgspec.Struct, kw_only=True, frozen=True):
    endpoint: str
    events_endpoint: str
    http: str | None
    dir: str
    pid: int
    version: str
    broker_id: str
    server_key: str = ""
    remote_endpoint: str = ""
    start_time: int = 0
    """Of the process, by which its pid is told from the same number of another process."""

    @classmethod
    def of(cls, settings: Settings, *, broker_id: str) -> "BrokerStatus":
        return cls(
            endpoint=settings.endpoint,
            events_endpoint=settings.events_endpoint,
            http=settings.http,
            dir=str(settings.dir),
            pid=os.getpid(),
            start_time=ProcessIdentity.current().start_time,
            version=__version__,
            broker_id=broker_id,
        )

    def write(self, path: Path, *, gid: int = -1) -> None:
        """Atomically: a reader sees the whole file or none. Private, or for the eyes of a group."""
        write_private(path, msgspec.json.encode(self), mode=0o600 if gid < 0 else 0o640, gid=gid)


def running_broker(settings: Settings) -> BrokerStatus | None:
    """The broker that holds the directory's lock now. A file left by a dead one says nothing."""
    if not is_held(settings.lock_path):
        return None
    try:
        return msgspec.json.decode(settings.status_path.read_bytes(), type=BrokerStatus)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_held(path: str | Path) -> bool:
    """Whether some process holds the lock of this file; probing never takes it."""
    try:
        descriptor = Descriptor.open(str(path), os.O_RDONLY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    try:
        return is_locked(descriptor.fd, exclusive(OWNER))
    finally:
        descriptor.close()
