"""The ZeroMQ ROUTER: requests of REQ and DEALER sockets in any language, by ipc or TCP.

Rule: nothing that arrives can end the loop. A message that is no request behind a return path goes no further.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

import zmq

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.event_subscriptions import hang_up
from messagehub.broker.polling import PolledSocket
from messagehub.broker.request_queue import MAX_BACKLOG, MAX_RATE_LIMITED, RequestQueue
from messagehub.runtime.metrics import Metrics
from registry.registry import Registry

MAX_SKIPPED = 1024
"""How many frames of a message that has too many are discarded at a time; then the connection is ended."""

# pyzmq's flags are enums, and combining or comparing enums costs as much as receiving a frame.
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_NOBLOCK = int(zmq.SNDMORE) | _NOBLOCK
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_RCVMORE = int(zmq.RCVMORE)


class Router:
    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", access_control: AccessControl | None, metrics: Metrics
    ) -> None:
        self.socket = router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_FRAME_BYTES)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, MAX_BACKLOG)  # so that all requests that a peer may have in flight are answered
        router.setsockopt(zmq.LINGER, 1000)
        self.polled = PolledSocket(router)
        self._is_skipping = False
        self._access_control = access_control
        self._metrics = metrics

    def receive(self, limit: int, requests: RequestQueue, registry: Registry) -> None:
        """Receive messages, a bounded number at a time, and give them to the queue."""
        self.polled.is_used = True
        router, access_control = self.socket, self._access_control
        get: Callable[[int], Any] = router.get
        limited = 0
        for count in range(min(limit, MAX_BACKLOG - requests.backlog)):
            if count == 1 and not get(_EVENTS) & _POLLIN:
                return  # the usual single request: asking is cheaper than the exception below
            if limited and (limited == MAX_RATE_LIMITED or requests.backlog):
                return
            if self._is_skipping and not self._skip():
                return
            try:
                frames = _received(router.recv, get) if access_control is None else access_control.receive(router)
            except zmq.Again:
                return
            received_at = monotonic()
            if len(frames) > protocol.MAX_FRAMES:
                self._metrics.count("bad_frames")
                self._is_skipping = True
                continue
            if len(frames) == 3 and not frames[1]:
                body = frames.pop()
                path = frames
            else:
                split = protocol.split(frames)
                if split is None:
                    self._metrics.count("bad_frames")
                    continue
                path, body = split if access_control is None else access_control.named(frames, split)
            if access_control is not None and access_control.is_too_fast(path):
                limited += 1
                requests.refuse(path, body, access_control.too_fast, received_at)
            else:
                requests.admit(path, body, received_at, registry)

    def send(self, path: list[bytes], payload: bytes) -> bool:
        """Return False if the peer is gone, or takes nothing more."""
        self.polled.is_used = True
        send = self.socket.send
        try:
            for frame in path:
                send(frame, _MORE_NOBLOCK)
            send(payload, _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def _skip(self) -> bool:
        """Discard the rest of a message that has too many frames; False if more of it is to come."""
        get: Callable[[int], Any] = self.socket.get
        for _ in range(MAX_SKIPPED):
            if not get(_RCVMORE):
                self._is_skipping = False
                return True
            frame = self.socket.recv(_NOBLOCK, copy=False)
        hang_up(frame)
        return False


def _received(recv: Callable[[int], bytes], get: Callable[[int], Any]) -> list[bytes]:
    """Receive a message, or the beginning of one that has too many frames. A ROUTER's first frame is never the last."""
    frames = [recv(_NOBLOCK), recv(_NOBLOCK)]
    while len(frames) <= protocol.MAX_FRAMES and get(_RCVMORE):
        frames.append(recv(_NOBLOCK))
    return frames
