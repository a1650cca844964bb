"""Sockets between the hubs of a site, used by the loop: a ROUTER for what others ask, a DEALER to the leader, and one
to each home host of retained topics that was asked.

Rule 1: both ends show the keys that hubs publish in etcd. A key that is not there is turned away, for now: it may be
published in a moment.
Rule 2: nothing waits here. What cannot be sent is dropped, and whoever sent it has a deadline.
Rule 3: the DEALER to the leader belongs to one leadership. What was queued for it is not sent to the next leader.
Rule 4: what is sent in one turn of the loop goes together (`flush`): the heads in one frame, and a frame for each body.
Handing a message to libzmq costs more than what is in it.
Rule 5: the loop's thread alone uses them, since each hand-over to another thread would delay every command. Only peers
are authenticated on a thread of their own.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from messagehub import protocol
from messagehub.broker.access.access_control import HOST
from messagehub.broker.polling import PolledSocket, Polling
from messagehub.broker.site.link import Answered, Asked, HomeAnswered, HubPath, Kind, News, Status
from messagehub.errors import ConfigurationError
from messagehub.runtime.supervision import Supervisor
from messagehub.security.credentials import KeyPair
from registry.decoding import decodable

log = logging.getLogger("messagehub.site")

TAKEN_PER_TURN = 16
MOST_TOGETHER = 64
HANDSHAKE_MS = 1000
"""A hub whose key was not known yet tries again after that at the latest: libzmq may leave it waiting."""
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


_requests_decoder = msgspec.msgpack.Decoder(list[RequestHead])
_replies_decoder = msgspec.msgpack.Decoder(list[ReplyHead])
_encode = msgspec.msgpack.Encoder().encode
_NOBLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)
_MORE_NOBLOCK = _NOBLOCK | int(zmq.SNDMORE)


@decodable
class SiteLeader(msgspec.Struct, kw_only=True, frozen=True):
    """The hub that leads, as it says in the leader key; or that of a home host, as it says among the hosts."""

    host: str
    endpoint: str
    key: str


class _Connection:
    """A DEALER to another hub, and what waits to be sent there."""

    def __init__(self, hub: SiteLeader, socket: "zmq.Socket[bytes]") -> None:
        self.hub = hub
        self.polled = PolledSocket(socket)
        self.socket = socket
        self.has_replies = False
        """Whether the socket is to be asked: each question is a few calls of the system."""
        self.requests: list[tuple[RequestHead, bytes]] = []

    def flush(self) -> None:
        if self.requests:
            requests, self.requests = self.requests, []
            self.polled.is_used = True
            _send(self.socket, [], requests)

    def receive(self, read: "Callable[[list[zmq.Frame]], Iterable[News]]", received: list[News]) -> None:
        if self.has_replies:
            self.has_replies = False
            _receive(self.socket, self.polled, read, received)


class HubConnections:
    def __init__(
        self, endpoint: str, keys: KeyPair, *, host_of_key: Callable[[str], str | None], supervisor: Supervisor
    ) -> None:
        """`host_of_key` returns the name of the host whose hub has a key."""
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        handler = self._context.socket(zmq.REP)
        handler.bind("inproc://zeromq.zap.01")
        self._router = self._socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.CURVE_SERVER, 1)
        self._router.setsockopt(zmq.ZAP_DOMAIN, b"site")
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError as error:
            self._router.close(0)
            handler.close(0)
            self._context.term()
            said = f"cannot listen for other hubs at {endpoint}: {error.strerror}"
            raise ConfigurationError(f"{said}. Free that port, or name another address with --site-endpoint") from None
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._leader: _Connection | None = None
        self._leadership = 0
        self._homes: dict[str, _Connection] = {}
        """By host."""
        self._polling: Polling | None = None
        self._polled_router = PolledSocket(self._router)
        self._has_requests = False
        """As `_Connection.has_replies`."""
        self._replies: dict[bytes, list[tuple[ReplyHead, bytes]]] = {}
        """What waits for `flush`, by the connection of the hub that asked."""
        supervisor.start("messagehub-hub-keys", partial(_authenticate, handler, host_of_key))

    def poll_by(self, polling: Polling) -> None:
        """Have the loop wait for all sockets."""
        self._polling = polling
        polling.add_socket(self._polled_router)

    def polls(self, fd: int) -> bool:
        """Return whether the loop was woken for `receive`, which then asks this socket."""
        if fd == self._polled_router.fd:
            self._has_requests = True
            return True
        for each in self._connections():
            if fd == each.polled.fd:
                each.has_replies = True
                return True
        return False

    def connect(self, leader: SiteLeader | None, leadership: int) -> None:
        """Send commands to this hub from now on; None: to nobody."""
        if self._leader is not None:
            self._disconnect(self._leader)
        self._leader, self._leadership = self._connected(leader) if leader is not None else None, leadership

    def send(self, number: int, kind: Kind, body: bytes, *, user: str, leadership: int) -> None:
        """Send a request to the hub of this leadership."""
        if self._leader is not None and leadership == self._leadership:
            head = RequestHead(number=number, kind=kind, leadership=leadership, user=user)
            self._leader.requests.append((head, body))

    def ask(self, hub: SiteLeader, number: int, body: bytes, *, user: str) -> None:
        """Send a request about a retained topic to the hub of its home host."""
        home = self._homes.get(hub.host)
        if home is not None and home.hub != hub:  # its hub was started again, at another address
            self.leave(hub.host)
            home = None
        if home is None:
            home = self._connected(hub)
            if home is None:
                return
            self._homes[hub.host] = home
        home.requests.append((RequestHead(number=number, kind="topic", leadership=0, user=user), body))

    def leave(self, host: str) -> None:
        """Drop the connection to a home host, with what waits there to be sent."""
        home = self._homes.pop(host, None)
        if home is not None:
            self._disconnect(home)

    def answer(self, path: HubPath, status: Status, revision: int, payload: bytes) -> None:
        """Answer another hub."""
        head = ReplyHead(number=path.number, status=status, revision=revision)
        self._replies.setdefault(path[0], []).append((head, payload))

    def flush(self) -> None:
        """Send what waits; drop what a hub does not take."""
        for each in self._connections():
            each.flush()
        if self._replies:
            replies, self._replies = self._replies, {}
            self._polled_router.is_used = True
            for identity, some in replies.items():
                _send(self._router, [identity], some)

    def receive(self, *, takes_requests: bool) -> list[News]:
        """Return what has come, a bounded number at a time."""
        received: list[News] = []
        if takes_requests and self._has_requests:
            self._has_requests = False
            _receive(self._router, self._polled_router, _asked, received)
        if self._leader is not None:
            self._leader.receive(_answered, received)
        for host, home in self._homes.items():
            home.receive(partial(_home_answered, host), received)
        return received

    def close(self) -> None:
        """The loop has ended, and does not poll any more."""
        self._polling = None
        self.flush()
        for each in self._connections():
            self._disconnect(each)
        self._router.close(1000)
        self._context.term()

    def _connections(self) -> "list[_Connection]":
        return [*([self._leader] if self._leader is not None else ()), *self._homes.values()]

    def _connected(self, hub: SiteLeader) -> _Connection | None:
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
        made = _Connection(hub, dealer)
        if self._polling is not None:
            self._polling.add_socket(made.polled)
        return made

    def _disconnect(self, connection: _Connection) -> None:
        if self._polling is not None:
            self._polling.remove(connection.polled.fd)
        connection.socket.close(0)

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


def _authenticate(handler: "zmq.Socket[bytes]", host_of_key: Callable[[str], str | None]) -> None:
    """Say of each hub that connects whether its key is known, until the context ends."""
    while True:
        try:
            asked = handler.recv_multipart()
            key = z85.encode(asked[6]).decode() if len(asked) == 7 and asked[5] == b"CURVE" else ""
            host = host_of_key(key) if key else None
            status = (b"200", b"OK", host.encode()) if host else (b"300", b"not a hub of this site", b"")
            handler.send_multipart([*asked[:2], *status, b""])
        except zmq.ContextTerminated:
            handler.close(0)
            return


def _send(
    socket: "zmq.Socket[bytes]", path: list[bytes], waiting: Sequence[tuple[RequestHead | ReplyHead, bytes]]
) -> None:
    send = socket.send
    for start in range(0, len(waiting), MOST_TOGETHER):
        some = waiting[start : start + MOST_TOGETHER]
        frames = [*path, _encode([head for head, _ in some]), *(body for _, body in some)]
        try:
            for frame in frames[:-1]:  # `send_multipart` joins the flags as enums for each frame, which takes longer
                send(frame, _MORE_NOBLOCK)
            send(frames[-1], _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            log.debug("another hub of the site takes nothing: %s", error)
            return


def _receive(
    socket: "zmq.Socket[bytes]",
    polled: PolledSocket,
    read: Callable[[list[zmq.Frame]], Iterable[News]],
    received: list[News],
) -> None:
    get: Callable[[int], Any] = socket.get
    polled.is_used = True
    for _ in range(TAKEN_PER_TURN):
        if not get(_EVENTS) & _POLLIN:
            return
        try:
            received += read(socket.recv_multipart(_NOBLOCK, copy=False))
        except zmq.Again:
            return
        except (msgspec.DecodeError, ValueError) as error:
            log.warning("another hub of the site says something that cannot be read: %s", error)


def _asked(frames: list[zmq.Frame]) -> list[News]:
    identity, first, *bodies = frames
    host = str(first.get("User-Id"))
    asked: list[News] = []
    for head, body in zip(_requests_decoder.decode(first.bytes), bodies, strict=True):
        path = HubPath([identity.bytes])
        path.number, path.host, path.is_too_fast = head.number, host, False
        path.user = f"{HOST}{host} {head.user}".rstrip()
        asked.append(Asked(path, head.kind, head.leadership, body.bytes))
    return asked


def _answered(frames: list[zmq.Frame]) -> list[News]:
    return [Answered(head.number, head.status, head.revision, payload) for head, payload in _replies_in(frames)]


def _home_answered(host: str, frames: list[zmq.Frame]) -> list[News]:
    return [HomeAnswered(host, head.number, head.status, payload) for head, payload in _replies_in(frames)]


def _replies_in(frames: list[zmq.Frame]) -> list[tuple[ReplyHead, bytes]]:
    first, *payloads = frames
    heads = _replies_decoder.decode(first.bytes)
    return [(head, payload.bytes) for head, payload in zip(heads, payloads, strict=True)]
