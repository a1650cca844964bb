"""A worker's connection to one caller."""

import select
import socket
import threading
from collections import deque
from time import monotonic

from messagehub.messaging.service_frames import CALL, Frames

ANSWER_SECONDS = 5.0


class Caller:
    """The connection of one caller."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.sender = ""
        self.is_welcome = False
        self.is_gone = False
        self.frames = Frames(CALL)
        self.held: deque[bytes] = deque()
        self._sending = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Within a bound; a caller that takes nothing is gone."""
        with self._sending:
            if self.is_gone:
                return
            rest = memoryview(frame)
            deadline = monotonic() + ANSWER_SECONDS
            try:
                while True:
                    try:
                        rest = rest[self.socket.send(rest) :]
                    except BlockingIOError:
                        pass
                    if not rest:
                        return
                    if not _is_writable(self.fd, deadline):
                        break
            except OSError:
                pass  # as below: it ended, and whoever reads will see that
            self._shut()

    def _shut(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it had ended

    def close(self) -> None:
        with self._sending:
            if not self.is_gone:
                self.is_gone = True
                self.socket.close()


def _is_writable(fd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    remaining = deadline - monotonic()
    return remaining > 0 and bool(poll.poll(int(remaining * 1000) + 1))
