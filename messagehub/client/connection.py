"""One connection to the broker, shared by every thread of a process.

Rule 1: a caller that finds the wire idle uses it itself, which saves two thread switches. When others want it too, the
I/O thread takes over for all of them (`runtime.handover_lock`).
Rule 2: every wait has a deadline. A request ends once: by its reply, its timeout or the loss of the wire.
Rule 3: while no broker answers, requests fail at once. A broker that is there and does not answer is given time.
Rule 4: a forked child abandons the connection and makes its own: wire, threads and locks are the parent's.
Rule 5: an answer that makes no sense is treated as no answer.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from messagehub import protocol
from messagehub.client.connection_listener import ConnectionListener
from messagehub.client.io_thread import IoThread
from messagehub.client.pending_request import Done, PendingRequest
from messagehub.client.session import reachable
from messagehub.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    HubError,
    MessageTooLarge,
    is_not_found,
)
from messagehub.runtime.metrics import Metrics
from messagehub.security.credentials import ClientKeys
from messagehub.settings import Settings
from registry import commands, replies

GRACE_SECONDS = 0.25
"""How long an answer may take before the broker is asked whether it is there, and a discovery looks elsewhere."""
_COUNTERS = ["timeouts", "connects", "disconnects", "late_replies", "handed_over", "defects"]
_Reply = TypeVar("_Reply", bound=replies.Reply)
_Found = TypeVar("_Found")


class Connection:
    def __init__(self, settings: Settings, *, name: str) -> None:
        self.settings = settings
        self.metrics = Metrics(list(protocol.COMMANDS_BY_TYPE), _COUNTERS)
        self.exchanges: deque[tuple[float, str, str, str, float]] = deque(maxlen=settings.trace_size)
        self._accounts = {kind: (tag, self.metrics.requests[tag]) for tag, kind in protocol.COMMANDS_BY_TYPE.items()}
        self._name = name
        self._numbers = itertools.count(1)
        self._io = IoThread(settings, name, self.metrics, self._ping)
        self._wire = self._io.wire

    @property
    def listeners(self) -> Sequence[ConnectionListener]:
        """What follows this connection: it is kept up while one of them is active."""
        return self._io.listeners

    @listeners.setter
    def listeners(self, listeners: Sequence[ConnectionListener]) -> None:
        self._io.listeners = listeners

    @property
    def hello(self) -> replies.HelloAck | None:
        """What the broker said of itself; None while there is no connection."""
        session = self._wire.session  # once: its owner may drop it at any time
        return None if session is None else session.hello

    @property
    def is_used(self) -> bool:
        """Whether it has anything open."""
        return self._io.is_used

    # -- asking --------------------------------------------------------------------------------------------

    def request(self, command: commands.Command, *, timeout: float, is_patient: bool = False) -> replies.AnyReply:
        """Send one command and return its reply; an ERROR reply, a timeout and no broker are raised.

        With `is_patient`, for a caller that has nobody else to ask, a broker may be slow to shake hands.
        """
        reply: replies.AnyReply = self._perform(command, timeout, is_patient=is_patient)
        return reply

    def ask(self, command: commands.Command, kind: type[_Reply], *, timeout: float, is_patient: bool = False) -> _Reply:
        """Do as `request` does, and raise if the reply is of another kind."""
        return self._checked(command, self.request(command, timeout=timeout, is_patient=is_patient), kind)

    def ask_or(
        self, command: commands.Command, kind: type[_Reply], otherwise: Callable[[], _Found | None], *, timeout: float
    ) -> _Reply | _Found:
        """Do as `ask` does. If no answer comes in a moment, return what `otherwise` finds instead, if anything."""
        answer: _Reply | _Found = self._perform(command, timeout, otherwise=otherwise)
        if type(answer) is not kind and isinstance(answer, replies.Reply):
            return self._checked(command, answer, kind)
        return answer

    def _perform(
        self,
        command: commands.Command,
        timeout: float,
        *,
        is_patient: bool = False,
        otherwise: Callable[[], object] | None = None,
    ) -> Any:
        """Return the reply, or what `otherwise` finds when no reply came in a moment."""
        started = time.monotonic()
        request = self._pending_request(command, started + timeout)
        request.is_patient = is_patient
        refusal = ""
        wire, reply = self._wire, None
        try:
            # Whoever can look elsewhere leaves a new connection to the I/O thread, since connecting may take long.
            if (otherwise is None or wire.session is not None) and wire.owner.acquire_if_free():
                reply = self._send_directly(request)
            else:
                self._leave_to_thread(request)
            if reply is None and (reply := self._reply_in_a_moment(request)) is None:
                if otherwise is not None and (found := otherwise()) is not None:
                    request.deadline = 0.0  # not sent if it was not yet
                    wire.pending.pop(request.request_id, None)
                    return found
                reply = self._await_thread(request)
            return reply if type(reply) is not replies.Error else protocol.unwrap(reply)
        except HubError as error:
            refusal = error.code
            if isinstance(error, BrokerUnavailable):
                error.was_sent = request.is_sent
            raise
        finally:
            self.account(command, request.request_id, refusal, started)

    def _checked(self, command: commands.Command, reply: replies.Reply, kind: type[_Reply]) -> _Reply:
        if not isinstance(reply, kind):
            asked, said = command.__struct_config__.tag, reply.__struct_config__.tag
            raise BrokerUnavailable(f"the broker answers a {asked} with a {said}", endpoint=self.settings.endpoint)
        return reply

    def ask_hello(self, *, timeout: float) -> replies.HelloAck:
        """Ask the broker for its HELLO again: its endpoints may have changed, and our rights to them."""
        hello = self.ask(commands.Hello(), replies.HelloAck, timeout=timeout, is_patient=True)
        hello.endpoints = reachable(hello.endpoints, self._wire.find_endpoint())
        return hello

    def check_open(self) -> None:
        self._wire.check_open()

    def check_presence(self) -> None:
        """Raise at once, and before anything is made ready to be sent, when this directory's broker does not run."""
        if self._wire.session is None or self._wire.is_closed:
            self._wire.check_presence()

    def keys(self, endpoint: str) -> ClientKeys:
        """What sockets to this endpoint need."""
        return self._wire.keys(endpoint)

    def submit(self, command: commands.Command, done: Done, *, timeout: float) -> None:
        """Send from the I/O thread; `done` is called there, once, with the reply or the error."""
        self._io.outbox.append(self._pending_request(command, time.monotonic() + timeout, done))

    def wake(self) -> None:
        """Have the I/O thread, started when none is alive, look at its listeners and what is submitted."""
        self._io.wake()

    def suspect(self) -> None:
        """Have the I/O thread ask the broker whether it is still there."""
        self._io.suspect()

    def count_defect(self) -> None:
        """Note that a thread of this hub met a defect, logged it and goes on. Any thread may call this."""
        self._io.count_defect()

    def close(self) -> None:
        """Idempotent. Requests under way end with BrokerUnavailable; from then on there is NotInitialised."""
        self._io.close()

    def abandon(self) -> None:
        """In a forked child: never touch the parent's sockets, not even by collecting them as garbage."""
        _left_by_parent.append(self)
        self._io.abandon()

    def _ping(self, done: Done, timeout: float) -> None:
        self.submit(commands.Ping(priority="high"), done, timeout=timeout)

    def _pending_request(self, command: commands.Command, deadline: float, done: Done | None = None) -> PendingRequest:
        command.id = f"{self._name}-{next(self._numbers):x}"
        payload = protocol.encode(command)
        if len(payload) > protocol.MAX_REQUEST_BYTES:
            raise MessageTooLarge(
                f"the request has {len(payload)} bytes, the limit is {protocol.MAX_REQUEST_BYTES}",
                size_bytes=len(payload),
                limit_bytes=protocol.MAX_REQUEST_BYTES,
            )
        return PendingRequest(command.id, payload, deadline, done)

    def _reply_in_a_moment(self, request: PendingRequest) -> replies.AnyReply | None:
        """Return the reply to a request of the I/O thread, or None if none came in a moment."""
        moment = min(request.deadline, time.monotonic() + GRACE_SECONDS)
        if request.is_answered(moment):
            return self._await_thread(request)
        if moment < request.deadline:
            self.suspect()
        return None

    def _send_directly(self, request: PendingRequest) -> replies.AnyReply | None:
        """Use the wire, which this thread holds, for a moment, or until the I/O thread asks for it."""
        wire, io = self._wire, self._io
        try:
            if wire.session is None or wire.is_closed:
                wire.connect(request.deadline, is_patient=request.is_patient)
            until = min(request.deadline, time.monotonic() + GRACE_SECONDS)
            reply = wire.exchange(request, until, io.wake)
            if reply is not None:
                return reply
            if time.monotonic() >= request.deadline:
                raise self._timed_out()
            self.metrics.count("handed_over")
            wire.pending[request.request_id] = request.share()
        except BrokerUnavailable as lost:
            if not isinstance(lost, BrokerTimeout):
                wire.drop(lost.message)
            raise
        finally:
            wire.owner.release()
        self.wake()
        return None

    def _leave_to_thread(self, request: PendingRequest) -> None:
        self.check_open()
        if self._wire.session is None:
            self._wire.check_backoff(self._wire.find_endpoint())
        self._io.outbox.append(request.share())
        self.wake()

    def _await_thread(self, request: PendingRequest) -> replies.AnyReply:
        if not request.is_answered(request.deadline):
            self._wire.pending.pop(request.request_id, None)
            raise self._timed_out()
        if request.error is not None:
            raise request.error
        assert request.reply is not None
        return request.reply

    def _timed_out(self) -> BrokerTimeout:
        self.metrics.count("timeouts")
        self.suspect()
        return BrokerTimeout("the broker did not answer in time", endpoint=self.settings.endpoint)

    def account(self, command: commands.Command, request_id: str, refusal: str, started: float) -> None:
        """Count an exchange that has ended, and note it for the trace."""
        elapsed = time.monotonic() - started
        name, histogram = self._accounts[type(command)]
        histogram.record(elapsed)
        if refusal and not is_not_found(refusal):
            histogram.errors += 1
        self.exchanges.append((time.time() - elapsed, request_id, name, refusal or "ok", elapsed))


_left_by_parent: list[Connection] = []
