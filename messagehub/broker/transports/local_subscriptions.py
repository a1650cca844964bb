"""Who listens to which events on the local socket, by connection."""

from collections import Counter
from collections.abc import Iterable

from messagehub.broker.transports.local_connection import LocalConnection
from messagehub.protocol.stream_frames import event_frame

MOST_BEFORE_BEACON_BYTES = 2**16
"""A peer with more than this to take gets no beacons: it would not read them in time."""


class LocalSubscriptions:
    def __init__(self) -> None:
        self.topics: dict[bytes, dict[LocalConnection, None]] = {}
        self.touched: dict[LocalConnection, None] = {}
        """Connections that have something to send when this turn of the loop ends."""
        self._lengths: Counter[int] = Counter()
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return how many there are; a topic counts once for each connection."""
        return sum(self._held.values())

    def held_by(self, user: str) -> int:
        return self._held[user]

    def add(self, connection: LocalConnection, topic: bytes) -> None:
        if topic not in connection.topics:
            connection.topics.add(topic)
            if topic not in self.topics:
                self.topics[topic] = {}
                self._lengths[len(topic)] += 1
            self.topics[topic][connection] = None
            self._held[connection.user] += 1

    def remove(self, connection: LocalConnection, topic: bytes) -> None:
        if topic not in connection.topics:
            return
        connection.topics.remove(topic)
        self._held[connection.user] -= 1
        if not self._held[connection.user]:
            del self._held[connection.user]
        del self.topics[topic][connection]
        if not self.topics[topic]:
            del self.topics[topic]
            self._lengths[len(topic)] -= 1
            if not self._lengths[len(topic)]:
                del self._lengths[len(topic)]

    def end(self, connection: LocalConnection) -> None:
        for topic in list(connection.topics):
            self.remove(connection, topic)

    def publish(self, topic: bytes, payload: bytes) -> bool:
        """Send an event to whoever subscribed to a beginning of its topic; return whether anybody did."""
        listening: dict[LocalConnection, None] = {}
        for length in self._lengths:
            if length <= len(topic):
                listening |= self.topics.get(topic[:length], {})
        self._put(listening, event_frame(topic, payload))
        return bool(listening)

    def send_beacon(self, topic: bytes, beacon: bytes) -> None:
        listening = self.topics.get(topic, ())
        self._put(
            [connection for connection in listening if connection.outbox.untaken_bytes <= MOST_BEFORE_BEACON_BYTES],
            event_frame(topic, beacon),
        )

    def _put(self, connections: Iterable[LocalConnection], frame: bytes) -> None:
        for connection in connections:
            if not connection.is_ended:
                connection.put(frame)
