"""The peer of a storm that behaves badly: it floods the event socket with subscriptions, and the topics' sockets."""

import os
import random
import time

import zmq

from messagehub.protocol.topic_frames import HEAD
from messagehub.settings import Settings

BURST = 200
NOBODYS = b"chaos.flood\0"
HEARD = b"chaos.plain\0"


class Flood:
    """Plain sockets, which find the next broker by themselves: it listens at the same paths."""

    def __init__(self, settings: Settings) -> None:
        topics_in, *listening = settings.topic_endpoints
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listening = [self._connected(zmq.XSUB, name) for name in (settings.events_endpoint, *listening)]
        self._publishing = self._connected(zmq.PUSH, topics_in)
        self._publisher = os.urandom(8)
        self._number = 0

    def burst(self) -> int:
        """Subscribe to much and unsubscribe again, and publish what nobody reads or nobody can; returns how much."""
        names = [b"%s/c%d/" % (random.choice((b"channel", b"chaos.", b"")), number) for number in range(BURST)]
        for socket in self._listening:
            for name in names:
                socket.send(b"\x01" + name)
                socket.send(b"\x00" + name)
        return sum(self._publish() for _ in range(BURST))

    def _publish(self) -> int:
        self._number += 1
        head = HEAD.pack(self._publisher, self._number, time.time(), 0, 0)
        rubbish = random.randbytes(random.randrange(60))
        frame = random.choice((NOBODYS + head + rubbish, HEARD + rubbish[:20], rubbish))
        try:
            self._publishing.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return 0  # no broker, or it is behind
        return 1

    def _connected(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        return socket
