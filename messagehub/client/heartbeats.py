"""What this process has registered, kept true: one lease, one heartbeat, re-registration after a broker's restart.

Rule 1: a registration that was asked for stays wanted until it is closed, its channel is destroyed, or the
broker refuses it for good; no broker at the moment, or one that is unable, is not a refusal.
Rule 2: what becomes of each is decided by its `RegistrationState`; here are the threads, the requests and the clock.
Rule 3: callbacks run on the I/O thread and only change the registration they are about.
Rule 4: the cost of a registration does not depend on how many there are. Of the first few hundred channels the events
are heard at once; of the others, news come with the next heartbeat.
"""

import copy
import heapq
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from messagehub.arguments import checks_arguments
from messagehub.client.connection import Connection
from messagehub.client.discovery_cache import glance_of
from messagehub.client.registration_state import RegistrationState, Step
from messagehub.errors import BrokerUnavailable, ChannelClosed, HubError, from_wire, is_unable
from registry import commands, replies
from registry.events import channel_topic

log = logging.getLogger("messagehub.client")

SOON_SECONDS = 0.05
END_SECONDS = 2.0
"""So long closing waits for the broker; what it has not answered by then is said again in the background."""
MAX_HEARD = 512
MAX_IN_FLIGHT = 500
LISTED_PER_TURN = 32
MAX_CLOSING = 10_000

Register = commands.RegisterProducer | commands.RegisterConsumer | commands.RegisterWorker | commands.RegisterSubscriber
Ack = replies.ProducerRegistered | replies.ConsumerRegistered | replies.WorkerRegistered | replies.SubscriberRegistered
Unregistered = (
    replies.ProducerUnregistered
    | replies.ConsumerUnregistered
    | replies.WorkerUnregistered
    | replies.SubscriberUnregistered
)
Member = tuple[type[Register], str, str | None]


