"""The last sequence of each ring that was removed: one small file a domain, so that a reader that comes back later can
tell whether it has read all of a ring.

Rule 1: a ring is noted before it is removed. While the ring is still there, its note and its head agree.
Rule 2: the newest MOST rings are remembered, in a file of bounded size.
"""

import os
from typing import Final

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.shared_line_file import SharedLineFile

MOST: Final = 4096
_NAME: Final = "ended-rings"
_LINE_BYTES: Final = 64


def note_ended(directory: Directory, block_id: str, last_sequence: int) -> None:
    """Remember how far a ring went that is about to be removed. If that fails, readers find no note."""
    if last_sequence:
        _file(directory).append(f"{block_id} {last_sequence}")


def last_sequence(directory: Directory, block_id: str) -> int | None:
    """Return the last sequence of a ring that was removed; None where nothing is known of it."""
    try:
        lines = _file(directory).lines()
    except DataBlockError:
        return None
    for line in reversed(lines):
        name, _, number = line.partition(" ")
        if name == block_id and number.isdecimal() and len(number) <= _LINE_BYTES:  # `int` refuses thousands of digits
            return int(number)
    return None


def _file(directory: Directory) -> SharedLineFile:
    return SharedLineFile(os.path.join(os.path.dirname(directory.path), _NAME), MOST, _LINE_BYTES)
