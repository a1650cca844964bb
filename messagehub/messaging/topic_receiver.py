"""The one SUB socket of a client and the thread that owns it."""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from messagehub.messaging.topic_patterns import END
from messagehub.messaging.topic_routes import TopicRoutes

RECEIVE_QUEUE = 10_000
BURST = 1_000
RECONNECT_MS, RECONNECT_MAX_MS = 20, 1_000
CLOSE_SECONDS = 5.0
Context = zmq.Context[zmq.Socket[bytes]]
_NOBLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)
Order = Callable[[zmq.Socket[bytes]], None]


class TopicReceiver:
    """libzmq connects again by itself after a broker's restart and repeats the subscriptions.

    An echo is a frame that begins with END, as no topic does: heard once the broker knows every filter that was set
    before the echo's own.
    """

    def __init__(self, context: Context, endpoint: str, routes: TopicRoutes, secure: Order) -> None:
        """`secure` gives the socket the keys it needs."""
        self.endpoint = endpoint
        self._routes = routes
        self._orders: deque[Order] = deque()
        self._echoes: dict[bytes, threading.Event] = {}
        self._is_closed = False
        self._lock = threading.Lock()  # the fd is written only while it is ours
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        secure(socket)
        socket.connect(endpoint)
        self._thread = threading.Thread(target=self._run, args=(socket,), name="messagehub-topics", daemon=True)
        self._thread.start()

    def subscribe(self, prefix: bytes) -> None:
        self._order(lambda socket: socket.subscribe(prefix))

    def unsubscribe(self, prefix: bytes) -> None:
        self._order(lambda socket: socket.unsubscribe(prefix))

    def expect(self, echo: bytes) -> threading.Event:
        heard = self._echoes[echo] = threading.Event()
        self.subscribe(echo)
        return heard

    def forget(self, echo: bytes) -> None:
        self._echoes.pop(echo, None)
        self.unsubscribe(echo)

    def move(self, endpoint: str) -> None:
        """The broker listens elsewhere now."""
        before, self.endpoint = self.endpoint, endpoint

        def reconnect(socket: zmq.Socket[bytes]) -> None:
            socket.disconnect(before)
            socket.connect(endpoint)

        self._order(reconnect)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.eventfd_write(self._wake_fd, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _order(self, order: Order) -> None:
        with self._lock:
            if not self._is_closed:
                self._orders.append(order)
                os.eventfd_write(self._wake_fd, 1)

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        try:
            while not self._is_closed:
                for ready, _ in poller.poll():
                    if ready is socket:
                        self._receive(socket.recv, socket.get)
                        self._routes.wake()
                    else:
                        os.eventfd_read(self._wake_fd)
                        while self._orders:
                            self._orders.popleft()(socket)
        finally:
            socket.close(0)
            with self._lock:
                self._is_closed = True
                os.close(self._wake_fd)

    def _receive(self, recv: Callable[[int], bytes], get: Callable[[int], Any]) -> None:
        deliver = self._routes.deliver
        for count in range(BURST):
            if count == 1 and not get(_EVENTS) & _POLLIN:
                return  # the usual single message: asking is cheaper than the exception below
            try:
                frame = recv(_NOBLOCK)
            except zmq.Again:
                return
            if frame[:1] != END:
                deliver(frame)
            elif (heard := self._echoes.get(frame)) is not None:
                heard.set()
