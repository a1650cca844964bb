"""Topics: libzmq carries what publishers push to the subscribers, in a thread of its own, without Python.

Publishers hold a PUSH, not a PUB: a PUB throws away what is sent before it has heard of the subscriptions, and never
tells that the broker is behind, so that a publisher's deadline could not be kept. Dropping happens at one place only,
the queue of a subscriber that is behind; heartbeats end a stopped subscriber, and with it its queue.
"""

import threading

import zmq

from messagehub.errors import BrokerAlreadyRunning

HIGH_WATER_MARK = 10_000
KEPT_ENDPOINT = "inproc://kept"
KEPT_QUEUE = 100_000
HEARTBEAT_MS = 2_000
SILENCE_MS = 10_000


class TopicProxy:
    def __init__(self, *, max_frame_bytes: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.incoming = self._context.socket(zmq.PULL)
        self.incoming.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self.incoming.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
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
        self._thread = threading.Thread(target=self._run, name="messagehub-topic-proxy", daemon=True)

    def start(self, incoming: str, outgoing: str) -> dict[str, str]:
        """Bind and begin; returns the endpoints as HELLO_ACK names them."""
        endpoints = {"topics_in": _bind(self.incoming, incoming), "topics_out": _bind(self.outgoing, outgoing)}
        self._thread.start()
        return endpoints

    def close(self) -> None:
        """What is on its way to subscribers that still read is sent."""
        self.kept.close()
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


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Clients ask for the endpoint, so where a TCP port is taken any other will do."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno != zmq.EADDRINUSE:
            raise
        if not endpoint.startswith("tcp://"):
            raise BrokerAlreadyRunning(f"{endpoint} is in use, perhaps by another broker") from None
        socket.bind(f"{endpoint.rpartition(':')[0]}:0")
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
