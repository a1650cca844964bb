"""The local socket: a unix stream socket beside the ipc endpoint, for clients of this host.

The same requests, replies and events as by ZeroMQ, in frames of `protocol.stream_frames`, on one connection each.

Rule 1: the kernel says who connects. Subscriptions, waiting requests and queues belong to the connection and end
with it.
Rule 2: every connection gets its share of a turn: one read, and so many of the frames that came with it.
Rule 3: nothing that a connection says ends more than that connection.
Rule 4: a topic is a prefix, as with ZeroMQ: an event goes to whoever subscribed to a beginning of its topic. A
subscription is echoed by a beacon, and beacons go to those who subscribed to that very topic.
"""

import logging
import os
import select
import socket
from collections import Counter
from pathlib import Path
from time import monotonic

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.authentication import CONTROL, EVENTS, TryAgainLater
from messagehub.broker.event_publisher import Publisher
from messagehub.broker.request_queue import MAX_BACKLOG, MAX_RATE_LIMITED, RequestQueue
from messagehub.broker.transports.local_connection import LocalConnection
from messagehub.protocol.stream_frames import CHUNK, HEAD, MAX_TOPIC_BYTES, REQUEST, SUBSCRIBE, UNSUBSCRIBE, NotAFrame
from messagehub.runtime.logs import LimitedLog
from messagehub.runtime.metrics import Metrics
from messagehub.runtime.stream_sockets import Credentials, credentials_of
from messagehub.security.private_files import private_umask
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")

