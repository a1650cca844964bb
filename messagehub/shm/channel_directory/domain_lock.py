"""Which brokers serve a domain: each holds `brokers.lock` in the domain's directory while it runs.

Rule 1: a broker holds the file shared and one byte of it exclusively, by which brokers are counted.
Rule 2: who removes the shared memory of a domain holds the file exclusively meanwhile. So no broker serves a domain
that is being removed, and no domain is removed that a broker serves.
"""

import os
import time
from typing import Final

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import Busy, DataBlockError
from messagehub.shm.locks import OWNER, Descriptor, exclusive, exclusively_locked, lock_within, shared, try_lock
from messagehub.shm.mapped_file import open_lock, open_trusted

BROKERS_LOCK: Final = "brokers.lock"
_MOST_BROKERS: Final = 64  # that are counted; more may serve
_WAIT_SECONDS: Final = 5.0


class DomainLock:
    """Held by a broker until `close`. `others` is how many brokers served the domain before it."""

    def __init__(self, directory: Directory) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        self._descriptor = _locked(directory, deadline)
        self.others = len(_counted(self._descriptor))
        for byte in range(_MOST_BROKERS):
            if try_lock(self._descriptor.fd, exclusive(OWNER + 1 + byte)):
                break

    def close(self) -> None:
        self._descriptor.close()


def serving_brokers(directory: Directory) -> int:
    """Return how many brokers serve the domain now."""
    try:
        descriptor = open_trusted(_path(directory), os.O_RDONLY)
    except (DataBlockError, OSError):
        return 0  # no broker has served it, or none that this user could have to do with
    try:
        return len(_counted(descriptor))
    finally:
        descriptor.close()


def take_domain(directory: Directory) -> Descriptor | None:
    """Keep brokers out of the domain until the descriptor is closed. None while one serves it."""
    descriptor = open_lock(_path(directory))
    if try_lock(descriptor.fd, exclusive(OWNER)):
        return descriptor
    descriptor.close()
    return None


def _locked(directory: Directory, deadline: float) -> Descriptor:
    while True:
        directory.make()
        path = _path(directory)
        descriptor = open_lock(path)
        try:
            lock_within(descriptor, shared(OWNER), path, max(deadline - time.monotonic(), 0.0))
            if os.fstat(descriptor.fd).st_nlink:
                return descriptor
        except BaseException:
            descriptor.close()
            raise
        descriptor.close()  # the domain was removed meanwhile, and is made again
        if time.monotonic() >= deadline:
            raise Busy(path, _WAIT_SECONDS)


def _counted(descriptor: Descriptor) -> set[int]:
    return exclusively_locked(descriptor.fd, OWNER + 1, _MOST_BROKERS)


def _path(directory: Directory) -> str:
    return os.path.join(os.path.dirname(directory.path), BROKERS_LOCK)
