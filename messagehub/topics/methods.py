"""The facade's methods about topics: `hub.publish`, `hub.subscribe`, `hub.topic`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from messagehub.errors import ConfigurationError
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.runtime.callbacks import check_callback
from messagehub.settings import Settings
from messagehub.topics.retained.durable_subscriptions import Ack, durable_options
from messagehub.topics.retained.positions import Since
from messagehub.topics.subscriptions import Callback, Overflow, Subscription
from messagehub.topics.topic import Bounds, Topic
from messagehub.topics.topics import Topics
from registry.records import KeptTopic


class TopicMethods(ABC):
    """What `MessageHub` provides to them is declared here; nobody else inherits."""

    settings: Settings
    _topics: Topics
    _background: BackgroundThreads

    @abstractmethod
    def _limit(self, timeout: float | None) -> float: ...

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        headers: dict[str, Any] | None = None,
        timeout: float | None = None,
        local: bool = False,
    ) -> int:
        """Send bytes, a JSON value or an Arrow batch to all who subscribe now; returns the message's number.

        At most once: nothing is kept for who is not there, unless the topic is kept (`hub.topic`): then the message is
        stored when this returns, and its number is its offset. `local` stays in this hub object and needs no broker.
        """
        return self._topics.publish(topic, payload, headers, timeout=self._limit(timeout), is_local=local)

    publish_async = awaitable(publish)

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
        """Hear all that is published from now on, by iterating (also `async for`), `receive` or the callback.

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
        subscription.hand_out(self)
        if callback is not None:
            subscription.call(callback)
        return subscription

    _subscribe_async = awaitable(subscribe)

    async def subscribe_async(
        self, pattern: str | Sequence[str], callback: Callback | None = None, **options: Any
    ) -> Subscription:
        """As `subscribe`, with the same options, to be awaited. An `async def` callback is awaited in this loop."""
        if callback is not None:
            check_callback(callback, name="callback", arguments=("message",))
        subscription = await self._subscribe_async(pattern, **options)
        if callback is not None:
            subscription.call(callback)
        return subscription

    def topic(
        self, name: str, *, keep: Bounds | None = None, replace: bool = False, timeout: float | None = None
    ) -> Topic:
        """One topic to hold on to. With `keep` the broker stores what is published.

        `keep` is a number of messages, an age (a timedelta, or text such as "7d"), or several bounds as a `Keep`.
        Saying the same again is harmless; other bounds are refused, or with `replace` taken over.
        """
        if replace and keep is None:
            raise ConfigurationError("replace changes the bounds of a kept topic: say which with keep")
        self._topics.check_open()
        topic = Topic(name, lambda: self._topics, self.settings.request_timeout_seconds)
        if keep is not None:
            topic.keep(keep, replace=replace, timeout=timeout)
        return topic

    topic_async = awaitable(topic)

    def topics(self, pattern: str = ">", *, timeout: float | None = None) -> list[KeptTopic]:
        """The kept topics that match."""
        return self._topics.kept(pattern, timeout=self._limit(timeout))

    topics_async = awaitable(topics)
