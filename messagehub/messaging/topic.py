"""One topic as an object: keep it, publish to it, read it, delete it."""

from collections.abc import Callable, Sequence
from typing import Any

from messagehub.messaging.kept_subscriptions import Since
from messagehub.messaging.subscriptions import Overflow, Subscription
from messagehub.messaging.topics import Topics
from registry import commands, replies
from registry.records import Keep, KeptTopic
from registry.topic_patterns import check_topic


class Topic:
    def __init__(self, name: str, topics: Callable[[], Topics], timeout: float) -> None:
        """`topics` gives those of now: a hub that was disconnected, or forked, has others."""
        self.name = check_topic(name)
        self._topics = topics
        self._timeout = timeout

    def keep(self, keep: Keep, *, replace: bool = False, timeout: float | None = None) -> KeptTopic:
        """Store what is published from now on, as much as the bounds say. Idempotent."""
        reply = self._ask(commands.KeepTopic(topic=self.name, keep=keep, replace=replace), timeout)
        assert isinstance(reply, replies.TopicKept)
        return reply.topic

    def describe(self, *, timeout: float | None = None) -> replies.TopicDescription:
        """Its bounds, and what is kept now; TopicNotFound where nothing is."""
        reply = self._ask(commands.DescribeTopic(topic=self.name), timeout)
        assert isinstance(reply, replies.TopicDescription)
        return reply

    def delete(self, *, timeout: float | None = None) -> None:
        """Keep it no longer, and forget what was kept; who reads just this topic is told."""
        self._ask(commands.DeleteTopic(topic=self.name), timeout)

    def publish(self, payload: Any, *, headers: dict[str, Any] | None = None, timeout: float | None = None) -> int:
        """As `hub.publish`."""
        return self._topics().publish(self.name, payload, headers, timeout=self._limit(timeout), is_local=False)

    def publish_all(self, payloads: Sequence[Any], *, timeout: float | None = None) -> int:
        """Many at once to a kept topic, which costs little more than one. Returns the first offset.

        They are stored in pieces of up to 500, each within the timeout; when one fails, those before it are stored.
        """
        return self._topics().publish_kept(self.name, payloads, timeout=self._limit(timeout))

    def subscribe(
        self,
        *,
        since: Since | None = None,
        buffer: int = 100,
        overflow: Overflow | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """As `hub.subscribe`."""
        return self._topics().subscribe(
            self.name,
            buffer=buffer,
            overflow=overflow,
            since=since,
            timeout=self._limit(timeout),
            is_local=False,
        )

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _ask(self, command: commands.Command, timeout: float | None) -> replies.AnyReply:
        return self._topics().ask(command, timeout=self._limit(timeout))
