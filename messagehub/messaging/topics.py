"""Topics: a message to all who subscribe, carried by libzmq through the broker, at most once.

Rule 1: whatever the number of topics and subscriptions, a client holds one PUSH and one SUB socket.
Rule 2: the messages of one publisher on one topic arrive in their order, or not at all; they are numbered, so that
every subscriber can tell how many did not.
Rule 3: when `subscribe` has returned, all that is published after that is heard.
Rule 4: every call has a deadline, and without a broker it says so at once.
"""

import itertools
import os
import threading
import time
from typing import Any

import zmq

from messagehub.client.connection import Connection
from messagehub.errors import BrokerRequired, BrokerUnavailable, Forbidden, RequestTimeout, SendTimeout
from messagehub.messaging.subscriptions import Overflow, Subscription
from messagehub.messaging.topic_messages import PUBLISHER_BYTES, REST, check_size, encode_headers, encode_payload
from messagehub.messaging.topic_patterns import END, Pattern, check_topic
from messagehub.messaging.topic_receiver import Context, TopicReceiver
from messagehub.messaging.topic_routes import TopicRoutes
from registry import commands, replies

SEND_QUEUE = 10_000
LINGER_MS = 2_000
PATIENCE_SECONDS = 0.2
ECHO_FIRST_SECONDS, ECHO_MAX_SECONDS = 0.002, 0.05
MOST_TOPICS = 65_536
_NOBLOCK = int(zmq.NOBLOCK)


class _Numbered:
    """One topic of a publisher: how its frames begin, and the number of the next."""

    __slots__ = ("number", "start")

    def __init__(self, topic: str, publisher: bytes) -> None:
        self.start = check_topic(topic).encode() + END + publisher
        self.number = 1


