"""The SUB sockets of a client, for plain and for retained topics, and the thread that receives from them.

In a site there is a third one, for what is published to plain topics on other hosts, and the one for retained topics is
connected with a second socket of the hub, for those whose home is another host.

Rule 1: the sockets belong to whoever holds `_owner`. A reader whose messages come in quick succession takes them over
from the thread and receives by itself, which saves it a thread switch for each. The thread leaves them to readers for a
moment, and goes on when none receives. No reader does while another one waits, who would wait for that moment too.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial

import zmq

from messagehub.protocol.topic_frames import GROUP
from messagehub.runtime.handover_lock import HandoverLock
from messagehub.runtime.supervision import keep_turning
from messagehub.topics.routes import TopicRoutes
from registry.topics.patterns import END

log = logging.getLogger("messagehub.topics")

RECEIVE_QUEUE = 10_000
BURST = 1_000
RECONNECT_MS, RECONNECT_MAX_MS = 20, 100  # so that subscribers are back before a restarted broker sends anything
CLOSE_SECONDS = 5.0
PARK_SECONDS = 0.002
YIELD_SECONDS = 0.05
Context = zmq.Context[zmq.Socket[bytes]]
_NOBLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)
Order = Callable[[zmq.Socket[bytes]], None]
Endpoints = tuple[str, str, str, str]
"""Of plain topics, of retained ones, and the same of other hosts: empty in a hub that is a member of no site."""


class TopicReceiver:
    """libzmq connects again by itself after a broker's restart and repeats the subscriptions.

    An echo is a frame that begins with END, as no topic does: heard on the first two sockets once the broker knows
    every filter that was set before the echo's own.
    """

    def __init__(
        self,
        context: Context,
        endpoints: Endpoints,
        routes: TopicRoutes,
        secure: Order,
        on_defect: Callable[[], None],
    ) -> None:
        """`secure` gives a socket the keys it needs."""
        self.endpoints = endpoints
        self._context, self._secure = context, secure
        self._prefixes: Counter[bytes] = Counter()
        """What is subscribed to, and how often."""
        self._routes = routes
        self._on_defect = on_defect
        self._orders: deque[Callable[[], None]] = deque()
        self._echoes: dict[bytes, Callable[[], None]] = {}
        self._echoes_heard: dict[bytes, zmq.Socket[bytes]] = {}
        self._is_closed = False
        self._owner = HandoverLock()
        self._is_driven = False
        self._driven_at = 0.0
        self._poller = zmq.Poller()
        self._plain, self._retained = self._open(endpoints[0]), self._open(endpoints[1])
        self._site = self._open(endpoints[2]) if endpoints[2] else None
        if endpoints[3]:
            self._retained.connect(endpoints[3])
        self._poller.register(self._owner.open(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="messagehub-topics", daemon=True)
        self._thread.start()

    def subscribe(self, prefixes: Iterable[bytes]) -> None:
        self._order(lambda: self._set_filters(zmq.SUBSCRIBE, prefixes))

    def unsubscribe(self, prefixes: Iterable[bytes]) -> None:
        self._order(lambda: self._set_filters(zmq.UNSUBSCRIBE, prefixes))

    def expect(self, echo: bytes, on_heard: Callable[[], None]) -> None:
        """`on_heard` is called once, after all that was received before the echo and before all that comes after it."""
        self._echoes[echo] = on_heard
        self.subscribe([echo])

    def forget(self, echo: bytes) -> None:
        self._echoes.pop(echo, None)
        self._echoes_heard.pop(echo, None)
        self.unsubscribe([echo])

    def move(self, endpoints: Endpoints) -> None:
        """Connect to the endpoints at which the broker listens now."""
        before, self.endpoints = self.endpoints, endpoints

        def reconnect() -> None:
            sockets = self._plain, self._retained, self._site, self._retained
            for socket, old, new in zip(sockets, before, endpoints, strict=True):
                if socket is not None and old != new:
                    if old:
                        socket.disconnect(old)
                    if new:
                        socket.connect(new)
            if self._site is None and endpoints[2]:
                self._site = self._open(endpoints[2])
                for prefix in self._prefixes.elements():
                    self._site.setsockopt(zmq.SUBSCRIBE, prefix)

        self._order(reconnect)

    def close(self) -> None:
        self._is_closed = True
        self._owner.interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _open(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)
        socket.setsockopt(zmq.SNDHWM, 0)  # subscriptions beyond this mark are lost without a word
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._secure(socket)
        socket.connect(endpoint)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _set_filters(self, option: int, prefixes: Iterable[bytes]) -> None:
        for prefix in prefixes:
            self._plain.setsockopt(option, prefix)
            self._retained.setsockopt(option, prefix)
            if prefix.startswith(END):  # an echo or the marks of a group, which are of this host
                continue
            self._prefixes[prefix] += 1 if option == zmq.SUBSCRIBE else -1
            if self._site is not None:
                self._site.setsockopt(option, prefix)

    def _order(self, order: Callable[[], None]) -> None:
        if not self._is_closed:
            self._orders.append(order)
            self._owner.interrupt()

    def drive(self, is_done: Callable[[], bool], seconds: float, burst: int) -> bool:
        """Receive in the caller's thread until `is_done`.

        Return False if another thread receives, or if nothing came in time.
        """
        if not self._owner.acquire_if_free():
            if self._is_driven:
                return False
            self._driven_at = time.monotonic()  # so that the thread does not go on at once
            if not self._owner.take_over(YIELD_SECONDS):
                return False
        has_come = False
        try:
            self._is_driven = True
            if not self._is_closed:
                has_come = self._owner.drive(is_done, partial(self._turn, burst), time.monotonic() + seconds)
        except Exception:  # the reader has nothing to do with it: it waits, and the thread receives
            log.exception("a reader could not receive by itself")
            self._on_defect()
        finally:
            self._driven_at = time.monotonic() if has_come else 0.0
            self._is_driven = False
            self._owner.release()
        return has_come

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            keep_turning(
                self._drive_alone,
                what="the thread of topics",
                log=log,
                is_over=lambda: self._is_closed,
                on_defect=self._on_defect,
            )
        finally:
            self._owner.take_over()
            self._is_closed = True
            self._plain.close(0)
            self._retained.close(0)
            if self._site is not None:
                self._site.close(0)
            self._owner.close()
            self._owner.release()

    def _drive_alone(self) -> None:
        while self._is_driven or time.monotonic() - self._driven_at < PARK_SECONDS:
            time.sleep(PARK_SECONDS / 2)
        self._owner.acquire()
        try:
            self._turn(BURST)
        finally:
            self._owner.release()

    # -- by the owner --------------------------------------------------------------------------------------

    def _turn(self, burst: int, deadline: float | None = None) -> None:
        """Do what was ordered, and wait until a socket is readable or something else is ordered."""
        while self._orders:
            self._orders.popleft()()
        if self._is_closed:  # another holder may have used up the interrupt
            return
        for ready, _ in self._poller.poll(None if deadline is None else _milliseconds_to(deadline)):
            if isinstance(ready, zmq.Socket):
                self._receive(ready, burst)
                self._routes.wake()
            else:
                self._owner.clear()

    def _receive(self, socket: zmq.Socket[bytes], burst: int) -> None:
        recv, get, deliver = socket.recv, socket.get, self._routes.deliver
        is_retained, is_of_site = socket is self._retained, socket is self._site
        for count in range(burst):
            if count == 1 and not int(get(_EVENTS)) & _POLLIN:
                return  # the usual single message: asking is cheaper than the exception below
            try:
                frame = recv(_NOBLOCK)
            except zmq.Again:
                return
            if frame[:1] != END:
                try:
                    deliver(frame, is_retained=is_retained, is_of_site=is_of_site)
                except Exception:  # a defect at one message must not end the receiving of all others
                    log.exception("a message of %d bytes could not be delivered", len(frame))
                    self._on_defect()
            elif is_of_site:
                continue  # no hub sends that
            elif frame.startswith(GROUP):
                self._routes.mark(frame, is_retained=is_retained)
            else:
                self._hear_echo(frame, socket)

    def _hear_echo(self, echo: bytes, socket: zmq.Socket[bytes]) -> None:
        """Call `on_heard` once the echo has come on both sockets."""
        if echo in self._echoes and self._echoes_heard.setdefault(echo, socket) is not socket:
            on_heard = self._echoes.pop(echo, None)
            if on_heard is not None:  # it was not forgotten this very moment
                on_heard()


def _milliseconds_to(deadline: float) -> int:
    remaining = deadline - time.monotonic()
    return int(remaining * 1000) + 1 if remaining > 0 else 0
