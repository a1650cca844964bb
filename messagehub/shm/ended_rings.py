"""How far the rings went that are no longer there: one small file a domain, so that a reader that comes back later can
tell whether it has read all of a ring.

Rule 1: a ring is noted before it is removed. A note of a ring that is still there says what its head says.
Rule 2: the newest MOST rings are remembered, in a file of bounded size.
"""

import os
from typing import Final

from .directory import Directory
from .errors import DataBlockError
from .locks import OWNER, exclusive, lock_within
from .mapped_file import open_lock, read_file

MOST: Final = 4096
_NAME: Final = "ended-rings"
_LINE_BYTES: Final = 64
_LOCK_SECONDS: Final = 0.5
_OWNED: Final = exclusive(OWNER)


def note_ended(directory: Directory, block_id: str, last_sequence: int) -> None:
    """Remember how far a ring went that is about to be removed. Where that fails, a reader is told nothing."""
    path = _path(directory)
    line = f"{block_id} {last_sequence}\n".encode()
    if not last_sequence or len(line) > _LINE_BYTES:
        return
    descriptor = open_lock(path)
    try:
        lock_within(descriptor, _OWNED, path, _LOCK_SECONDS)
        size = os.fstat(descriptor.fd).st_size
        if size + len(line) > MOST * _LINE_BYTES:
            lines = os.pread(descriptor.fd, MOST * _LINE_BYTES, 0).splitlines(keepends=True)
            kept = [line for line in lines if line.endswith(b"\n")][-MOST // 2 :]
            os.ftruncate(descriptor.fd, 0)
            size = os.pwrite(descriptor.fd, b"".join(kept), 0)
        os.pwrite(descriptor.fd, line, size)
    finally:
        descriptor.close()


def last_sequence(directory: Directory, block_id: str) -> int | None:
    """Return the last sequence of a ring that was removed; None where nothing is known of it."""
    path = _path(directory)
    if not os.path.exists(path):
        return None
    try:
        descriptor = open_lock(path)
        try:
            lock_within(descriptor, _OWNED, path, _LOCK_SECONDS)
            lines = read_file(descriptor, path, MOST * _LINE_BYTES).decode(errors="replace").splitlines()
        finally:
            descriptor.close()
    except DataBlockError:
        return None
    for line in reversed(lines):
        name, _, number = line.partition(" ")
        if name == block_id and number.isdecimal():
            return int(number)
    return None


def _path(directory: Directory) -> str:
    return os.path.join(os.path.dirname(directory.path), _NAME)
