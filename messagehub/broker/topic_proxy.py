"""Topics: libzmq carries what publishers push to the subscribers, in a thread of its own, without Python.

Publishers hold a PUSH, not a PUB: a PUB throws away what is sent before it has heard of the subscriptions, and never
tells that the broker is behind, so that a publisher's deadline could not be kept. Dropping happens at one place only,
the queue of a subscriber that is behind; heartbeats end a stopped subscriber, and with it its queue.
"""

import logging
import threading

import zmq

from messagehub.background import Supervisor
from messagehub.broker.door import TOPICS_IN, TOPICS_OUT, Door, rebind

log = logging.getLogger("messagehub.broker")

HIGH_WATER_MARK = 10_000
KEPT_ENDPOINT = "inproc://kept"
KEPT_QUEUE = 100_000
HEARTBEAT_MS = 2_000
SILENCE_MS = 10_000
INSIDE = "inproc://topics"
STEERING = "inproc://topics-steering"
Ends = tuple[str, str]
"""Where publishers push, and where subscribers listen."""


class TopicProxy:
    def __init__(self, door: Door, supervisor: Supervisor, *, max_frame_bytes: int) -> None:
        self._door = door
        self._supervisor = supervisor
        self._thread: threading.Thread | None = None
        self._ends: Ends = ("", "")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        door.guard(self._context)
        self.incoming = self._context.socket(zmq.PULL)
        self.incoming.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.incoming.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self.incoming.bind(INSIDE)
        self.outgoing = self._context.socket(zmq.PUB)
        self.outgoing.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.outgoing.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.outgoing.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        self.outgoing.setsockopt(zmq.LINGER, 1000)
        self.incoming.bind(KEPT_ENDPOINT)
        self.kept = self._context.socket(zmq.PUSH)  # for the broker's thread: what it has stored
        self.kept.setsockopt(zmq.SNDHWM, KEPT_QUEUE)
        self.kept.setsockopt(zmq.LINGER, 0)
        self.kept.connect(KEPT_ENDPOINT)
        self._steered: zmq.Socket[bytes] | None = None
        self._steering: zmq.Socket[bytes] | None = None
        if door.server_key:
            self._steered, self._steering = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
            self._steered.bind(STEERING)
            self._steering.connect(STEERING)

    def start(self, ends: Ends, local_ends: Ends) -> tuple[dict[str, str], dict[str, str]]:
        """Bind and begin; returns the endpoints as HELLO_ACK names them, and those for this host."""
        bind = self._door.bind
        incoming, incoming_here = bind(self.incoming, TOPICS_IN, ends[0], local_ends[0], or_any_port=True)
        outgoing, outgoing_here = bind(self.outgoing, TOPICS_OUT, ends[1], local_ends[1], or_any_port=True)
        self._ends = incoming, outgoing
        self._thread = self._supervisor.start("messagehub-topic-proxy", self._run)
        return _named(self._ends), _named((incoming_here, outgoing_here))

    def echo(self, text: bytes) -> None:
        """Behind a zero byte, with which no topic begins."""
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, 100)
        try:
            socket.connect(INSIDE)
            socket.send(b"\0" + text, zmq.NOBLOCK)
        except zmq.Again:
            log.debug("an echo is lost: whoever asked for it asks again")
        finally:
            socket.close()

    def cut(self) -> None:
        """End the connections from other hosts: they come in again through the door. What is under way may be lost."""
        if self._steering is not None:
            self._steering.send(b"TERMINATE", zmq.NOBLOCK)

    def close(self) -> None:
        """What is on its way to subscribers that still read is sent."""
        self.kept.close()
        if self._steering is not None:
            self._steering.close(0)
        if self._thread is None:
            self._close_sockets()
        self._context.term()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                if self._steered is None:
                    zmq.proxy(self.incoming, self.outgoing)
                else:
                    zmq.proxy_steerable(self.incoming, self.outgoing, None, self._steered)
                    for socket, endpoint in zip((self.incoming, self.outgoing), self._ends, strict=True):
                        rebind(socket, endpoint)
        except zmq.ContextTerminated:
            self._close_sockets()

    def _close_sockets(self) -> None:
        self.incoming.close(0)
        self.outgoing.close()
        if self._steered is not None:
            self._steered.close(0)


def _named(ends: Ends) -> dict[str, str]:
    return {"topics_in": ends[0], "topics_out": ends[1]}
