"""A session over the broker's unix socket on this host: requests, replies and events on one connection.

Rule 1: whoever receives does so for all: replies for the owner, events for the I/O thread.
Rule 2: the I/O thread waits for what comes while no caller drives. A caller that drives disarms it, so that a reply
wakes one thread, not two.
Rule 3: what the broker does not take at once waits here, and leaves before anything else is sent.
"""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from messagehub import protocol
from messagehub.client.session import EventSource, say_hello
from messagehub.errors import BrokerUnavailable, InternalError
from messagehub.protocol.stream_frames import (
    CHUNK,
    EVENT,
    HEAD,
    MAX_REPLY_BYTES,
    REPLY,
    REQUEST,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Frames,
    NotAFrame,
    frame,
    read_event,
)
from messagehub.runtime.stream_sockets import credentials_of
from messagehub.shm.identity import is_stopped
from messagehub.shm.locks import open_files_limited
from registry import replies

EVENTS_PER_TURN = 1000
MOST_EVENTS = 100_000
_BODY = HEAD.size
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_POLLIN, _POLLOUT = select.POLLIN, select.POLLOUT
_pack = HEAD.pack
_decode = protocol.decode_reply


class NoLocalSocket(Exception):
    """Nobody listens there, or not for us: ZeroMQ may tell more."""


