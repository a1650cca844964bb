"""The locks that keep entries alive: one file each, or one file of a process under many names.

Rule 1: to see whether an entry lives, open its lock by name and probe it; both kinds look alike.
Rule 2: a process that has thousands of entries without blocks holds one open file for all of them: their locks are hard
links of it. Such an entry ends when its name is removed, and all of them end with the process.
Rule 3: a successor never locks a file that has other names, because it would keep the other entries alive: it replaces
the file. So all of this happens on a locked channel.
"""

import os
import threading
from typing import Final

from messagehub.shm.errors import NothingThere
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked, try_lock
from messagehub.shm.mapped_file import create_unnamed, open_lock, open_trusted, publish, remove_file

_OWNED: Final = exclusive(OWNER)


def take_lock(path: str) -> Descriptor | None:
    """Take the lock, in a file of its own; None when a living process holds it."""
    descriptor = open_lock(path)
    if has_other_names(descriptor):
        if is_locked(descriptor.fd, _OWNED):
            return None
        remove_file(path)
        descriptor = open_lock(path)
    return descriptor if try_lock(descriptor.fd, _OWNED) else None


def has_other_names(descriptor: Descriptor) -> bool:
    return os.fstat(descriptor.fd).st_nlink > 1


def is_held(path: str) -> bool:
    try:
        descriptor = open_trusted(path, os.O_RDONLY)
    except NothingThere:
        return False
    try:
        return is_locked(descriptor.fd, _OWNED)
    finally:
        descriptor.close()


class ProcessLock:
    """One open file for any number of entries."""

    def __init__(self) -> None:
        self._descriptor: Descriptor | None = None
        self._mutex = threading.Lock()

    def hold(self, path: str) -> bool:
        """Keep the entry of this lock alive; False when a living process holds it."""
        if is_held(path):
            return False
        remove_file(path)
        with self._mutex:
            publish(self._opened(path).fd, path)
        return True

    def close(self) -> None:
        with self._mutex:
            if self._descriptor is not None:
                self._descriptor.close()

    def _opened(self, path: str) -> Descriptor:
        """Return the open lock file, a new one if the last has no name left: such a file cannot be linked again."""
        descriptor = self._descriptor
        if descriptor is None or descriptor.fd < 0 or not os.fstat(descriptor.fd).st_nlink:
            descriptor = self._descriptor = create_unnamed(path)
            try_lock(descriptor.fd, _OWNED)
        return descriptor
