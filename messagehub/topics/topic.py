"""One topic as an object: keep it, publish to it, read it, delete it. Each call has an asynchronous form."""

import datetime
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from messagehub.arguments import checked, plain
from messagehub.client.pages import pages
from messagehub.errors import ConfigurationError, SendTimeout
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.topics.durations import RULE, seconds_of
from messagehub.topics.retained.durable_subscriptions import Ack, durable_options
from messagehub.topics.retained.positions import Since, Start, resolve
from messagehub.topics.subscriptions import Overflow, Subscription
from messagehub.topics.topics import Topics
from registry import commands, replies
from registry.records import Keep, RetainedTopic, TopicPosition
from registry.topics.patterns import check_topic

Bounds = Keep | int | datetime.timedelta | str
"""How much is retained: a number of messages, an age, or several bounds at once."""


@checked()
class Topic:
    def __init__(self, name: str, topics: Callable[[], Topics], timeout: float) -> None:
        """`topics` gives those of now: a hub that was disconnected, or forked, has others."""
        self.name = check_topic(name)
        self._topics = topics
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}>"

    def keep(
        self, keep: Bounds, *, replace: bool = False, home: str | None = None, timeout: float | None = None
    ) -> RetainedTopic:
        """Store what is published from now on, as much as the bounds say. Idempotent.

        Whatever is published, by whichever process, after this has returned is stored: while others may still publish
        plainly, which they stop two seconds after they last asked, this waits. SendTimeout when that takes too long;
        the topic is retained then, and saying it again waits for the rest.

        In a site `home` is the host that has its messages, by default that of the hub that is asked. A topic that is
        retained already stays where it is.
        """
        deadline = time.monotonic() + self._limit(timeout)
        reply = self._ask(commands.KeepTopic(topic=self.name, keep=_bounds(keep), replace=replace, home=home), timeout)
        assert isinstance(reply, replies.TopicRetained)
        remaining = max(deadline - time.monotonic(), 0.0)
        time.sleep(min(reply.settles_in_seconds, remaining))
        if reply.settles_in_seconds > remaining:
            raise SendTimeout(
                f"topic {self.name!r} is retained, but others may publish to it without its being stored for"
                f" {reply.settles_in_seconds - remaining:.1f} s more: say it again, with a longer timeout"
            )
        return reply.topic

    keep_async = awaitable(keep)

    def describe(self, *, timeout: float | None = None) -> replies.TopicDescription:
        """Its bounds, and what is stored now; TopicNotFound if it is not retained."""
        reply = self._ask(commands.DescribeTopic(topic=self.name), timeout)
        assert isinstance(reply, replies.TopicDescription)
        return reply

    describe_async = awaitable(describe)

    def delete(self, *, timeout: float | None = None) -> None:
        """Make it a plain topic and delete what is stored. Subscribers of just this topic get TopicNotFound."""
        self._ask(commands.DeleteTopic(topic=self.name), timeout)

    delete_async = awaitable(delete)

    def publish(self, payload: Any, *, headers: dict[str, Any] | None = None, timeout: float | None = None) -> int:
        """As `hub.publish`."""
        return self._topics().publisher.publish(self.name, payload, headers=headers, timeout=timeout)

    publish_async = awaitable(publish)

    def publish_all(self, payloads: Sequence[Any], *, timeout: float | None = None) -> int:
        """Publish many messages to a retained topic, which costs little more than one. Return the first offset, or 0.

        They are stored in pieces of up to 500, each within the timeout; when one fails, those before it are stored.
        """
        return self._topics().publisher.publish_all(self.name, payloads, timeout=self._limit(timeout))

    publish_all_async = awaitable(publish_all)

    def subscribe(
        self,
        *,
        since: Since | None = None,
        group: str | None = None,
        durable: str | None = None,
        ack: Ack | None = None,
        ack_wait: float | None = None,
        max_unacked: int | None = None,
        max_deliveries: int | None = None,
        buffer: int | None = None,
        overflow: Overflow | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """As `hub.subscribe`."""
        subscription = self._topics().subscribe(
            self.name,
            buffer=buffer,
            overflow=overflow,
            since=since,
            group=group,
            durable=durable_options(
                durable, ack=ack, ack_wait=ack_wait, max_unacked=max_unacked, max_deliveries=max_deliveries
            ),
            timeout=self._limit(timeout),
            is_local=False,
        )
        return subscription.hand_out(self)

    subscribe_async = awaitable(subscribe)

    def positions(self, *, timeout: float | None = None) -> list[replies.PositionSummary]:
        """Return the durable names under which it is read, and how far each is."""

        def ask(after: str, seconds: float) -> replies.PositionList:
            page = self._ask(commands.ListPositions(topic=self.name, after=after), seconds)
            assert isinstance(page, replies.PositionList)
            return page

        return [each for page in pages(ask, timeout=self._limit(timeout)) for each in page.positions]

    positions_async = awaitable(positions)

    def position(self, durable: str, *, timeout: float | None = None) -> replies.PositionDescription:
        """Return how far a durable name has read, and its readers. Raise PositionNotFound if there is none."""
        reply = self._ask(commands.DescribePosition(topic=self.name, position=durable), timeout)
        assert isinstance(reply, replies.PositionDescription)
        return reply

    position_async = awaitable(position)

    def reset_position(self, durable: str, since: Since, *, timeout: float | None = None) -> TopicPosition:
        """Go on from there (as `since` of `hub.subscribe`), whatever was acknowledged or is held by subscribers."""
        deadline = time.monotonic() + self._limit(timeout)
        offset = resolve(Start(since), self.name, lambda command: self._ask(command, _remaining(deadline)))
        command = commands.ResetPosition(topic=self.name, position=durable, offset=offset)
        reply = self._ask(command, _remaining(deadline))
        assert isinstance(reply, replies.PositionReset)
        return reply.position

    reset_position_async = awaitable(reset_position)

    def delete_position(self, durable: str, *, timeout: float | None = None) -> None:
        """Delete a durable name. Its readers get PositionNotFound."""
        self._ask(commands.DeletePosition(topic=self.name, position=durable), timeout)

    delete_position_async = awaitable(delete_position)

    @property
    def _background(self) -> BackgroundThreads:
        return self._topics().background

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _ask(self, command: commands.Command, timeout: float | None) -> replies.AnyReply:
        return self._topics().ask(command, timeout=self._limit(timeout))


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline, and a moment where it has passed, so that an answer at hand is taken."""
    return max(deadline - time.monotonic(), 0.001)


def open_topic(
    name: str,
    topics: Callable[[], Topics],
    limit: float,
    *,
    keep: Bounds | None,
    replace: bool,
    home: str | None,
    timeout: float | None,
) -> Topic:
    """Return a topic whose calls take at most `limit` seconds each, and have it retained where `keep` says so."""
    if replace and keep is None:
        raise ConfigurationError("replace changes the bounds of a retained topic: say which with keep")
    if home is not None and keep is None:
        raise ConfigurationError("home is the host that is to have a retained topic: say what it retains with keep")
    topics().check_open()
    topic = Topic(name, topics, limit)
    if keep is not None:
        topic.keep(keep, replace=replace, home=home, timeout=timeout)
    return topic


def _bounds(keep: Any) -> Keep:
    if isinstance(keep, Keep):
        return Keep(**{name: plain(value) for name, value in msgspec.structs.asdict(keep).items()})
    try:
        if isinstance(keep, datetime.timedelta) and keep > datetime.timedelta():
            return Keep(seconds=keep.total_seconds())
        if isinstance(keep, str) and keep.isdecimal():
            raise ConfigurationError(
                f'keep={keep!r} has no unit: write keep={keep} for so many messages, or keep="{keep}s" for so many'
                " seconds"
            )
        if isinstance(keep, str):
            return Keep(seconds=seconds_of(keep))
        if not isinstance(keep, bool) and (messages := operator.index(keep)) >= 1:
            return Keep(messages=messages)
    except (TypeError, ValueError):
        pass  # refused below
    raise ConfigurationError(
        f"keep is a number of messages, at least 1, an age (a timedelta, or {RULE}) or a Keep, not {keep!r}"
    )
