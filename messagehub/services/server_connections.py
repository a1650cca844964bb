"""A worker's connection to one caller.

Rule 1: nobody waits for a caller that does not read: what it does not take waits in its outbox, bounded in bytes and
time; then it loses its connection. Only a handler that streams waits, for its own reader, and at most WINDOW_BYTES of
a stream are on their way, wherever they are.
Rule 2: the connection is armed for one event at a time (EPOLLONESHOT), with a mask that says the whole state: whether
it is to be read on, and whether the outbox waits.
Rule 3: messages that wait for room in a mailbox do not hold up those behind them, until they are as many as one
connection may have (MOST_BLOCKED): then it is not read on until some of them have found room.
Rule 4: what was read is admitted by one thread at a time: the one that has read it or, after a pause, the one that
ended the pause.
"""

import asyncio
import select
import socket
import threading
from collections import deque
from time import monotonic

from messagehub.errors import RequestCancelled, RequestTimeout
from messagehub.protocol.stream_frames import Frames
from messagehub.runtime.event_loop import wake
from messagehub.runtime.stream_sockets import Outbox, credentials_of
from messagehub.services.frames import (
    CALL,
    EVERYTHING,
    MAX_FRAME_BYTES,
    MAX_GREETING_BYTES,
    WINDOW_BYTES,
    Greeting,
)

MOST_UNTAKEN_BYTES = 64 * 2**20
MOST_BLOCKED, MOST_BLOCKED_BYTES = 1000, 8 * 2**20
MOST_CANCELLED = 10_000
_IN, _OUT, _ONCE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLONESHOT
_CUT = -1  # in place of what is unread of a stream: its reader cannot be given all of it any more
_ENDED = select.EPOLLHUP | select.EPOLLERR


