"""Answers from the directory that are still good: nothing was renamed into it, and everybody it names lives.

Rule 1: births, ends and new tables change the time stamp of a directory; deaths free a lock. Both are looked at.
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

MAX_REMEMBERED = 256
_TICK_NS = 50_000_000
_OWNED = exclusive(OWNER)


class _Kept(NamedTuple):
    found: Discovery
    stamps: list[tuple[str, int]]
    locks: list[Descriptor]


class Remembered:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def get(self, channel: str) -> Discovery | None:
        kept = self._kept.get(channel)
        if kept is None:
            return None
        try:
            for path, stamp in kept.stamps:
                if os.stat(path).st_mtime_ns != stamp:
                    return None
            for lock in kept.locks:
                if not is_locked(lock.fd, _OWNED):
                    return None
        except OSError:
            return None  # the channel's directory is gone
        return kept.found

    def clear(self) -> None:
        kept, self._kept = self._kept, {}
        for each in kept.values():
            for lock in each.locks:
                lock.close()

    def keep(self, channel: str, found: Discovery, stamps: list[tuple[str, int]], locks: Sequence[str]) -> None:
        """`stamps` were taken before the directory was read: what changed since shows as a difference."""
        if any(time.time_ns() - stamp < _TICK_NS for _, stamp in stamps):
            return
        try:
            descriptors = [open_trusted(path, os.O_RDONLY) for path in locks]
        except DataBlockError:
            return
        if len(self._kept) >= MAX_REMEMBERED:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[channel] = _Kept(found, stamps, descriptors)


def stamps_of(paths: Sequence[str]) -> list[tuple[str, int]]:
    """The time stamps of those that exist; a subdirectory's making shows in its parent's."""
    found = []
    for path in paths:
        try:
            found.append((path, os.stat(path).st_mtime_ns))
        except FileNotFoundError:
            continue
    return found
