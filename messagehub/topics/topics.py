"""Topics: a message goes to all who subscribe, through the broker, at most once; the broker stores retained ones.

Rule 1: whatever the number of topics and subscriptions, a client holds one PUSH socket (publishing.py) and two SUB
sockets (sockets.py): what the broker has stored comes on one of its own, into which no publisher can write.
Rule 2: every call has a deadline, and without a broker it says so at once.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from messagehub.client.connection import Connection
from messagehub.client.heartbeats import Heartbeats
from messagehub.client.identity import program
from messagehub.client.registration import Registration
from messagehub.errors import BrokerUnavailable, ConfigurationError, Forbidden, PositionNotFound
from messagehub.runtime.background import BackgroundThreads
from messagehub.topics import subscriptions
from messagehub.topics.group_subscriptions import GroupSubscription
from messagehub.topics.publishing import TopicPublisher
from messagehub.topics.reports import SubscriptionReports
from messagehub.topics.retained import durable_subscriptions
from messagehub.topics.retained import subscriptions as retained_subscriptions
from messagehub.topics.retained.durable_subscriptions import Durable, DurableSubscription
from messagehub.topics.retained.following import RetainedFollower
from messagehub.topics.retained.positions import Since, Start, resolve
from messagehub.topics.retained.subscriptions import RetainedSubscription
from messagehub.topics.routes import TopicRoutes
from messagehub.topics.sockets import TopicSockets, without_broker
from messagehub.topics.subscriptions import BUFFER_BYTES, Overflow, Subscription
from registry import commands, names, replies
from registry.records import PlainTopic, PublisherProcess, RetainedTopic, TopicPosition
from registry.topics.patterns import Pattern, Patterns

log = logging.getLogger("messagehub.topics")


class Topics:
    def __init__(
        self, connection: Connection, heartbeats: Heartbeats, *, owner: dict[str, Any], background: BackgroundThreads
    ) -> None:
        """`owner` names this process in registrations; `background` runs what is awaited."""
        self.background = background
        self._connection = connection
        self._heartbeats = heartbeats
        self._owner = owner
        self._sockets = TopicSockets(connection)
        self._local_routes = TopicRoutes()
        self._follower = RetainedFollower(connection)
        self._durable: list[DurableSubscription] = []
        self._changing = threading.Lock()  # the list of durable subscriptions
        self.reports = SubscriptionReports(
            connection, self._heard_subscriptions, self._sockets.routes.fates, owner=owner
        )
        process = PublisherProcess(program=program(), host=owner["host"], pid=owner["pid"])
        self.publisher = TopicPublisher(connection, self._sockets, self._follower, self._local_routes, process)

    def check_open(self) -> None:
        self._sockets.check_open()

    def subscribe(
        self,
        pattern: str | Sequence[str],
        *,
        buffer: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        overflow: Overflow | None,
        since: Since | None = None,
        durable: Durable | None = None,
        group: str | None = None,
        timeout: float,
        is_local: bool,
    ) -> Subscription:
        subscription = self._open(pattern, buffer, buffer_bytes, overflow, since, durable, group, timeout, is_local)
        if not is_local:
            self.reports.begun(subscription)
        return subscription

    def _open(
        self,
        pattern: str | Sequence[str],
        buffer: int | None,
        buffer_bytes: int,
        overflow: Overflow | None,
        since: Since | None,
        durable: Durable | None,
        group: str | None,
        timeout: float,
        is_local: bool,
    ) -> Subscription:
        self.check_open()
        if durable is not None:
            if is_local or overflow is not None or group is not None:
                raise ConfigurationError(
                    "durable is for retained topics of the broker, shared by all of the name: leave out local, overflow"
                    " and group"
                )
            return self._subscribe_durable(Patterns(pattern), durable, buffer, buffer_bytes, since, timeout)
        if group is not None:
            if is_local or since is not None or overflow == "block":
                raise ConfigurationError(
                    "group shares what is published from now on through the broker: leave out local, since and"
                    ' overflow="block"; subscribers of a retained topic share it by a durable name'
                )
            size = subscriptions.BUFFER if buffer is None else buffer
            return self._subscribe_group(Patterns(pattern), group, size, buffer_bytes, overflow, timeout)
        if since is not None or overflow == "block":
            if is_local or overflow not in (None, "block"):
                raise ConfigurationError("a retained topic is read from the broker, at the reader's own pace (block)")
            size = retained_subscriptions.BUFFER if buffer is None else buffer
            begin = "newest" if since is None else since
            return self._subscribe_retained(Patterns(pattern), size, buffer_bytes, begin, timeout)
        on_close = self._leave_local if is_local else self._sockets.leave
        subscription = Subscription(
            Patterns(pattern),
            buffer=subscriptions.BUFFER if buffer is None else buffer,
            buffer_bytes=buffer_bytes,
            overflow=overflow or "drop_oldest",
            on_close=on_close,
            drive=None if is_local else self._sockets.drive,
        )
        if is_local:
            self._local_routes.add(subscription)
        else:
            self._sockets.hear(subscription, time.monotonic() + timeout)
        return subscription

    def _subscribe_retained(
        self, patterns: Patterns, buffer: int, buffer_bytes: int, since: Since, timeout: float
    ) -> Subscription:
        """First heard live, then begun: what is published between the two is in the store, and is announced.

        Who may read some topics only is not let in where all of them are heard live: the follower looks for news.
        """
        subscription = RetainedSubscription(
            patterns,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            since=since,
            on_close=self._leave_retained,
            on_want=self._follower.want,
        )
        deadline = time.monotonic() + timeout
        with contextlib.suppress(Forbidden):
            self._sockets.hear(subscription, deadline)
        try:
            self._follower.add(subscription, timeout=max(deadline - time.monotonic(), 0.001))
        except BaseException:
            subscription.close()
            raise
        return subscription

    def _subscribe_group(
        self,
        patterns: Patterns,
        group: str,
        buffer: int,
        buffer_bytes: int,
        overflow: Overflow | None,
        timeout: float,
    ) -> Subscription:
        """First heard, then registered: the first share begins with a mark that is heard too."""
        if not isinstance(group, str):
            raise ConfigurationError(f"group is the name of a group of subscribers, not {group!r}")
        deadline = time.monotonic() + timeout
        command = commands.RegisterSubscriber(
            kind="group", name=group, patterns=sorted(patterns.texts), member_id=self._member_id(), **self._owner
        )
        subscription = GroupSubscription(
            patterns,
            command,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            overflow=overflow or "drop_oldest",
            connection=self._connection,
            on_close=self._leave_group,
            drive=self._sockets.drive,
        )
        self._sockets.hear(subscription, deadline)
        if self._sockets.is_in_site():
            said = "group %r shares what is published on this host; what is published on others does not reach it"
            log.warning(said, group)
        try:
            registration = self._register(command, deadline)
            subscription.start(registration)
            subscription.await_share(max(deadline - time.monotonic(), 0.0))
        except BaseException:
            subscription.close()
            raise
        return subscription

    def _member_id(self) -> str:
        return names.to_role(f"subscriber-{self._owner['host'][:20]}-{os.urandom(8).hex()}")

    def _register(self, command: commands.RegisterSubscriber, deadline: float) -> Registration:
        try:
            remaining = max(deadline - time.monotonic(), 0.001)
            return self._heartbeats.register(command, timeout=remaining, required=True)
        except BrokerUnavailable as missing:
            raise without_broker(missing) from missing

    def _subscribe_durable(
        self,
        patterns: Patterns,
        durable: Durable,
        buffer: int | None,
        buffer_bytes: int,
        since: Since | None,
        timeout: float,
    ) -> Subscription:
        deadline = time.monotonic() + timeout
        if len(patterns.texts) > 1 or not patterns.topics:
            raise ConfigurationError(f"durable is for one topic, and {patterns.text!r} is a pattern, or several topics")
        size = durable_subscriptions.checked_buffer(buffer)
        position = self._open_position(patterns.text, durable, since, deadline)
        command = commands.RegisterSubscriber(
            kind="position",
            name=position.name,
            patterns=[position.topic],
            member_id=self._member_id(),
            **self._owner,
        )
        registration = self._register(command, deadline)
        try:
            subscription = DurableSubscription(
                patterns,
                position,
                buffer=size,
                buffer_bytes=buffer_bytes,
                ack=durable.ack,
                connection=self._connection,
                registration=registration,
                on_close=self._leave_durable,
            )
        except BaseException:
            registration.close()
            raise
        try:
            with contextlib.suppress(Forbidden):  # then it looks for news once a second
                self._sockets.hear(subscription, deadline)
        except BaseException:
            registration.close()
            raise
        with self._changing:
            self._durable = [*self._durable, subscription]
        subscription.start()
        return subscription

    def _open_position(self, topic: str, durable: Durable, since: Since | None, deadline: float) -> TopicPosition:
        """As it is, or made from `since` on, by default from the oldest message."""

        def ask(command: commands.Command) -> Any:
            return self._sockets.ask(command, timeout=max(deadline - time.monotonic(), 0.001))

        start = Start("oldest" if since is None else since)
        command = commands.OpenPosition(
            topic=topic,
            position=durable.name,
            ack_wait_seconds=durable.ack_wait,
            max_unacked=durable.max_unacked,
            max_deliveries=durable.max_deliveries,
        )
        try:
            ask(commands.DescribePosition(topic=topic, position=durable.name))
        except PositionNotFound:
            command.start = resolve(start, topic, ask)
        opened: replies.PositionOpened = ask(command)
        return opened.position

    # -- asking --------------------------------------------------------------------------------------------

    def ask(self, command: commands.Command, *, timeout: float) -> replies.AnyReply:
        return self._sockets.ask(command, timeout=timeout)

    def retained(self, pattern: str, *, timeout: float) -> list[RetainedTopic]:
        Pattern(pattern)
        try:
            return self._follower.topics([pattern], timeout=timeout)
        except BrokerUnavailable as missing:
            raise without_broker(missing) from missing

    def plain(self, pattern: str, *, timeout: float) -> list[PlainTopic]:
        Pattern(pattern)
        reply = self._sockets.ask(commands.ListTopics(pattern=pattern, limit=1, plain=True), timeout=timeout)
        assert isinstance(reply, replies.TopicList)
        return reply.plain or []

    def subscribers(self, topic: str | None, *, timeout: float) -> list[replies.ReportedSubscription]:
        reply = self._sockets.ask(commands.ListSubscriptions(topic=topic, limit=10_000), timeout=timeout)
        assert isinstance(reply, replies.SubscriptionList)
        return reply.subscriptions

    def report(self) -> dict[str, int]:
        """Return what `hub.metrics()` says of topics.

        `malformed` are received frames that are no messages, `interruptions` restarts of the broker while this client
        published, each of which may have taken what was published in the moments before it.
        """
        return {"malformed": self._sockets.routes.malformed, "interruptions": self.publisher.interruptions}

    # -- ending --------------------------------------------------------------------------------------------

    def close_shared(self) -> None:
        """End the subscriptions that are registered, and with them what they are registered for."""
        for subscription in self._every_subscription():
            if isinstance(subscription, DurableSubscription | GroupSubscription):
                subscription.close()

    def close(self) -> None:
        """End all subscriptions and wait, within a bound, until what was published is with the broker. Idempotent."""
        receiver = self._sockets.stop()
        for subscription in self._every_subscription():
            subscription.close()
        self.reports.close()
        self._follower.close()
        if receiver is not None:
            receiver.close()
        self.publisher.close()
        self._sockets.end()

    def abandon(self) -> None:
        """In a forked child: never touch the parent's sockets, not even by collecting them as garbage."""
        _left_by_parent.append(self)
        for subscription in self._every_subscription():
            subscription.abandon()

    def _every_subscription(self) -> set[Subscription]:
        return {*self._heard_subscriptions(), *self._local_routes.subscriptions}

    def _heard_subscriptions(self) -> set[Subscription]:
        """Those that the broker's messages come to."""
        return {*self._sockets.routes.subscriptions, *self._follower.subscriptions, *self._durable}

    def _leave_retained(self, subscription: Subscription) -> None:
        assert isinstance(subscription, RetainedSubscription)
        self._sockets.leave(subscription)
        self._follower.remove(subscription)

    def _leave_group(self, subscription: Subscription) -> None:
        assert isinstance(subscription, GroupSubscription)
        self._sockets.leave(subscription)
        subscription.unregister()

    def _leave_durable(self, subscription: Subscription) -> None:
        self._sockets.leave(subscription)
        with self._changing:
            self._durable = [other for other in self._durable if other is not subscription]

    def _leave_local(self, subscription: Subscription) -> None:
        self._local_routes.remove(subscription)


_left_by_parent: list[Topics] = []