class Registration:
    """A producer, consumer, worker or subscriber of this process.

    True while the hub knows it; closing it twice is harmless.
    """

    def __init__(self, command: Register, heartbeats: "Heartbeats") -> None:
        self.command = command
        has_no_channel = isinstance(command, commands.RegisterWorker | commands.RegisterSubscriber)
        self.topic = None if has_no_channel else channel_topic(self.channel).encode()
        self.ack: Ack | None = None
        self.error: HubError | None = None
        self.on_ended: Callable[[], None] | None = None
        self.state = RegistrationState()
        self._local: Ack | None = None
        self._leave: Callable[[], None] | None = None
        self._heartbeats = heartbeats

    @property
    def channel(self) -> str:
        """Of a worker the address that it serves, of a subscriber what it shares; no channel is named so."""
        command = self.command
        if isinstance(command, commands.RegisterSubscriber):
            return f"{command.kind}:{command.name}"
        return command.address if isinstance(command, commands.RegisterWorker) else command.channel

    @property
    def member(self) -> Member:
        """Which producer or consumer of which channel, which worker of which address, or which subscriber."""
        command = self.command
        if isinstance(command, commands.RegisterWorker):
            return type(command), command.address, command.worker_id
        if isinstance(command, commands.RegisterSubscriber):
            return type(command), self.channel, command.member_id
        if isinstance(command, commands.RegisterProducer):
            return type(command), command.channel, command.producer_id
        return type(command), command.channel, command.consumer_id

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    @property
    def local(self) -> Ack | None:
        """What the directory of this host said to it, if it is listed there."""
        return self._local

    @property
    def source(self) -> str | None:
        """Who has it: `broker`, or `files` while only the directory of this host does. None when nobody has it."""
        if self.is_closed:
            return None
        if self.ack is not None:
            return "broker"
        return "files" if self._local is not None else None

    def check_open(self) -> None:
        """Raise ChannelClosed when the channel was destroyed while it was used."""
        if isinstance(self.error, ChannelClosed):
            raise ChannelClosed(self.error.message, **self.error.details)  # a new one: a traceback holds its frames

    @property
    def shm_name(self) -> str | None:
        taken = self.ack or self._local
        return getattr(taken, "shm_name", None)

    def unregistration(self) -> commands.Command:
        return self._heartbeats.unregistration(self)

    def list_here(self, taken: Ack, leave: Callable[[], None] | None = None) -> None:
        """The directory of this host shows it from now on; `leave` ends that."""
        self._local, self._leave = taken, leave
        self.state.is_listed = True

    @checks_arguments
    def close(self, *, timeout: float = END_SECONDS) -> None:
        """Unregister with the broker first: a directory that shows it no more would look like its death.

        A broker that has not answered by the timeout is told in the background.
        """
        self._heartbeats.end(self, timeout=min(timeout, END_SECONDS))
        self.leave_directory()

    def leave_directory(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
            self._local = None  # who closes the hub may have to enter it again, for a broker that is away

    def abandon(self) -> None:
        """In a forked child: it is the parent's."""
        self.state.end()
        self._leave = None

    def __bool__(self) -> bool:
        return self.source is not None

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def close_async(self) -> None:
        """As `close`, while the event loop goes on."""
        import asyncio  # takes longer to load than all else that a registration needs

        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "Registration":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else (self.source or "waiting for a broker")
        return f"<{type(self.command).__name__} {self.channel!r}: {state}>"


class Heartbeats:
    def __init__(self, connection: Connection, *, lease: str, when_alone: Callable[[Registration], None]) -> None:
        """`when_alone` is called on the I/O thread for each registration that only a lost broker knew of."""
        self.lease = lease
        self._when_alone = when_alone
        self.on_access: Callable[[str, bool], None] | None = None
        """Called on the I/O thread, again and again, with what the broker says of the rights of all peers (`access`),
        and whether it has registered all workers of this process by now."""
        self.notices: list[replies.Notice] = []
        self._connection = connection
        self._is_connected = False
        self._broker_id = ""
        self._seconds = connection.settings.heartbeat_seconds
        self._next_at = 0.0
        self._beat_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self._open: dict[Registration, None] = {}
        self._by_channel: dict[str, dict[Registration, None]] = {}
        self._by_member: dict[Member, dict[Registration, None]] = {}
        self._closing: dict[Member, Registration] = {}
        self._untold: dict[Registration, None] = {}  # of those, the ones that no answer came for yet
        self._topics: set[bytes] = set()
        self._due: list[tuple[float, int, Registration]] = []
        self._in_flight = 0
        self._unlisted: deque[Registration] = deque()
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._told = threading.Condition(self._lock)

    def register(self, command: Register, *, timeout: float, required: bool) -> Registration:
        """Register now if a broker is able to, else as soon as one is (unless `required`)."""
        registration = Registration(command, self)
        with self._lock:
            self._add(registration)
            number = registration.state.ask()
        error: BaseException | None = None
        try:
            reply = self._connection.request(command, timeout=timeout, is_patient=required)
            if isinstance(reply, Ack):
                self._acknowledge(registration, number, reply)
            else:
                error = _senseless(reply)
        except BaseException as raised:  # noqa: BLE001  an interrupt, too, leaves a request on its way; raised below
            error = raised
        if error is not None:
            self._fail(registration, number, error)
            if required or not isinstance(error, HubError) or not is_unable(error):
                self._close(registration)
                raise error
        del error  # it refers to this frame and its callers, who are to be collected when they are forgotten
        self._connection.wake()
        return registration

    def renew(self, registration: Registration, done: Callable[[HubError | None], None], *, timeout: float) -> None:
        """Say it again: the broker answers with what holds at that moment, and `done` is called on the I/O thread."""

        def answered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            if isinstance(reply, Ack):
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
            reply = self._connection.request(self.unregistration(registration), timeout=timeout)
        except HubError as refused:
            error = refused
        finally:  # also at an interrupt, after which there is neither
            self._after_unregistering(registration, number, reply, error)

    def end_all(self) -> list[Registration]:
        """Unregister everything at once; returns what no broker confirmed, because none answered for a moment."""
        ending = list(self._open)
        if ending:
            self.end(ending.pop())  # which shows whether there is a broker, and connects to it
        for registration in ending:
            self._close(registration)
        if self._untold and self._connection.hello is not None:
            self._connection.wake()
        with self._told:
            while self._untold and self._connection.hello is not None:
                left = len(self._untold)
                if not self._told.wait_for(lambda: len(self._untold) < left, END_SECONDS):  # noqa: B023  called here
                    break
            return list(self._untold)

    def forget_parent(self) -> None:
        """In a forked child: what the parent registered is the parent's."""
        for registration in self._open:
            registration.abandon()
        self._clear()
        self._is_connected, self._broker_id = False, ""

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._open or self._closing)

    def topics(self) -> set[bytes]:
        return self._topics

    def on_event(self, topic: bytes, payload: bytes) -> None:
        """Something happened to a channel of ours: fetch the notice of it now instead of with the next heartbeat."""
        if topic in self._topics and glance_of(payload).broker_id is None:
            self._next_at = min(self._next_at, self._beat_at + SOON_SECONDS)

    def on_connected(self, hello: replies.HelloAck) -> None:
        # What the first broker has acknowledged before this thread heard of the connection is not to be said again.
        is_other = self._broker_id not in ("", hello.broker_id)
        self._is_connected, self._broker_id, self._seconds = True, hello.broker_id, hello.heartbeat_seconds
        with self._lock:
            self._unlisted.clear()
            self._due = []
            for registration in [*self._open, *self._closing.values()]:
                if is_other:
                    registration.state.forgotten()
                registration.state.hurry()
                self._queue(registration)
        self._schedule()
        self._hear_access(hello)

    def on_disconnected(self) -> None:
        self._is_connected = False
        with self._lock:
            self._unlisted = deque(one for one in self._open if one.local is None and one.topic is not None)

    def tick(self, now: float) -> float:
        if not self._is_connected:
            return self._list_some(now)
        due_at = self._take_steps(now)
        if not self._open:
            return due_at
        if now >= self._next_at:
            self._schedule()
            self._connection.submit(
                commands.Heartbeat(lease=self.lease, priority="high"), self._after_beat, timeout=self._seconds
            )
        return min(self._next_at, due_at)

    def _list_some(self, now: float) -> float:
        """Enter some of what only the lost broker knew into the directory; says when to go on."""
        for _ in range(min(LISTED_PER_TURN, len(self._unlisted))):
            registration = self._unlisted.popleft()
            if not registration.is_closed:
                self._when_alone(registration)
            if registration.is_closed:  # perhaps meanwhile
                registration.leave_directory()
        return now if self._unlisted else now + 60.0

    def _take_steps(self, now: float) -> float:
        """Ask for what is due, so many at a time; says when more will be."""
        with self._lock:
            while self._due and self._due[0][0] <= now and self._in_flight < MAX_IN_FLIGHT:
                registration = heapq.heappop(self._due)[2]
                step = registration.state.next_step(now)
                if step is not None:
                    self._in_flight += 1
                    self._take_step(registration, step, registration.state.ask())
                elif registration.state.name in ("wanted", "listed", "closing"):
                    self._queue_later(registration, now)
            return self._due[0][0] if self._due and self._in_flight < MAX_IN_FLIGHT else now + 60.0

    def _queue_later(self, registration: Registration, now: float) -> None:
        """With the lock: it was queued for an earlier time than it waits for; one under way is queued when it ends."""
        if registration.state.retry_at > now:
            self._queue(registration)

    def _take_step(self, registration: Registration, step: Step, number: int) -> None:
        def registered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            self._step_ended()
            if isinstance(reply, Ack):
                self._acknowledge(registration, number, reply)
                return
            refused = _refusal(reply, error)
            self._fail(registration, number, refused)
            if registration.state.name == "gone":
                self._close(registration)
                log.warning("%r was refused after a reconnect: %s", registration, refused)

        def unregistered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            self._step_ended()
            self._after_unregistering(registration, number, reply, error)

        if step == "register":
            command = msgspec.structs.replace(registration.command)  # whoever sends it gives it an id
            self._connection.submit(command, registered, timeout=self._connection.settings.request_timeout_seconds)
        else:
            self._connection.submit(self.unregistration(registration), unregistered, timeout=self._seconds)

    def _step_ended(self) -> None:
        with self._lock:
            self._in_flight -= 1
            is_room = self._in_flight == MAX_IN_FLIGHT - 1
        if is_room:
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
            with self._lock:
                for registration in self._open:
                    self._forget(registration)
        self._hear_access(reply)

    def _hear_access(self, reply: replies.HelloAck | replies.HeartbeatAck) -> None:
        if self.on_access is None or reply.access is msgspec.UNSET:
            return
        with self._lock:
            workers = [each for each in self._open if isinstance(each.command, commands.RegisterWorker)]
            is_settled = all(each.state.name == "acknowledged" for each in workers)
        self.on_access(reply.access, is_settled)

    def _take(self, notice: replies.Notice) -> None:
        self.notices.append(notice)
        del self.notices[:-1000]
        if notice.event == "CHANNEL_DESTROYED":
            for registration in list(self._by_channel.get(notice.channel, ())):
                said = f"channel {notice.channel!r} was destroyed: open it again if that is wanted"
                with self._lock:
                    if registration not in self._open:
                        continue  # closed meanwhile
                    registration.error = ChannelClosed(said, channel=notice.channel)
                    registration.state.end()
                    self._remove(registration)
                log.warning("channel %r was destroyed; %r ends", notice.channel, registration)
                if registration.on_ended is not None:
                    registration.on_ended()

    # -- what answers do, on any thread --------------------------------------------------------------------

    def _acknowledge(self, registration: Registration, number: int, ack: Ack) -> None:
        with self._lock:
            registration.ack, registration.error = ack, None
            registration.state.acknowledged(number)
            self._queue(registration)

    def _fail(self, registration: Registration, number: int, error: BaseException) -> None:
        """A registration was refused, or not answered, or the broker is unable to take it now."""
        now = time.monotonic()
        with self._lock:
            registration.ack = None
            # A copy, without the frames that it was raised in: they hold what the user may forget.
            registration.error = copy.copy(error) if isinstance(error, HubError) else None
            if isinstance(error, HubError) and not error.retryable and not is_unable(error):
                registration.state.refused(number)
            else:
                was_heard = error.was_sent if isinstance(error, BrokerUnavailable) else not isinstance(error, HubError)
                most = self._seconds
                registration.state.failed(number, now=now, most_seconds=most, was_heard=was_heard)
                self._queue(registration)

    def _after_unregistering(
        self, registration: Registration, number: int, reply: replies.AnyReply | None, error: HubError | None
    ) -> None:
        """Refusals are answers: it is not registered, or it is another's by now."""
        refusal = None if isinstance(reply, Unregistered) else _refusal(reply, error)
        now = time.monotonic()
        with self._told:
            if refusal is not None and is_unable(refusal):
                log.debug("%r is not unregistered yet: %s", registration, refusal)
                registration.state.not_unregistered(number, now=now, most_seconds=self._seconds)
            else:
                registration.state.unregistered(number, now=now)
            if registration.state.is_told:
                self._untold.pop(registration, None)
            if registration.state.name == "gone" and self._closing.get(registration.member) is registration:
                del self._closing[registration.member]
            self._queue(registration)
            for other in self._by_member.get(registration.member, ()):
                self._forget(other)  # registered again meanwhile: this may have been its end
            self._told.notify_all()
        self._connection.wake()

    # -- with the lock -------------------------------------------------------------------------------------

    def _add(self, registration: Registration) -> None:
        self._open[registration] = None
        self._by_channel.setdefault(registration.channel, {})[registration] = None
        self._by_member.setdefault(registration.member, {})[registration] = None
        topic = registration.topic
        if topic is not None and topic not in self._topics and len(self._topics) < MAX_HEARD:
            self._topics = {*self._topics, topic}  # replaced, never changed: the I/O thread reads it without the lock
        if registration.member in self._closing:
            self._give_up(registration.member)  # this one takes its place

    def _remove(self, registration: Registration) -> None:
        del self._open[registration]
        _take_out(self._by_member, registration.member, registration)
        _take_out(self._by_channel, registration.channel, registration)
        if registration.topic in self._topics and registration.channel not in self._by_channel:
            self._topics = self._topics - {registration.topic}

    def _give_up(self, member: Member) -> None:
        registration = self._closing.pop(member)
        registration.state.end()
        self._untold.pop(registration, None)

    def _forget(self, registration: Registration) -> None:
        """The broker may not know it any more."""
        if registration.state.name == "acknowledged":
            registration.state.forgotten()
            self._queue(registration)

    def _queue(self, registration: Registration) -> None:
        if registration.state.name in ("wanted", "listed", "closing"):
            heapq.heappush(self._due, (registration.state.retry_at, next(self._order), registration))

    def _close(self, registration: Registration, *, ask: bool = False) -> int | None:
        """Want it no more. With `ask`, the number of the question when it has to be unregistered; the caller asks."""
        with self._lock:
            if registration not in self._open:
                return None
            self._remove(registration)
            registration.state.close()
            member = registration.member
            if member in self._by_member:
                registration.state.end()  # another one of the same member goes on
            if registration.state.is_told:
                return None
            while len(self._closing) >= MAX_CLOSING and self._connection.hello is None:
                self._give_up(next(iter(self._closing)))
            self._closing[member] = registration
            self._untold[registration] = None
            if ask:
                return registration.state.ask()
            self._queue(registration)
            return None

    def unregistration(self, registration: Registration) -> commands.Command:
        """With the same priority as the registration, so that it does not overtake it."""
        command = registration.command
        if isinstance(command, commands.RegisterWorker):
            return commands.UnregisterWorker(worker_id=command.worker_id, lease=self.lease, priority=command.priority)
        if isinstance(command, commands.RegisterSubscriber):
            return commands.UnregisterSubscriber(
                member_id=command.member_id, lease=self.lease, priority=command.priority
            )
        if isinstance(command, commands.RegisterProducer):
            return commands.UnregisterProducer(
                channel=command.channel, producer_id=command.producer_id, lease=self.lease, priority=command.priority
            )
        return commands.UnregisterConsumer(
            channel=command.channel, consumer_id=command.consumer_id, lease=self.lease, priority=command.priority
        )


def _take_out(index: dict[Any, dict[Registration, None]], key: Any, registration: Registration) -> None:
    del index[key][registration]
    if not index[key]:
        del index[key]


def _refusal(reply: Any, error: HubError | None) -> HubError:
    if isinstance(reply, replies.Error):
        return from_wire(reply.code, reply.message, reply.details, retryable=reply.retryable)
    return error or _senseless(reply)


def _senseless(reply: Any) -> HubError:
    return BrokerUnavailable(f"the broker's answer makes no sense: {type(reply).__name__}")
