"""One sampler of rates and lag for all callers of this process. It closes its files when nobody asks any more."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from messagehub.channels.flow import SAMPLE_SECONDS, FlowSample, FlowSampler

IDLE_SECONDS = 15.0

RunInThread = Callable[[Callable[[], FlowSample]], Awaitable[FlowSample]]


class SharedFlow:
    """Used in the event loop. A sample is taken in a thread, and all who ask meanwhile wait for the same one."""

    def __init__(self, sampler: FlowSampler, run: RunInThread) -> None:
        self._sampler = sampler
        self._run = run
        self._taking: dict[str | None, asyncio.Task[FlowSample]] = {}
        self._last: FlowSample | None = None
        self._last_at = 0.0
        self._idle: asyncio.TimerHandle | None = None

    async def sample(self, focus: str | None = None, *, max_age_seconds: float = SAMPLE_SECONDS) -> FlowSample:
        """Return a sample that is not older; `focus` is a channel that must be in it, if it has rings here."""
        loop = asyncio.get_running_loop()
        self._expect_end(loop)
        last = self._last
        if (
            last is not None
            and loop.time() - self._last_at < max_age_seconds
            and (focus is None or focus in last.rings)
        ):
            return last
        taking = self._taking.get(focus)
        if taking is None:
            taking = self._taking[focus] = asyncio.create_task(self._take(focus, max_age_seconds))
        return await asyncio.shield(taking)

    async def _take(self, focus: str | None, max_age_seconds: float) -> FlowSample:
        loop = asyncio.get_running_loop()
        try:
            found = await self._run(partial(self._sampler.sample, focus, max_age_seconds=max_age_seconds))
            if found is not self._last:
                self._last, self._last_at = found, loop.time()
            return found
        finally:
            del self._taking[focus]

    def _expect_end(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = loop.call_later(IDLE_SECONDS, self._close)

    def _close(self) -> None:
        self._idle = self._last = None
        # In a thread: a sample that is being taken now would hold up the event loop.
        asyncio.get_running_loop().run_in_executor(None, self._sampler.close)
