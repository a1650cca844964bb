"""Which cores the processes of a comparison run on.

Waking an idle core takes several times as long as switching to another process on the same one, and where the scheduler
puts a process changes from run to run. So a comparison says where its two sides run: the clients' side is this process
and the load generators that it starts, the other side is what is started under `on_the_other_side`.

Rule: a placement holds for every contender of a comparison alike, and ends with it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

CORES = tuple(sorted(os.sched_getaffinity(0)))


class Placement(StrEnum):
    FREE = "any core"
    SAME_CORE = "same core"
    TWO_CORES = "two cores"

    @property
    def cores_needed(self) -> int:
        return 2 if self is Placement.TWO_CORES else 1

    @property
    def clients(self) -> set[int]:
        return set(CORES) if self is Placement.FREE else {CORES[0]}

    @property
    def others(self) -> set[int]:
        return {CORES[-1]} if self is Placement.TWO_CORES else self.clients


WAKING = (Placement.SAME_CORE, Placement.TWO_CORES)
"""For what mostly waits for the other side to wake up: both are measured."""

_current = Placement.FREE


@contextmanager
def placed(placement: Placement) -> Iterator[None]:
    """Keep all threads of this process, and what it starts, on the cores of the placement."""
    global _current
    before, _current = _current, placement
    _move_threads(placement.clients)
    try:
        yield
    finally:
        _current = before
        _move_threads(before.clients)


@contextmanager
def on_the_other_side() -> Iterator[None]:
    """What the block starts runs on the cores of the servers: a child has the affinity of the thread that starts it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _current.others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def other_core() -> int | None:
    """Return the one core of the other side, None where it has several."""
    return next(iter(_current.others)) if len(_current.others) == 1 else None


def _move_threads(cores: set[int]) -> None:
    """Move every thread: libraries keep some from one comparison to the next."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)
