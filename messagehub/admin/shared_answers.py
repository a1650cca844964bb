"""Answers that many callers want at the same time: made once, and given to all who ask for them within a moment."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedAnswers(Generic[T]):
    """Used in the event loop. An answer that could not be made is not kept: its error goes to those who waited."""

    def __init__(self, *, seconds: float, most: int = 100) -> None:
        self._seconds = seconds
        self._most = most
        self._made: dict[Hashable, tuple[asyncio.Task[T], float]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        task, at = self._made.get(key, (None, 0.0))
        if task is None or (task.done() and (loop.time() - at >= self._seconds or task.exception() is not None)):
            if len(self._made) >= self._most:
                self._made.clear()
            task = loop.create_task(self._timed(key, make))
            self._made[key] = task, loop.time()
        return await asyncio.shield(task)

    async def _timed(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        made = await make()
        task = asyncio.current_task()
        assert task is not None
        if key in self._made and self._made[key][0] is task:
            self._made[key] = task, asyncio.get_running_loop().time()
        return made
