"""Topics: a message to all who subscribe, carried by libzmq through the broker, at most once; or kept by the broker.

Rule 1: whatever the number of topics and subscriptions, a client holds one PUSH socket and two SUB sockets: what the
broker has stored comes on one of its own, into which no publisher can write.
Rule 2: the messages of one publisher on one topic arrive in their order, or not at all; they are numbered, so that
every subscriber can tell how many did not.
Rule 3: when `subscribe` has returned, all that is published after that is heard.
Rule 4: every call has a deadline, and without a broker it says so at once.
Rule 5: whether a topic is retained is known from the broker. That it is not counts for PLAIN_SECONDS from when it was
asked, and whoever makes it a retained one waits for as long, so that nothing is published past the store after that.
Rule 6: a new connection to the broker is asked before anything more is published, so that a publisher is told that its
broker was restarted with the first message after that was noticed.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from messagehub.client.connection import Connection
from messagehub.client.heartbeats import Heartbeats, Registration
from messagehub.errors import (
    BrokerRequired,
    BrokerUnavailable,
    ConfigurationError,
    Forbidden,
    InvalidRequest,
    NotInitialised,
    PositionNotFound,
    RequestTimeout,
    SendTimeout,
    TopicNotFound,
)
from messagehub.payloads.arrow_values import PLAIN_TYPES, as_arrow
from messagehub.payloads.blocks import MessageBlocks, is_large
from messagehub.payloads.encoding import arrow_kind, check_size, encode_headers, encode_payload
from messagehub.protocol.topic_frames import IN_BLOCK, NAME_OF, PUBLISHER_BYTES, REST, frames_of
from messagehub.runtime.background import BackgroundThreads
from messagehub.shm.location import directory_of
from messagehub.shm.locks import check_spare_files
from messagehub.topics import subscriptions
from messagehub.topics.group_subscriptions import GroupSubscription
from messagehub.topics.receiver import Context, TopicReceiver
from messagehub.topics.retained import durable_subscriptions
from messagehub.topics.retained import subscriptions as kept_subscriptions
from messagehub.topics.retained.durable_subscriptions import Durable, DurableSubscription
from messagehub.topics.retained.following import RetainedFollower
from messagehub.topics.retained.positions import Since, Start, resolve
from messagehub.topics.retained.publishing import RetainedPublisher, pieces
from messagehub.topics.retained.subscriptions import RetainedSubscription
from messagehub.topics.routes import TopicRoutes
from messagehub.topics.sender import TopicSender
from messagehub.topics.subscriptions import BUFFER_BYTES, Overflow, Subscription
from registry import commands, names, replies
from registry.records import KeptMessage, KeptTopic, TopicPosition
from registry.topics.patterns import END, Pattern, Patterns, check_topic
from registry.topics.retained import PLAIN_SECONDS

log = logging.getLogger("messagehub.topics")

ECHO_FIRST_SECONDS, ECHO_MAX_SECONDS = 0.002, 0.05
MOST_TOPICS = 65_536
TOPIC_FILES = 12
"""So many the sockets of topics take at most, with libzmq's own threads."""


class _Numbered:
    """One topic of a publisher: how its frames begin, and the number of the next; or what keeps it."""

    __slots__ = ("ask_at", "kept", "number", "start")

    def __init__(self, topic: str, publisher: bytes) -> None:
        self.ask_at = 0.0
        self.kept: RetainedPublisher | None = None
        self.start = check_topic(topic).encode() + END + publisher
        self.number = 1


