"""Event loops: the one that runs here, iterators that share it with other tasks, and tasks that other threads wake.

An async iterator that always has the next item at hand lets other tasks run now and then. Without that, `async for`
over a full buffer never returns to the loop: no timeout fires and no other task runs.
"""

import time
from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio  # takes longer to load than all else that most programs need

SHARE_SECONDS = 0.005


def running_loop() -> "asyncio.AbstractEventLoop | None":
    """Return the event loop that runs in this thread, which must not be blocked; None without one."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wake(loop: "asyncio.AbstractEventLoop", woken: "asyncio.Future[None]") -> None:
    """Have the future done, from any thread. Nothing is left to wake in a loop that was closed."""
    try:
        loop.call_soon_threadsafe(_set, woken)
    except RuntimeError:
        pass


def _set(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


class LoopShare:
    """One for each iterator. Ask `is_due()` before an item is taken, and await it when that is so:

    an item taken first would be lost if the task were cancelled while it waits.
    """

    __slots__ = ("_due_at",)

    def __init__(self) -> None:
        self._due_at = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    def restart(self) -> None:
        """Call after the task has slept: other tasks have just had their turn."""
        self._due_at = time.monotonic() + SHARE_SECONDS

    def __await__(self) -> Generator[None, None, None]:
        yield  # a bare yield is what `asyncio.sleep(0)` does, without loading asyncio
        self.restart()


class Sleepers:
    """Tasks of any event loops that sleep until some thread wakes them. Its owner's lock guards `add` and `take`."""

    def __init__(self) -> None:
        self._sleeping: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def add(self) -> "asyncio.Future[None]":
        """Return a future that is done once somebody wakes all sleepers."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._sleeping.append((loop, woken))
        return woken

    def remove(self, woken: "asyncio.Future[None]") -> None:
        self._sleeping = [sleeper for sleeper in self._sleeping if sleeper[1] is not woken]

    def take(self) -> "list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]":
        """Those that `wake` is to wake, after the lock is released."""
        taken, self._sleeping = self._sleeping, []
        return taken

    @staticmethod
    def wake(taken: "list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]") -> None:
        for loop, woken in taken:
            wake(loop, woken)
