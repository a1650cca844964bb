"""The relay of a hub: one thread that carries frames between the hub's callers and workers and those of other hosts.

Callers and workers read and write plain local sockets, as on one host (`connection.py`, `server.py`). For a worker of
another host that is one end of a pair; the relay has the other end, and carries what comes, frame by frame:

    caller = pair = relay = DEALER ---- TCP, CURVE ---- ROUTER = relay = pair = worker

    BEGIN    a version; from the caller, at first      TAKEN    how many bytes of frames were taken so far
    FRAME    one frame                                 ALIVE    nothing; from the worker, now and then
    END      the side that sends it has ended

Rule 1: a worker proves by CURVE that it has the key that stands in its registration. Who calls it proves, in the
handshake that the frames begin with, that its hub gave it the worker's key. Until then it is a stranger: there are at
most MOST_STRANGERS at a time, and the oldest goes.
Rule 2: libzmq watches the connections, so that a process which is busy for a while is not taken for one that is gone;
and it does not connect again behind our back.
Rule 3: nothing waits here, and nothing that another host says ends the thread: it ends that connection.
Rule 4: thread and sockets are made when the first of them is needed, so a hub on its own has none.
"""

import logging
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import zmq

from messagehub.errors import HubError, NotInitialised
from messagehub.runtime.supervision import keep_turning
from messagehub.security.credentials import KeyPair
from messagehub.services.between_hosts.link import Link, LinkBroken
from messagehub.services.between_hosts.sockets import LINGER_MS, Context, Dialled, Socket, bound_router
from messagehub.shm.locks import check_spare_files

log = logging.getLogger("messagehub.services")

BEGIN, FRAME, TAKEN, ALIVE, END = b"B", b"F", b"T", b"A", b"E"
VERSION = b"1"
ALIVE_SECONDS = 1.0
POLL_MS = 1_000
MOST_STRANGERS = 256
MESSAGES_PER_TURN = 64
RELAY_FILES = 16
CLOSE_SECONDS = 5.0
_TOTAL = struct.Struct("<Q")
_left_by_parent: list["HostRelay"] = []


