"""The I/O thread of a connection: it uses the wire for callers that wait together, and for the connection's listeners.

Rule 1: the thread holds the wire while something is on its way or is to be sent; otherwise callers use it themselves.
Rule 2: nothing that a broker sends, and no listener, ends the thread.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import zmq

from messagehub.client.connection_listener import ConnectionListener
from messagehub.client.pending_request import Done, PendingRequest
from messagehub.client.session import EventSource
from messagehub.client.wire import Wire
from messagehub.errors import BrokerTimeout, BrokerUnavailable, HubError, NotInitialised
from messagehub.runtime.metrics import Metrics
from messagehub.runtime.supervision import keep_turning
from messagehub.settings import Settings
from messagehub.shm.locks import open_files_limited
from registry import replies

log = logging.getLogger("messagehub.client")

IDLE_SECONDS = 60.0
CLOSE_SECONDS = 5.0
_Told = TypeVar("_Told")


class IoThread:
    def __init__(self, settings: Settings, name: str, metrics: Metrics, ping: Callable[[Done, float], None]) -> None:
        """`ping` submits a PING: whom to tell, and how long it may take."""
        self.listeners: Sequence[ConnectionListener] = ()
        self.wire = Wire(settings, name, metrics, self._wire_changed)
        self.outbox: deque[PendingRequest] = deque()
        self._settings = settings
        self._metrics = metrics
        self._ping = ping
        self._starting = threading.Lock()
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._is_driving = False
        """Whether this thread owns the wire."""
        self._stream: EventSource | None = None
        self._followed: list[set[bytes]] = []
        self._is_suspect = self._is_pinging = False

    @property
    def is_used(self) -> bool:
        """Whether it has anything open."""
        return self._wake_fd >= 0 or self.wire.owner.fd >= 0

    # -- by any thread -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the thread, started when none is alive, look at its listeners and its outbox."""
        with self._starting:  # which `close` takes too: an fd that was closed may be somebody else's by now
            if self.wire.is_closed:
                return
            self._open()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="messagehub-io", daemon=True)
                self._thread.start()
            os.eventfd_write(self._wake_fd, 1)

    def suspect(self) -> None:
        """Have the thread ask the broker whether it is still there."""
        self._is_suspect = True
        self.wake()

    def count_defect(self) -> None:
        """Note that a thread of this hub met a defect, logged it and goes on."""
        with self._counting:
            self._metrics.count("defects")

    def close(self) -> None:
        """End the thread, fail what waits, and close the wire; idempotent."""
        with self._starting:
            if self.wire.is_closed:
                return
            self.wire.is_closed = True
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)
        self.wire.close()
        self._close_fd()

    def abandon(self) -> None:
        """In a forked child, where the thread does not run."""
        self.wire.abandon()
        self._close_fd()

    def _open(self) -> None:
        if self._wake_fd < 0:
            with open_files_limited():
                self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def _close_fd(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def _wire_changed(self) -> None:
        if self.wire.session is not None:
            self._is_suspect = False
        if not self.wire.is_closed and any(listener.is_active() for listener in self.listeners):
            self.wake()

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            keep_turning(
                self._turn,
                what="the I/O thread of a client",
                log=log,
                is_over=lambda: self.wire.is_closed,
                on_defect=self._after_defect,
            )
        finally:
            if self._is_driving:
                self._release()
            self._end_stream()
            self._fail_outbox(BrokerUnavailable("this client is closed"))

    def _after_defect(self) -> None:
        """Begin with a new connection: what is on its way on this one may be half done."""
        self.count_defect()
        if self._is_driving:
            self.wire.drop("a defect in this client; its log says more")

    def _each_listener(self, tell: Callable[[ConnectionListener], _Told]) -> list[_Told]:
        """Tell every listener. A defect of one is logged: the others are told too, and the thread goes on."""
        told = []
        for listener in self.listeners:
            try:
                told.append(tell(listener))
            except Exception:
                self.count_defect()
                log.exception("%s failed, and goes on", type(listener).__name__)
        return told

    def _turn(self) -> None:
        """One round of the thread's loop; the wire is kept while something is on its way."""
        wire = self.wire
        _clear(self._wake_fd)
        if wire.is_closed:  # said after the loop looked, and the wake-up is used up
            return
        self._tell_listeners()
        now = time.monotonic()
        due_at = min(self._each_listener(lambda listener: listener.tick(now)), default=now + IDLE_SECONDS)
        if self._is_suspect and wire.session is not None and not self._is_pinging:
            self._is_suspect, self._is_pinging = False, True
            self._ping(self._after_ping, self._settings.hello_timeout_seconds)
        is_wanted = bool(self.outbox or wire.pending) or self._wants_connection()
        if is_wanted and not self._is_driving:
            self._is_driving = wire.owner.take_over(CLOSE_SECONDS)  # a caller that drives stops within one poll
        if self._is_driving:
            self._send_outbox()
        self._follow_topics()
        is_readable = self._poll(self._next_due(due_at))
        if not self._is_driving and is_readable:
            self._is_driving = wire.owner.acquire_if_free()  # or else a caller drives, and receives for us
        if self._is_driving and wire.session is not None:
            wire.receive()
        self._hand_out_events()
        if self._is_driving and not (self.outbox or wire.pending):
            self._release()

    def _release(self) -> None:
        self._is_driving = False
        self.wire.owner.release()

    def _wants_connection(self) -> bool:
        is_due = self.wire.session is None and time.monotonic() >= self.wire.backoff.retry_at
        return is_due and any(listener.is_active() for listener in self.listeners)

    def _next_due(self, due_at: float) -> float:
        session = self.wire.session
        if session is None and any(listener.is_active() for listener in self.listeners):
            due_at = min(due_at, self.wire.backoff.next_look())
        if session is not None and (session.has_events or (self._is_driving and session.has_received)):
            return 0.0
        own = (request.deadline for request in list(self.wire.pending.values()) if request.done is not None)
        return min(own, default=due_at) if due_at > time.monotonic() else due_at

    def _send_outbox(self) -> None:
        wire = self.wire
        try:
            wire.connect(time.monotonic() + wire.backoff.most_seconds, in_background=True)
            self._tell_listeners()
            now = time.monotonic()
            while self.outbox and wire.session is not None:
                request = self.outbox.popleft()
                if request.deadline <= now:  # nobody waits for it any more
                    late = BrokerTimeout("the broker did not answer in time")
                    late.was_sent = False
                    request.finish(None, late)
                    continue
                request.is_sent = True
                wire.pending[request.request_id] = request
                wire.session.send(request.payload)
        except NotInitialised:
            return  # closed meanwhile: this thread ends, and fails what is left
        except HubError as error:
            wire.drop(error.message)
            self._fail_outbox(error)
            wire.backoff.look_less_often()

    def _after_ping(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        self._is_pinging = False
        session = self.wire.session
        if reply is not None or error is None or session is None:
            return
        if session.is_running(time.monotonic() + self._settings.hello_timeout_seconds):
            self._is_pinging = True
            self._ping(self._after_last_ping, self.wire.backoff.most_seconds)  # it runs, and is busy
        else:
            self.wire.drop(f"no answer to PING: {error.message}")

    def _after_last_ping(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        self._is_pinging = False
        if reply is None and error is not None:
            self.wire.drop(f"no answer to PING: {error.message}")

    def _fail_outbox(self, error: HubError) -> None:
        if isinstance(error, BrokerUnavailable):
            error.was_sent = False
        while self.outbox:
            self.outbox.popleft().finish(None, error)

    # -- listeners and their events ------------------------------------------------------------------------

    def _tell_listeners(self) -> None:
        while self.wire.session_changes:
            session = self.wire.session_changes.popleft()
            self._end_stream()
            if session is not None:
                self._stream, self._followed = session.stream, []
                hello = session.hello
                self._each_listener(lambda listener: listener.on_connected(hello))  # noqa: B023  called before the next one
            else:
                self._each_listener(lambda listener: listener.on_disconnected())

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _poll(self, until: float) -> bool:
        """Wait for something to do. Return whether the session is readable for whoever holds the wire."""
        wire, poller = self.wire, zmq.Poller()
        pollables = [] if self._stream is None else self._stream.pollables()
        session = wire.session if self._is_driving else None
        for pollable in (self._wake_fd, *pollables, *([] if session is None else session.pollables())):
            poller.register(pollable, zmq.POLLIN)
        wait = min(max(until - time.monotonic(), 0.0), IDLE_SECONDS)
        ready = poller.poll(int(wait * 1000) + (wait > 0))
        if self._stream is not None and self._stream.has_hung_up():
            self._is_suspect = True
        is_shared = self._stream is not None and self._stream.is_shared
        return is_shared and any(pollable != self._wake_fd for pollable, _ in ready)

    def _hand_out_events(self) -> None:
        if self._stream is not None:
            for topic, payload in self._stream.events():
                self._each_listener(lambda listener: listener.on_event(topic, payload))  # noqa: B023  called before the next one

    def _follow_topics(self) -> None:
        if self._stream is None:
            return
        topics = [listener.topics() for listener in self.listeners]
        if topics != self._followed:  # sets that are the same object compare at once
            self._followed = topics
            wanted: set[bytes] = set().union(*topics)
            try:
                self._stream.follow(wanted)
            except BrokerUnavailable:
                self._followed = []  # the session is lost, and whoever receives says so


def _clear(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        return  # nobody had written
