"""What all topics of a client share: the broker's endpoints, one context, and the SUB sockets that hear.

Rule 1: nothing is opened before it is needed, and nothing after `stop`.
Rule 2: when `hear` has returned, all that is published on this host after that is heard. Other hosts of a site learn of
it a moment later.
"""

import os
import threading
import time
from collections.abc import Callable

import zmq

from messagehub.client.connection import Connection
from messagehub.errors import (
    BrokerRequired,
    BrokerUnavailable,
    Forbidden,
    NotInitialised,
    RequestTimeout,
    SendTimeout,
)
from messagehub.shm.locks import check_spare_files
from messagehub.topics.receiver import Context, TopicReceiver
from messagehub.topics.routes import TopicRoutes
from messagehub.topics.subscriptions import Subscription
from registry import commands, replies
from registry.topics.patterns import END

TOPIC_FILES = 12
"""How many descriptors the sockets of topics take at most, with libzmq's own threads."""
ECHO_FIRST_SECONDS, ECHO_MAX_SECONDS = 0.002, 0.05


class TopicSockets:
    def __init__(self, connection: Connection) -> None:
        self.routes = TopicRoutes()
        self.is_stopped = False
        self._connection = connection
        self._opening = threading.Lock()
        self._context: Context | None = None
        self._receiver: TopicReceiver | None = None

    def check_open(self) -> None:
        if self.is_stopped:
            raise NotInitialised("this hub is closed")

    def ask(self, command: commands.Command, *, timeout: float) -> replies.AnyReply:
        """Return the broker's reply; raise what topics say when there is none."""
        try:
            return self._connection.request(command, timeout=timeout, is_patient=True)
        except BrokerUnavailable as missing:
            raise without_broker(missing) from missing

    # -- hearing -------------------------------------------------------------------------------------------

    def hear(self, subscription: Subscription, deadline: float) -> None:
        """Subscribe, and return when the echo has come.

        Messages before the echo may have gaps, so they are not delivered.
        """
        receiver = self._listening(deadline)
        receiver.subscribe(subscription.prefixes)
        try:
            self._await_echo(receiver, subscription, deadline)
        except BaseException:
            subscription.end()  # so that an echo in this moment does not add it
            self.routes.remove(subscription)
            receiver.unsubscribe(subscription.prefixes)
            raise

    def leave(self, subscription: Subscription) -> None:
        """Hear no more for this subscription."""
        receiver = self._receiver
        if self.routes.remove(subscription) and receiver is not None:
            receiver.unsubscribe(subscription.prefixes)

    def drive(self, is_done: Callable[[], bool], seconds: float, burst: int) -> bool:
        receiver = self._receiver
        if receiver is None or any(other.is_awaited for other in self.routes.subscriptions):
            return False
        return receiver.drive(is_done, seconds, burst)

    def _listening(self, deadline: float) -> TopicReceiver:
        found = self._endpoints(deadline, "topics_out", "topics_retained", to="subscribe to")
        of_site = found.get("topics_site", ""), found.get("topics_site_retained", "")
        endpoints = (found["topics_out"], found["topics_retained"], *of_site)
        context = self.open_context()
        with self._opening:
            self.check_open()
            if self._receiver is None:
                check_spare_files(TOPIC_FILES)
                secure = self._connection.keys(endpoints[0]).secure
                self._receiver = TopicReceiver(context, endpoints, self.routes, secure, self._connection.count_defect)
            elif self._receiver.endpoints != endpoints:
                self._receiver.move(endpoints)
            return self._receiver

    def _await_echo(self, receiver: TopicReceiver, subscription: Subscription, deadline: float) -> None:
        """Wait until an echo that the broker sends for us has come on both sockets.

        One that overtakes its filter is lost, so it is asked for again.
        """
        text = os.urandom(16).hex()
        echo = END + text.encode()
        heard = threading.Event()

        def begin() -> None:
            self.routes.add(subscription)
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

    def is_in_site(self) -> bool:
        """Return whether the broker is a member of a site."""
        hello = self._connection.hello
        return hello is not None and bool(hello.site)

    # -- opening and closing -------------------------------------------------------------------------------

    def endpoint_in(self, deadline: float) -> str:
        """Return the endpoint at which the broker takes messages from us now."""
        return self._endpoints(deadline, "topics_in", to="publish")["topics_in"]

    def _endpoints(self, deadline: float, *names: str, to: str) -> dict[str, str]:
        """Return the endpoints of the broker, these among them."""
        try:
            hello = self._connection.ask_hello(timeout=max(deadline - time.monotonic(), 0.001))
        except BrokerUnavailable as missing:
            raise without_broker(missing) from missing
        if any(name not in hello.endpoints for name in names):
            raise Forbidden(f"this peer may not {to} topics: that takes a right without a pattern")
        return hello.endpoints

    def secure(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        self._connection.keys(endpoint).secure(socket)

    def open_context(self) -> Context:
        with self._opening:
            self.check_open()
            if self._context is None:
                check_spare_files(TOPIC_FILES)
                self._context = zmq.Context()
            return self._context

    def stop(self) -> TopicReceiver | None:
        """Open nothing from now on. Returns the receiver, which whoever ends the subscriptions closes after them."""
        with self._opening:
            self.is_stopped = True
            receiver, self._receiver = self._receiver, None
            return receiver

    def end(self) -> None:
        """Once all sockets are closed: wait, within their bound, until what was published is with the broker."""
        context, self._context = self._context, None
        if context is not None:
            context.term()


def without_broker(missing: BrokerUnavailable) -> SendTimeout | BrokerRequired:
    if isinstance(missing, RequestTimeout):
        return SendTimeout("the broker did not answer in time")
    return BrokerRequired(f"topics need a broker: {missing.message}", **missing.details)
