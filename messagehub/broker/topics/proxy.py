"""Topics: libzmq carries messages to the subscribers, in threads of its own, without Python.

Publishers use a PUSH socket, not a PUB: a PUB discards messages that are sent before it knows the subscriptions, and
does not show that the broker is behind, so a publisher's deadline could not be kept. Messages are dropped in one place
only, the queue of a subscriber that is behind; heartbeats end a stopped subscriber, and with it its queue.

Rule 1: pushed messages and stored messages leave on two sockets. Only the broker can write into the second, so a
subscriber may trust what it receives there of a retained topic.
Rule 2: after a restart the proxy waits for subscribers to come back before it forwards messages. Meanwhile published
messages wait in the queue of the incoming socket. Without that, a message for subscribers that are not back yet would
be lost although its publisher was told that it was sent.
Rule 3: a queue has at most HIGH_WATER_MARK frames of at most MAX_FRAME_BYTES: 650 MiB for each subscriber that is
behind.
"""

import logging
import threading

import zmq

from messagehub.broker.access.authentication import TOPICS_IN, TOPICS_OUT, TOPICS_RETAINED, Authentication, rebind
from messagehub.protocol.topic_frames import MAX_FRAME_BYTES, group_frame
from messagehub.runtime.supervision import Supervisor
from registry.topics.subscriber_groups import Mark

log = logging.getLogger("messagehub.broker")

HIGH_WATER_MARK = 10_000
RETURN_SECONDS = 0.5
"""How long subscribers have to come back; they try to connect at least every 0.2 s (`topic_receiver`)."""
HEARTBEAT_MS = 2_000
SILENCE_MS = 10_000
Context = zmq.Context[zmq.Socket[bytes]]
Ends = tuple[str, str, str]
"""The endpoints where publishers push, and where subscribers receive pushed messages and retained topics."""


class TopicProxy:
    def __init__(self, authentication: Authentication, supervisor: Supervisor) -> None:
        self._authentication = authentication
        self._context: Context = zmq.Context()
        authentication.start(self._context)
        is_steered = bool(authentication.server_key)
        self._plain = _Proxy(self._context, "plain", supervisor, is_steered=is_steered)
        self._retained = _Proxy(self._context, "retained", supervisor, is_steered=is_steered)
        self.retained = self._retained.entrance
        """The socket into which the broker's thread sends stored messages."""

    def start(self, ends: Ends, local_ends: Ends, *, is_first: bool) -> tuple[dict[str, str], dict[str, str]]:
        """Bind, begin, and return the endpoints as HELLO_ACK names them, and those for this host.

        `is_first` means that no broker ran here before, so no subscribers have to come back.
        """
        sockets = {
            TOPICS_IN: self._plain.incoming,
            TOPICS_OUT: self._plain.outgoing,
            TOPICS_RETAINED: self._retained.outgoing,
        }
        bound: dict[str, str] = {}
        bound_here: dict[str, str] = {}
        for (domain, socket), end, local in zip(sockets.items(), ends, local_ends, strict=True):
            bound[domain], bound_here[domain] = self._authentication.bind(socket, domain, end, local, or_any_port=True)
        self._plain.start(bound[TOPICS_IN], bound[TOPICS_OUT], wait_seconds=0.0 if is_first else RETURN_SECONDS)
        self._retained.start("", bound[TOPICS_RETAINED])
        return bound, bound_here

    def echo(self, text: bytes) -> None:
        """Send the text to subscribers on both sockets, prefixed with a zero byte, with which no topic begins."""
        for proxy in (self._plain, self._retained):
            try:
                proxy.entrance.send(b"\0" + text, zmq.NOBLOCK)
            except zmq.Again:
                log.debug("an echo is lost: the client asks for it again")

    def mark(self, mark: Mark) -> None:
        """Send a mark to the members of a group, on both sockets, between the messages that they share."""
        self.echo(group_frame(mark)[1:])

    def cut(self) -> None:
        """End the connections from other hosts, so that each is authenticated anew. What is under way may be lost."""
        self._plain.cut()
        self._retained.cut()

    def close(self) -> None:
        """Send what waits for subscribers that still read, and close the sockets."""
        for proxy in (self._plain, self._retained):
            proxy.leave()
        self._context.term()
        for proxy in (self._plain, self._retained):
            proxy.join()


class _Proxy:
    """One pair of sockets and the thread that carries messages from the one to the other."""

    def __init__(self, context: Context, name: str, supervisor: Supervisor, *, is_steered: bool) -> None:
        self._name = name
        self._supervisor = supervisor
        self._thread: threading.Thread | None = None
        self._endpoints = ("", "")
        self._wait_seconds = 0.0
        self._is_leaving = threading.Event()
        self.incoming = context.socket(zmq.PULL)
        self.incoming.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.incoming.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.incoming.bind(f"inproc://{name}")
        self.outgoing = context.socket(zmq.PUB)
        self.outgoing.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.outgoing.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.outgoing.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        self.outgoing.setsockopt(zmq.LINGER, 1000)
        self.entrance = context.socket(zmq.PUSH)  # for the broker's own thread
        self.entrance.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.entrance.setsockopt(zmq.LINGER, 0)
        self.entrance.connect(f"inproc://{name}")
        self._steered: zmq.Socket[bytes] | None = None
        self._steering: zmq.Socket[bytes] | None = None
        if is_steered:
            self._steered, self._steering = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            self._steered.bind(f"inproc://{name}-steering")
            self._steering.connect(f"inproc://{name}-steering")

    def start(self, *endpoints: str, wait_seconds: float = 0.0) -> None:
        """`endpoints` are those of both sockets; an empty one stands for a socket of this process only."""
        self._endpoints = (endpoints[0], endpoints[1])
        self._wait_seconds = wait_seconds
        self._thread = self._supervisor.start(f"messagehub-topics-{self._name}", self._run)

    def cut(self) -> None:
        if self._steering is not None:
            self._steering.send(b"TERMINATE", zmq.NOBLOCK)

    def leave(self) -> None:
        """Close the sockets of the broker's thread; the caller ends the context afterwards."""
        self._is_leaving.set()
        self.entrance.close()
        if self._steering is not None:
            self._steering.close(0)
        if self._thread is None:
            self._close_sockets()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._is_leaving.wait(self._wait_seconds)
            self._wait_seconds = 0.0  # a thread that is started again does not wait
            while True:
                if self._steered is None:
                    zmq.proxy(self.incoming, self.outgoing)
                else:
                    zmq.proxy_steerable(self.incoming, self.outgoing, None, self._steered)
                    for socket, endpoint in zip((self.incoming, self.outgoing), self._endpoints, strict=True):
                        rebind(socket, endpoint)
        except zmq.ContextTerminated:
            self._close_sockets()

    def _close_sockets(self) -> None:
        self.incoming.close(0)
        self.outgoing.close()
        if self._steered is not None:
            self._steered.close(0)
