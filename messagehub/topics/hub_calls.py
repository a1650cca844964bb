"""The methods of a hub that read topics: `subscribe`, its asynchronous form, and `topics`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from messagehub.display.listing import Listing
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.runtime.callbacks import check_callback
from messagehub.topics.callbacks import Callback
from messagehub.topics.retained.durable_subscriptions import Ack, durable_options
from messagehub.topics.retained.positions import Since
from messagehub.topics.subscriptions import Overflow, Subscription
from messagehub.topics.topics import Topics
from registry.commands import TraceMessage
from registry.records import PlainTopic, RetainedTopic
from registry.replies import MessageTrace, ReportedSubscription

TRACE_SECONDS = 10.0
LOOK_SECONDS = 0.25


class TopicCalls:
    def __init__(
        self,
        topics: Topics,
        background: BackgroundThreads,
        *,
        limit: Callable[[float | None], float],
        hub: Callable[[], object],
    ) -> None:
        """`limit` gives the seconds that a call may take, `hub` what every subscription keeps alive."""
        self._topics = topics
        self._background = background
        self._limit = limit
        self._hub = hub

    def subscribe(
        self,
        pattern: str | Sequence[str],
        callback: Callback | None = None,
        *,
        buffer: int | None = None,
        overflow: Overflow | None = None,
        since: Since | None = None,
        group: str | None = None,
        durable: str | None = None,
        ack: Ack | None = None,
        ack_wait: float | None = None,
        max_unacked: int | None = None,
        max_deliveries: int | None = None,
        timeout: float | None = None,
        local: bool = False,
    ) -> Subscription:
        """Get all messages that are published from now on, by iterating (also `async for`), `receive` or the callback.

        When this returns the broker knows of it. `*` is one component of a topic, a last `>` one or more; of several
        patterns a message that matches any comes once. An `async def` callback is awaited in the event loop that runs
        here, or in one of its own. `buffer` (65,536 messages, of retained topics 1,000) is also bounded by 64 MiB.

        With `since` or `overflow="block"` only retained topics are read, each message once, and at the reader's own
        pace. `since` is an offset, a time, an age (timedelta), "oldest", "newest", "last" (the last message of each
        topic, then what follows), or the `positions` of an earlier subscription.

        With `group` each message goes to one of the subscribers that have the same group and patterns, at most once.

        With `durable` the broker stores under that name how far a retained topic was read: a later run goes on there,
        and several subscribers of one name share the messages. A message comes again `ack_wait` seconds (30) after it
        was handed out, or when its subscriber ends, unless it was acknowledged: by asking for the next one
        (`ack="auto"`) or by `message.ack()` ("manual"). At most `max_unacked` (1,000) are handed out and not
        acknowledged; after `max_deliveries` (any number) one goes to the dead letters. A new name begins at `since`,
        which is the oldest message here. The buffer is 10 messages.
        """
        if callback is not None:
            check_callback(callback, name="callback", arguments=("message",))
        subscription = self._topics.subscribe(
            pattern,
            buffer=buffer,
            overflow=overflow,
            since=since,
            group=group,
            durable=durable_options(
                durable, ack=ack, ack_wait=ack_wait, max_unacked=max_unacked, max_deliveries=max_deliveries
            ),
            timeout=self._limit(timeout),
            is_local=local,
        )
        subscription.hand_out(self._hub())
        if callback is not None:
            subscription.call(callback)
        return subscription

    _subscribe_async = awaitable(subscribe)

    async def subscribe_async(
        self, /, pattern: str | Sequence[str], callback: Callback | None = None, **options: Any
    ) -> Subscription:
        """As `subscribe`, with the same options, to be awaited. An `async def` callback is awaited in this loop."""
        if callback is not None:
            check_callback(callback, name="callback", arguments=("message",))
        subscription = await self._subscribe_async(pattern, **options)
        if callback is not None:
            subscription.call(callback)
        return subscription

    def topics(self, pattern: str = ">", *, timeout: float | None = None) -> list[RetainedTopic]:
        """Return the retained topics that match."""
        return Listing(self._topics.retained(pattern, timeout=self._limit(timeout)))

    def plain_topics(self, pattern: str = ">", *, timeout: float | None = None) -> list[PlainTopic]:
        """Return the topics that match, are not retained and were published to in the last ten minutes.

        The broker does not see their messages: publishers tell it, when they begin and every five seconds while they
        publish. Of more than 1,000 topics those that were published to last are returned, by name.
        """
        return Listing(self._topics.plain(pattern, timeout=self._limit(timeout)))

    def subscribers(self, topic: str | None = None, *, timeout: float | None = None) -> list[ReportedSubscription]:
        """Return who subscribes to a topic now, by its name or a pattern; without one, every subscription.

        The broker does not see who gets a message: each process tells it every few seconds which subscriptions it has,
        and how many messages each has received and lost so far, of all topics that it matches.
        """
        return Listing(self._topics.subscribers(topic, timeout=self._limit(timeout)))

    def trace_message(
        self,
        topic: str,
        *,
        offset: int | None = None,
        publisher: str | None = None,
        number: int | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> MessageTrace:
        """Return what became of one message: who published it, and what each subscription that matches says of it.

        A message of a retained topic is named by its offset, one of a plain topic by `publisher` (as
        `message.publisher.hex()`) and `number`. The processes that subscribe are asked with the answer to their next
        report, a few seconds later at most. This waits until all have answered, or for the timeout (10 seconds), and
        then returns what is known; `is_complete` says whether that is all. With `wait=False` it returns at once.
        """
        limit = TRACE_SECONDS if timeout is None else self._limit(timeout)
        deadline = time.monotonic() + limit
        command = TraceMessage(topic=topic, offset=offset, publisher=publisher, number=number)
        while True:
            found = self._topics.ask(command, timeout=min(max(deadline - time.monotonic(), 0.001), self._limit(None)))
            assert isinstance(found, MessageTrace)
            remaining = deadline - time.monotonic()
            if found.is_complete or not wait or remaining <= LOOK_SECONDS:
                return found
            time.sleep(LOOK_SECONDS)
