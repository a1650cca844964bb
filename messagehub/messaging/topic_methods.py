"""The facade's methods about topics: `hub.publish`, `hub.subscribe`, `hub.topic`."""

from abc import ABC, abstractmethod
from typing import Any

from messagehub.errors import ConfigurationError
from messagehub.messaging.kept_subscriptions import Since
from messagehub.messaging.subscriptions import Callback, Overflow, Subscription
from messagehub.messaging.topic import Topic
from messagehub.messaging.topics import Topics
from messagehub.settings import Settings
from registry.records import Keep, KeptTopic


class TopicMethods(ABC):
    """What `MessageHub` provides to them is declared here; nobody else inherits."""

    settings: Settings
    _topics: Topics

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

    def subscribe(
        self,
        pattern: str,
        callback: Callback | None = None,
        *,
        buffer: int = 100,
        overflow: Overflow | None = None,
        since: Since | None = None,
        timeout: float | None = None,
        local: bool = False,
    ) -> Subscription:
        """Hear all that is published from now on, by iterating (also `async for`), `receive` or the callback.

        When this returns the broker knows of it. `*` is one component of a topic, a last `>` one or more.
        With `since` (an offset, a time, or offsets by topic) or `overflow="block"` only kept topics are read, each
        message once, and at the reader's own pace.
        """
        subscription = self._topics.subscribe(
            pattern, buffer=buffer, overflow=overflow, since=since, timeout=self._limit(timeout), is_local=local
        )
        if callback is not None:
            subscription.call(callback)
        return subscription

    def topic(
        self, name: str, *, keep: Keep | int | None = None, replace: bool = False, timeout: float | None = None
    ) -> Topic:
        """One topic to hold on to. `keep` (a number of messages, or bounds) has the broker store what is published.

        Saying the same again is harmless; other bounds are refused, or with `replace` taken over.
        """
        if replace and keep is None:
            raise ConfigurationError("replace changes the bounds of a kept topic: say which with keep")
        topic = Topic(name, lambda: self._topics, self.settings.request_timeout_seconds)
        if keep is not None:
            topic.keep(Keep(messages=keep) if isinstance(keep, int) else keep, replace=replace, timeout=timeout)
        return topic

    def topics(self, pattern: str = ">", *, timeout: float | None = None) -> list[KeptTopic]:
        """The kept topics that match."""
        return self._topics.kept(pattern, timeout=self._limit(timeout))
