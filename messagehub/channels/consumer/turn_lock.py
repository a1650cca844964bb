"""Turns at a consumer: several threads or tasks may read it, and every item goes to one of them.

Whoever reads has the turn, also while it waits for an item; the others wait for the turn, until their own deadlines.
"""

import asyncio
import functools
import threading
import time
from collections import deque
from collections.abc import Callable

LOOK_SECONDS = 0.5


class TurnLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.take_now = functools.partial(self._lock.acquire, blocking=False)
        self._tasks: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def take(self, deadline: float | None, is_closed: Callable[[], bool]) -> bool:
        """Return False when the deadline came first, or whatever is read was closed.

        Nobody waits for a turn at what is closed: in a forked child, whoever has it may not exist.
        """
        if self._lock.acquire(blocking=False):
            return True
        while not is_closed():
            left = LOOK_SECONDS if deadline is None else min(deadline - time.monotonic(), LOOK_SECONDS)
            if self._lock.acquire(timeout=max(left, 0.0)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return False

    async def take_async(self, deadline: float | None, is_closed: Callable[[], bool]) -> bool:
        """As `take`, sleeping in the running event loop."""
        loop = asyncio.get_running_loop()
        while not self._lock.acquire(blocking=False):
            if is_closed() or (deadline is not None and time.monotonic() >= deadline):
                return False
            waiting = (loop, loop.create_future())
            self._tasks.append(waiting)
            if self._lock.acquire(blocking=False):  # given back before anybody could see this task wait
                self._leave(waiting)
                return True
            left = LOOK_SECONDS if deadline is None else min(deadline - time.monotonic(), LOOK_SECONDS)
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    await waiting[1]
            except TimeoutError:
                pass  # the loop looks at the deadline
            except asyncio.CancelledError:
                if waiting[1].done():
                    self._wake_next()  # this task was woken, and will not take the turn
                raise
            finally:
                self._leave(waiting)
        return True

    def give(self) -> None:
        self._lock.release()
        if self._tasks:
            self._wake_next()

    def _wake_next(self) -> None:
        while self._tasks:
            try:
                loop, future = self._tasks.popleft()
                loop.call_soon_threadsafe(_set, future)
            except IndexError:
                return  # it left meanwhile
            except RuntimeError:
                continue  # its event loop was closed
            return

    def _leave(self, waiting: tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]) -> None:
        try:
            self._tasks.remove(waiting)
        except ValueError:
            return  # woken


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
