"""The wire of a connection: its session with the broker while there is one, and the requests that are on their way.

Rule 1: the wire belongs to whoever holds `owner`; only its owner connects, sends, receives and drops. A caller that
finds the wire idle takes it; the I/O thread asks for it when others want in.
Rule 2: a request ends once: by its reply, its timeout or the loss of the wire.
Rule 3: connecting again backs off, with jitter; in between it fails at once. A broker that is there and does not answer
is given time (a busy host is not an absent broker), but not the time of every caller.
"""

import copy
import logging
import time
from collections import deque
from collections.abc import Callable

import zmq

from messagehub.client.backoff import Backoff
from messagehub.client.broker_file import is_held, running_broker
from messagehub.client.event_socket import Context
from messagehub.client.opening import open_session
from messagehub.client.pending_request import PendingRequest
from messagehub.client.session import REPLIES_AT_ONCE, Session, receive
from messagehub.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    Forbidden,
    HubError,
    NotInitialised,
    TooManyOpenFiles,
    Unauthorized,
)
from messagehub.runtime.handover_lock import HandoverLock
from messagehub.runtime.metrics import Metrics
from messagehub.security.credentials import ClientKeys
from messagehub.settings import Settings
from messagehub.shm.locks import open_files_limited
from registry import replies

log = logging.getLogger("messagehub.client")

_REFUSALS = (Unauthorized, Forbidden, ConfigurationError)


