"""Where the blocks of a hub are: in the place of the user who asks, or of the group that the hub is shared with.

`broker.lock` in the hub's directory says which: the broker of a shared hub writes the group into it. The file stays
when the broker ends, and no chmod makes a private hub look like a shared one.
"""

import os
import re
import stat

from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from messagehub.shm.directory import Directory

_SAID = re.compile(rb"group ([0-9]{1,10})\n")


def directory_of(settings: Settings) -> Directory:
    """Return the directory of channels that clients of this hub use, with and without a broker."""
    return Directory(settings.domain, gid=shared_with(settings), shm_prefix=settings.shm_prefix)


def shared_with(settings: Settings) -> int | None:
    """Return the group that the hub in this directory is shared with; None if it is private or never ran."""
    path = settings.lock_path
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        raise ConfigurationError(
            f"permission denied for {path}: this hub is another user's, or another group's"
        ) from None
    except OSError:
        return None  # nothing there yet, or something that no broker would take
    try:
        status = os.fstat(fd)
        said = _SAID.fullmatch(os.read(fd, 64)) if stat.S_ISREG(status.st_mode) else None
    finally:
        os.close(fd)
    if said is None:
        return None
    if int(said[1]) != status.st_gid:
        raise ConfigurationError(
            f"{path} names group {int(said[1])} but belongs to group {status.st_gid}: start its broker again"
        )
    return status.st_gid


def say_shared_with(fd: int, gid: int) -> None:
    """Write the group into the broker's lock, which the caller holds; -1 stands for a private hub.

    Content that is right already is not written again, so that nobody reads a file that is being changed.
    """
    said = b"" if gid < 0 else b"group %d\n" % gid
    if os.pread(fd, 64, 0) != said:
        os.pwrite(fd, said, 0)
        os.ftruncate(fd, len(said))
