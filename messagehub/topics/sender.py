"""The one PUSH socket of a client; used by one thread at a time.

A message waits for a broker that is there, never for the next one: what is not sent is dropped (ZMQ_IMMEDIATE).
"""

import time
from collections.abc import Callable

import zmq

from messagehub.errors import SendTimeout
from messagehub.shm.locks import check_spare_files
from messagehub.topics.receiver import Context

SEND_QUEUE = 10_000
LINGER_MS = 2_000
PATIENCE_SECONDS = 0.2
_NOBLOCK = int(zmq.NOBLOCK)


class TopicSender:
    def __init__(
        self,
        find_endpoint: Callable[[float], str],
        open_context: Callable[[], Context],
        secure: Callable[[zmq.Socket[bytes], str], None],
    ) -> None:
        """`find_endpoint` says, before a deadline, where the broker listens now; or raises. `secure` sets the keys."""
        self._find_endpoint = find_endpoint
        self._open_context = open_context
        self._secure = secure
        self._push: zmq.Socket[bytes] | None = None
        self._endpoint = ""

    def send(self, frame: bytes, deadline: float) -> None:
        if self._push is not None:
            try:
                self._push.send(frame, _NOBLOCK)
            except zmq.Again:
                pass
            else:
                return
        while True:  # not connected, or the broker is behind: find out which
            push = self._connected(deadline)
            remaining = deadline - time.monotonic()
            push.poll(int(max(min(remaining, PATIENCE_SECONDS), 0.0) * 1000) + 1, zmq.POLLOUT)
            if _is_taken(push, frame):
                return
            if remaining <= 0:
                raise SendTimeout("the broker did not take the message in time")

    def close(self) -> None:
        """Close the socket. Messages that were taken have a bounded time to reach the broker. Idempotent."""
        push, self._push = self._push, None
        if push is not None:
            push.close(LINGER_MS)

    def _connected(self, deadline: float) -> zmq.Socket[bytes]:
        """Return the socket, connected to the endpoint that the broker names now."""
        endpoint = self._find_endpoint(deadline)
        if self._push is None:
            check_spare_files(4)
            self._push = self._open_context().socket(zmq.PUSH)
            self._push.setsockopt(zmq.IMMEDIATE, 1)
            self._push.setsockopt(zmq.SNDHWM, SEND_QUEUE)
            self._push.setsockopt(zmq.RECONNECT_IVL, 20)
            self._secure(self._push, endpoint)
        if endpoint != self._endpoint:
            if self._endpoint:
                self._push.disconnect(self._endpoint)
            self._push.connect(endpoint)
            self._endpoint = endpoint
        return self._push


def _is_taken(push: zmq.Socket[bytes], frame: bytes) -> bool:
    try:
        push.send(frame, _NOBLOCK)
    except zmq.Again:
        return False
    return True