class ServerConnection:
    def __init__(self, connection: socket.socket, epoll: select.epoll) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.fd = connection.fileno()
        self.uid = credentials_of(connection).uid
        self.connected_at = monotonic()
        self.sender = ""
        self.target = b""
        self.is_welcome = False
        self.greeting: Greeting | None = None
        self.nonce = self.key = ""
        self.frames = Frames(CALL, MAX_GREETING_BYTES)  # anybody may connect
        self.held: deque[bytes] = deque()
        self._epoll = epoll
        self._lock = threading.Lock()
        self._taken = threading.Condition(self._lock)
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._is_gone = False
        self._is_to_be_read = True
        self._outbox = Outbox(connection, MOST_UNTAKEN_BYTES)
        self._blocked = self._blocked_bytes = 0
        self.is_crowded = False
        """Whether more waits for room than one connection may have waiting: `pauses` then says what to do."""
        self._is_paused = False
        self._unread: dict[int, int] = {}  # of streams: bytes of partial results that their readers have not taken
        self._cancelled: dict[int, None] = {}  # requests whose answers nobody waits for; the oldest is forgotten

    def start(self) -> None:
        self._epoll.register(self.fd, _IN | _ONCE)

    def welcome(self, said: Greeting) -> None:
        """It has proven that it may reach this one worker."""
        self.sender, self.target, self.is_welcome = said.sender, said.worker_id.encode(), True
        self.frames.most_bytes = MAX_FRAME_BYTES

    def send(self, frame: bytes) -> None:
        """Now, or as soon as the caller takes it."""
        with self._lock:
            if self._is_gone:
                return
            if self._outbox.is_stuck:
                self._give_up()
            elif not self._outbox.send(frame):
                self._arm()

    # -- messages that wait for room -----------------------------------------------------------------------

    def block(self, size_bytes: int) -> None:
        """It may have found room before this is said: then it has been taken back already."""
        with self._lock:
            self._count_blocked(1, size_bytes)

    def unblock(self, size_bytes: int) -> bool:
        """Return True if this ends a pause: the caller goes on with what was read before it."""
        with self._lock:
            self._count_blocked(-1, -size_bytes)
            is_over = self._is_paused and not self.is_crowded
            self._is_paused = self._is_paused and not is_over
            return is_over

    def pauses(self) -> bool:
        """Whether so much waits for room that nothing more is admitted now."""
        with self._lock:
            self._is_paused = self.is_crowded
            if self._is_paused:
                self._tell_streams()
            return self._is_paused

    def _count_blocked(self, messages: int, size_bytes: int) -> None:
        self._blocked += messages
        self._blocked_bytes += size_bytes
        self.is_crowded = self._blocked >= MOST_BLOCKED or self._blocked_bytes >= MOST_BLOCKED_BYTES

    # -- streams -------------------------------------------------------------------------------------------

    def open_stream(self, number: int) -> None:
        with self._lock:
            self._unread[number] = 0

    def close_stream(self, number: int) -> bool:
        """Return False if a partial result could not be sent in time, so that something is missing."""
        with self._lock:
            is_whole = self._unread.pop(number, 0) != _CUT
            self._tell_streams()
            return is_whole

    @property
    def is_gone(self) -> bool:
        """Whether its connection has ended."""
        return self._is_gone

    def has_cancelled(self, number: int) -> bool:
        """Whether it said that it does not wait for the answer to this request any more."""
        return number in self._cancelled

    def forget(self, number: int) -> None:
        """The request is answered."""
        if self._cancelled:
            with self._lock:
                self._cancelled.pop(number, None)

    def took(self, number: int, amount: int) -> None:
        """The reader of a stream has taken so many bytes more, or whoever asked wants nothing more."""
        with self._lock:
            if amount == EVERYTHING:
                self._unread.pop(number, None)
                self._cancelled[number] = None
                if len(self._cancelled) > MOST_CANCELLED:  # answers had left before most of these were cancelled
                    del self._cancelled[next(iter(self._cancelled))]
            elif self._unread.get(number, _CUT) != _CUT:
                self._unread[number] = max(self._unread[number] - amount, 0)
            self._tell_streams()

    def stream(self, number: int, frame: bytes, deadline: float) -> None:
        """Send a partial result when its reader has taken most of the earlier ones.

        RequestTimeout when that is not in time, now and for all that follow; RequestCancelled when the reader has left.
        What a paused connection says is not read, so that its readers cannot be waited for.
        """
        with self._lock:
            self._taken.wait_for(lambda: self._has_room(number), max(deadline - monotonic(), 0.0))
            self._reserve(number, len(frame))
        self.send(frame)

    async def stream_async(self, number: int, frame: bytes, deadline: float) -> None:
        """As `stream`."""
        loop = asyncio.get_running_loop()
        while True:
            woken: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if self._has_room(number) or monotonic() >= deadline:
                    self._reserve(number, len(frame))
                    break
                self._wakers.append((loop, woken))
            await asyncio.wait([woken], timeout=max(deadline - monotonic(), 0.0))
        self.send(frame)

    def _has_room(self, number: int) -> bool:
        return self._is_gone or self._is_paused or self._unread.get(number, 0) <= WINDOW_BYTES

    def _reserve(self, number: int, size_bytes: int) -> None:
        """The caller holds the lock, and has waited for room."""
        if self._is_gone or number in self._cancelled:
            raise RequestCancelled("whoever asked wants no more partial results")
        if not self._has_room(number):
            self._unread[number] = _CUT
        if self._unread.get(number, _CUT) == _CUT:
            raise RequestTimeout("the caller did not read the earlier partial results in time")
        self._unread[number] += size_bytes

    def _tell_streams(self) -> None:
        """Wake the handlers that wait for room. The caller holds the lock."""
        self._taken.notify_all()
        wakers, self._wakers = self._wakers, []
        for loop, woken in wakers:
            wake(loop, woken)

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
                self._tell_streams()
                self._epoll.unregister(self.fd)
                self.socket.close()

    # -- inside, with the lock -----------------------------------------------------------------------------

    def _arm(self) -> None:
        mask = (_IN if self._is_to_be_read else 0) | (_OUT if self._outbox else 0)
        if mask:
            self._epoll.modify(self.fd, mask | _ONCE)

    def _empty_outbox(self) -> None:
        if self._outbox.empty():
            self._tell_streams()

    def _give_up(self) -> None:
        self._outbox.clear()
        self._tell_streams()
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it had ended
