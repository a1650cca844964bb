"""What this process has registered, kept true: one lease, one heartbeat, re-registration after a broker's restart.

Rule 1: here are the requests, their answers and the clock; `Registrations` knows what is wanted and what is due.
Rule 2: callbacks run on the I/O thread and only change the registration they are about.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from messagehub.client.connection import Connection
from messagehub.client.discovery_cache import glance_of
from messagehub.client.registration import END_SECONDS, Ack, Register, Registration
from messagehub.client.registration_state import Step
from messagehub.client.registrations import IDLE_SECONDS, Registrations
from messagehub.errors import BrokerUnavailable, ChannelClosed, Evicted, HubError, from_wire, is_unable
from registry import commands, replies
from registry.records import MailboxState

log = logging.getLogger("messagehub.client")

SOON_SECONDS = 0.05
LISTED_PER_TURN = 32

Unregistered = (
    replies.ProducerUnregistered
    | replies.ConsumerUnregistered
    | replies.WorkerUnregistered
    | replies.SubscriberUnregistered
)


class Heartbeats:
    def __init__(self, connection: Connection, *, lease: str, when_alone: Callable[[Registration], None]) -> None:
        """`when_alone` is called on the I/O thread for each registration that only a lost broker knew of."""
        self.lease = lease
        self._when_alone = when_alone
        self.on_access: Callable[[str, bool], None] | None = None
        """Called on the I/O thread, again and again, with what the broker says of the rights of all peers (`access`),
        and whether it has registered all workers of this process by now."""
        self.mailboxes: Callable[[], dict[str, MailboxState]] | None = None
        """Called on the I/O thread with each heartbeat: the mailboxes of this process's workers, by id."""
        self.notices: list[replies.Notice] = []
        self._connection = connection
        self._seconds = connection.settings.heartbeat_seconds
        self._next_at = 0.0
        self._beat_at = 0.0
        self._begin()

    def _begin(self) -> None:
        self._registrations = Registrations()
        self._unlisted: deque[Registration] = deque()
        self._is_connected = False
        self._broker_id = ""

    def register(self, command: Register, *, timeout: float, required: bool) -> Registration:
        """Register now if a broker is able to, else as soon as one is (unless `required`)."""
        registration = Registration(command, self)
        number, is_news = self._registrations.add(registration)
        error: BaseException | None = None
        try:
            reply = self._connection.request(command, timeout=timeout, is_patient=required)
            if isinstance(reply, Ack):
                self._registrations.acknowledge(registration, number, reply)
            else:
                error = _senseless(reply)
        except BaseException as raised:  # noqa: BLE001  an interrupt, too, leaves a request on its way; raised below
            error = raised
        if error is not None:
            is_news = True
            self._registrations.fail(registration, number, error, most_seconds=self._seconds)
            if required or not isinstance(error, HubError) or not is_unable(error):
                self._close(registration)
                raise error
        del error  # it refers to this frame and its callers, who are to be collected when they are forgotten
        if is_news or registration.state.name != "acknowledged":
            self._connection.wake()
        return registration

    def renew(self, registration: Registration, done: Callable[[HubError | None], None], *, timeout: float) -> None:
        """Say it again: the broker answers with what holds at that moment, and `done` is called on the I/O thread."""

        def answered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            if isinstance(reply, Ack):
                if not registration.has_ended:  # else it ended while it was renewed, and whoever reads is to hear why
                    registration.ack, registration.error = reply, None
                done(None)
            else:
                done(_refusal(reply, error))

        command = msgspec.structs.replace(registration.command)  # whoever sends it gives it an id
        self._connection.submit(command, answered, timeout=timeout)
        self._connection.wake()

    def end(self, registration: Registration, *, timeout: float = END_SECONDS) -> None:
        """Unregister, now or when a broker answers again."""
        number = self._close(registration, ask=True)
        if number is None:
            return
        reply: replies.AnyReply | None = None
        error: HubError | None = None
        try:
            reply = self._connection.request(registration.unregistration(), timeout=timeout)
        except HubError as refused:
            error = refused
        finally:  # also at an interrupt, after which there is neither
            self._after_unregistering(registration, number, reply, error)

    def end_all(self) -> list[Registration]:
        """Unregister everything at once; returns what no broker confirmed, because none answered for a moment."""
        ending = self._registrations.every()
        if ending:
            self.end(ending.pop())  # which shows whether there is a broker, and connects to it
        for registration in ending:
            self._close(registration)
        if self._registrations.is_any_untold and self._has_broker():
            self._connection.wake()
        return self._registrations.wait_told(END_SECONDS, self._has_broker)

    def forget_parent(self) -> None:
        """In a forked child: what the parent registered is the parent's."""
        self._registrations.abandon()
        self._begin()

    def _close(self, registration: Registration, *, ask: bool = False) -> int | None:
        return self._registrations.close(registration, ask=ask, has_broker=self._has_broker())

    def _has_broker(self) -> bool:
        return self._connection.hello is not None

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return not self._registrations.is_over

    def topics(self) -> set[bytes]:
        return self._registrations.topics

    def on_event(self, topic: bytes, payload: bytes) -> None:
        """Something happened to a channel of ours: fetch the notice of it now instead of with the next heartbeat."""
        if topic in self._registrations.topics and glance_of(payload).broker_id is None:
            self._next_at = min(self._next_at, self._beat_at + SOON_SECONDS)

    def on_connected(self, hello: replies.HelloAck) -> None:
        # What the first broker has acknowledged before this thread heard of the connection is not to be said again.
        is_other = self._broker_id not in ("", hello.broker_id)
        self._is_connected, self._broker_id, self._seconds = True, hello.broker_id, hello.heartbeat_seconds
        self._unlisted.clear()
        self._registrations.start_over(is_other=is_other)
        self._schedule()
        self._hear_access(hello)

    def on_disconnected(self) -> None:
        self._is_connected = False
        every = self._registrations.every()
        self._unlisted = deque(one for one in every if one.local is None and one.topic is not None)

    def tick(self, now: float) -> float:
        if not self._is_connected:
            return self._list_some(now)
        due_at = self._registrations.take_steps(now, self._take_step)
        if self._registrations.is_empty:
            return due_at
        if now >= self._next_at:
            self._schedule()
            mailboxes = {} if self.mailboxes is None else self.mailboxes()
            beat = commands.Heartbeat(lease=self.lease, mailboxes=mailboxes, priority="high")
            self._connection.submit(beat, self._after_beat, timeout=self._seconds)
        return min(self._next_at, due_at)

    def _list_some(self, now: float) -> float:
        """Enter some of what only the lost broker knew into the directory; says when to go on."""
        for _ in range(min(LISTED_PER_TURN, len(self._unlisted))):
            registration = self._unlisted.popleft()
            if not registration.is_closed:
                self._when_alone(registration)
            if registration.is_closed:  # perhaps meanwhile
                registration.leave_directory()
        return now if self._unlisted else now + IDLE_SECONDS

    def _take_step(self, registration: Registration, step: Step, number: int) -> None:
        def registered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            self._step_ended()
            if isinstance(reply, Ack):
                self._registrations.acknowledge(registration, number, reply)
                return
            refused = _refusal(reply, error)
            self._registrations.fail(registration, number, refused, most_seconds=self._seconds)
            if registration.state.name == "gone":
                self._close(registration)
                log.warning("%r was refused after a reconnect: %s", registration, refused)
                if isinstance(refused, Evicted):
                    registration.tell_end()

        def unregistered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            self._step_ended()
            self._after_unregistering(registration, number, reply, error)

        if step == "register":
            command = msgspec.structs.replace(registration.command)  # whoever sends it gives it an id
            self._connection.submit(command, registered, timeout=self._connection.settings.request_timeout_seconds)
        else:
            self._connection.submit(registration.unregistration(), unregistered, timeout=self._seconds)

    def _step_ended(self) -> None:
        if self._registrations.step_ended():
            self._connection.wake()

    def _schedule(self) -> None:
        self._beat_at = time.monotonic()
        self._next_at = self._beat_at + self._seconds * random.uniform(0.7, 1.0)

    def _after_beat(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        if not isinstance(reply, replies.HeartbeatAck):
            if error is not None:
                self._connection.suspect()
            return
        for notice in reply.notices:
            self._take(notice)
        if not reply.known:
            self._registrations.forget_all()
        self._hear_access(reply)

    def _hear_access(self, reply: replies.HelloAck | replies.HeartbeatAck) -> None:
        if self.on_access is not None:  # where all peers may do everything, nothing is said
            access = "" if reply.access is msgspec.UNSET else reply.access
            self.on_access(access, self._registrations.are_workers_settled())

    def _take(self, notice: replies.Notice) -> None:
        self.notices.append(notice)
        del self.notices[:-1000]
        if notice.event == "CHANNEL_DESTROYED":
            said = f"channel {notice.channel!r} was destroyed: open it again if that is wanted"
            for registration in self._registrations.of_channel(notice.channel):
                if self._registrations.end_for(registration, ChannelClosed(said, channel=notice.channel)):
                    log.warning("channel %r was destroyed; %r ends", notice.channel, registration)
                    registration.tell_end()
        elif notice.reason == "evicted" and notice.member is not None:
            said = f"{notice.member!r} was evicted from channel {notice.channel!r} by an operator"
            for registration in self._registrations.of_channel(notice.channel):
                error = Evicted(said, channel=notice.channel, member_id=notice.member)
                if registration.is_told_by(notice) and self._registrations.end_for(registration, error):
                    log.warning("%s; %r ends", said, registration)
                    registration.tell_end()

    # -- on any thread -------------------------------------------------------------------------------------

    def _after_unregistering(
        self, registration: Registration, number: int, reply: replies.AnyReply | None, error: HubError | None
    ) -> None:
        """Refusals are answers: it is not registered, or it is another's by now."""
        refusal = None if isinstance(reply, Unregistered) else _refusal(reply, error)
        is_done = refusal is None or not is_unable(refusal)
        if not is_done:
            log.debug("%r is not unregistered yet: %s", registration, refusal)
        self._registrations.unregistered(registration, number, is_done=is_done, most_seconds=self._seconds)
        self._connection.wake()


def _refusal(reply: Any, error: HubError | None) -> HubError:
    if isinstance(reply, replies.Error):
        return from_wire(reply.code, reply.message, reply.details, retryable=reply.retryable)
    return error or _senseless(reply)


def _senseless(reply: Any) -> HubError:
    return BrokerUnavailable(f"the broker's answer makes no sense: {type(reply).__name__}")