LISTEN_BACKLOG = 1024
ACCEPTED_PER_TURN = 64
FRAMES_PER_TURN = 256
"""How many frames of one connection are looked at in a turn; the rest waits."""
MOST_OF_ANOTHER_USER = 1024
"""How many connections one user may have, other than the user who runs the hub, and root."""
ACCEPT_AGAIN_SECONDS = 0.1
LINGER_SECONDS = 1.0
_BODY = HEAD.size
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class LocalSocket:
    def __init__(
        self,
        requests: RequestQueue,
        publisher: Publisher,
        access_control: AccessControl | None,
        metrics: Metrics,
        epoll: select.epoll,
    ) -> None:
        """`epoll` is the one that the loop waits for: what is readable there is for `receive`."""
        self._requests = requests
        self._publisher = publisher
        self._subscriptions = publisher.local
        self._access_control = access_control
        self._metrics = metrics
        self._connections: dict[int, LocalConnection] = {}
        self._users: Counter[int] = Counter()
        self._ready: dict[LocalConnection, None] = {}
        self._touched = publisher.local.touched
        self._accept_at = 0.0
        self._refusals = LimitedLog(log, "connections")
        self._listener: socket.socket | None = None
        self._listener_fd = -1
        self._epoll = epoll

    def bind(self, path: Path) -> None:
        """Listen at the path, in place of a socket that an ended broker left. Its lock must be ours."""
        path.unlink(missing_ok=True)
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setblocking(False)
        with private_umask():
            listener.bind(str(path))
        listener.listen(LISTEN_BACKLOG)
        self._listener_fd = listener.fileno()
        self._epoll.register(self._listener_fd, _IN)

    def __len__(self) -> int:
        """Return how many clients are connected."""
        return len(self._connections)

    @property
    def has_received(self) -> bool:
        """Whether frames wait that were received already."""
        return bool(self._ready)

    def receive(self, ready: list[tuple[int, int]], registry: Registry) -> list[int]:
        """Accept and read connections, give requests to the queue, and follow subscriptions.

        Return the descriptors that are not of this socket, or of a connection that has just ended.
        """
        others: list[int] = []
        is_full = self._requests.backlog >= MAX_BACKLOG
        for fd, events in ready:
            connection = self._connections.get(fd)
            if connection is None:
                if fd == self._listener_fd:
                    self._accept()
                else:
                    others.append(fd)
            elif not events & ~_OUT:
                self._touched[connection] = None
            elif not is_full:
                self._read(connection, registry)
        return others

    def receive_held(self, registry: Registry) -> None:
        """Look at frames that were received already."""
        if self._requests.backlog < MAX_BACKLOG:
            for connection in list(self._ready):
                del self._ready[connection]
                self._look(connection, registry)

    def flush(self) -> None:
        """Send what waits, as far as clients take it; at the end of every turn of the loop."""
        if self._accept_at and monotonic() >= self._accept_at and self._listener is not None:
            self._accept_at = 0.0
            self._epoll.modify(self._listener.fileno(), _IN)
        while self._touched:
            connection, _ = self._touched.popitem()
            if connection.is_ended:
                continue
            connection.outbox.empty()
            if connection.outbox.is_stuck:
                self._refusals.info("hung up on %s: it does not take its replies and events", connection.user)
                self._metrics.count("hung_up_locally")
                connection.hang_up()
                continue
            if connection.held and not connection.is_crowded:
                self._ready[connection] = None
            self._arm(connection)

    def end_others(self) -> None:
        """End the connections of other users, so that each is authenticated anew."""
        for connection in list(self._connections.values()):
            if connection.uid not in (os.geteuid(), 0):
                self._drop(connection)

    def close(self) -> None:
        """Give clients a moment to take what waits for them, then end their connections."""
        deadline = monotonic() + LINGER_SECONDS
        self.flush()
        while waiting := [connection for connection in self._connections.values() if connection.outbox]:
            taking = select.poll()
            for connection in waiting:
                taking.register(connection.fd, select.POLLOUT)
            ready = taking.poll(max(deadline - monotonic(), 0.0) * 1000)
            if not ready:
                break  # the time is over
            for fd, events in ready:
                if events & ~select.POLLOUT:
                    self._drop(self._connections[fd])
                else:
                    self._connections[fd].outbox.empty()
        for connection in list(self._connections.values()):
            self._drop(connection)
        if self._listener is not None:
            self._listener.close()

    # -- connections ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        try:
            for _ in range(ACCEPTED_PER_TURN):
                connection, _ = listener.accept()
                self._begin(connection)
        except BlockingIOError:
            return  # that was all of them
        except OSError as error:  # no descriptor is free, and whoever connects waits on
            self._refusals.info("a local client could not be accepted: %s", error)
            self._accept_at = monotonic() + ACCEPT_AGAIN_SECONDS
            self._epoll.modify(listener.fileno(), 0)

    def _begin(self, accepted: socket.socket) -> None:
        user: str | None = None
        try:
            peer = credentials_of(accepted)
            user = self._admitted(peer)
        except Exception:  # a defect must let nobody in, nor keep out other clients
            log.exception("a local client cannot be authenticated, because of an internal error")
        if user is None:
            accepted.close()
            return
        connection = LocalConnection(accepted, peer, user, self._touched)
        self._connections[connection.fd] = connection
        self._users[peer.uid] += 1
        self._epoll.register(connection.fd, _IN)

    def _admitted(self, peer: Credentials) -> str | None:
        """Return the name of a user who may connect. The mode of the socket has let only some come so far."""
        is_own = peer.uid in (os.geteuid(), 0)
        if not is_own and self._users[peer.uid] >= MOST_OF_ANOTHER_USER:
            self._refusals.info("refused user %d a connection: it has %d", peer.uid, MOST_OF_ANOTHER_USER)
            return None
        if self._access_control is None:
            return f"user:{peer.uid}"
        return self._access_control.identify(CONTROL, "NULL", _address(peer), "")

    def _drop(self, connection: LocalConnection) -> None:
        connection.hang_up()
        if self._connections.pop(connection.fd, None) is None:
            return
        self._users[connection.uid] -= 1
        if not self._users[connection.uid]:
            del self._users[connection.uid]
        self._subscriptions.end(connection)
        self._ready.pop(connection, None)
        self._touched.pop(connection, None)
        self._epoll.unregister(connection.fd)
        connection.socket.close()

    def _arm(self, connection: LocalConnection) -> None:
        mask = connection.wanted_mask()
        if mask != connection.mask:
            connection.mask = mask
            self._epoll.modify(connection.fd, mask)

    # -- what they say -------------------------------------------------------------------------------------

    def _read(self, connection: LocalConnection, registry: Registry) -> None:
        try:
            data = connection.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        try:
            frames = connection.frames.feed(data)
        except NotAFrame:
            self._metrics.count("bad_frames")
            self._drop(connection)
            return
        if len(frames) == 1 and not connection.held and frames[0][_BODY - 1] == REQUEST:  # the usual single request
            self._take_request(connection, frames[0][_BODY:], monotonic(), registry)
            return
        connection.held.extend(frames)
        self._look(connection, registry)

    def _look(self, connection: LocalConnection, registry: Registry) -> None:
        """Look at frames that were received, so many at a time; the connection is read on when none is left."""
        held, received_at = connection.held, monotonic()
        limited = 0
        for _ in range(FRAMES_PER_TURN):
            if not held or connection.is_crowded or limited == MAX_RATE_LIMITED:
                break
            frame = held.popleft()
            kind = frame[_BODY - 1]
            if kind == REQUEST:
                limited += self._take_request(connection, frame[_BODY:], received_at, registry)
            elif kind > UNSUBSCRIBE or len(frame) > _BODY + MAX_TOPIC_BYTES:
                self._metrics.count("bad_frames")
                self._drop(connection)
                return
            elif not self._take_subscription(connection, kind, frame[_BODY:], registry):
                self._drop(connection)
                return
        if held and not connection.is_crowded:
            self._ready[connection] = None
        self._arm(connection)

    def _take_request(self, connection: LocalConnection, body: bytes, received_at: float, registry: Registry) -> bool:
        """Return whether it was refused because its sender asks too often."""
        connection.waiting += 1
        access_control = self._access_control
        if access_control is not None and access_control.asks_too_often(connection.user):
            self._requests.refuse(connection.path, body[: protocol.HEAD_BYTES], access_control.too_fast, received_at)
            return True
        self._requests.admit(connection.path, body, received_at, registry)
        return False

    def _take_subscription(self, connection: LocalConnection, kind: int, topic: bytes, registry: Registry) -> bool:
        """Return False for a peer that says too much, or that may hear nothing: it loses its connection."""
        access_control, user = self._access_control, connection.user
        if access_control is not None:
            if not access_control.may_say_more(user):
                access_control.hung_up(user)
                return False
            if kind == SUBSCRIBE and not connection.topics and not self._may_listen(connection, access_control):
                return False
        if kind == UNSUBSCRIBE:
            self._subscriptions.remove(connection, topic)
        elif topic not in connection.topics:
            held = self._publisher.held_by(user)
            if access_control is not None and not access_control.may_watch(user, topic, others=held):
                return True  # it hears no echo
            self._subscriptions.add(connection, topic)
            self._publisher.echo(connection, topic, registry)
        return True

    def _may_listen(self, connection: LocalConnection, access_control: AccessControl) -> bool:
        """Whether the peer might connect to the event socket."""
        try:
            said = access_control.identify(EVENTS, "NULL", _address(credentials_of(connection.socket)), "")
        except TryAgainLater:
            return False
        return said is not None


def _address(peer: Credentials) -> str:
    """As libzmq writes it."""
    return f"localhost:{peer.uid}:{peer.gid}:{peer.pid}"
