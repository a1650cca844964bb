"""Sockets between the hubs of a site, on their own thread: a ROUTER for what others ask, a DEALER to the leader, and
one to each home host of retained topics that was asked.

Rule 1: both ends show the keys that hubs publish in etcd. A key that is not there is turned away, for now: it may be
published in a moment.
Rule 2: nothing waits here. What cannot be sent is dropped, and whoever sent it has a deadline.
Rule 3: the DEALER to the leader belongs to one leadership. What was queued for it is not sent to the next leader.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from messagehub import protocol
from messagehub.broker.access.access_control import HOST
from messagehub.broker.site.link import Answered, Asked, HomeAnswered, HubPath, Kind, News, Status
from messagehub.errors import ConfigurationError
from messagehub.runtime.supervision import Supervisor
from messagehub.security.credentials import KeyPair
from registry.decoding import decodable

log = logging.getLogger("messagehub.site")

TAKEN_PER_TURN = 256
POLL_MS = 500
HANDSHAKE_MS = 1000
"""A hub whose key was not known yet tries again after that at the latest: libzmq may leave it waiting."""
STOP_SECONDS = 5.0
QUEUE = 16_384


@decodable
class RequestHead(msgspec.Struct, kw_only=True, array_like=True):
    """What stands before a request that one hub sends to another."""

    number: int
    kind: Kind
    leadership: int
    user: str


@decodable
class ReplyHead(msgspec.Struct, kw_only=True, array_like=True):
    number: int
    status: Status
    revision: int


_request_decoder = msgspec.msgpack.Decoder(RequestHead)
_reply_decoder = msgspec.msgpack.Decoder(ReplyHead)
_encode = msgspec.msgpack.Encoder().encode


@decodable
class SiteLeader(msgspec.Struct, kw_only=True, frozen=True):
    """The hub that leads, as it says in the leader key; or that of a home host, as it says among the hosts."""

    host: str
    endpoint: str
    key: str


class HubConnections:
    def __init__(
        self,
        endpoint: str,
        keys: KeyPair,
        *,
        host_of_key: Callable[[str], str | None],
        post: Callable[[News], bool],
        supervisor: Supervisor,
    ) -> None:
        """`host_of_key` returns the name of the host whose hub has a key; `post` hands news to the loop, and returns
        whether it takes more for now."""
        self._keys, self._host_of_key, self._post = keys, host_of_key, post
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._handler = self._context.socket(zmq.REP)
        self._handler.bind("inproc://zeromq.zap.01")
        self._router = self._socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.CURVE_SERVER, 1)
        self._router.setsockopt(zmq.ZAP_DOMAIN, b"site")
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError as error:
            self._router.close(0)
            self._handler.close(0)
            self._context.term()
            said = f"cannot listen for other hubs at {endpoint}: {error.strerror}"
            raise ConfigurationError(f"{said}. Free that port, or name another address with --site-endpoint") from None
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._dealer: zmq.Socket[bytes] | None = None
        self._leadership = 0
        self._homes: dict[str, tuple[SiteLeader, zmq.Socket[bytes]]] = {}
        """By host: the hub that was connected to, and the socket."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._orders: deque[Callable[[], None]] = deque()
        self._is_stopping = False
        self._is_full = False
        self._thread = supervisor.start("messagehub-hubs", self._run)

    # -- from any thread -----------------------------------------------------------------------------------

    def connect(self, leader: SiteLeader | None, leadership: int) -> None:
        """Send to this hub from now on; None: to nobody."""
        self._order(lambda: self._connect(leader, leadership))

    def send(self, number: int, kind: Kind, body: bytes, *, user: str, leadership: int) -> None:
        head = _encode(RequestHead(number=number, kind=kind, leadership=leadership, user=user))
        self._order(lambda: self._send(leadership, [head, body]))

    def ask(self, hub: "SiteLeader", number: int, body: bytes, *, user: str) -> None:
        """Send a request about a retained topic to the hub of its home host."""
        head = _encode(RequestHead(number=number, kind="topic", leadership=0, user=user))
        self._order(lambda: self._send_to(hub, [head, body]))

    def leave(self, host: str) -> None:
        """Drop the connection to a home host, with what waits there to be sent."""
        self._order(lambda: self._leave(host))

    def answer(self, path: HubPath, status: Status, revision: int, payload: bytes) -> None:
        frames = [path[0], _encode(ReplyHead(number=path.number, status=status, revision=revision)), payload]
        self._order(lambda: self._send_by(self._router, frames))

    def close(self) -> None:
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            os.close(self._wake_fd)

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        if not self._is_stopping:
            os.eventfd_write(self._wake_fd, 1)

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopping:
            poller = zmq.Poller()
            homes = {socket: host for host, (_, socket) in self._homes.items()}
            sockets = [self._handler, *homes, *([self._dealer] if self._dealer is not None else [])]
            if not self._is_full:
                sockets.append(self._router)
            for each in (*sockets, self._wake_fd):
                poller.register(each, zmq.POLLIN)
            self._is_full = False
            ready: list[Any] = [found for found, _ in poller.poll(POLL_MS)]
            if self._wake_fd in ready:
                self._carry_out()
            if self._handler in ready:
                self._authenticate()
            if self._router in ready:
                self._receive(self._router, self._take_request)
            if self._dealer is not None and self._dealer in ready:
                self._receive(self._dealer, self._take_reply)
            for socket, host in homes.items():
                if socket in ready and not socket.closed:
                    self._receive(socket, partial(self._take_answer, host))
        self._carry_out()
        self._connect(None, 0)
        for host in list(self._homes):
            self._leave(host)
        self._router.close(1000)
        self._handler.close(0)
        self._context.term()

    def _carry_out(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass
        for _ in range(len(self._orders)):
            self._orders.popleft()()

    def _authenticate(self) -> None:
        asked = self._handler.recv_multipart()
        key = z85.encode(asked[6]).decode() if len(asked) == 7 and asked[5] == b"CURVE" else ""
        host = self._host_of_key(key) if key else None
        status = (b"200", b"OK", host.encode()) if host else (b"300", b"not a hub of this site", b"")
        self._handler.send_multipart([*asked[:2], *status, b""])

    def _receive(self, socket: "zmq.Socket[bytes]", take: Callable[[list[zmq.Frame]], None]) -> None:
        for _ in range(TAKEN_PER_TURN):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                take(frames)
            except (msgspec.DecodeError, ValueError) as error:
                log.warning("another hub of the site says something that cannot be read: %s", error)

    def _take_request(self, frames: list[zmq.Frame]) -> None:
        identity, first, body = frames
        head = _request_decoder.decode(first.bytes)
        path = HubPath([identity.bytes])
        path.number, path.host, path.is_too_fast = head.number, str(body.get("User-Id")), False
        path.user = f"{HOST}{path.host} {head.user}".rstrip()
        self._is_full |= not self._post(Asked(path, head.kind, head.leadership, body.bytes))

    def _take_reply(self, frames: list[zmq.Frame]) -> None:
        first, payload = frames
        head = _reply_decoder.decode(first.bytes)
        self._post(Answered(head.number, head.status, head.revision, payload.bytes))

    def _take_answer(self, host: str, frames: list[zmq.Frame]) -> None:
        first, payload = frames
        head = _reply_decoder.decode(first.bytes)
        self._is_full |= not self._post(HomeAnswered(host, head.number, head.status, payload.bytes))

    def _connect(self, leader: SiteLeader | None, leadership: int) -> None:
        if self._dealer is not None:
            self._dealer.close(0)
            self._dealer = None
        if leader is None:
            return
        self._dealer, self._leadership = self._connected(leader), leadership

    def _connected(self, hub: "SiteLeader") -> "zmq.Socket[bytes] | None":
        dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
        dealer.setsockopt(zmq.CURVE_SERVERKEY, hub.key.encode())
        dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        try:
            dealer.connect(hub.endpoint)
        except zmq.ZMQError as error:
            log.warning("the hub of %s cannot be reached: %s", hub.host, error)
            dealer.close(0)
            return None
        return dealer

    def _send_to(self, hub: "SiteLeader", frames: list[bytes]) -> None:
        known = self._homes.get(hub.host)
        if known is not None and known[0] != hub:  # its hub was started again, at another address
            self._leave(hub.host)
            known = None
        if known is None:
            socket = self._connected(hub)
            if socket is None:
                return
            known = self._homes[hub.host] = (hub, socket)
        self._send_by(known[1], frames)

    def _leave(self, host: str) -> None:
        known = self._homes.pop(host, None)
        if known is not None:
            known[1].close(0)

    def _send(self, leadership: int, frames: list[bytes]) -> None:
        if self._dealer is not None and leadership == self._leadership:
            self._send_by(self._dealer, frames)

    def _send_by(self, socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            log.debug("another hub of the site takes nothing: %s", error)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_FRAME_BYTES)
        made.setsockopt(zmq.SNDHWM, QUEUE)
        made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        made.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        made.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        return made
