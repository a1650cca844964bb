"""A subscription: a bounded buffer between the thread that receives and whoever reads.

Rule 1: the receiving thread never waits for a reader that does not read. One that does is given a moment at a full
buffer, since on few cores it may only lack the processor; a slow one earns the next such moment by reading on.
Rule 2: every message that does not reach the reader is counted: `lost_in_transit` on the way to this process, by the
gaps in each publisher's numbers, `lost_in_buffer` by the overflow policy.
Rule 3: a subscription ends once. What was in its buffer can still be read.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal, get_args

from messagehub.errors import ConfigurationError, HubError, ReceiveTimeout, SubscriberTooSlow, SubscriptionClosed
from messagehub.messaging.topic_messages import Message
from registry.topic_patterns import Pattern

log = logging.getLogger("messagehub.topics")

MOMENT_SECONDS = 0.005
HOT_SECONDS = 0.002
DRIVE_SECONDS = 0.01
BUFFER_BYTES = 64 * 2**20
Overflow = Literal["drop_oldest", "drop_newest", "disconnect", "block"]
Callback = Callable[[Message], object]
Drive = Callable[[Callable[[], bool], float, int], bool]
"""Receive in the caller's thread until that is true, so many seconds at most, so many messages at once."""


class Subscription:
    """Messages as an iterator, an `async` iterator, by `receive`, or by a callback on a thread of its own."""

    def __init__(
        self,
        pattern: Pattern,
        *,
        buffer: int,
        buffer_bytes: int = BUFFER_BYTES,
        overflow: Overflow,
        on_close: Callable[["Subscription"], None],
        drive: Drive | None = None,
    ) -> None:
        if buffer < 1 or buffer_bytes < 1:
            raise ConfigurationError(f"a buffer holds at least one message and byte, not {min(buffer, buffer_bytes)}")
        if overflow not in get_args(Overflow):
            raise ConfigurationError(f"overflow is one of {', '.join(get_args(Overflow))}, not {overflow!r}")
        self.pattern = pattern.text
        self.matches = pattern.matches
        self.prefix = pattern.prefix
        self.received = 0
        self.lost_in_transit = 0
        self.lost_in_buffer = 0
        self.failure: HubError | None = None
        self.is_closed = False
        self._size = buffer
        self._size_bytes = buffer_bytes
        self._bytes_in = self._bytes_out = 0  # one counter for each side, so that neither needs a lock
        self._overflow = overflow
        self._on_close = on_close
        self._buffer: deque[Message] = deque()
        self._changed = threading.Condition()
        self.is_awaited = 0  # how many readers wait to be woken
        self._drive = drive
        self._is_hot = False  # the last message came so soon that the next is worth receiving by oneself
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._is_waiting_for_room = False
        self._next_moment_at = 0
        self._has_warned = False
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> int:
        return self.lost_in_transit + self.lost_in_buffer

    @property
    def buffered(self) -> int:
        """How many messages are here and not yet read."""
        return len(self._buffer)

    # -- reading -------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message:
        """The next message; ReceiveTimeout at the timeout, SubscriptionClosed (or why it ended) after the last."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._take()
            if message is not None:
                return message
            began_at = time.monotonic()
            if self._is_hot and self._drive is not None:
                seconds = DRIVE_SECONDS if deadline is None else min(DRIVE_SECONDS, max(deadline - began_at, 0.0))
                if self._drive(self._is_readable, seconds, max(self._size // 2, 1)) and self._buffer:
                    continue  # without a message it is closed, which is said below
            with self._changed:
                self.is_awaited += 1
                try:
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if not self._changed.wait_for(self._is_readable, remaining):
                        raise ReceiveTimeout(f"no message of {self.pattern!r} came in {timeout} s")
                finally:
                    self.is_awaited -= 1
                    self._is_hot = time.monotonic() - began_at < HOT_SECONDS
                if self.is_closed and not self._buffer:
                    raise self.failure or SubscriptionClosed(f"the subscription to {self.pattern!r} is closed")

    def _is_readable(self) -> bool:
        return bool(self._buffer) or self.is_closed

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except SubscriptionClosed:
            raise StopIteration from None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while (message := self._take()) is None:
            sleeper = (asyncio.get_running_loop(), asyncio.get_running_loop().create_future())
            with self._changed:
                if self._buffer:
                    continue
                if self.is_closed:
                    if self.failure is not None:
                        raise self.failure
                    raise StopAsyncIteration
                self._sleepers.append(sleeper)
                self.is_awaited += 1
            try:
                await sleeper[1]
            finally:
                with self._changed:
                    self.is_awaited -= 1
                    if sleeper in self._sleepers:
                        self._sleepers.remove(sleeper)
        return message

    def call(self, callback: Callback) -> None:
        """Hand every message to the callback, on a thread that ends with the subscription."""

        def run() -> None:
            try:
                for message in self:
                    try:
                        callback(message)
                    except BaseException:  # also an exit: a callback's defect concerns one message
                        log.exception("the callback of %r failed at %r", self.pattern, message)
            except HubError as ended:  # why there will be no more, as `failure` says too
                log.warning("%s", ended.message)

        self._thread = threading.Thread(target=run, name="messagehub-callback", daemon=True)
        self._thread.start()

    def close(self, *, timeout: float = 5.0) -> None:
        """Unsubscribe. Iterating ends after what is buffered; a callback has had it all when this returns."""
        self._on_close(self)
        self.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> Message | None:
        try:
            message = self._buffer.popleft()
        except IndexError:
            return None
        self.received += 1
        self._bytes_out += message.frame_bytes
        if self._is_waiting_for_room and len(self._buffer) <= self._size // 2:
            with self._changed:
                self._changed.notify_all()
        return message

    # -- on the receiving thread ---------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        """Take one message; True when a reader waits for it, who is to be woken before the thread sleeps.

        Not at once: two threads that both run hand the interpreter back and forth at every frame received.
        """
        if self.is_closed:
            return False
        buffer = self._buffer
        count = len(buffer)
        is_full = count >= self._size or (count > 0 and self._bytes_in - self._bytes_out >= self._size_bytes)
        if is_full and not self._has_room_in_a_moment():
            self._warn("its buffer is full")
            if self._overflow == "drop_newest":
                self.lost_in_buffer += 1
                return False
            if self._overflow == "disconnect":
                self.lost_in_buffer += 1
                self.end(SubscriberTooSlow(f"the reader of {self.pattern!r} left its buffer of {self._size} full"))
                self._on_close(self)
                return False
            while self._is_full():
                self._drop_oldest()
        self._append(message)
        return self.is_awaited > 0

    def _append(self, message: Message) -> None:
        buffer = self._buffer
        if not buffer:
            self._bytes_in = self._bytes_out  # readers that raced may have miscounted
        self._bytes_in += message.frame_bytes
        buffer.append(message)

    def _is_full(self) -> bool:
        count = len(self._buffer)
        return count >= self._size or (count > 0 and self._bytes_in - self._bytes_out >= self._size_bytes)

    def miss(self, count: int) -> None:
        """So many did not arrive."""
        self.lost_in_transit += count
        self._warn("it or the broker was too slow, or the broker was away")

    def end(self, failure: HubError | None = None) -> None:
        with self._changed:
            if not self.is_closed:
                self.failure = failure
                self.is_closed = True
        self.wake()

    def abandon(self) -> None:
        """In a forked child: the parent's lock may be held by a thread that is not here."""
        self._changed = threading.Condition()
        self._sleepers = []
        self._thread = None
        self._on_close = _nothing
        self.is_closed = True

    def _has_room_in_a_moment(self) -> bool:
        if self.received < self._next_moment_at and not self.is_awaited:
            return False
        if self._next_moment_at == 0 and self.received == 0 and not self.is_awaited:
            return False  # nobody has begun to read
        self.wake()
        with self._changed:
            self._is_waiting_for_room = True
            has_room = self._changed.wait_for(lambda: len(self._buffer) <= self._size // 2, MOMENT_SECONDS)
            self._is_waiting_for_room = False
        if not has_room:
            self._next_moment_at = self.received + self._size // 2 + 1
        return not self._is_full()

    def _drop_oldest(self) -> None:
        try:
            self._bytes_in -= self._buffer.popleft().frame_bytes
            self.lost_in_buffer += 1
        except IndexError:
            return  # the reader took it meanwhile

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            sleepers, self._sleepers = self._sleepers, []
        for loop, woken in sleepers:
            try:
                loop.call_soon_threadsafe(_set, woken)
            except RuntimeError:
                continue  # the loop was closed under its reader

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("a subscriber of %r begins to lose messages: %s; `lost` counts them", self.pattern, why)


def _nothing(_: Subscription) -> None:
    """What leads out of a forked child: locks that the parent's threads may have held."""


def _set(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