class Wire:
    def __init__(self, settings: Settings, name: str, metrics: Metrics, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a session has begun or ended; `session_changes` says which."""
        self.owner = HandoverLock()
        self.session: Session | None = None
        self.pending: dict[str, PendingRequest] = {}
        self.session_changes: deque[Session | None] = deque()
        """Sessions that have begun, and None for the end of each."""
        self.backoff = Backoff(settings)
        self.is_closed = False
        self._settings = settings
        self._name = name
        self._metrics = metrics
        self._on_change = on_change
        self._context: Context | None = None
        self._connecting_at: float | None = None
        self._lock_path = str(settings.lock_path) if settings.is_local else None
        self._refusal: HubError | None = None
        self._keys: ClientKeys | None = None

    # -- by any thread -------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.is_closed:
            raise NotInitialised("this hub is closed")

    def check_presence(self) -> None:
        """Raise at once when this directory's broker does not run."""
        self.check_open()
        if self.session is None and self._lock_path is not None and not is_held(self._lock_path):
            raise BrokerUnavailable(f"no broker runs in {self._settings.dir}", dir=str(self._settings.dir))

    def find_endpoint(self) -> str:
        """What the settings say; for the directory's own broker, what its file says while its lock is held."""
        if not self._settings.is_local:
            return self._settings.endpoint
        with open_files_limited():
            running = running_broker(self._settings)
        if running is None:
            raise BrokerUnavailable(f"no broker runs in {self._settings.dir}", dir=str(self._settings.dir))
        return running.endpoint

    def keys(self, endpoint: str) -> ClientKeys:
        """What sockets to this endpoint need. On ipc the kernel says who we are, and keys are not used."""
        if endpoint.startswith("ipc://"):
            return ClientKeys("", "")
        if self._keys is None:
            self._keys = ClientKeys(self._settings.server_key, self._settings.key_file)
        return self._keys

    def check_backoff(self, endpoint: str) -> None:
        """Raise when a broker was tried a moment ago, or is being tried again and takes its time."""
        now, connecting_at = time.monotonic(), self._connecting_at
        is_slow = connecting_at is not None and now - connecting_at > self._settings.hello_timeout_seconds
        if now < self.backoff.retry_at or (is_slow and self.backoff.has_failed):
            raise copy.copy(self._refusal) or BrokerUnavailable(f"no broker answers at {endpoint}", endpoint=endpoint)

    # -- by the owner --------------------------------------------------------------------------------------

    @open_files_limited()
    def connect(self, deadline: float, *, is_patient: bool = False, in_background: bool = False) -> Session:
        """Return the session, or raise: at once when nobody is there or it was tried a moment ago."""
        self.check_open()
        if self.session is not None:
            return self.session
        endpoint = self.find_endpoint()
        self.check_backoff(endpoint)
        with open_files_limited():
            fd = self.owner.open()
        self._connecting_at = now = time.monotonic()
        shaken_by, answered_by = self.backoff.deadlines(deadline, is_patient=is_patient, in_background=in_background)
        try:
            session = open_session(
                endpoint,
                self._zmq_context,
                transport=self._settings.transport,
                deadline=answered_by,
                handshake_deadline=shaken_by,
                hello_id=f"{self._name}-hello",
                keys=self.keys(endpoint),
                is_cancelled=lambda: self.is_closed,
            )
        except TooManyOpenFiles:
            raise  # it says nothing about the broker
        except HubError as error:
            # A copy, without the frames that it was raised in: they hold what the user may forget.
            self._refusal = copy.copy(error) if isinstance(error, _REFUSALS) else None
            self.backoff.back_off()
            if time.monotonic() - now >= self._settings.hello_timeout_seconds:
                self.backoff.no_hello()
            if isinstance(error, (*_REFUSALS, BrokerUnavailable)):
                raise
            said = f"the broker at {endpoint} cannot be used: {error.message}"
            raise BrokerUnavailable(said, endpoint=endpoint) from error
        finally:
            self._connecting_at = None
        session.also_poll(fd)
        self.backoff.reset()
        self.session = session
        self.session_changes.append(session)
        self._metrics.count("connects")
        self._on_change()
        return session

    def _zmq_context(self) -> Context:
        if self._context is None:
            self._context = zmq.Context()
        return self._context

    def exchange(self, request: PendingRequest, until: float, wake: Callable[[], None]) -> replies.AnyReply | None:
        """Send, and return the reply; None when it is not here in time, or another thread is to have the wire.

        `wake` has the I/O thread hand out events that came meanwhile.
        """
        session = self.session
        assert session is not None

        def receive_own(until: float) -> None:
            if not session.poll(until):
                return
            for _ in range(REPLIES_AT_ONCE):
                if (reply := session.receive_one()) is None:
                    session.check_lost()
                    break
                if reply.id == request.request_id:
                    request.reply = reply
                    return
                self.deliver(reply)  # of a caller that handed its request over a moment ago
            if session.has_events:
                wake()

        request.is_sent = True
        session.lend()
        try:
            session.send(request.payload)
            receive_own(until)
            if request.reply is None:  # an event came, or another caller's reply, or somebody wants the wire
                self.owner.drive(request.has_reply, receive_own, until)
        finally:
            if session.take_back():
                wake()
        return request.reply

    def receive(self) -> None:
        """Deliver what has come, and end requests of the I/O thread that are late."""
        assert self.session is not None
        try:
            for reply in receive(self.session):
                self.deliver(reply)
        except HubError as lost:
            self.drop(lost.message)
        now = time.monotonic()
        for request in list(self.pending.values()):
            is_late = request.done is not None and request.deadline <= now
            if is_late and self.pending.pop(request.request_id, None) is not None:  # or else all have ended meanwhile
                request.finish(None, BrokerTimeout("the broker did not answer in time"))

    def deliver(self, reply: replies.AnyReply) -> None:
        request = self.pending.pop(reply.id, None) if isinstance(reply.id, str) else None
        if request is None:
            self._metrics.count("late_replies")
        else:
            request.finish(reply)

    def drop(self, why: str) -> None:
        """Throw the session away and end every request that was on it."""
        if self.session is None:
            return
        log.debug("disconnected: %s", why)
        self.session.close()
        self.session = None
        self.session_changes.append(None)
        self._metrics.count("disconnects")
        self.backoff.back_off()
        while self.pending:
            self.pending.popitem()[1].finish(None, BrokerUnavailable(why, endpoint=self._settings.endpoint))
        self._on_change()

    def close(self) -> None:
        self.owner.take_over()
        try:
            self.drop("this client is closed")
            if self._context is not None:
                self._context.term()
                self._context = None
        finally:
            self.owner.release()
        self.owner.close()

    def abandon(self) -> None:
        """In a forked child: the parent's session goes on."""
        self.owner.abandon()
        if self.session is not None:
            self.session.abandon()