class Topics:
    def __init__(
        self, connection: Connection, heartbeats: Heartbeats, *, owner: dict[str, Any], background: BackgroundThreads
    ) -> None:
        """`owner` names this process in registrations; `background` runs what is awaited."""
        self.background = background
        self._connection = connection
        self._heartbeats = heartbeats
        self._owner = owner
        self._durable: list[DurableSubscription] = []
        self._publisher = os.urandom(PUBLISHER_BYTES)
        self._sending = threading.Lock()  # the sender and the blocks; held for as long as a broker takes
        self._knowing = threading.Lock()  # what is known of topics; never held while waiting
        self._opening = threading.Lock()
        self._numbered: dict[str, _Numbered] = {}
        self._numbered_locally: dict[str, _Numbered] = {}
        self._routes = TopicRoutes()
        self._local_routes = TopicRoutes()
        self._context: Context | None = None
        self._sender = TopicSender(self._endpoint_in, self._open_context, self._secure)
        self._receiver: TopicReceiver | None = None
        self._follower = RetainedFollower(connection)
        self._blocks = MessageBlocks(directory_of(connection.settings), self._publisher)
        self._noted: replies.HelloAck | None = None  # of the broker that took what was published last
        self._interruptions = 0
        self._is_closed = False

    def check_open(self) -> None:
        if self._is_closed:
            raise NotInitialised("this hub is closed")

    def publish(
        self, topic: str, payload: Any, headers: dict[str, Any] | None, *, timeout: float, is_local: bool
    ) -> int:
        self.check_open()
        is_in_block = False
        if type(payload) not in PLAIN_TYPES:
            payload = as_arrow(payload)
            is_in_block = is_large(payload)
        kind, body = (arrow_kind(payload) | IN_BLOCK, b"") if is_in_block else encode_payload(payload)
        head = encode_headers(headers) if headers else b""
        began_at = time.monotonic()
        if type(topic) is not str:
            check_topic(topic)
        if not is_local:
            numbered = self._numbered.get(topic)
            hello = self._connection.hello
            if numbered is None or began_at >= numbered.ask_at or hello is None or hello is not self._noted:
                numbered = self._ask_whether_kept(topic, timeout)
            if numbered.kept is not None:
                kind, body = encode_payload(payload) if is_in_block else (kind, body)
                message = KeptMessage(payload=body, kind=NAME_OF[kind], headers=headers or {})
                remaining = max(began_at + timeout - time.monotonic(), 0.0)
                return self._publish_kept(numbered, numbered.kept, [message], remaining)
        check_size(len(head) + len(body))
        if not self._sending.acquire(timeout=max(began_at + timeout - time.monotonic(), 0.0)):
            raise SendTimeout(f"others were publishing for {timeout} s")
        try:
            known = self._numbered_locally if is_local else self._numbered
            numbered = known.get(topic) or self._new_topic(topic, known)
            number = numbered.number
            if is_in_block:
                body = self._blocks.put(payload)
            if is_local:
                rest = REST.pack(number, time.time(), len(head), kind)
                self._local_routes.deliver(numbered.start + rest + head + body)
                self._local_routes.wake()
            else:
                for frame in frames_of(numbered.start, number, time.time(), kind, head, body):
                    self._sender.send(frame, began_at + timeout)
            numbered.number = number + 1
            return number
        finally:
            self._sending.release()

    def publish_kept(self, topic: str, payloads: Sequence[Any], *, timeout: float) -> int:
        """The offset of the first; all of them are stored, in their order, when this returns.

        Sent in pieces, each of which has the timeout for itself; when one fails, those before it are stored.
        """
        if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
            kind = type(payloads).__name__
            raise InvalidRequest(f"payloads is a list of messages, not one {kind}: use publish, or [message]")
        encoded = [encode_payload(payload) for payload in payloads]
        if not encoded:
            raise InvalidRequest("there is nothing to publish")
        numbered = self._ask_whether_kept(topic, timeout)
        if numbered.kept is None:
            raise TopicNotFound(f"topic {topic!r} is not kept", topic=topic)
        messages = [KeptMessage(payload=body, kind=NAME_OF[kind]) for kind, body in encoded]
        offsets = [self._publish_kept(numbered, numbered.kept, piece, timeout) for piece in pieces(messages)]
        return offsets[0]

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
                raise ConfigurationError("a kept topic is read from the broker, at the reader's own pace (block)")
            size = kept_subscriptions.BUFFER if buffer is None else buffer
            begin = "newest" if since is None else since
            return self._subscribe_kept(Patterns(pattern), size, buffer_bytes, begin, timeout)
        on_close = self._leave_local if is_local else self._leave
        subscription = Subscription(
            Patterns(pattern),
            buffer=subscriptions.BUFFER if buffer is None else buffer,
            buffer_bytes=buffer_bytes,
            overflow=overflow or "drop_oldest",
            on_close=on_close,
            drive=None if is_local else self._drive,
        )
        if is_local:
            self._local_routes.add(subscription)
        else:
            self._hear(subscription, time.monotonic() + timeout)
        return subscription

    def _subscribe_kept(
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
            on_close=self._leave_kept,
            on_want=self._follower.want,
        )
        deadline = time.monotonic() + timeout
        with contextlib.suppress(Forbidden):
            self._hear(subscription, deadline)
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
            drive=self._drive,
        )
        self._hear(subscription, deadline)
        try:
            registration = self._register(command, deadline)
            subscription.start(registration)
            subscription.await_share(max(deadline - time.monotonic(), 0.0))
        except BaseException:
            subscription.close()
            raise
        return subscription

    def _leave_group(self, subscription: Subscription) -> None:
        assert isinstance(subscription, GroupSubscription)
        self._leave(subscription)
        subscription.unregister()

    def _member_id(self) -> str:
        return names.to_role(f"subscriber-{self._owner['host'][:20]}-{os.urandom(8).hex()}")

    def _register(self, command: commands.RegisterSubscriber, deadline: float) -> Registration:
        try:
            remaining = max(deadline - time.monotonic(), 0.001)
            return self._heartbeats.register(command, timeout=remaining, required=True)
        except BrokerUnavailable as missing:
            raise _without_broker(missing) from missing

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
            raise ConfigurationError(f"durable is a position of one topic: {patterns.text!r} is a pattern, or several")
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
                self._hear(subscription, deadline)
        except BaseException:
            registration.close()
            raise
        with self._knowing:
            self._durable = [*self._durable, subscription]
        subscription.start()
        return subscription

    def _open_position(self, topic: str, durable: Durable, since: Since | None, deadline: float) -> TopicPosition:
        """As it is, or made from `since` on, by default from the oldest message."""

        def ask(command: commands.Command) -> Any:
            return self.ask(command, timeout=max(deadline - time.monotonic(), 0.001))

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

    def _hear(self, subscription: Subscription, deadline: float) -> None:
        """It gets messages from its echo on: those before it may have holes, which nobody lost."""
        receiver = self._listening(deadline)
        receiver.subscribe(subscription.prefixes)
        try:
            self._await_echo(receiver, subscription, deadline)
        except BaseException:
            subscription.end()  # so that an echo in this moment does not add it
            self._routes.remove(subscription)
            receiver.unsubscribe(subscription.prefixes)
            raise

    def close_shared(self) -> None:
        """End the subscriptions that are registered, and with them what they are registered for."""
        for subscription in self._every_subscription():
            if isinstance(subscription, DurableSubscription | GroupSubscription):
                subscription.close()

    def close(self) -> None:
        """End all subscriptions and wait, within a bound, until what was published is with the broker. Idempotent."""
        with self._opening:
            self._is_closed = True
            receiver, self._receiver = self._receiver, None
        for subscription in self._every_subscription():
            subscription.close()
        self._follower.close()
        if receiver is not None:
            receiver.close()
        with self._sending:
            self._sender.close()
            context, self._context = self._context, None
        if context is not None:
            context.term()

    def abandon(self) -> None:
        """In a forked child: never touch the parent's sockets, not even by collecting them as garbage."""
        _left_by_parent.append(self)
        for subscription in self._every_subscription():
            subscription.abandon()

    def ask(self, command: commands.Command, *, timeout: float) -> replies.AnyReply:
        try:
            return self._connection.request(command, timeout=timeout, is_patient=True)
        except BrokerUnavailable as missing:
            raise _without_broker(missing) from missing

    def kept(self, pattern: str, *, timeout: float) -> list[KeptTopic]:
        Pattern(pattern)
        try:
            return self._follower.topics([pattern], timeout=timeout)
        except BrokerUnavailable as missing:
            raise _without_broker(missing) from missing

    def report(self) -> dict[str, int]:
        """Return what `hub.metrics()` says of topics.

        `malformed` are received frames that are no messages, `interruptions` restarts of the broker while this client
        published, each of which may have taken what was published in the moments before it.
        """
        return {"malformed": self._routes.malformed, "interruptions": self._interruptions}

    # -- kept topics ---------------------------------------------------------------------------------------

    def _ask_whether_kept(self, topic: str, timeout: float) -> _Numbered:
        numbered = self._numbered.get(topic) or self._new_topic(topic, self._numbered)
        asked_at = time.monotonic()
        try:
            is_kept = bool(self._follower.topics([topic], timeout=timeout))
        except BrokerUnavailable as missing:
            if numbered.kept is not None:
                return numbered  # it waits for the broker to come back
            raise _without_broker(missing) from missing
        with self._knowing:
            self._note_broker()
            if not is_kept:
                numbered.kept = None
            elif numbered.kept is None:
                numbered.kept = RetainedPublisher(self._connection, topic)
            numbered.ask_at = asked_at + PLAIN_SECONDS
        return numbered

    def _publish_kept(
        self, numbered: _Numbered, kept: RetainedPublisher, messages: list[KeptMessage], timeout: float
    ) -> int:
        try:
            return kept.publish(messages, timeout=timeout)
        except TopicNotFound:
            numbered.ask_at, numbered.kept = 0.0, None
            raise

    # -- inside --------------------------------------------------------------------------------------------

    def _note_broker(self) -> None:
        """A broker that is killed takes along what it had not yet sent on, of which its publishers had no word."""
        hello, noted = self._connection.hello, self._noted
        if hello is None:
            return  # lost again already: the next publication asks
        self._noted = hello
        if noted is not None and noted.broker_id != hello.broker_id:
            self._interruptions += 1
            log.warning(
                "the broker was restarted: what this client published to topics that are not retained in the moments"
                " before may not have reached its subscribers"
            )

    def _new_topic(self, topic: str, known: dict[str, _Numbered]) -> _Numbered:
        numbered = _Numbered(topic, self._publisher)
        with self._knowing:
            if len(known) >= MOST_TOPICS and topic not in known:
                del known[next(iter(known))]
            return known.setdefault(topic, numbered)

    def _every_subscription(self) -> set[Subscription]:
        return {
            *self._routes.subscriptions,
            *self._local_routes.subscriptions,
            *self._follower.subscriptions,
            *self._durable,
        }

    def _endpoint_in(self, deadline: float) -> str:
        """Where the broker takes what is published now, from us."""
        return self._endpoints(deadline, "topics_in", to="publish")[0]

    def _endpoints(self, deadline: float, *names: str, to: str) -> list[str]:
        try:
            hello = self._connection.ask_hello(timeout=max(deadline - time.monotonic(), 0.001))
        except BrokerUnavailable as missing:
            raise _without_broker(missing) from missing
        if any(name not in hello.endpoints for name in names):
            raise Forbidden(f"this peer may not {to} topics: that takes a right without a pattern")
        return [hello.endpoints[name] for name in names]

    def _secure(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        self._connection.keys(endpoint).secure(socket)

    def _open_context(self) -> Context:
        with self._opening:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            if self._context is None:
                check_spare_files(TOPIC_FILES)
                self._context = zmq.Context()
            return self._context

    def _listening(self, deadline: float) -> TopicReceiver:
        plain, retained = self._endpoints(deadline, "topics_out", "topics_retained", to="subscribe to")
        endpoints = plain, retained
        context = self._open_context()
        with self._opening:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            if self._receiver is None:
                check_spare_files(TOPIC_FILES)
                secure = self._connection.keys(endpoints[0]).secure
                self._receiver = TopicReceiver(context, endpoints, self._routes, secure, self._connection.count_defect)
            elif self._receiver.endpoints != endpoints:
                self._receiver.move(endpoints)
            return self._receiver

    def _drive(self, is_done: Callable[[], bool], seconds: float, burst: int) -> bool:
        receiver = self._receiver
        if receiver is None or any(other.is_awaited for other in self._routes.subscriptions):
            return False
        return receiver.drive(is_done, seconds, burst)

    def _await_echo(self, receiver: TopicReceiver, subscription: Subscription, deadline: float) -> None:
        """Wait until a text that the broker sends for us has come on both sockets.

        One that overtakes its filter is lost, so it is asked for again.
        """
        text = os.urandom(16).hex()
        echo = END + text.encode()
        heard = threading.Event()

        def begin() -> None:
            self._routes.add(subscription)
            heard.set()

        receiver.expect(echo, begin)
        wait = ECHO_FIRST_SECONDS
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                self.ask(commands.Ping(echo=text), timeout=remaining)
                if heard.wait(min(wait, remaining)):
                    return
                wait = min(2 * wait, ECHO_MAX_SECONDS)
        finally:
            receiver.forget(echo)
        raise SendTimeout("the broker did not confirm the subscription in time")

    def _leave(self, subscription: Subscription) -> None:
        receiver = self._receiver
        if self._routes.remove(subscription) and receiver is not None:
            receiver.unsubscribe(subscription.prefixes)

    def _leave_kept(self, subscription: Subscription) -> None:
        assert isinstance(subscription, RetainedSubscription)
        self._leave(subscription)
        self._follower.remove(subscription)

    def _leave_durable(self, subscription: Subscription) -> None:
        self._leave(subscription)
        with self._knowing:
            self._durable = [other for other in self._durable if other is not subscription]

    def _leave_local(self, subscription: Subscription) -> None:
        self._local_routes.remove(subscription)


def _without_broker(missing: BrokerUnavailable) -> SendTimeout | BrokerRequired:
    if isinstance(missing, RequestTimeout):
        return SendTimeout("the broker did not answer in time")
    return BrokerRequired(f"topics need a broker: {missing.message}", **missing.details)


_left_by_parent: list[Topics] = []
