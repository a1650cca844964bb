"""Blocks that carry the payload of one message. They have no owner: they are removed when they are old or too many.

No lock is needed: a block is complete when it gets its name, and removing a block that is gone already is no error.
"""

import os
import time
from typing import Final

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.mapped_file import make_own_directory, remove_file

LEASE_SECONDS: Final = 30.0
MOST_BYTES: Final = 1 << 30


def messages_path(directory: Directory) -> str:
    return os.path.join(os.path.dirname(directory.path), "messages")


def make_messages_directory(directory: Directory) -> str:
    """Nothing of another user is accepted on the way."""
    path = directory.root
    for name in (directory.place, directory.domain, "messages"):
        path = os.path.join(path, name)
        make_own_directory(path)
    return path


def sweep_messages(directory: Directory, *, now: float | None = None, room_bytes: int = 0) -> int:
    """Remove blocks that are too old, then the oldest while there are too many, and return how many."""
    now = time.time() if now is None else now
    found: list[tuple[float, int, str]] = []
    try:
        with os.scandir(messages_path(directory)) as items:
            for item in items:
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process removed it
                found.append((status.st_mtime, status.st_size, item.path))
    except FileNotFoundError:
        return 0
    total = sum(size for _, size, _ in found) + room_bytes
    removed = 0
    for written_at, size, path in sorted(found):
        if now - written_at < LEASE_SECONDS and total <= MOST_BYTES:
            break
        removed += remove_file(path)
        total -= size
    return removed
