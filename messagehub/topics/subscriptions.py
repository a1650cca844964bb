"""A subscription: a bounded buffer between the thread that receives and whoever reads.

Rule 1: the receiving thread never waits for a reader that does not read. One that does is given a moment at a full
buffer, since on few cores it may only lack the processor; a slow one earns the next such moment by reading on.
Rule 2: every message that does not reach the reader is counted: `lost_in_transit` on the way to this process, by the
gaps in each publisher's numbers, `lost_in_buffer` by the overflow policy.
Rule 3: a subscription ends once. What was in its buffer can still be read. Once `close` has returned, its callback is
not called any more: what it has not had is counted and logged. One whose event loop has ended is closed, and warns.
Rule 4: whoever reads with `async` lets other tasks of the loop run every few milliseconds, however much is buffered.
"""

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal, get_args

from messagehub.arguments import checks_arguments, seconds
from messagehub.errors import ConfigurationError, HubError, ReceiveTimeout, SubscriberTooSlow, SubscriptionClosed
from messagehub.runtime.event_loop import LoopShare, Sleepers
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.topics import message_fates
from messagehub.topics.callbacks import Callback, CallbackCalls
from messagehub.topics.message_fates import Fate, Heard, LostMessages, Source, source_of
from messagehub.topics.messages import Message
from registry.records import AskedMessage
from registry.topics.patterns import Patterns
from registry.topics.subscriber_groups import Mark

log = logging.getLogger("messagehub.topics")

MOMENT_SECONDS = 0.005
HOT_SECONDS = 0.002
DRIVE_SECONDS = 0.01
MOST_AT_ONCE = 500
"""How much room a reader makes before the receiving thread is woken, and how many messages it receives by itself."""
BUFFER = 65_536
BUFFER_BYTES = 64 * 2**20
Overflow = Literal["drop_oldest", "drop_newest", "disconnect", "block"]
Drive = Callable[[Callable[[], bool], float, int], bool]
"""Receive in the caller's thread until the condition holds: (condition, seconds at most, messages at once)."""


