"""Where the blocks of a hub are: in the directory of the user, or of the group that the hub is shared with.

`broker.lock` in the hub's directory says which: the broker writes the group of a shared hub into it, and its domain.
The file stays when the broker ends, and no chmod makes a private hub look like a shared one.
"""

import os
import re
import stat

from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from messagehub.shm.channel_directory.directory import Directory

_SAID = re.compile(rb"(?:group (?P<group>[0-9]{1,10})\n)?(?:domain (?P<domain>[!-~]{1,200})\n)?")
_SAID_BYTES = 256


def directory_of(settings: Settings) -> Directory:
    """Return the directory of channels that clients of this hub use, with and without a broker."""
    return Directory(settings.domain, gid=shared_with(settings), shm_prefix=settings.shm_prefix)


def shared_with(settings: Settings) -> int | None:
    """Return the group that the hub in this directory is shared with; None if it is private or never ran."""
    said, gid = _read(settings)
    if said is None or said["group"] is None:
        return None
    if int(said["group"]) != gid:
        raise ConfigurationError(
            f"{settings.lock_path} names group {int(said['group'])} but belongs to group {gid}: start its broker again"
        )
    return gid


def domain_served(settings: Settings) -> str | None:
    """Return the domain that the hub in this directory ran with last; None if it never ran."""
    said, _ = _read(settings)
    return said["domain"].decode() if said is not None and said["domain"] is not None else None


def say_location(fd: int, gid: int, domain: str) -> None:
    """Write group and domain into the broker's lock, which the caller holds; a gid of -1 stands for a private hub.

    Content that is right already is not written again, so that nobody reads a file that is being changed.
    """
    said = (b"" if gid < 0 else b"group %d\n" % gid) + b"domain %s\n" % domain.encode()
    if os.pread(fd, _SAID_BYTES, 0) != said:
        os.pwrite(fd, said, 0)
        os.ftruncate(fd, len(said))


def _read(settings: Settings) -> tuple[re.Match[bytes] | None, int]:
    """Return what the broker's lock says, and the group that the file belongs to."""
    path = settings.lock_path
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        raise ConfigurationError(
            f"permission denied for {path}: this hub is another user's, or another group's. Its owner, or root, adds"
            " users to its group: usermod -aG GROUP USER, and they log in again"
        ) from None
    except OSError:
        return None, -1  # nothing there yet, or something that no broker would take
    try:
        status = os.fstat(fd)
        said = _SAID.fullmatch(os.read(fd, _SAID_BYTES)) if stat.S_ISREG(status.st_mode) else None
    finally:
        os.close(fd)
    return said, status.st_gid
