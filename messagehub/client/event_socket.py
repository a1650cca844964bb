"""The SUB socket of a ZeroMQ session: subscribed to what the parts of a client want to hear, and no more."""

from collections.abc import Iterator

import zmq

from messagehub.security.credentials import ClientKeys

EVENTS_PER_TURN = 1000
RECONNECT_MAX_MS = 2000
Context = zmq.Context[zmq.Socket[bytes]]


class EventSocket:
    is_shared = False

    def __init__(self, context: Context, endpoint: str, keys: ClientKeys | None) -> None:
        """`endpoint` is empty for a client that may hear nothing."""
        self._context = context
        self._endpoint = endpoint
        self._keys = keys
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        """Readable when the broker hung up, or is not there: known at once also by a client that asks for nothing."""
        self._subscribed: set[bytes] = set()

    def follow(self, topics: set[bytes]) -> None:
        """Be subscribed to just these; connects when there is something to hear."""
        if topics == self._subscribed or not self._endpoint:
            return
        if self.socket is None:
            self.socket = self._context.socket(zmq.SUB)
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.RCVHWM, 100_000)
            self.socket.setsockopt(zmq.SNDHWM, 0)  # subscriptions beyond this mark are lost without a word
            if self._keys is not None and not self._endpoint.startswith("ipc://"):
                self._keys.secure(self.socket)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
            self.socket.connect(self._endpoint)
        for topic in topics - self._subscribed:
            self.socket.subscribe(topic)
        for topic in self._subscribed - topics:
            self.socket.unsubscribe(topic)
        self._subscribed = topics

    def pollables(self) -> list[object]:
        return [each for each in (self.socket, self.monitor) if each is not None]

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        for _ in range(EVENTS_PER_TURN):
            if self.socket is None or not self.socket.poll(0):
                return
            topic, *_, payload = self.socket.recv_multipart(zmq.NOBLOCK)
            yield topic, payload

    def has_hung_up(self) -> bool:
        """libzmq connects again by itself."""
        has_hung_up = False
        while self.monitor is not None and self.monitor.poll(0):
            self.monitor.recv_multipart(zmq.NOBLOCK)
            has_hung_up = True
        return has_hung_up

    def close(self) -> None:
        self._subscribed = set()
        if self.socket is not None:
            self.socket.disable_monitor()
            self.socket.close(0)
            self.socket = None
        if self.monitor is not None:
            self.monitor.close(0)
            self.monitor = None
