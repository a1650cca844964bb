"""The broker's side of one client of this host, which came by the local socket.

Rule 1: what one connection may have in the broker is bounded: requests that wait for their answers, bytes that were
received, bytes that the client has not taken. Who does not take its replies and events is hung up on.
Rule 2: a reply leaves at once, unless more requests of the connection wait: then it leaves with the next ones, when
this turn of the loop ends at the latest.
"""

import select
import socket
from collections import deque

from messagehub import protocol
from messagehub.broker.access.access_control import ReturnPath
from messagehub.protocol.stream_frames import HEAD, REPLY, Frames
from messagehub.runtime.stream_sockets import Credentials, Outbox

MOST_WAITING = 1024
"""How many requests of one connection may wait for answers before it is not read for a while."""
MOST_UNTAKEN_BYTES = 32 * 2**20
_pack = HEAD.pack
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class LocalPath(ReturnPath):
    """The way back to a client of the local socket: the connection that its request came over."""

    __slots__ = ("connection",)
    connection: "LocalConnection"


class LocalConnection:
    def __init__(
        self, connection: socket.socket, peer: Credentials, user: str, touched: dict["LocalConnection", None]
    ) -> None:
        """`user` is the peer's name for access control. Connections with something to send are put into `touched`."""
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.uid = peer.uid
        self.user = user
        self.path = LocalPath([b"%d:%d" % (peer.pid, self.fd)])
        self.path.user, self.path.is_too_fast, self.path.connection = user, False, self
        self.frames = Frames(HEAD, protocol.MAX_FRAME_BYTES + HEAD.size)
        self.held: deque[bytes] = deque()
        """Frames that were received and not looked at yet. While there are any, the connection is not read on."""
        self.waiting = 0
        """Requests that are not answered yet."""
        self.outbox = Outbox(connection, MOST_UNTAKEN_BYTES)
        self.topics: set[bytes] = set()
        self.is_ended = False
        self.mask = _IN
        self._touched = touched

    @property
    def is_crowded(self) -> bool:
        return self.waiting >= MOST_WAITING

    def wanted_mask(self) -> int:
        """Return the events to wait for: whether it is to be read on, and whether it has to take something."""
        return (0 if self.held or self.is_crowded else _IN) | (_OUT if self.outbox else 0)

    def reply(self, payload: bytes) -> bool:
        """Return False if the client is gone."""
        if self.is_ended:
            return False
        self.waiting -= 1
        frame = _pack(len(payload) + 1, REPLY) + payload
        if self.waiting:
            self.put(frame)
        elif not self.outbox.send(frame):
            self._touched[self] = None
        return True

    def put(self, frame: bytes) -> None:
        """Queue a frame, which leaves when this turn of the loop ends."""
        self.outbox.put(frame)
        self._touched[self] = None

    def hang_up(self) -> None:
        """End the connection. Whoever waits for its events then removes it."""
        self.is_ended = True
        self.held.clear()
        self.outbox.clear()
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # also for a forked child that has a copy of it
        except OSError:
            pass  # the client has ended
