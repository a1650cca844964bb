"""Waiting for the signal that ends a worker, SIGTERM or SIGINT from a keyboard, and hearing of others while it ends.

Rule 1: a signal within MOMENT_SECONDS of the first is the same one: `timeout` of coreutils signals the process and then
its whole group, a terminal and a supervisor may both do so.
Rule 2: a later one is impatience: it does what it would have done without us.
Rule 3: the earlier handlers are back when the block ends.
"""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from types import FrameType
from typing import Any

from messagehub.errors import ConfigurationError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOMENT_SECONDS = 1.0


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Block until a signal comes, then run the block, which ends what is to be ended."""
    _check_main_thread()
    came: list[int] = []
    signals = _Signals(came.append, _restore)

    def hear(number: int, _: FrameType | None) -> None:
        signals.hear(number)

    earlier = signals.earlier
    try:
        with _woken_by_signals() as wait:
            for number in SIGNALS:
                signal.signal(number, hear)
            while not came:
                wait()
        yield
    finally:
        _restore(earlier)


@contextmanager
def _woken_by_signals() -> Iterator[Callable[[], object]]:
    """Give a call that blocks until a signal comes. Handlers run in the main thread, and one that waits for a lock does
    not wake for a signal that the kernel gives to another thread, or that comes just before it waits."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield lambda: os.read(reading, 1024)
        finally:
            signal.set_wakeup_fd(earlier)
    finally:
        os.close(reading)
        os.close(writing)


@asynccontextmanager
async def ended_by_signal_async() -> AsyncIterator[None]:
    """As `ended_by_signal`, while the event loop goes on."""
    _check_main_thread()
    loop = asyncio.get_running_loop()
    came: asyncio.Future[int] = loop.create_future()

    def restore(earlier: dict[signal.Signals, Any]) -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        _restore(earlier)

    signals = _Signals(came.set_result, restore)
    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, signals.hear, number)
        await came
        yield
    finally:
        restore(signals.earlier)


class _Signals:
    def __init__(self, first: Callable[[int], object], restore: Callable[[dict[signal.Signals, Any]], None]) -> None:
        """`first` is told of the first signal; `restore` puts the earlier handlers back."""
        self.earlier = {number: signal.getsignal(number) for number in SIGNALS}
        self._first = first
        self._restore = restore
        self._came_at: float | None = None

    def hear(self, number: int) -> None:
        if self._came_at is None:
            self._came_at = monotonic()
            self._first(number)
        elif monotonic() >= self._came_at + MOMENT_SECONDS:
            self._restore(self.earlier)
            signal.raise_signal(number)


def _restore(earlier: dict[signal.Signals, Any]) -> None:
    for number, handler in earlier.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _check_main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "only the main thread of a process hears signals: call run there, or close what is served yourself"
        )
