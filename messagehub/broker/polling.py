"""What the broker's loop waits for: one epoll over plain descriptors and those of ZeroMQ sockets.

libzmq's own poller asks every socket each time, whoever has something to say. Here a turn that serves clients of the
local socket makes no call to ZeroMQ, and one that serves ZeroMQ asks only the sockets that it used.

Rule 1: the descriptor of a ZeroMQ socket (ZMQ_FD) is a hint. It becomes readable when something happens to the socket,
which need not be a message. And it may be unreadable while messages wait: any call on the socket (send, receive, an
option, bind) may take in what the descriptor announced.
Rule 2: therefore a socket that was used is asked for its messages (ZMQ_EVENTS) before the loop sleeps, and while there
are any the loop does not sleep. Whoever uses a socket sets `is_used`, after the last call or before the first one: the
loop asks when all of them are done. A use that is not noted is a wake-up that may be lost.
Rule 3: between asking and sleeping nothing uses the socket. What comes in between makes the descriptor readable.
"""

import select
from collections.abc import Callable
from typing import Any

import zmq

READY_AT_ONCE = 64
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_IN = select.EPOLLIN


class PolledSocket:
    """A ZeroMQ socket that the loop receives from. Whoever uses it says so (`is_used`)."""

    __slots__ = ("_get", "fd", "is_used")

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.fd = int(socket.getsockopt(zmq.FD))
        self.is_used = True
        self._get: Callable[[int], Any] = socket.get

    def has_messages(self) -> bool:
        self.is_used = False
        return bool(self._get(_EVENTS) & _POLLIN)


class Polling:
    def __init__(self) -> None:
        self.epoll = select.epoll()
        """Others may register descriptors here directly, and unregister them before they are closed."""
        self._added: set[int] = set()
        self._sockets: dict[int, PolledSocket] = {}

    def add(self, fd: int) -> None:
        self._added.add(fd)
        self.epoll.register(fd, _IN)

    def add_socket(self, polled: PolledSocket) -> None:
        self._sockets[polled.fd] = polled
        self.add(polled.fd)

    def remove(self, fd: int) -> None:
        """Idempotent."""
        self._sockets.pop(fd, None)
        if fd in self._added:
            self._added.remove(fd)
            self.epoll.unregister(fd)

    def keep_only(self, kept: PolledSocket) -> None:
        """Remove all that was added here but one."""
        for fd in self._added - {kept.fd}:
            self.remove(fd)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Wait until something may be received, and return the descriptors, each once, with their events."""
        waiting: dict[int, int] = {}
        for fd, polled in self._sockets.items():
            if polled.is_used and polled.has_messages():
                waiting[fd] = _IN
        if not waiting:
            return self.epoll.poll(seconds, READY_AT_ONCE)
        return list((dict(self.epoll.poll(0, READY_AT_ONCE)) | waiting).items())

    def close(self) -> None:
        self.epoll.close()