class Topics:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._publisher = os.urandom(PUBLISHER_BYTES)
        self._echoes = itertools.count()
        self._sending = threading.Lock()  # the PUSH socket and the numbers
        self._opening = threading.Lock()
        self._numbered: dict[str, _Numbered] = {}
        self._numbered_locally: dict[str, _Numbered] = {}
        self._routes = TopicRoutes()
        self._local_routes = TopicRoutes()
        self._context: Context | None = None
        self._push: zmq.Socket[bytes] | None = None
        self._push_endpoint = ""
        self._receiver: TopicReceiver | None = None
        self._is_closed = False

    def publish(
        self, topic: str, payload: Any, headers: dict[str, Any] | None, *, timeout: float, is_local: bool
    ) -> int:
        kind, body = encode_payload(payload)
        head = encode_headers(headers) if headers else b""
        check_size(len(head) + len(body))
        if not self._sending.acquire(timeout=timeout):
            raise SendTimeout(f"others were publishing for {timeout} s")
        try:
            known = self._numbered_locally if is_local else self._numbered
            numbered = known.get(topic) or self._new_topic(topic, known)
            number = numbered.number
            frame = numbered.start + REST.pack(number, time.time(), len(head), kind) + head + body
            if is_local:
                self._local_routes.deliver(frame)
                self._local_routes.wake()
            else:
                self._send(frame, timeout)
            numbered.number = number + 1
            return number
        finally:
            self._sending.release()

    def subscribe(
        self, pattern: str, *, buffer: int, overflow: Overflow, timeout: float, is_local: bool
    ) -> Subscription:
        on_close = self._leave_local if is_local else self._leave
        subscription = Subscription(Pattern(pattern), buffer=buffer, overflow=overflow, on_close=on_close)
        if is_local:
            self._local_routes.add(subscription)
            return subscription
        deadline = time.monotonic() + timeout
        receiver = self._listening(deadline)
        self._routes.add(subscription)
        receiver.subscribe(subscription.prefix)
        try:
            self._await_echo(receiver, deadline)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def close(self) -> None:
        """End all subscriptions and wait, within a bound, until what was published is with the broker. Idempotent."""
        with self._opening:
            self._is_closed = True
            receiver, self._receiver = self._receiver, None
        for subscription in (*self._routes.subscriptions, *self._local_routes.subscriptions):
            subscription.close()
        if receiver is not None:
            receiver.close()
        with self._sending:
            push, self._push = self._push, None
            context, self._context = self._context, None
        if push is not None:
            push.close(LINGER_MS)
        if context is not None:
            context.term()

    def abandon(self) -> None:
        """In a forked child: never touch the parent's sockets, not even by collecting them as garbage."""
        _left_by_parent.append(self)
        for subscription in (*self._routes.subscriptions, *self._local_routes.subscriptions):
            subscription.abandon()

    # -- publishing; only while holding `_sending` ---------------------------------------------------------

    def _new_topic(self, topic: str, known: dict[str, _Numbered]) -> _Numbered:
        numbered = _Numbered(topic, self._publisher)
        if len(known) >= MOST_TOPICS:
            del known[next(iter(known))]
        known[topic] = numbered
        return numbered

    def _send(self, frame: bytes, timeout: float) -> None:
        if self._push is not None and _is_taken(self._push, frame):
            return
        deadline = time.monotonic() + timeout
        while True:  # not connected, or the broker is behind: find out which
            push = self._connected(deadline)
            remaining = deadline - time.monotonic()
            push.poll(int(max(min(remaining, PATIENCE_SECONDS), 0.0) * 1000) + 1, zmq.POLLOUT)
            if _is_taken(push, frame):
                return
            if remaining <= 0:
                raise SendTimeout(f"the broker did not take the message in {timeout} s")

    def _connected(self, deadline: float) -> zmq.Socket[bytes]:
        """The PUSH socket, at the endpoint that the broker names now."""
        endpoint = self._endpoint("topics_in", deadline)
        if self._push is None:
            self._push = self._open_context().socket(zmq.PUSH)
            self._push.setsockopt(zmq.IMMEDIATE, 1)  # a message waits for a broker that is there, not for the next one
            self._push.setsockopt(zmq.SNDHWM, SEND_QUEUE)
            self._push.setsockopt(zmq.RECONNECT_IVL, 20)
            self._connection.keys(endpoint).secure(self._push)
        if endpoint != self._push_endpoint:
            if self._push_endpoint:
                self._push.disconnect(self._push_endpoint)
            self._push.connect(endpoint)
            self._push_endpoint = endpoint
        return self._push

    # -- inside --------------------------------------------------------------------------------------------

    def _endpoint(self, name: str, deadline: float) -> str:
        """Where the broker takes or gives topics now, to us."""
        hello = self._hello(deadline)
        if name not in hello.endpoints:
            doing = "publish" if name == "topics_in" else "subscribe to"
            raise Forbidden(f"this peer may not {doing} topics: that takes a right without a pattern")
        return hello.endpoints[name]

    def _hello(self, deadline: float) -> replies.HelloAck:
        try:
            return self._connection.ask_hello(timeout=max(deadline - time.monotonic(), 0.001))
        except RequestTimeout as late:
            raise SendTimeout("the broker did not answer in time") from late
        except BrokerUnavailable as missing:
            raise BrokerRequired(f"topics need a broker: {missing.message}", **missing.details) from missing

    def _open_context(self) -> Context:
        with self._opening:
            if self._is_closed:
                raise BrokerRequired("this client is closed")
            if self._context is None:
                self._context = zmq.Context()
            return self._context

    def _listening(self, deadline: float) -> TopicReceiver:
        endpoint = self._endpoint("topics_out", deadline)
        context = self._open_context()
        with self._opening:
            if self._is_closed:
                raise BrokerRequired("this client is closed")
            if self._receiver is None:
                secure = self._connection.keys(endpoint).secure
                self._receiver = TopicReceiver(context, endpoint, self._routes, secure)
            elif self._receiver.endpoint != endpoint:
                self._receiver.move(endpoint)
            return self._receiver

    def _await_echo(self, receiver: TopicReceiver, deadline: float) -> None:
        """Until a frame of our own has come back; those that overtook its filter are lost, so it is sent again."""
        text = f"{self._publisher.hex()}.{next(self._echoes)}"
        echo = END + text.encode()
        is_publisher = "topics_in" in self._hello(deadline).endpoints
        heard = receiver.expect(echo)
        wait = ECHO_FIRST_SECONDS
        try:
            while (remaining := deadline - time.monotonic()) > 0:
                if is_publisher:
                    with self._sending:
                        self._send(echo, remaining)
                else:
                    self._connection.request(commands.Ping(echo=text), timeout=remaining)
                if heard.wait(min(wait, remaining)):
                    return
                wait = min(2 * wait, ECHO_MAX_SECONDS)
        finally:
            receiver.forget(echo)
        raise SendTimeout("the broker did not confirm the subscription in time")

    def _leave(self, subscription: Subscription) -> None:
        receiver = self._receiver
        if self._routes.remove(subscription) and receiver is not None:
            receiver.unsubscribe(subscription.prefix)

    def _leave_local(self, subscription: Subscription) -> None:
        self._local_routes.remove(subscription)


def _is_taken(push: zmq.Socket[bytes], frame: bytes) -> bool:
    try:
        push.send(frame, _NOBLOCK)
    except zmq.Again:
        return False
    return True


_left_by_parent: list[Topics] = []
