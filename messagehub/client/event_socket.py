"""The one SUB socket of a client: subscribed to what its parts want to hear, and no more."""

from collections.abc import Callable, Iterator

import zmq

from messagehub.client.session import Context
from messagehub.security.credentials import ClientKeys

EVENTS_PER_TURN = 1000
RECONNECT_MAX_MS = 2000


class EventSocket:
    def __init__(self) -> None:
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        """Readable when the broker hung up, or is not there: known at once also by a client that asks for nothing."""
        self._subscribed: set[bytes] = set()

    def follow(self, wanted: set[bytes], context: Context, endpoint: str, keys: Callable[[str], ClientKeys]) -> None:
        """Be subscribed to just these; connects when there is something to hear."""
        if wanted == self._subscribed:
            return
        if self.socket is None:
            self.socket = context.socket(zmq.SUB)
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.RCVHWM, 100_000)
            keys(endpoint).secure(self.socket)
            self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
            self.socket.connect(endpoint)
        for topic in wanted - self._subscribed:
            self.socket.subscribe(topic)
        for topic in self._subscribed - wanted:
            self.socket.unsubscribe(topic)
        self._subscribed = wanted

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        """Topic and payload of what has come, so many at a time. Whoever handles one may close this."""
        for _ in range(EVENTS_PER_TURN):
            if self.socket is None or not self.socket.poll(0):
                return
            topic, *_, payload = self.socket.recv_multipart(zmq.NOBLOCK)
            yield topic, payload

    def has_hung_up(self) -> bool:
        """Whether the broker did since the last time; libzmq connects again by itself."""
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
