"""Sleep until one of several readers, or another descriptor, is ready."""

import select
import time
from collections.abc import Sequence
from typing import Protocol


class Wakeable(Protocol):
    """A reader that is armed, and has descriptors that wake it."""

    def wake_fds(self) -> list[int]: ...

    def woken(self, fd: int) -> None: ...


class Sleeper:
    """It keeps its poll object from one sleep to the next, because the descriptors rarely change in between."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._poll = select.poll()

    def sleep(self, readers: Sequence[Wakeable], deadline: float | None, also: Sequence[int]) -> set[int]:
        """Sleep until an armed reader is woken, a descriptor of `also` is readable, or the deadline passes.

        The caller has shortened the deadline by the readers' `look_seconds`. Return the readable ones of `also`.
        """
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        fds = [*(fd for reader in readers for fd in reader.wake_fds()), *also]
        if fds != self._fds:
            self._follow(fds)
        ready = {fd for fd, _ in self._poll.poll(None if timeout is None else timeout * 1000)}
        for reader in readers:
            for fd in ready.intersection(reader.wake_fds()):
                reader.woken(fd)
        return ready.intersection(also)

    def _follow(self, fds: list[int]) -> None:
        self._fds = fds
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)