class Subscription(ClosedWhenForgotten):
    """Gives messages by iterating, by `async for`, by `receive`, or to a callback."""

    hears_site = True
    """Whether it gets what is published on other hosts of the site."""
    has_new_share = False
    """Whether the share of a member of a group has changed, and `share_starts` is to be told where."""

    def __init__(
        self,
        patterns: Patterns,
        *,
        buffer: int,
        buffer_bytes: int = BUFFER_BYTES,
        overflow: Overflow,
        on_close: Callable[["Subscription"], None],
        drive: Drive | None = None,
    ) -> None:
        if not isinstance(buffer, int) or isinstance(buffer, bool) or buffer < 1:
            raise ConfigurationError(f"buffer is a number of messages, at least 1, not {buffer!r}")
        if buffer_bytes < 1:
            raise ConfigurationError(f"buffer_bytes is at least 1, not {buffer_bytes!r}")
        if overflow not in get_args(Overflow):
            raise ConfigurationError(f"overflow is one of {', '.join(get_args(Overflow))}, not {overflow!r}")
        self.reference = weakref.ref(self)
        self._keeps: object = None
        self.patterns = patterns.texts
        self.pattern = patterns.text
        self.matches = patterns.matches
        self.prefixes = patterns.prefixes
        self.began_at = time.time()
        self.received = 0
        self.lost_in_transit = 0
        self.lost_in_buffer = 0
        self.failure: HubError | None = None
        self.is_closed = False
        self._size = buffer
        self._at_once = min(max(buffer // 2, 1), MOST_AT_ONCE)
        self._size_bytes = buffer_bytes
        self._bytes_in = self._bytes_out = 0  # one counter for each side, so that neither needs a lock
        self._overflow = overflow
        self._on_close = on_close
        self._buffer: deque[Message] = deque()
        self._changed = threading.Condition()
        self.starts: dict[Source, int] | None = {}
        """From which number on it heard publishers that were known when it began; None: of too many to remember."""
        self._losses = LostMessages()
        self.is_awaited = 0  # how many readers wait to be woken
        self._drive = drive
        self._is_hot = False  # the last message came so soon that the next is worth receiving by oneself
        self._sleepers = Sleepers()
        self._is_waiting_for_room = False
        self._next_moment_at = 0
        self._has_warned = False
        self._calls: CallbackCalls | None = None
        self._share = LoopShare()

    def hand_out(self, keeps: object) -> "Subscription":
        """Give it to a user, who has to close it from now on. It keeps `keeps` alive."""
        self._keeps = keeps
        self._opened_in = os.getpid()
        return self

    @property
    def reported_as(self) -> tuple[Literal["all", "group", "retained", "durable"], str | None]:
        """Its kind, and the name under which it shares messages with others, for those who ask who subscribes."""
        return "all", None

    @property
    def lost(self) -> int:
        return self.lost_in_transit + self.lost_in_buffer

    @property
    def buffered(self) -> int:
        """How many messages are in the buffer and not yet read."""
        return len(self._buffer)

    def fate_of(self, asked: AskedMessage, heard: Heard | None) -> Fate:
        """Return what became of a message that matches. Nothing may be delivered meanwhile, but the reader may read."""
        number, source = asked.number, source_of(asked)
        if heard is None or number >= heard.next:
            return message_fates.not_heard(number, heard)
        if heard.is_of_site and not self.hears_site:
            return Fate("earlier", "it was published on another host, which this subscription does not hear")
        start = self.starts.get(source, 0) if self.starts is not None else 0
        if number < max(start, heard.first):
            is_certain = number < start or heard.is_first_certain
            return message_fates.earlier(max(start, heard.first)) if is_certain else message_fates.TOO_LONG_AGO
        why = self._losses.why(source, number)
        if why is not None:
            return message_fates.TOO_LONG_AGO if why is message_fates.FORGOTTEN else Fate("lost", why)
        if self._is_buffered(source, number):
            return Fate("waiting", "in its buffer: its program has not come to it yet")
        if self.starts is None:
            return message_fates.TOO_LONG_AGO
        return Fate("delivered", "its program has taken it")

    def _is_buffered(self, source: Source, number: int) -> bool:
        return any(
            message.number == number and (message.topic, message.publisher, message.is_retained) == source
            for message in self._buffer.copy()
        )

    # -- reading -------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message.

        Raise ReceiveTimeout at the timeout, SubscriptionClosed (or why it ended) after the last.
        """
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            message = self._take()
            if message is not None:
                return message
            began_at = time.monotonic()
            if self._is_hot and self._drive is not None:
                moment = DRIVE_SECONDS if deadline is None else min(DRIVE_SECONDS, max(deadline - began_at, 0.0))
                if self._drive(self._is_readable, moment, self._at_once) and self._buffer:
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
        message = self._take()
        if message is not None:
            return message
        try:
            return self.receive()
        except SubscriptionClosed:
            raise StopIteration from None

    async def receive_async(self, timeout: float | None = None) -> Message:
        """As `receive`, to be awaited."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        if self._share.is_due():
            await self._share
        while (message := self._take()) is None:
            with self._changed:
                if self._buffer:
                    continue
                if self.is_closed:
                    raise self.failure or SubscriptionClosed(f"the subscription to {self.pattern!r} is closed")
                woken = self._sleepers.add()
                self.is_awaited += 1
            try:
                async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                    await woken
            except TimeoutError:
                if not self._is_readable():
                    raise ReceiveTimeout(f"no message of {self.pattern!r} came in {timeout} s") from None
            finally:
                with self._changed:
                    self.is_awaited -= 1
                    self._sleepers.remove(woken)
            self._share.restart()
        return message

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive_async()
        except SubscriptionClosed:
            raise StopAsyncIteration from None

    def call(self, callback: Callback) -> None:
        """Hand every message to the callback, one after the other, until the subscription ends.

        An `async def` callback is awaited in the event loop that runs here. Where none runs, and for every other
        callback, that is done on a thread of its own.
        """
        self._calls = CallbackCalls(
            self,
            callback,
            on_failed=self._call_failed,
            on_discarded=self._discard,
            on_loop_ended=self._lose_loop,
        )
        _called.add(self)
        self._calls.start()

    def _call_failed(self, message: Message) -> None:
        """Called for a message at which the callback raised an exception."""

    def _discard(self) -> None:
        self.lost_in_buffer += 1

    def _lose_loop(self) -> None:
        """Nobody can read any more: warn, end, and count what is buffered as lost."""
        self._warn_of_lost_loop("and the subscription is closed")
        self._give_up()
        self._lose_buffered("its event loop has ended")

    def _warn_of_lost_loop(self, consequence: str) -> None:
        if not self.is_closed:
            log.warning(
                "the event loop that awaits the callback of %r has ended: messages do not reach it any more, %s. Close"
                " the subscription before its loop ends",
                self.pattern,
                consequence,
            )

    def _lose_buffered(self, why: str) -> None:
        count = 0
        while self._buffer:
            try:
                self._buffer.popleft()
            except IndexError:
                break  # the reader took the last one
            count += 1
        if count:
            self.lost_in_buffer += count
            log.warning("the callback of %r was not called for %d messages: %s", self.pattern, count, why)

    def _give_up(self) -> None:
        """End without waiting for anything."""
        self._on_close(self)
        self.end()

    @checks_arguments
    def close(self, *, timeout: float = 5.0) -> None:
        """Unsubscribe. Iterating ends after what is buffered.

        A callback has the timeout for what is buffered. It is not called any more when this returns, and what it has
        not had is counted in `lost_in_buffer` and logged; that is all of it where the callback itself closes. An
        `async def` callback in an event loop goes on with what is buffered: `close_async` waits for it.
        """
        self._on_close(self)
        self.end()
        if self._calls is not None and self._calls.has_thread:
            self._calls.join(timeout)
            self._stop_calls(self._calls)

    @checks_arguments
    async def close_async(self, *, timeout: float = 5.0) -> None:
        """As `close`, and wait in the event loop until a callback has had all that is buffered, or for the timeout."""
        self._on_close(self)
        self.end()
        calls = self._calls
        if calls is None:
            return
        if calls.has_thread and not calls.is_in_callback_thread():
            await asyncio.to_thread(self.close, timeout=timeout)
        else:
            await calls.join_task(timeout)
            self._stop_calls(calls)

    def _stop_calls(self, calls: CallbackCalls) -> None:
        calls.stop()
        self._lose_buffered("the subscription was closed before it came to them")

    def _is_forgotten(self) -> bool:
        return not self.is_closed

    def _named(self) -> str:
        return f"the subscription to {self.pattern!r} (close it, or use `with hub.subscribe(…) as subscription:`)"

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{self.buffered} buffered, {self.lost} lost"
        return f"<{type(self).__name__} {self.pattern!r}: {state}>"

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def _take(self) -> Message | None:
        try:
            message = self._buffer.popleft()
        except IndexError:
            return None
        self.received += 1
        self._bytes_out += message.frame_bytes
        if self._is_waiting_for_room and len(self._buffer) <= self._size - self._at_once:
            with self._changed:
                self._changed.notify_all()
        return message

    # -- on the receiving thread ---------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        """Buffer a message. Return True if a reader waits for it, who is to be woken before this thread sleeps.

        The reader is not woken at once: two threads that both run would hand the interpreter over at every frame.
        """
        if self.is_closed:
            return False
        if self._calls is not None and self._calls.is_loop_closed():
            self._lose_loop()
            self.lost_in_buffer += 1
            self._losses.add_one(message, message_fates.DISCARDED)
            return False
        buffer = self._buffer
        count = len(buffer)
        is_full = count >= self._size or (count > 0 and self._bytes_in - self._bytes_out >= self._size_bytes)
        if is_full and not self._has_room_in_a_moment():
            self._warn("its buffer is full")
            if self._overflow == "drop_newest":
                self.lost_in_buffer += 1
                self._losses.add_one(message, message_fates.DROPPED_NEWEST)
                return False
            if self._overflow == "disconnect":
                self.lost_in_buffer += 1
                self._losses.add_one(message, message_fates.DISCONNECTED)
                self.end(SubscriberTooSlow(f"the reader of {self.pattern!r} left its buffer of {self._size} full"))
                self._on_close(self)
                return False
            while self._is_full():
                self._drop_oldest()
        if not buffer:
            self._bytes_in = self._bytes_out  # readers that raced may have miscounted
        self._bytes_in += message.frame_bytes
        buffer.append(message)
        return self.is_awaited > 0

    def hear_mark(self, mark: Mark, *, is_retained: bool) -> bool:  # noqa: ARG002  for members of a group
        """Hear where the shares of a group change. Return True if a reader is to be woken."""
        return False

    def share_starts(self, numbers: dict[Source, int] | None) -> None:
        """Take note of the next number of each publisher where a share of a group begins. None: too many."""

    def _append(self, message: Message) -> None:
        buffer = self._buffer
        if not buffer:
            self._bytes_in = self._bytes_out  # readers that raced may have miscounted
        self._bytes_in += message.frame_bytes
        buffer.append(message)

    def _is_full(self) -> bool:
        count = len(self._buffer)
        return count >= self._size or (count > 0 and self._bytes_in - self._bytes_out >= self._size_bytes)

    def miss(self, count: int, next_one: Message) -> None:
        """Count messages that did not arrive: those before `next_one`."""
        self.lost_in_transit += count
        source = (next_one.topic, next_one.publisher, next_one.is_retained)
        self._losses.add(source, next_one.number - count, next_one.number - 1, message_fates.IN_TRANSIT)
        self._warn("it or the broker was too slow, or the broker was away")

    def end(self, failure: HubError | None = None) -> None:
        with self._changed:
            if not self.is_closed:
                self.failure = failure
                self.is_closed = True
        _called.discard(self)
        self.wake()

    def abandon(self) -> None:
        """End in a forked child, with a lock of its own: a thread that is not here may hold the parent's."""
        self._changed = threading.Condition()
        self._sleepers = Sleepers()
        self._calls = None
        self._on_close = _nothing
        self.is_closed = True
        _called.discard(self)

    def _has_room_in_a_moment(self) -> bool:
        if self.received < self._next_moment_at and not self.is_awaited:
            return False
        if self._next_moment_at == 0 and self.received == 0 and not self.is_awaited:
            return False  # nobody has begun to read
        self.wake()
        with self._changed:
            self._is_waiting_for_room = True
            has_room = self._changed.wait_for(lambda: len(self._buffer) <= self._size - self._at_once, MOMENT_SECONDS)
            self._is_waiting_for_room = False
        if not has_room:
            self._next_moment_at = self.received + self._at_once + 1
        return not self._is_full()

    def _drop_oldest(self) -> None:
        try:
            dropped = self._buffer.popleft()
            self._bytes_in -= dropped.frame_bytes
            self.lost_in_buffer += 1
            self._losses.add_one(dropped, message_fates.DROPPED_OLDEST)
        except IndexError:
            return  # the reader took it meanwhile

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            sleepers = self._sleepers.take()
        self._sleepers.wake(sleepers)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("a subscriber of %r begins to lose messages: %s; `lost` counts them", self.pattern, why)


_called: set[Subscription] = set()
"""Subscriptions with a callback: they stay in use until they end, even if no user holds them."""


def _nothing(_: Subscription) -> None:
    """Stand in for `on_close` in a forked child, which must not take locks that the parent's threads may have held."""
