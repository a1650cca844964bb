"""What this process has registered, kept true: one lease, one heartbeat, re-registration after a broker's restart.

Rule 1: a registration that was asked for stays wanted until it is closed, its channel is destroyed, or the
broker refuses it for good; no broker at the moment is not a refusal.
Rule 2: one that was closed while no broker answered is unregistered as soon as one does, since the lease that it
shares with the others lives on.
Rule 3: callbacks run on the I/O thread and only change the registration they are about.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from messagehub.client.cache import glance_of
from messagehub.client.connection import Connection
from messagehub.errors import BrokerUnavailable, ChannelClosed, HubError
from registry import commands, replies
from registry.events import channel_topic

log = logging.getLogger("messagehub.client")

SOON_SECONDS = 0.05

Register = commands.RegisterProducer | commands.RegisterConsumer | commands.RegisterWorker
Ack = replies.ProducerRegistered | replies.ConsumerRegistered | replies.WorkerRegistered


class Registration:
    """A producer, consumer or worker of this process. True while the hub knows it; closing it twice is harmless."""

    def __init__(self, command: Register, heartbeats: "Heartbeats") -> None:
        self.command = command
        is_worker = isinstance(command, commands.RegisterWorker)
        self.topic = None if is_worker else channel_topic(self.channel).encode()
        self.ack: Ack | None = None
        self.error: HubError | None = None
        self.local: Ack | None = None
        self.on_close: Callable[[], None] | None = None
        self.on_ended: Callable[[], None] | None = None
        self.is_closed = False
        self.is_asked = False
        self._heartbeats = heartbeats

    @property
    def channel(self) -> str:
        """Of a worker: the address that it serves."""
        command = self.command
        return command.address if isinstance(command, commands.RegisterWorker) else command.channel

    @property
    def member(self) -> tuple[type[Register], str, str | None]:
        """Which producer or consumer of which channel, or which worker of which address."""
        command = self.command
        if isinstance(command, commands.RegisterWorker):
            return type(command), command.address, command.worker_id
        if isinstance(command, commands.RegisterProducer):
            return type(command), command.channel, command.producer_id
        return type(command), command.channel, command.consumer_id

    @property
    def source(self) -> str | None:
        """Who took it: `broker`, `files` while only the directory of this host has it, or None."""
        if self.ack is not None:
            return "broker"
        return "files" if self.local is not None else None

    def check_open(self) -> None:
        """Raise ChannelClosed when the channel was destroyed while it was used."""
        if isinstance(self.error, ChannelClosed):
            raise ChannelClosed(self.error.message, **self.error.details)  # a new one: a traceback holds its frames

    @property
    def shm_name(self) -> str | None:
        taken = self.ack or self.local
        return getattr(taken, "shm_name", None)

    def close(self) -> None:
        if self.on_close is not None:
            self.on_close()
            self.on_close = None
        self._heartbeats.end(self)

    def __bool__(self) -> bool:
        return self.source is not None and not self.is_closed

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else (self.source or "waiting for a broker")
        return f"<{type(self.command).__name__} {self.channel!r}: {state}>"


class Heartbeats:
    def __init__(self, connection: Connection, *, lease: str, when_alone: Callable[[Registration], None]) -> None:
        """`when_alone` is called on the I/O thread for each registration that only a lost broker knew of."""
        self.lease = lease
        self._when_alone = when_alone
        self.notices: list[replies.Notice] = []
        self._connection = connection
        self._registrations: dict[Registration, None] = {}
        self._topics: Counter[bytes] = Counter()
        self._unfinished: list[Registration] = []
        self._lock = threading.Lock()
        self._is_connected = False
        self._broker_id = ""
        self._seconds = connection.settings.heartbeat_seconds
        self._next_at = 0.0
        self._beat_at = 0.0

    def register(self, command: Register, *, timeout: float, required: bool) -> Registration:
        """Register now if a broker answers, else as soon as one does (unless `required`)."""
        registration = Registration(command, self)
        registration.is_asked = True
        with self._lock:
            self._registrations[registration] = None
            if registration.topic is not None:
                self._topics[registration.topic] += 1
        try:
            ack = self._connection.request(command, timeout=timeout)
            assert isinstance(ack, Ack)
            registration.ack = ack
        except BrokerUnavailable as error:
            if required:
                self._forget(registration)
                self._end_later(registration)  # a broker that did not answer may yet have taken it
                raise
            registration.error = error
        except BaseException:
            self._forget(registration)
            raise
        finally:
            registration.is_asked = False
        self._connection.wake()
        return registration

    def renew(self, registration: Registration, *, timeout: float) -> None:
        """Say it again now: the broker answers with what holds at this moment."""
        ack = self._connection.request(registration.command, timeout=timeout)
        assert isinstance(ack, Ack)
        registration.ack, registration.error = ack, None

    def end(self, registration: Registration) -> None:
        """Unregister, now or when a broker answers again."""
        if not self._forget(registration) or registration.ack is None:
            return
        try:
            self._connection.request(self.unregistration(registration), timeout=self._seconds)
        except BrokerUnavailable as error:
            log.debug("%r ended without the broker: %s", registration, error)
            self._end_later(registration)
        except HubError as error:
            log.debug("%r had ended before: %s", registration, error)

    def _end_later(self, registration: Registration) -> None:
        with self._lock:
            self._unfinished.append(registration)

    def end_all(self) -> None:
        for registration in list(self._registrations):
            self.end(registration)

    def forget_parent(self) -> None:
        """In a forked child: what the parent registered is the parent's."""
        self._lock = threading.Lock()
        for registration in self._registrations:
            registration.is_closed, registration.on_close = True, None
        self._registrations = {}
        self._topics = Counter()
        self._unfinished = []
        self._is_connected = False

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._registrations)

    def topics(self) -> set[bytes]:
        with self._lock:
            return set(self._topics)

    def on_event(self, topic: bytes, payload: bytes) -> None:
        """Something happened to a channel of ours: fetch the notice of it now instead of with the next heartbeat."""
        if glance_of(payload).broker_id is None and topic in self._topics:
            self._next_at = min(self._next_at, self._beat_at + SOON_SECONDS)

    def on_connected(self, hello: replies.HelloAck) -> None:
        is_other = hello.broker_id != self._broker_id
        self._is_connected, self._broker_id, self._seconds = True, hello.broker_id, hello.heartbeat_seconds
        for registration in list(self._registrations):
            if registration.ack is None or is_other:
                self._register_again(registration)
        self._schedule()

    def on_disconnected(self) -> None:
        self._is_connected = False
        for registration in list(self._registrations):
            if registration.local is None and registration.topic is not None:
                self._when_alone(registration)

    def tick(self, now: float) -> float:
        if self._is_connected and self._unfinished:
            self._finish()
        if not self._is_connected or not self._registrations:
            return now + 60.0
        if now >= self._next_at:
            self._schedule()
            self._connection.submit(
                commands.Heartbeat(lease=self.lease, priority="high"), self._after_beat, timeout=self._seconds
            )
        return self._next_at

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
        for registration in list(self._registrations):
            if not reply.known or registration.ack is None:
                self._register_again(registration)

    def _take(self, notice: replies.Notice) -> None:
        self.notices.append(notice)
        del self.notices[:-1000]
        if notice.event == "CHANNEL_DESTROYED":
            for registration in list(self._registrations):
                if registration.channel == notice.channel:
                    said = f"channel {notice.channel!r} was destroyed: open it again if that is wanted"
                    registration.error = ChannelClosed(said, channel=notice.channel)
                    self._forget(registration)
                    log.warning("channel %r was destroyed; %r ends", notice.channel, registration)
                    if registration.on_ended is not None:
                        registration.on_ended()

    def _register_again(self, registration: Registration) -> None:
        """Unless it is being asked for just now."""
        if registration.is_asked:
            return

        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:
            registration.is_asked = False
            if isinstance(reply, Ack):
                registration.ack, registration.error = reply, None
                if registration.is_closed:  # meanwhile, and the broker has it again
                    self._unregister_again(registration)
                return
            refused = _refusal(reply, error)
            registration.ack, registration.error = None, refused
            if not refused.retryable:
                self._forget(registration)
                log.warning("%r was refused after a reconnect: %s", registration, refused)

        registration.is_asked = True
        command = msgspec.structs.replace(registration.command)  # whoever sends it gives it an id
        self._connection.submit(command, done, timeout=self._connection.settings.request_timeout_seconds)

    def _finish(self) -> None:
        with self._lock:
            unfinished, self._unfinished = self._unfinished, []
        wanted = {registration.member for registration in list(self._registrations)}
        for registration in unfinished:
            if registration.member not in wanted:
                self._unregister_again(registration)

    def _unregister_again(self, registration: Registration) -> None:
        def done(_: replies.AnyReply | None, error: HubError | None) -> None:
            if error is not None:
                self._end_later(registration)

        self._connection.submit(self.unregistration(registration), done, timeout=self._seconds)

    def unregistration(self, registration: Registration) -> commands.Command:
        command = registration.command
        if isinstance(command, commands.RegisterWorker):
            return commands.UnregisterWorker(worker_id=command.worker_id, lease=self.lease)
        if isinstance(command, commands.RegisterProducer):
            return commands.UnregisterProducer(
                channel=command.channel, producer_id=command.producer_id, lease=self.lease
            )
        return commands.UnregisterConsumer(channel=command.channel, consumer_id=command.consumer_id, lease=self.lease)

    def _forget(self, registration: Registration) -> bool:
        """Whether it was still wanted."""
        with self._lock:
            registration.is_closed = True
            if registration not in self._registrations:
                return False
            del self._registrations[registration]
            topic = registration.topic
            if topic is not None:
                self._topics[topic] -= 1
                if not self._topics[topic]:
                    del self._topics[topic]
            return True


def _refusal(reply: Any, error: HubError | None) -> HubError:
    if isinstance(reply, replies.Error):
        refused = HubError(reply.message)
        refused.code, refused.retryable = reply.code, reply.retryable  # type: ignore[misc]  # of this instance only
        return refused
    return error or HubError("the broker's answer makes no sense")
