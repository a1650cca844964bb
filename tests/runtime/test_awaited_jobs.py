"""What a job returns that is awaited: somebody has it, or it is closed."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from messagehub.errors import RequestTimeout
from messagehub.runtime.background import BackgroundThreads

SECONDS = 30.0


class Made:
    """Something that has to be closed, made by a job that waits until it may go on."""

    def __init__(self) -> None:
        self.may_return = threading.Event()
        self.is_closed = threading.Event()

    def make(self, _: float) -> "Made":
        assert self.may_return.wait(SECONDS)
        return self

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def background() -> Iterator[BackgroundThreads]:
    threads = BackgroundThreads()
    yield threads
    threads.close()


def test_what_is_received_stays_open(background: BackgroundThreads) -> None:
    made = Made()
    made.may_return.set()
    assert asyncio.run(background.call(made.make, timeout=SECONDS)) is made
    background.close()
    assert not made.is_closed.is_set()


def test_what_comes_when_the_loop_has_stopped_is_closed(background: BackgroundThreads) -> None:
    """A loop takes callbacks until it is closed, and does not run those that come last."""
    made = Made()
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(RequestTimeout):
            loop.run_until_complete(background.call(made.make, timeout=0.01))
        made.may_return.set()
        assert made.is_closed.wait(SECONDS)
    finally:
        loop.close()


def test_what_comes_at_the_moment_of_a_cancellation_is_closed(background: BackgroundThreads) -> None:
    made = Made()

    async def cancel() -> None:
        waiting = asyncio.create_task(background.call(made.make, timeout=SECONDS))
        await asyncio.sleep(0)
        made.may_return.set()
        time.sleep(0.2)  # the loop stands still until the job has handed over what it made
        asyncio.get_running_loop().call_soon(waiting.cancel)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    assert made.is_closed.wait(SECONDS)
