"""One connection to the broker, shared by every thread of a process.

Rule 1: the wire belongs to whoever holds `_owner`. A caller that finds it free drives the socket itself, which
saves two thread switches; when others want in, it yields and the I/O thread drives for all of them.
Rule 2: every wait has a deadline. A request ends once: by its reply, its timeout or the loss of the wire.
Rule 3: reconnecting backs off, with jitter; in between, requests fail at once. Who is there and does not answer is
given time (a busy host is not an absent broker), but not the time of every caller.
Rule 4: a forked child abandons the connection and makes its own: wire, threads and locks are the parent's.
Rule 5: an answer that makes no sense is none. Nothing that a broker sends, and no listener, ends the I/O thread.
"""

import copy
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import zmq

from messagehub import protocol
from messagehub.client.backoff import Backoff
from messagehub.client.broker_file import is_held, running_broker
from messagehub.client.connection_listener import ConnectionListener
from messagehub.client.event_socket import EventSocket
from messagehub.client.pending_request import Done, PendingRequest
from messagehub.client.session import REPLIES_AT_ONCE, Context, Session, connected, reachable, shakes_hands
from messagehub.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    Forbidden,
    HubError,
    MessageTooLarge,
    NotInitialised,
    Unauthorized,
    is_not_found,
)
from messagehub.runtime.metrics import Metrics
from messagehub.runtime.supervision import keep_turning
from messagehub.security.credentials import ClientKeys
from messagehub.settings import Settings
from messagehub.shm.locks import check_spare_files, open_files_limited
from registry import commands, replies

log = logging.getLogger("messagehub.client")

IDLE_SECONDS = 60.0
CLOSE_SECONDS = 5.0
CONNECTION_FILES = 20
"""So many a connection takes at most: two sockets with their monitors, and libzmq's own threads."""
GRACE_SECONDS = 0.25
"""So long an answer may take before the broker is asked whether it is there, and before a discovery looks elsewhere."""
_COUNTERS = ["timeouts", "connects", "disconnects", "late_replies", "handed_over", "defects"]
_REFUSALS = (Unauthorized, Forbidden, ConfigurationError)
_Reply = TypeVar("_Reply", bound=replies.Reply)
_Found = TypeVar("_Found")