class HostRelay:
    def __init__(self, on_defect: Callable[[], None]) -> None:
        self._on_defect = on_defect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._context: Context | None = None
        self._wake_fd = -1
        self._orders: deque[Callable[[], None]] = deque()
        self._is_closed = False
        self._own: KeyPair | None = None
        self._router: Socket | None = None
        self._accept: Callable[[socket.socket], None] | None = None
        self._poller = zmq.Poller()
        self._links: dict[int, Link] = {}
        """By the descriptor of their local socket."""
        self._peers: dict[bytes, Link] = {}
        """Of callers, by the routing id of their connection."""
        self._identities: dict[int, bytes] = {}
        self._dialled: dict[int, Dialled] = {}
        self._by_socket: dict[Socket, Dialled] = {}
        self._strangers: dict[int, Link] = {}
        self._alive_at = 0.0

    # -- from any thread -----------------------------------------------------------------------------------

    def listen(self, host: str, accept: Callable[[socket.socket], None]) -> tuple[str, str]:
        """Take callers of other hosts at a free port of an address of this host; return the endpoint and its key.

        `accept` is given the local socket of each. Raise OSError if nothing can listen there.
        """
        with self._lock:
            context, keys = self._started()
            router, endpoint = bound_router(context, host, keys)
        self._accept = accept
        self._order(lambda: self._begin_listening(router))
        return endpoint, keys.public

    def dial(self, endpoint: str, key: str) -> tuple[socket.socket, Link]:
        """Return a socket that leads to the process that listens at an endpoint of another host. It is not known yet
        whether anybody is there: a socket that ends says no, and the link says why."""
        with self._lock:
            context, keys = self._started()
        check_spare_files(RELAY_FILES)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        link = Link("caller", there)
        self._order(lambda: self._begin(context, keys, link, endpoint, key))
        return here, link

    def close(self) -> None:
        """End all links, after what was written to their local sockets has left. Idempotent."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
            if thread is not None:
                os.eventfd_write(self._wake_fd, 1)
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def abandon(self) -> None:
        """In a forked child: the parent's sockets are not touched, not even by collecting them as garbage."""
        _left_by_parent.append(self)
        for link in self._links.values():
            link.local.close()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)

    def _started(self) -> tuple[Context, KeyPair]:
        """With the lock: start the thread if there is none."""
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        if self._context is None or self._own is None:
            check_spare_files(RELAY_FILES)
            self._own = KeyPair.new()
            self._context = zmq.Context()
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._poller.register(self._wake_fd, zmq.POLLIN)
            self._thread = threading.Thread(target=self._run, name="messagehub-relay", daemon=True)
            self._thread.start()
        return self._context, self._own

    def _order(self, order: Callable[[], None]) -> None:
        with self._lock:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            self._orders.append(order)
            os.eventfd_write(self._wake_fd, 1)

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        keep_turning(
            self._turn,
            what="the relay of services",
            log=log,
            is_over=lambda: self._is_closed,
            on_defect=self._on_defect,
        )
        self._finish()

    def _turn(self) -> None:
        ready: list[tuple[Any, int]] = self._poller.poll(POLL_MS)
        for found, events in ready:
            if isinstance(found, int):
                if found == self._wake_fd:
                    self._carry_out()
                elif (link := self._links.get(found)) is not None:
                    self._serve_local(link, events)
            elif found is self._router:
                self._receive_from_callers(self._router)
            elif (dialled := self._by_socket.get(found)) is not None:
                if found is dialled.monitor:
                    self._note_loss(dialled)
                else:
                    self._receive_from_worker(dialled)
        if self._peers and monotonic() >= self._alive_at:
            self._alive_at = monotonic() + ALIVE_SECONDS
            for link in list(self._peers.values()):
                self._send(link, ALIVE)  # which tells whether libzmq has lost it

    def _carry_out(self) -> None:
        os.eventfd_read(self._wake_fd)
        for _ in range(len(self._orders)):
            self._orders.popleft()()

    def _begin(self, context: Context, keys: KeyPair, link: Link, endpoint: str, key: str) -> None:
        try:
            dialled = Dialled(link, context, endpoint, key, keys)
        except (zmq.ZMQError, ValueError) as error:  # what a registration says is input
            link.why = str(error)
            link.local.close()
            return
        dialled.dealer.send(BEGIN + VERSION, zmq.NOBLOCK)
        self._dialled[link.fd] = dialled
        for each in (dialled.dealer, dialled.monitor):
            self._by_socket[each] = dialled
            self._poller.register(each, zmq.POLLIN)
        self._add(link)

    def _begin_listening(self, router: Socket) -> None:
        self._router = router
        self._poller.register(router, zmq.POLLIN)

    def _finish(self) -> None:
        """Send what is left in the local sockets of workers and callers, and end."""
        for _ in range(len(self._orders)):
            self._orders.popleft()()
        for link in list(self._links.values()):
            while link.has_room and self._forward(link):
                pass
            self._end(link)
        assert self._context is not None
        if self._router is not None:
            self._router.close(LINGER_MS)
        self._context.term()
        os.close(self._wake_fd)

    # -- links ---------------------------------------------------------------------------------------------

    def _add(self, link: Link) -> None:
        self._links[link.fd] = link
        self._poller.register(link.fd, zmq.POLLIN)

    def _serve_local(self, link: Link, events: int) -> None:
        if events & zmq.POLLOUT:
            self._give(link)
        if link.fd in self._links and events & (zmq.POLLIN | zmq.POLLERR) and link.has_room:
            self._forward(link)
        self._arm(link)

    def _forward(self, link: Link) -> bool:
        """Send on some of what the local socket has. Return whether there may be more."""
        try:
            frames = link.read()
        except LinkBroken:
            self._end(link)
            return False
        for frame in frames or ():
            self._send(link, FRAME + frame)
        if link.is_proven:
            self._strangers.pop(link.fd, None)
        return link.fd in self._links and frames is not None

    def _give(self, link: Link) -> None:
        try:
            told = link.give()
        except LinkBroken:
            self._end(link)
            return
        if told is not None:
            self._send(link, TAKEN + _TOTAL.pack(told))
        if link.is_ending and not link.has_untaken:
            self._end(link)

    def _arm(self, link: Link) -> None:
        """Poll the local socket for what can be done with it now."""
        if link.fd not in self._links:
            return
        flags = (zmq.POLLIN if link.has_room and not link.is_ending else 0) | (zmq.POLLOUT if link.has_untaken else 0)
        self._poller.register(link.fd, flags)

    def _take(self, link: Link, message: bytes) -> None:
        """Take a message of the other side of a link."""
        kind = message[:1]
        try:
            if kind == FRAME:
                link.put(message[1:])
            elif kind == TAKEN:
                link.other_took(_TOTAL.unpack(message[1:])[0])
            elif kind == END:
                link.is_ending = True
            elif kind != ALIVE:
                raise LinkBroken("it says what this version does not know")
        except (LinkBroken, struct.error) as broken:
            link.why = str(broken)
            self._end(link)
            return
        self._give(link)
        self._arm(link)

    def _send(self, link: Link, message: bytes) -> None:
        dialled, identity = self._dialled.get(link.fd), self._identities.get(link.fd)
        try:
            if dialled is not None:
                dialled.dealer.send(message, zmq.NOBLOCK)
            elif identity is not None and self._router is not None:
                self._router.send_multipart([identity, message], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # it is gone
            link.why = link.why or str(error)
            self._lose(link)

    def _end(self, link: Link) -> None:
        """End a link, and tell the other side."""
        if link.fd in self._links:
            self._send(link, END)
            self._forget(link)

    def _lose(self, link: Link) -> None:
        """The other side is gone. What came from it before is still given to the local socket."""
        if link.fd not in self._links:
            return
        self._release(link)
        link.is_ending = True
        if link.has_untaken:
            self._arm(link)
        else:
            self._forget(link)

    def _forget(self, link: Link) -> None:
        self._release(link)
        if self._links.pop(link.fd, None) is not None:
            if link.fd in self._poller:
                self._poller.unregister(link.fd)
            link.local.close()

    def _release(self, link: Link) -> None:
        """Give up the connection to the other host."""
        self._strangers.pop(link.fd, None)
        identity = self._identities.pop(link.fd, None)
        if identity is not None:
            del self._peers[identity]
        dialled = self._dialled.pop(link.fd, None)
        if dialled is not None:
            for each in (dialled.dealer, dialled.monitor):
                del self._by_socket[each]
                self._poller.unregister(each)
            dialled.close()

    # -- what other hosts say ------------------------------------------------------------------------------

    def _receive_from_worker(self, dialled: Dialled) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if dialled.link.fd not in self._dialled:
                return
            try:
                message = dialled.dealer.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(dialled.link, message)

    def _note_loss(self, dialled: Dialled) -> None:
        """The connection to a worker is lost, or could not be made."""
        self._receive_from_worker(dialled)
        if dialled.link.fd in self._links:
            dialled.link.why = dialled.link.why or "the connection is lost, or nobody listens there"
            self._lose(dialled.link)

    def _receive_from_callers(self, router: Socket) -> None:
        for _ in range(MESSAGES_PER_TURN):
            try:
                parts = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            identity, message = parts[0], parts[1] if len(parts) == 2 else b""
            link = self._peers.get(identity)
            if link is not None:
                self._take(link, message)
            elif message == BEGIN + VERSION:
                self._let_in(identity)
            elif message != END:
                self._tell(router, identity)

    def _tell(self, router: Socket, identity: bytes) -> None:
        """Tell a caller that has no link that it has none."""
        try:
            router.send_multipart([identity, END], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("a caller of another host is gone: %s", error)

    def _let_in(self, identity: bytes) -> None:
        assert self._accept is not None
        try:
            check_spare_files(RELAY_FILES)
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except (OSError, HubError) as error:
            log.warning("a caller of another host could not be accepted: %s", error)
            if self._router is not None:
                self._tell(self._router, identity)
            return
        link = Link("worker", there)
        self._peers[identity], self._identities[link.fd], self._strangers[link.fd] = link, identity, link
        self._add(link)
        if len(self._strangers) > MOST_STRANGERS:
            self._end(next(iter(self._strangers.values())))
        self._accept(here)
