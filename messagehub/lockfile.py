"""Kernel locks on files: one holder, released at its death whatever killed it.

Open-file-description locks belong to the descriptor, not to the process, so closing another descriptor of
the same file loses nothing. Probing never takes the lock.
"""

import errno
import fcntl
import os
import struct
import weakref
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")


class FileLock:
    """An exclusive lock held until `release` or the death of the process.

    A forked child has no share in it: its copy of the descriptor is closed at once, else the child's life would
    keep the lock after its parent's death.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.is_held = False
        _open_locks.add(self)

    def acquire(self) -> bool:
        """Whether the lock is now ours; never waits."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        self.is_held = True
        return True

    def release(self) -> None:
        if self._fd >= 0:
            if self.is_held:  # said aloud, since a child that is just being forked has the descriptor too
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK))
            self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptor; whoever else has the lock keeps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.is_held = False


def is_locked(path: Path) -> bool:
    """Whether some process holds the file's lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _request(fcntl.F_RDLCK))
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _request(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _close_parents() -> None:
    for lock in list(_open_locks):
        lock.abandon()


_open_locks: "weakref.WeakSet[FileLock]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_parents)
