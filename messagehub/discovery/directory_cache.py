"""A cache of what was discovered in this host's directory, valid while the directory has not changed.

Rule 1: a new member, an ended one and a new table change the time stamp of a directory; a process that dies frees its
lock. An answer is returned only while all time stamps are the same and all locks are held.
Rule 2: a time stamp is trusted only once it is older than the kernel's coarsest tick, since two changes within
one tick look alike.
"""

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from messagehub.discovery import Discovery
from messagehub.shm.errors import DataBlockError
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked
from messagehub.shm.mapped_file import open_trusted

MAX_CACHED = 256
_TICK_NS = 50_000_000
_OWNED = exclusive(OWNER)


class _CachedDiscovery(NamedTuple):
    found: Discovery
    stamps: list[tuple[str, int]]
    locks: list[Descriptor]


class DirectoryCache:
    def __init__(self) -> None:
        self._cached: dict[str, _CachedDiscovery] = {}

    def get(self, channel: str) -> Discovery | None:
        cached = self._cached.get(channel)
        if cached is None:
            return None
        try:
            for path, stamp in cached.stamps:
                if os.stat(path).st_mtime_ns != stamp:
                    return None
            for lock in cached.locks:
                if not is_locked(lock.fd, _OWNED):
                    return None
        except OSError:
            return None  # the channel's directory is gone
        return cached.found

    def clear(self) -> None:
        cached, self._cached = self._cached, {}
        for each in cached.values():
            for lock in each.locks:
                lock.close()

    def put(self, channel: str, found: Discovery, stamps: list[tuple[str, int]], locks: Sequence[str]) -> None:
        """Cache an answer.

        `stamps` were taken before the directory was read, so that any later change makes a difference.
        """
        if any(time.time_ns() - stamp < _TICK_NS for _, stamp in stamps):
            return
        try:
            descriptors = [open_trusted(path, os.O_RDONLY) for path in locks]
        except DataBlockError:
            return
        if len(self._cached) >= MAX_CACHED:
            self._cached.pop(next(iter(self._cached)), None)
        self._cached[channel] = _CachedDiscovery(found, stamps, descriptors)


def stamps_of(paths: Sequence[str]) -> list[tuple[str, int]]:
    """Return the time stamps of the directories that exist. A new subdirectory changes that of its parent."""
    found = []
    for path in paths:
        try:
            found.append((path, os.stat(path).st_mtime_ns))
        except FileNotFoundError:
            continue
    return found