class Connection:
    def __init__(self, settings: Settings, *, name: str) -> None:
        self.settings = settings
        self.metrics = Metrics(list(protocol.COMMANDS_BY_TYPE), _COUNTERS)
        self.exchanges: deque[tuple[float, str, str, str, float]] = deque(maxlen=settings.trace_size)
        self.parts: Sequence[ConnectionListener] = ()
        self._name = name
        self._numbers = itertools.count(1)
        self._is_closed = False
        self.hello: replies.HelloAck | None = None
        self._owner = threading.Lock()
        self._is_driving = False
        """Whether the I/O thread holds `_owner`."""
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_fd = self._yield_fd = -1
        self._context: Context | None = None
        self._wire: Session | None = None
        self._events = EventSocket()
        self._followed: list[set[bytes]] = []
        self._outbox: deque[PendingRequest] = deque()
        self._pending: dict[str, PendingRequest] = {}
        self._is_suspect = False
        self._is_pinging = False
        self._connecting_at: float | None = None
        self._counting = threading.Lock()
        self._news: deque[replies.HelloAck | None] = deque()
        self._patience = Backoff(settings)
        self._lock_path = str(settings.lock_path) if settings.is_local else None
        self._refusal: HubError | None = None
        self._keys: ClientKeys | None = None

    @property
    def is_used(self) -> bool:
        """Whether it has anything open."""
        return self._wake_fd >= 0

    # -- asking --------------------------------------------------------------------------------------------

    def request(self, command: commands.Command, *, timeout: float, is_patient: bool = False) -> replies.AnyReply:
        """Send one command and return its reply; an ERROR reply, a timeout and no broker are raised.

        Who has nobody else to ask is patient with a broker that takes its time to shake hands.
        """

        def send(waiter: PendingRequest) -> replies.AnyReply:
            waiter.is_patient = is_patient
            return self._send(waiter)

        reply: replies.AnyReply = self._performed(command, timeout, send)
        return reply

    def ask(self, command: commands.Command, kind: type[_Reply], *, timeout: float, is_patient: bool = False) -> _Reply:
        """As `request`; an answer of another kind is no answer."""
        return self._checked(command, self.request(command, timeout=timeout, is_patient=is_patient), kind)

    def ask_or(
        self, command: commands.Command, kind: type[_Reply], otherwise: Callable[[], _Found | None], *, timeout: float
    ) -> _Reply | _Found:
        """As `ask`. When no answer came in a moment, what `otherwise` finds is returned instead, if anything."""
        found: list[_Found] = []

        def send(waiter: PendingRequest) -> replies.AnyReply | None:
            reply = self._begin(waiter, may_connect=False)
            if reply is None:
                other = otherwise()
                if other is not None:
                    found.append(other)
                    waiter.deadline = 0.0  # not sent if it was not yet
                    self._pending.pop(waiter.request_id, None)
                    return None
                reply = self._await_thread(waiter)
            return reply

        reply = self._performed(command, timeout, send)
        return found[0] if found else self._checked(command, reply, kind)

    def _performed(self, command: commands.Command, timeout: float, send: Callable[[PendingRequest], Any]) -> Any:
        started = time.monotonic()
        waiter = self._waiter(command, started + timeout)
        refusal = ""
        try:
            reply = send(waiter)
            return reply if reply is None else protocol.unwrap(reply)
        except HubError as error:
            refusal = error.code
            if isinstance(error, BrokerUnavailable):
                error.was_sent = waiter.is_sent
            raise
        finally:
            self._account(command, waiter.request_id, refusal, started)

    def _checked(self, command: commands.Command, reply: replies.AnyReply, kind: type[_Reply]) -> _Reply:
        if not isinstance(reply, kind):
            asked, said = command.__struct_config__.tag, reply.__struct_config__.tag
            raise BrokerUnavailable(f"the broker answers a {asked} with a {said}", endpoint=self.settings.endpoint)
        return reply

    def ask_hello(self, *, timeout: float) -> replies.HelloAck:
        """What the broker says of itself now: its endpoints may have changed, and our rights to them."""
        hello = self.ask(commands.Hello(), replies.HelloAck, timeout=timeout, is_patient=True)
        hello.endpoints = reachable(hello.endpoints, self._find_endpoint())
        return hello

    def check_open(self) -> None:
        if self._is_closed:
            raise NotInitialised("this hub is closed")

    def check_presence(self) -> None:
        """Raise at once, and before anything is made ready to be sent, when this directory's broker does not run."""
        self.check_open()
        if self._wire is None and self._lock_path is not None and not is_held(self._lock_path):
            raise BrokerUnavailable(f"no broker runs in {self.settings.dir}", dir=str(self.settings.dir))

    def submit(self, command: commands.Command, done: Done, *, timeout: float) -> None:
        """Send from the I/O thread; `done` is called there, once, with the reply or the error."""
        self._outbox.append(self._waiter(command, time.monotonic() + timeout, done))

    def wake(self) -> None:
        """Have the I/O thread, started when none is alive, look at its parts and its outbox."""
        with self._starting:  # which `close` takes too: an fd that was closed may be somebody else's by now
            if self._is_closed:
                return
            self._open()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="messagehub-io", daemon=True)
                self._thread.start()
            os.eventfd_write(self._wake_fd, 1)

    def suspect(self) -> None:
        """Something is odd about the broker: have the I/O thread ask it."""
        self._is_suspect = True
        self.wake()

    def close(self) -> None:
        """Idempotent. Requests under way end with BrokerUnavailable; from then on there is NotInitialised."""
        with self._starting:
            if self._is_closed:
                return
            self._is_closed = True
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
                os.eventfd_write(self._yield_fd, 1)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)
        with self._owner:
            self._drop("this client is closed")
            if self._context is not None:
                self._context.term()
                self._context = None
            self._close_fds()

    def abandon(self) -> None:
        """In a forked child: never touch the parent's sockets, not even by collecting them as garbage."""
        _left_by_parent.append(self)
        self._close_fds()

    def _open(self) -> None:
        """Nothing is held before the first use; only under `_starting`."""
        if self._wake_fd < 0:
            check_spare_files(2)
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._yield_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def _close_fds(self) -> None:
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            os.close(self._yield_fd)
            self._wake_fd = self._yield_fd = -1

    def _waiter(self, command: commands.Command, deadline: float, done: Done | None = None) -> PendingRequest:
        command.id = f"{self._name}-{next(self._numbers):x}"
        payload = protocol.encode(command)
        if len(payload) > protocol.MAX_REQUEST_BYTES:
            raise MessageTooLarge(
                f"the request has {len(payload)} bytes, the limit is {protocol.MAX_REQUEST_BYTES}",
                size_bytes=len(payload),
                limit_bytes=protocol.MAX_REQUEST_BYTES,
            )
        return PendingRequest(command.id, payload, deadline, done)

    def _send(self, waiter: PendingRequest) -> replies.AnyReply:
        reply = self._begin(waiter, may_connect=True)
        return self._await_thread(waiter) if reply is None else reply

    def _begin(self, waiter: PendingRequest, *, may_connect: bool) -> replies.AnyReply | None:
        """Send. None when no answer came in a moment: the I/O thread waits on, and asks whether the broker is there.

        Connecting may take its time, which a caller has unless `may_connect` says otherwise.
        """
        if (may_connect or self._wire is not None) and self._owner.acquire(blocking=False):
            reply = self._send_directly(waiter)
            if reply is not None:
                return reply
        else:
            self._leave_to_thread(waiter)
        moment = min(waiter.deadline, time.monotonic() + GRACE_SECONDS)
        if waiter.is_answered(moment):
            return self._await_thread(waiter)
        if moment < waiter.deadline:
            self.suspect()
        return None

    def _send_directly(self, waiter: PendingRequest) -> replies.AnyReply | None:
        """The wire is ours: drive it for a moment, unless the I/O thread asks for it before the reply is here."""
        try:
            self._connect(waiter.deadline, is_patient=waiter.is_patient)
            reply = self._exchange(waiter, min(waiter.deadline, time.monotonic() + GRACE_SECONDS))
            if reply is not None:
                return reply
            self.metrics.count("handed_over")
            self._pending[waiter.request_id] = waiter.share()
        except BrokerUnavailable as lost:
            if not isinstance(lost, BrokerTimeout):
                self._drop(lost.message)
            raise
        finally:
            self._owner.release()
        self.wake()
        return None

    def _exchange(self, waiter: PendingRequest, until: float) -> replies.AnyReply | None:
        """Our reply, or None when the I/O thread asks for the wire, or is to wait on for us."""
        wire = self._wire
        assert wire is not None
        waiter.is_sent = True
        wire.send(waiter.payload)
        while wire.poll(until):
            for _ in range(REPLIES_AT_ONCE):
                if (reply := wire.receive_one()) is None:
                    wire.check_lost()
                    break
                if reply.id == waiter.request_id:
                    return reply
                self._deliver(reply)  # of a caller that handed its request over a moment ago
            if _is_set(self._yield_fd):
                return None
            if time.monotonic() >= until:  # also while answers that nobody asked for come without end
                break
        if until < waiter.deadline:
            return None
        raise self._timed_out()

    def _leave_to_thread(self, waiter: PendingRequest) -> None:
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        if self._wire is None:
            self._check_patience(self._find_endpoint())
        self._outbox.append(waiter.share())
        self.wake()

    def _check_patience(self, endpoint: str) -> None:
        """Raise when a broker was tried a moment ago, or is being tried again and takes its time."""
        now, connecting_at = time.monotonic(), self._connecting_at
        is_slow = connecting_at is not None and now - connecting_at > self.settings.hello_timeout_seconds
        if now < self._patience.retry_at or (is_slow and self._patience.has_failed):
            raise copy.copy(self._refusal) or BrokerUnavailable(f"no broker answers at {endpoint}", endpoint=endpoint)

    def _await_thread(self, waiter: PendingRequest) -> replies.AnyReply:
        if not waiter.is_answered(waiter.deadline):
            self._pending.pop(waiter.request_id, None)
            raise self._timed_out()
        if waiter.error is not None:
            raise waiter.error
        assert waiter.reply is not None
        return waiter.reply

    def _timed_out(self) -> BrokerTimeout:
        self.metrics.count("timeouts")
        self.suspect()
        return BrokerTimeout("the broker did not answer in time", endpoint=self.settings.endpoint)

    def _account(self, command: commands.Command, request_id: str, refusal: str, started: float) -> None:
        elapsed = time.monotonic() - started
        name = str(command.__struct_config__.tag)
        histogram = self.metrics.requests[name]
        histogram.record(elapsed)
        if refusal and not is_not_found(refusal):
            histogram.errors += 1
        self.exchanges.append((time.time() - elapsed, request_id, name, refusal or "ok", elapsed))

    # -- the wire; only by its owner -----------------------------------------------------------------------

    def _connect(self, deadline: float, *, is_patient: bool = False, in_background: bool = False) -> None:
        """Be connected, or raise: at once when nobody is there or it was tried a moment ago."""
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        if self._wire is not None:
            return
        endpoint = self._find_endpoint()
        self._check_patience(endpoint)
        check_spare_files(CONNECTION_FILES)
        with self._starting:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            self._open()
        if self._context is None:
            self._context = zmq.Context()
        self._connecting_at = now = time.monotonic()
        shaken_by, answered_by = self._patience.deadlines(deadline, is_patient=is_patient, in_background=in_background)
        try:
            wire = connected(
                self._context,
                endpoint,
                deadline=answered_by,
                handshake_deadline=shaken_by,
                hello_id=f"{self._name}-hello",
                keys=self.keys(endpoint),
                is_cancelled=lambda: self._is_closed,
            )
        except HubError as error:
            # A copy, without the frames that it was raised in: they hold what the user may forget.
            self._refusal = copy.copy(error) if isinstance(error, _REFUSALS) else None
            self._patience.back_off()
            if time.monotonic() - now >= self.settings.hello_timeout_seconds:
                self._patience.no_hello()
            if isinstance(error, (*_REFUSALS, BrokerUnavailable)):
                raise
            said = f"the broker at {endpoint} cannot be used: {error.message}"
            raise BrokerUnavailable(said, endpoint=endpoint) from error
        finally:
            self._connecting_at = None
        wire.also_poll(self._yield_fd)
        self._is_suspect = False
        self._patience.reset()
        self._wire, self.hello = wire, wire.hello
        self._news.append(wire.hello)
        self.metrics.count("connects")
        if any(part.is_active() for part in self.parts):
            self.wake()

    def _find_endpoint(self) -> str:
        """What the settings say; for the directory's own broker, what its file says while its lock is held."""
        if not self.settings.is_local:
            return self.settings.endpoint
        with open_files_limited():
            running = running_broker(self.settings)
        if running is None:
            raise BrokerUnavailable(f"no broker runs in {self.settings.dir}", dir=str(self.settings.dir))
        return running.endpoint

    def keys(self, endpoint: str) -> ClientKeys:
        """What sockets to this endpoint need. On ipc the kernel says who we are, and keys are not used."""
        if endpoint.startswith("ipc://"):
            return ClientKeys("", "")
        if self._keys is None:
            self._keys = ClientKeys(self.settings.server_key, self.settings.key_file)
        return self._keys

    def _drop(self, why: str) -> None:
        """Throw the wire away and end every request that was on it."""
        if self._wire is None:
            return
        log.debug("disconnected: %s", why)
        self._wire.close()
        self._wire = self.hello = None
        self._news.append(None)
        self.metrics.count("disconnects")
        self._patience.back_off()
        while self._pending:
            self._pending.popitem()[1].finish(None, BrokerUnavailable(why, endpoint=self.settings.endpoint))
        if not self._is_closed and any(part.is_active() for part in self.parts):
            self.wake()

    # -- the I/O thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            keep_turning(
                self._turn,
                what="the I/O thread of a client",
                log=log,
                is_over=lambda: self._is_closed,
                on_defect=self._after_defect,
            )
        finally:
            if self._is_driving:
                self._is_driving = False
                self._owner.release()
            self._events.close()
            self._fail_outbox(BrokerUnavailable("this client is closed"))

    def count_defect(self) -> None:
        """Note that a thread of this hub met a defect, logged it and goes on. Any thread may call this."""
        with self._counting:
            self.metrics.count("defects")

    def _after_defect(self) -> None:
        """Begin with a new connection: what is on its way on this one may be half done."""
        self.count_defect()
        if self._is_driving:
            self._drop("a defect in this client; its log says more")

    def _each_part(self, tell: Callable[[ConnectionListener], _Found]) -> list[_Found]:
        """One part's defect is its own: the others hear what happened, and the thread goes on."""
        told = []
        for part in self.parts:
            try:
                told.append(tell(part))
            except Exception:
                self.count_defect()
                log.exception("%s failed, and goes on", type(part).__name__)
        return told

    def _turn(self) -> None:
        """One round of the thread's loop; the wire is kept while something is on its way."""
        _clear(self._wake_fd)
        if self._is_closed:  # said after the loop looked, and the wake-up is used up
            return
        self._tell_parts()
        now = time.monotonic()
        due_at = min(self._each_part(lambda part: part.tick(now)), default=now + IDLE_SECONDS)
        if self._is_suspect and self._wire is not None and not self._is_pinging:
            self._is_suspect = False
            self._ping(self.settings.hello_timeout_seconds, self._after_ping)
        is_wanted = bool(self._outbox or self._pending) or self._wants_connection()
        if is_wanted and not self._is_driving:
            self._is_driving = self._seize()
        if self._is_driving:
            self._send_outbox()
        self._follow_topics()
        self._poll(self._next_due(due_at))
        if self._is_driving and self._wire is not None:
            self._receive()
        if self._is_driving and not (self._outbox or self._pending):
            self._is_driving = False
            self._owner.release()

    def _wants_connection(self) -> bool:
        is_due = self._wire is None and time.monotonic() >= self._patience.retry_at
        return is_due and any(part.is_active() for part in self.parts)

    def _next_due(self, due_at: float) -> float:
        if self._wire is None and any(part.is_active() for part in self.parts):
            due_at = min(due_at, self._patience.next_look())
        own = (waiter.deadline for waiter in list(self._pending.values()) if waiter.done is not None)
        return min(own, default=due_at) if due_at > time.monotonic() else due_at

    def _seize(self) -> bool:
        """Take the wire from a caller that drives it; it yields within one poll."""
        if not self._owner.acquire(blocking=False):
            os.eventfd_write(self._yield_fd, 1)
            if not self._owner.acquire(timeout=CLOSE_SECONDS):
                return False
        _clear(self._yield_fd)
        return True

    def _send_outbox(self) -> None:
        try:
            self._connect(time.monotonic() + self._patience.most_seconds, in_background=True)
            self._tell_parts()
            now = time.monotonic()
            while self._outbox and self._wire is not None:
                waiter = self._outbox.popleft()
                if waiter.deadline <= now:  # nobody waits for it any more
                    late = BrokerTimeout("the broker did not answer in time")
                    late.was_sent = False
                    waiter.finish(None, late)
                    continue
                waiter.is_sent = True
                self._pending[waiter.request_id] = waiter
                self._wire.send(waiter.payload)
        except NotInitialised:
            return  # closed meanwhile: this thread ends, and fails what is left
        except HubError as error:
            self._drop(error.message)
            self._fail_outbox(error)
            self._patience.look_less_often()

    def _receive(self) -> None:
        assert self._wire is not None
        try:
            for reply in self._wire.receive():
                self._deliver(reply)
        except HubError as lost:
            self._drop(lost.message)
        now = time.monotonic()
        for waiter in list(self._pending.values()):
            is_late = waiter.done is not None and waiter.deadline <= now
            if is_late and self._pending.pop(waiter.request_id, None) is not None:  # or else all have ended meanwhile
                waiter.finish(None, BrokerTimeout("the broker did not answer in time"))

    def _deliver(self, reply: replies.AnyReply) -> None:
        waiter = self._pending.pop(reply.id, None) if isinstance(reply.id, str) else None
        if waiter is None:
            self.metrics.count("late_replies")
        else:
            waiter.finish(reply)

    def _ping(self, timeout: float, after: Done) -> None:
        self._is_pinging = True
        self.submit(commands.Ping(priority="high"), after, timeout=timeout)

    def _after_ping(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        self._is_pinging = False
        wire = self._wire
        if reply is not None or error is None or wire is None or self._context is None:
            return
        deadline = time.monotonic() + self.settings.hello_timeout_seconds
        if shakes_hands(self._context, wire.endpoint, deadline=deadline, keys=self.keys(wire.endpoint)):
            self._ping(self._patience.most_seconds, self._after_last_ping)  # it runs, and is busy
        else:
            self._drop(f"no answer to PING: {error.message}")

    def _after_last_ping(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        self._is_pinging = False
        if reply is None and error is not None:
            self._drop(f"no answer to PING: {error.message}")

    def _fail_outbox(self, error: HubError) -> None:
        if isinstance(error, BrokerUnavailable):
            error.was_sent = False
        while self._outbox:
            self._outbox.popleft().finish(None, error)

    def _tell_parts(self) -> None:
        while self._news:
            hello = self._news.popleft()
            self._events.close()
            if hello is not None:
                self._each_part(lambda part: part.on_connected(hello))  # noqa: B023  called before the next one
            else:
                self._each_part(lambda part: part.on_disconnected())

    def _poll(self, until: float) -> None:
        """Wait for something to do, then hand out events."""
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        if self._events.socket is not None:
            poller.register(self._events.socket, zmq.POLLIN)
        if self._events.monitor is not None:
            poller.register(self._events.monitor, zmq.POLLIN)
        if self._is_driving and self._wire is not None:
            poller.register(self._wire.dealer, zmq.POLLIN)
            poller.register(self._wire.monitor, zmq.POLLIN)
        wait = min(max(until - time.monotonic(), 0.0), IDLE_SECONDS)
        poller.poll(int(wait * 1000) + (wait > 0))
        if self._events.has_hung_up():
            self._is_suspect = True
        for topic, payload in self._events.events():
            self._each_part(lambda part: part.on_event(topic, payload))  # noqa: B023  called before the next one

    def _follow_topics(self) -> None:
        hello = self.hello  # once: a caller that drives the wire may drop it at any time
        if hello is not None and self._context is not None and "events" in hello.endpoints:  # if we may hear them
            topics = [part.topics() for part in self.parts]
            if self._events.socket is None or topics != self._followed:  # sets that are the same object compare at once
                self._followed = topics
                wanted: set[bytes] = set().union(*topics)
                self._events.follow(wanted, self._context, hello.endpoints["events"], self.keys)


_left_by_parent: list[Connection] = []


def _is_set(fd: int) -> bool:
    """Whether somebody wrote the eventfd; it stays set."""
    try:
        value = os.eventfd_read(fd)
    except BlockingIOError:
        return False
    os.eventfd_write(fd, value)
    return True


def _clear(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        return  # nobody had written