class LocalSession:
    def __init__(
        self,
        path: Path,
        endpoint: str,
        *,
        deadline: float,
        hello_id: str,
        handshake_deadline: float | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect and say HELLO; raises NoLocalSocket at once, or BrokerUnavailable, at the deadline at the latest.

        A process that is stopped is given up at `handshake_deadline`; a busy one has its time to answer.
        """
        self.endpoint = endpoint
        self._socket, self._pid = _connect(path, endpoint)
        self._fd = self._socket.fileno()
        self._frames = Frames(HEAD, MAX_REPLY_BYTES)
        self._replies: deque[bytes] = deque()
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._is_lost = False
        self._poll = select.poll()
        self._poll.register(self._fd, _POLLIN)
        self._stream = LocalEvents(self._fd, self._say)
        self.stream: EventSource = self._stream
        self.lend: Callable[[], None] = self._stream.lend
        try:
            there_by = deadline if handshake_deadline is None else min(deadline, handshake_deadline)
            self.hello = say_hello(self, hello_id, deadline, there_by, is_cancelled)
            self._stream.is_offered = "events" in self.hello.endpoints
        except BaseException as error:
            is_refused = self._is_lost and isinstance(error, BrokerUnavailable)
            self.close()
            if is_refused:
                raise NoLocalSocket from None
            raise

    @property
    def is_there(self) -> bool:
        return not is_stopped(self._pid)

    def is_running(self, deadline: float) -> bool:  # noqa: ARG002  the kernel knows, and is asked at once
        return self.is_there

    @property
    def has_received(self) -> bool:
        return bool(self._replies)

    @property
    def has_events(self) -> bool:
        return bool(self._stream.received)

    def also_poll(self, fd: int) -> None:
        self._poll.register(fd, _POLLIN)

    def pollables(self) -> list[object]:
        return []  # the stream's, which is armed while no caller drives

    def send(self, payload: bytes) -> None:
        self._say(_pack(len(payload) + 1, REQUEST) + payload)

    def _say(self, said: bytes) -> None:
        """Send, after what was not taken yet. The I/O thread subscribes while callers send requests."""
        with self._sending:
            if not self._unsent:
                sent = self._give(said)
                if sent == len(said):
                    return
                said = said[sent:]
            self._unsent += said
            self._stream.has_unsent = True
        self._stream.arm()

    def _give(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._is_lost = True
            raise self._lost() from None

    def _send_rest(self) -> None:
        with self._sending:
            if self._unsent:
                del self._unsent[: self._give(self._unsent)]
            self._stream.has_unsent = bool(self._unsent)
        self._stream.arm()

    def poll(self, deadline: float) -> bool:
        if self._replies:
            return True
        if self._unsent:
            self._send_rest()
            self._poll.modify(self._fd, _POLLIN | (_POLLOUT if self._unsent else 0))
        remaining = deadline - time.monotonic()
        return bool(self._poll.poll(int(remaining * 1000) + 1 if remaining > 0 else 0))

    def receive_one(self) -> replies.AnyReply | None:
        if not self._replies:
            self._read()
            if not self._replies:
                return None
        try:
            return _decode(self._replies.popleft())
        except InternalError as unreadable:  # whoever answers so is no broker
            raise BrokerUnavailable(unreadable.message, endpoint=self.endpoint) from None

    def _read(self) -> None:
        """Receive what is here, so much at a time: replies for the owner, events for the I/O thread."""
        if self._unsent:
            self._send_rest()
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_lost = True
            return
        try:
            frames = self._frames.feed(data)
        except NotAFrame:
            raise self._nonsense() from None
        for received in frames:
            kind = received[_BODY - 1]
            if kind == REPLY:
                self._replies.append(received[_BODY:])
            elif kind == EVENT:
                self._take_event(received)
            else:
                raise self._nonsense()

    def _take_event(self, received: bytes) -> None:
        try:
            self._stream.received.append(read_event(received))
        except NotAFrame:
            raise self._nonsense() from None

    def _nonsense(self) -> BrokerUnavailable:
        return BrokerUnavailable("the broker sent what is no answer", endpoint=self.endpoint)

    def check_lost(self) -> None:
        if self._is_lost:
            raise self._lost()

    def _lost(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the connection to the broker at {self.endpoint} is lost", endpoint=self.endpoint)

    def take_back(self) -> bool:
        stream = self._stream
        stream.is_lent = False
        stream.arm()
        return bool(stream.received or self._replies)

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # also for a child process that has a copy of it
        except OSError:
            pass  # the broker has ended it
        self._stream.end()
        self._socket.close()

    def abandon(self) -> None:
        self._stream.abandon()
        self._socket.close()


class LocalEvents:
    """The events of a local session, and what wakes the I/O thread for them."""

    is_shared = True

    def __init__(self, fd: int, say: Callable[[bytes], None]) -> None:
        self.received: deque[tuple[bytes, bytes]] = deque(maxlen=MOST_EVENTS)  # who misses one can tell
        self._fd = fd
        self._say = say
        self._subscribed: set[bytes] = set()
        self._epoll: select.epoll | None = None
        self._arming = threading.Lock()
        self.is_lent = self.has_unsent = self._is_over = False
        self.is_offered = False
        """Whether the broker's HELLO offers events to this client."""

    def lend(self) -> None:
        self.is_lent = True
        self.arm()

    def arm(self) -> None:
        """Have the I/O thread woken for what comes, unless a caller drives; after a change of what that says."""
        if self._epoll is not None:  # or else `pollables` looks at what was changed, once it has made one
            with self._arming:
                if not self._is_over:  # what it waits for is read under the lock: two threads may change it
                    self._epoll.modify(self._fd, 0 if self.is_lent else self._mask())

    def _mask(self) -> int:
        return 0 if self.is_lent else _IN | (_OUT if self.has_unsent else 0)

    def end(self) -> None:
        """Stop watching the session, which is closed: its descriptor may belong to another file from now on."""
        with self._arming:
            if self._epoll is not None and not self._is_over:
                self._epoll.unregister(self._fd)
            self._is_over = True

    def abandon(self) -> None:
        """Close the descriptor without taking the lock, which a thread of the parent may have held."""
        self._is_over = True
        if self._epoll is not None:
            self._epoll.close()

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def follow(self, topics: set[bytes]) -> None:
        if not self.is_offered:
            return
        said = [frame(SUBSCRIBE, topic) for topic in topics - self._subscribed]
        said += [frame(UNSUBSCRIBE, topic) for topic in self._subscribed - topics]
        self._subscribed = topics
        if said:
            self._say(b"".join(said))

    def pollables(self) -> list[object]:
        with self._arming:
            if self._epoll is None:
                with open_files_limited():
                    epoll = select.epoll()
                if not self._is_over:
                    epoll.register(self._fd, 0)
                self._epoll = epoll
                if not self._is_over:
                    epoll.modify(self._fd, self._mask())
            return [self._epoll.fileno()]

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        for _ in range(min(len(self.received), EVENTS_PER_TURN)):
            yield self.received.popleft()

    def has_hung_up(self) -> bool:
        return False  # the session says so itself

    def close(self) -> None:
        with self._arming:
            self._is_over = True
            if self._epoll is not None:
                self._epoll.close()
                self._epoll = None


def _connect(path: Path, endpoint: str) -> tuple[socket.socket, int]:
    """Return a connection to whoever serves the ZeroMQ endpoint too, and its pid; raises NoLocalSocket."""
    with open_files_limited():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.setblocking(False)
        connection.connect(str(path))
        peer = credentials_of(connection)
        if peer.uid != os.stat(endpoint.removeprefix("ipc://")).st_uid:
            raise NoLocalSocket
    except OSError:
        connection.close()
        raise NoLocalSocket from None
    except BaseException:
        connection.close()
        raise
    return connection, peer.pid
