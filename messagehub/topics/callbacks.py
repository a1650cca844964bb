"""Calls of a subscription's callback: one for each message, one after the other, on a thread or in an event loop.

Rule 1: an `async def` callback is awaited in the event loop that runs where the subscription was made. Where none
runs, and for every other callback, the calls are made on a thread of their own.
Rule 2: an exception that the callback raises concerns one message. The calls go on with the next.
Rule 3: after `stop` the callback is not called again. A message that is read after that is reported as discarded.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Protocol, cast

from messagehub.errors import HubError
from messagehub.runtime.callbacks import awaited, check_callback, is_async
from messagehub.runtime.event_loop import running_loop
from messagehub.runtime.supervision import PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS, keep_turning
from messagehub.topics.messages import Message

log = logging.getLogger("messagehub.topics")

Callback = Callable[[Message], object]


class Messages(Iterable[Message], AsyncIterable[Message], Protocol):
    """The subscription whose messages are handed over."""

    pattern: str


class CallbackCalls:
    def __init__(
        self,
        messages: Messages,
        callback: Callback,
        *,
        on_failed: Callable[[Message], None],
        on_discarded: Callable[[], None],
        on_loop_ended: Callable[[], None],
    ) -> None:
        """`on_failed` is told of a message at which the callback raised, `on_discarded` of one that came after `stop`.

        `on_loop_ended` is told that the event loop that awaits the callback has ended, so that no message can be handed
        over any more.
        """
        check_callback(callback, name="callback", arguments=("message",))
        self._messages = messages
        self._callback = callback
        self._on_failed = on_failed
        self._on_discarded = on_discarded
        self._on_loop_ended = on_loop_ended
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False

    @property
    def has_thread(self) -> bool:
        """Whether the calls are made on a thread of their own, and not in the event loop of the user."""
        return self._thread is not None

    def start(self) -> None:
        loop = running_loop()
        if is_async(self._callback) and loop is not None:
            self._loop, self._task = loop, loop.create_task(self._await_calls())
        else:
            self._thread = threading.Thread(target=self._run, name="messagehub-callback", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Make no further call. One that is being made goes on."""
        self._is_stopped = True

    def is_in_callback_thread(self) -> bool:
        """Whether the callback itself asks, which must not wait for its own end."""
        return self._thread is threading.current_thread()

    def is_loop_closed(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, unless there is none or the callback itself waits."""
        if self._thread is not None and not self.is_in_callback_thread():
            self._thread.join(timeout)

    async def join_task(self, timeout: float) -> None:
        """Wait until the task has ended, unless there is none or the callback itself waits."""
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait({self._task}, timeout=timeout)

    def _run(self) -> None:
        if is_async(self._callback):
            asyncio.run(self._await_calls())
        else:
            self._make_calls()

    def _make_calls(self) -> None:
        runner = asyncio.Runner()  # opens a loop when it is first used
        has_ended = threading.Event()

        def call_for_each() -> None:
            try:
                for message in self._messages:
                    if self._is_stopped:  # it came to the buffer while that was emptied
                        self._on_discarded()
                        continue
                    try:
                        result = self._callback(message)
                        if result is not None and inspect.isawaitable(result):
                            runner.run(awaited(result))
                    except BaseException:  # also an exit: a callback's defect concerns one message
                        self._on_failed(message)
                        log.exception("the callback of %r failed at %r", self._messages.pattern, message)
            except HubError as ended:  # why there will be no more, as `failure` says too
                log.warning("%s", ended.message)
            has_ended.set()

        try:
            what = f"reading for the callback of {self._messages.pattern!r}"
            keep_turning(call_for_each, what=what, log=log, is_over=lambda: has_ended.is_set() or self._is_stopped)
        finally:
            runner.close()

    async def _await_calls(self) -> None:
        pause = PAUSE_FIRST_SECONDS
        try:
            while not self._is_stopped:
                try:
                    return await self._await_each()
                except HubError as ended:
                    return log.warning("%s", ended.message)
                except Exception:  # a defect of ours in the reading: the next message may be read
                    log.exception("reading for the callback of %r failed, and goes on", self._messages.pattern)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_MAX_SECONDS)
        except asyncio.CancelledError:
            self._on_loop_ended()
            raise

    async def _await_each(self) -> None:
        async for message in self._messages:
            if self._is_stopped:
                self._on_discarded()
                continue
            try:
                await cast("Awaitable[object]", self._callback(message))
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise  # this task, and not only something that the callback awaited
                self._on_failed(message)
                log.exception("the callback of %r failed at %r", self._messages.pattern, message)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
