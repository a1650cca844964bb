"""The one SUB socket of a client, and the thread that receives from it.

Rule 1: the socket belongs to whoever holds `_owner`. A reader whose messages come in quick succession receives by
itself, which saves it a thread switch for each; the thread keeps out of the way for a moment, and takes over again when
no reader receives. No reader does while another one waits, who would have to wait for that moment too.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from messagehub.messaging.topic_routes import TopicRoutes
from messagehub.supervision import keep_turning
from registry.topic_patterns import END

log = logging.getLogger("messagehub.topics")

RECEIVE_QUEUE = 10_000
BURST = 1_000
RECONNECT_MS, RECONNECT_MAX_MS = 20, 1_000
CLOSE_SECONDS = 5.0
PARK_SECONDS = 0.002
YIELD_SECONDS = 0.05
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
        self._echoes: dict[bytes, Callable[[], None]] = {}
        self._is_closed = False
        self._lock = threading.Lock()  # the fd is written only while it is ours
        self._owner = threading.Lock()
        self._is_driven = False
        self._driven_at = 0.0
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        secure(socket)
        socket.connect(endpoint)
        self._socket = socket
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="messagehub-topics", daemon=True)
        self._thread.start()

    def subscribe(self, prefix: bytes) -> None:
        self._order(lambda socket: socket.subscribe(prefix))

    def unsubscribe(self, prefix: bytes) -> None:
        self._order(lambda socket: socket.unsubscribe(prefix))

    def expect(self, echo: bytes, on_heard: Callable[[], None]) -> None:
        """`on_heard` is called once, after all that was received before the echo and before all that comes after it."""
        self._echoes[echo] = on_heard
        self.subscribe(echo)

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
            if not self._is_closed:
                self._is_closed = True
                os.eventfd_write(self._wake_fd, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _order(self, order: Order) -> None:
        with self._lock:
            if not self._is_closed:
                self._orders.append(order)
                os.eventfd_write(self._wake_fd, 1)

    def drive(self, is_done: Callable[[], bool], seconds: float, burst: int) -> bool:
        """Receive in the caller's thread until it is done; False when others do, or when nothing came in time."""
        if not self._owner.acquire(blocking=False):
            if self._is_driven:
                return False
            self._driven_at = time.monotonic()
            with self._lock:
                if self._is_closed:
                    return False
                os.eventfd_write(self._wake_fd, 1)  # the thread leaves its poll, and keeps out of the way
            if not self._owner.acquire(timeout=YIELD_SECONDS):
                return False
        has_come = False
        try:
            self._is_driven = True
            deadline = time.monotonic() + seconds
            while not self._is_closed and not (has_come := is_done()):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._turn(int(remaining * 1000) + 1, burst)
        except Exception:  # the reader has nothing to do with it: it waits, and the thread receives
            log.exception("a reader could not receive by itself")
        finally:
            self._driven_at = time.monotonic() if has_come else 0.0
            self._is_driven = False
            self._owner.release()
        return has_come

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            keep_turning(self._drive_alone, what="the thread of topics", log=log, is_over=lambda: self._is_closed)
        finally:
            with self._owner, self._lock:
                self._is_closed = True
                self._socket.close(0)
                os.close(self._wake_fd)

    def _drive_alone(self) -> None:
        while self._is_driven or time.monotonic() - self._driven_at < PARK_SECONDS:
            time.sleep(PARK_SECONDS / 2)
        with self._owner:
            self._turn(None, BURST)

    # -- by the owner --------------------------------------------------------------------------------------

    def _turn(self, wait_ms: int | None, burst: int) -> None:
        """Wait for something, and take it."""
        for ready, _ in self._poller.poll(wait_ms):
            if ready is self._socket:
                self._receive(self._socket.recv, self._socket.get, burst)
                self._routes.wake()
            else:
                os.eventfd_read(self._wake_fd)
                while self._orders:
                    self._orders.popleft()(self._socket)

    def _receive(self, recv: Callable[[int], bytes], get: Callable[[int], Any], burst: int) -> None:
        deliver = self._routes.deliver
        for count in range(burst):
            if count == 1 and not get(_EVENTS) & _POLLIN:
                return  # the usual single message: asking is cheaper than the exception below
            try:
                frame = recv(_NOBLOCK)
            except zmq.Again:
                return
            if frame[:1] != END:
                try:
                    deliver(frame)
                except Exception:  # a defect at one message must not end the receiving of all others
                    log.exception("a message of %d bytes could not be delivered", len(frame))
            elif (on_heard := self._echoes.pop(frame, None)) is not None:
                on_heard()
