"""Waiting for the signal that ends a worker: SIGTERM, or SIGINT from a keyboard.

The earlier handlers are back when the wait is over, so that a second signal ends the process as it would have before.
"""

import asyncio
import queue
import signal
import threading
from types import FrameType

from messagehub.errors import ConfigurationError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def wait_for_signal() -> int:
    """Block until one comes, and return it."""
    _check_main_thread()
    came: queue.SimpleQueue[int] = queue.SimpleQueue()  # a signal handler may put into it at any moment

    def note(number: int, _: FrameType | None) -> None:
        came.put(number)

    earlier = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        return came.get()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


async def wait_for_signal_async() -> int:
    """As `wait_for_signal`, while the event loop goes on."""
    _check_main_thread()
    loop = asyncio.get_running_loop()
    came: asyncio.Future[int] = loop.create_future()

    def note(number: int) -> None:
        if not came.done():
            came.set_result(number)

    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, note, number)
    try:
        return await came
    finally:
        for number, handler in earlier.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _check_main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "only the main thread of a process hears signals: call run there, or close what is served yourself"
        )
