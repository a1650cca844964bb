"""Topics: libzmq carries what publishers push to the subscribers, in a thread of its own, without Python.

Publishers hold a PUSH, not a PUB: a PUB throws away what is sent before it has heard of the subscriptions, and never
tells that the broker is behind, so that a publisher's deadline could not be kept. Dropping happens at one place only,
the queue of a subscriber that is behind; heartbeats end a stopped subscriber, and with it its queue.
"""

import logging
import threading

import zmq

from messagehub.broker.door import TOPICS_IN, TOPICS_OUT, Door

log = logging.getLogger("messagehub.broker")

HIGH_WATER_MARK = 10_000
HEARTBEAT_MS = 2_000
SILENCE_MS = 10_000
INSIDE = "inproc://topics"
Ends = tuple[str, str]
"""Where publishers push, and where subscribers listen."""


class TopicProxy:
    def __init__(self, door: Door, *, max_frame_bytes: int) -> None:
        self._door = door
        self._max_frame_bytes = max_frame_bytes
        self._ends: Ends = ("", "")
        self._local_ends: Ends = ("", "")
        self._is_closed = False
        self._changing = threading.Lock()
        self._open()

    def start(self, ends: Ends, local_ends: Ends) -> tuple[dict[str, str], dict[str, str]]:
        """Bind and begin; returns the endpoints as HELLO_ACK names them, and those for this host."""
        bind = self._door.bind
        incoming, local_incoming = bind(self.incoming, TOPICS_IN, ends[0], local_ends[0], or_any_port=True)
        outgoing, local_outgoing = bind(self.outgoing, TOPICS_OUT, ends[1], local_ends[1], or_any_port=True)
        self._ends, self._local_ends = (incoming, outgoing), (local_incoming, local_outgoing)
        self._thread.start()
        return _named(self._ends), _named(self._local_ends)

    def echo(self, text: bytes) -> None:
        """Behind a zero byte, with which no topic begins. Lost while the proxy begins again: who asked asks again."""
        if not self._changing.acquire(blocking=False):
            return
        try:
            socket = self._context.socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 100)
            socket.connect(INSIDE)
            socket.send(b"\0" + text, zmq.NOBLOCK)
            socket.close()
        except zmq.ZMQError as error:
            log.debug("an echo is lost: %s", error)
        finally:
            self._changing.release()

    def cut(self) -> None:
        """End all connections; they come again by themselves, if they are let in. What is under way may be lost."""
        threading.Thread(target=self._begin_again, name="messagehub-topic-cut", daemon=True).start()

    def close(self) -> None:
        """What is on its way to subscribers that still read is sent."""
        with self._changing:
            self._is_closed = True
            self._end()

    def _open(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._door.guard(self._context)
        self.incoming = self._context.socket(zmq.PULL)
        self.incoming.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.incoming.setsockopt(zmq.MAXMSGSIZE, self._max_frame_bytes)
        self.incoming.bind(INSIDE)
        self.outgoing = self._context.socket(zmq.PUB)
        self.outgoing.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.outgoing.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.outgoing.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        self.outgoing.setsockopt(zmq.LINGER, 1000)
        self._thread = threading.Thread(target=self._run, name="messagehub-topic-proxy", daemon=True)

    def _begin_again(self) -> None:
        with self._changing:
            if not self._is_closed:
                self._end()
                self._open()
                self.start(self._ends, self._local_ends)

    def _end(self) -> None:
        if self._thread.ident is None:
            self._close_sockets()
        self._context.term()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            zmq.proxy(self.incoming, self.outgoing)
        except zmq.ContextTerminated:
            self._close_sockets()

    def _close_sockets(self) -> None:
        self.incoming.close(0)
        self.outgoing.close()


def _named(ends: Ends) -> dict[str, str]:
    return {"topics_in": ends[0], "topics_out": ends[1]}
