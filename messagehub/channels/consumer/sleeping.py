"""Sleeping while a consumer's rings are empty: until one is written, the kernel has news, or anybody wakes it."""

import asyncio
import os
import select
import time
from collections.abc import Callable, Sequence

from messagehub.shm.locks import Descriptor
from messagehub.shm.rings.waiting import Sleeper, Wakeable


class WakeableSleep:
    def __init__(self, on_wake: Callable[[], None]) -> None:
        """`on_wake` is called by whoever wakes it, before the sleeper is woken."""
        self._on_wake = on_wake
        self._wake: Descriptor | None = Descriptor.eventfd()
        self._sleeper = Sleeper()
        self._quiet_fds: list[int] = []
        self._quiet_poll = select.poll()

    @property
    def is_possible(self) -> bool:
        """Not once it is released, nor in a forked child, where descriptors are the parent's."""
        return self._fd >= 0

    def fileno(self) -> int:
        """Return the descriptor that `wake` makes readable."""
        return self._fd

    @property
    def _fd(self) -> int:
        return -1 if self._wake is None else self._wake.fd

    def wake(self) -> None:
        """Wake the sleeper. Any thread may call this: the descriptor is not closed while it is referred to here."""
        self._on_wake()
        wake = self._wake
        if wake is not None and wake.fd >= 0:
            os.eventfd_write(wake.fd, 1)

    def sleep(self, readers: Sequence[Wakeable], until: float | None, news_fds: list[int]) -> set[int]:
        """Sleep over armed readers until then (`time.monotonic()`); return which descriptors have news."""
        return self._sleeper.sleep(readers, until, [self._fd, *news_fds])

    def is_quiet(self, news_fds: list[int]) -> bool:
        """Return whether nobody has called `wake`, and the kernel has no news."""
        fds = [self._fd, *news_fds]
        if fds != self._quiet_fds:
            self._quiet_fds, self._quiet_poll = fds, select.poll()
            for fd in fds:
                self._quiet_poll.register(fd, select.POLLIN)
        return self._fd >= 0 and not self._quiet_poll.poll(0)

    async def sleep_async(self, readers: Sequence[Wakeable], until: float | None, news_fds: list[int]) -> set[int]:
        """As `sleep`, in the running event loop."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        own = [fd for reader in readers for fd in reader.wake_fds()]
        fds = [self._fd, *news_fds, *own]
        for fd in fds:
            loop.add_reader(fd, woken.set)
        try:
            await asyncio.wait_for(woken.wait(), None if until is None else max(until - time.monotonic(), 0.0))
        except TimeoutError:
            pass  # the caller looks at its deadline
        finally:
            for fd in fds:
                loop.remove_reader(fd)
        return self._sleeper.sleep(readers, 0.0, fds[: len(fds) - len(own)])

    def was_woken(self, ready: set[int]) -> bool:
        """Whether `wake` was called, which is then forgotten; what is left of `ready` is news."""
        if self._fd not in ready:
            return False
        os.eventfd_read(self._fd)
        ready.discard(self._fd)
        return True

    def release(self) -> None:
        self._wake = None  # closed by whoever refers to it last
