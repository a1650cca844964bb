"""A worker's connection to one caller.

Rule 1: nobody waits for a caller that does not read: what it does not take waits in its outbox, bounded in bytes and
time; then it loses its connection. Only a handler that streams waits, for its own caller, lest a long stream end so.
Rule 2: the connection is armed for one event at a time (EPOLLONESHOT), with a mask that says the whole state: whether
it is to be read on, and whether the outbox waits.
"""

import select
import socket
import threading
from collections import deque
from time import monotonic

from messagehub.messaging.service_frames import CALL, MAX_FRAME_BYTES, MAX_GREETING_BYTES, Frames

PATIENCE_SECONDS = 30.0
MOST_UNTAKEN_BYTES = 64 * 2**20
MOST_STREAMED_BYTES = 8 * 2**20
_IN, _OUT, _ONCE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLONESHOT
_ENDED = select.EPOLLHUP | select.EPOLLERR


class Caller:
    def __init__(self, connection: socket.socket, epoll: select.epoll) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.sender = ""
        self.is_welcome = False
        self.frames = Frames(CALL, MAX_GREETING_BYTES)  # anybody may connect
        self.held: deque[bytes] = deque()
        self._epoll = epoll
        self._lock = threading.Lock()
        self._taken = threading.Condition(self._lock)
        self._is_gone = False
        self._is_to_be_read = True
        self._outbox: deque[bytes] = deque()
        self._untaken_bytes = 0
        self._taken_at = 0.0

    def start(self) -> None:
        self._epoll.register(self.fd, _IN | _ONCE)

    def welcome(self, sender: str) -> None:
        self.sender, self.is_welcome = sender, True
        self.frames.most_bytes = MAX_FRAME_BYTES

    def send(self, frame: bytes) -> None:
        """Now, or as soon as the caller takes it."""
        with self._lock:
            if self._is_gone:
                return
            if not self._outbox:
                sent = self._give(frame)
                if sent == len(frame):
                    return
                frame = frame[sent:]
                self._taken_at = monotonic()
            elif self._untaken_bytes > MOST_UNTAKEN_BYTES or monotonic() - self._taken_at > PATIENCE_SECONDS:
                self._give_up()
                return
            self._outbox.append(frame)
            self._untaken_bytes += len(frame)
            self._arm()

    def wait_for_room(self, deadline: float) -> None:
        """Before a partial result: until the caller has taken most of the earlier ones, or is not worth waiting for."""
        with self._lock:
            if self._untaken_bytes > MOST_STREAMED_BYTES:
                seconds = max(min(deadline - monotonic(), PATIENCE_SECONDS), 0.0)
                self._taken.wait_for(lambda: self._is_gone or self._untaken_bytes <= MOST_STREAMED_BYTES, seconds)

    def is_to_be_read(self, events: int) -> bool:
        """What its event asks for: the outbox is emptied here; True has the caller read, and then `read_on`."""
        with self._lock:
            if self._is_gone:
                return False
            if self._outbox and events & (_OUT | _ENDED):
                self._empty_outbox()
            is_readable = self._is_to_be_read and bool(events & (_IN | _ENDED))
            self._is_to_be_read = self._is_to_be_read and not is_readable
            self._arm()
            return is_readable

    def read_on(self) -> None:
        with self._lock:
            if not self._is_gone:
                self._is_to_be_read = True
                self._arm()

    def finish(self, deadline: float) -> None:
        """Before closing: give it what waits for it, in time. Nobody else empties the outbox any more."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        while True:
            with self._lock:
                if not self._is_gone:
                    self._empty_outbox()
                if self._is_gone or not self._outbox:
                    return
            if not poll.poll(max(deadline - monotonic(), 0.0) * 1000):
                return

    def close(self) -> None:
        with self._lock:
            if not self._is_gone:
                self._is_gone = True
                self._taken.notify_all()
                self._epoll.unregister(self.fd)
                self.socket.close()

    # -- inside, with the lock -----------------------------------------------------------------------------

    def _arm(self) -> None:
        mask = (_IN if self._is_to_be_read else 0) | (_OUT if self._outbox else 0)
        if mask:
            self._epoll.modify(self.fd, mask | _ONCE)

    def _empty_outbox(self) -> None:
        while self._outbox:
            frame = self._outbox[0]
            sent = self._give(frame)
            self._untaken_bytes -= sent
            if sent:
                self._taken_at = monotonic()
                self._taken.notify_all()
            if sent < len(frame):
                self._outbox[0] = frame[sent:]
                return
            self._outbox.popleft()

    def _give(self, frame: bytes) -> int:
        """How much of it was taken; an ended caller takes all."""
        try:
            return self.socket.send(frame)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)  # whoever reads will see that it ended

    def _give_up(self) -> None:
        self._outbox.clear()
        self._untaken_bytes = 0
        self._taken.notify_all()
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it had ended
