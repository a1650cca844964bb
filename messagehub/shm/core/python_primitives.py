"""What writer and reader of the ring in Python share: its words, its fence, short waits, and the count of forks.

Rule 1: a word is stored with one aligned 8-byte store (`memoryview.cast("Q")`), never with `struct`.
Rule 2: stores become visible in program order, which x86-64 promises. Where the protocol needs a fence, a lock is taken
or let go of, which is one there (an atomic instruction). `core.check_usable` refuses other machines.
"""

import os
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, Final

from messagehub.shm.layout import LINE_WORDS

CURSOR: Final = 0
TICKET: Final = 1
LOSSLESS: Final = 2
HELD: Final = 3
PINS_OFFSET: Final = 64
GROUP_LINE_WORDS: Final = 8

fork_count = 0
"""How often this process was forked from another. A writer or reader of a parent is none of its child."""


def places_in(
    block: Any, *, table: int, data_offset: int, stride_bytes: int, slot_count: int
) -> tuple[memoryview, memoryview, list[int], list[int]]:
    """Return a ring's bytes, its words, and for each slot the word where its line begins and where its payload does."""
    data = memoryview(block).cast("B")
    words = data[: len(data) // 8 * 8].cast("Q")
    lines = [table + slot * LINE_WORDS for slot in range(slot_count)]
    return data, words, lines, [data_offset + slot * stride_bytes for slot in range(slot_count)]


def fence() -> None:
    """Take a lock, with an atomic instruction. A new one each time: a finalizer may run in the middle of another."""
    allocate_lock().acquire(False)


def _count_fork() -> None:
    global fork_count
    fork_count += 1


os.register_at_fork(after_in_child=_count_fork)


class Spin:
    """Whether a short wait without sleeping is worth it: only where it paid lately."""

    def __init__(self) -> None:
        self._credit = self._waits = 0

    def until(self, spin_us: int, is_there: Callable[[], bool]) -> bool:
        self._waits += 1
        if spin_us <= 0 or (self._credit <= 0 and self._waits % 32):
            return False
        end = time.monotonic() + spin_us / 1e6
        came = is_there()
        while not came and time.monotonic() < end:
            came = is_there()
        self._credit = min(8, self._credit + 2) if came else max(0, self._credit - 1)
        return came
