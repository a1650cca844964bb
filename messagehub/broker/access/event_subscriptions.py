"""Who watches which events of a shared hub, by connection.

Rule 1: a subscription belongs to the connection that it came over and ends with it. libzmq does not say whose the
subscriptions of an ended connection were; a monitor of the socket says which connection ended.
Rule 2: the monitor is read before a frame is checked. libzmq reports the end of a connection before it gives its
number to the next one, but frames of the ended one may still wait to be read. So the subscriptions of a number are
kept by user, and such a frame counts only for the user who sent it.
"""

import os
import socket
import struct
from collections import Counter

import zmq

from messagehub.broker.polling import PolledSocket
from messagehub.client.socket_monitor import next_event

EVENTS_PER_TURN = 1000
_ADDRESS = "inproc://events-monitor"
_CREDENTIALS = struct.Struct("3i")


class PeerConnection:
    """The topics that one user watches over a connection."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.is_cut = False
        self.topics: set[bytes] = set()


class Subscriptions:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", watched: "zmq.Socket[bytes]") -> None:
        watched.monitor(_ADDRESS, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._watched = watched
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        self.monitor.setsockopt(zmq.RCVHWM, 0)  # no limit: libzmq's own thread would wait when the monitor is full
        self.monitor.connect(_ADDRESS)
        self.polled = PolledSocket(self.monitor)
        self._connections: dict[int, dict[str, PeerConnection]] = {}
        self._held: Counter[str] = Counter()
        self.topics: Counter[bytes] = Counter()
        """How many connections watch a topic."""

    def __len__(self) -> int:
        return sum(self._held.values())

    def held_by(self, user: str) -> int:
        return self._held[user]

    def read_monitor(self) -> None:
        """Read which connections began and ended, a bounded number at a time."""
        self.polled.is_used = True
        for _ in range(EVENTS_PER_TURN):
            if not self.monitor.poll(0):
                return
            event, number = next_event(self.monitor)
            self._end(number)
            if event == zmq.EVENT_ACCEPTED:
                self._connections[number] = {}

    def end_remote(self) -> None:
        """Forget the connections from other hosts, before the socket ends them: of those the monitor says nothing."""
        self.read_monitor()
        for number in [number for number in self._connections if not _is_local(number)]:
            self._end(number)

    def connection(self, number: int, user: str) -> PeerConnection | None:
        """Return the connection that a frame of this user came over; None if it has ended meanwhile."""
        self.read_monitor()
        users = self._connections.get(number)
        if users is None:
            return None
        if user not in users:
            users[user] = PeerConnection(user)
        return users[user]

    def is_only_user(self, number: int) -> bool:
        """Return whether all frames that were read from this connection came from one user."""
        return len(self._connections.get(number, ())) == 1

    def add(self, connection: PeerConnection, topic: bytes) -> None:
        if topic not in connection.topics:
            connection.topics.add(topic)
            self._held[connection.user] += 1
            self.topics[topic] += 1

    def remove(self, connection: PeerConnection, topic: bytes) -> None:
        if topic in connection.topics:
            connection.topics.remove(topic)
            self._drop(connection, topic)

    def close(self) -> None:
        self._watched.disable_monitor()
        self.monitor.close(0)

    def _end(self, number: int) -> None:
        for ended in self._connections.pop(number, {}).values():
            for topic in ended.topics:
                self._drop(ended, topic)

    def _drop(self, connection: PeerConnection, topic: bytes) -> None:
        for counted, key in ((self._held, connection.user), (self.topics, topic)):
            counts: Counter[object] = counted  # type: ignore[assignment]
            counts[key] -= 1
            if not counts[key]:
                del counts[key]


def _is_local(number: int) -> bool:
    """Whether a connection is one of this host's ipc endpoint; False also when it has ended."""
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            return connection.family == socket.AF_UNIX
    except OSError:
        return False


def number_of(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that a frame came over."""
    return int(str(frame.get("__fd")))


def hang_up(frame: zmq.Frame) -> bool:
    """End the connection that a frame came over: libzmq has no way to refuse more of what a peer sends.

    Its descriptor may belong to another connection by now, so the other end is compared with the frame's sender.
    """
    try:
        address = str(frame.get("Peer-Address"))
        with socket.socket(fileno=os.dup(number_of(frame))) as connection:
            if _other_end(connection) != address.removeprefix("::ffff:"):
                return False
            connection.shutdown(socket.SHUT_RDWR)
    except (OSError, zmq.ZMQError):
        return False  # it has ended already
    return True


def _other_end(connection: socket.socket) -> str:
    if connection.family == socket.AF_UNIX:
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(said)
        return f"localhost:{uid}:{gid}:{pid}"
    return str(connection.getpeername()[0]).removeprefix("::ffff:")
