"""What this process has registered, kept true: one lease, one heartbeat, re-registration after a broker's restart.

Rule 1: a registration that was asked for stays wanted until it is closed, its channel is destroyed, or the
broker refuses it for good; no broker at the moment is not a refusal.
Rule 2: callbacks run on the I/O thread and only change the registration they are about.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from messagehub.client.cache import glance_of
from messagehub.client.connection import Connection
from messagehub.errors import BrokerUnavailable, HubError
from registry import commands, replies
from registry.events import channel_topic

log = logging.getLogger("messagehub.client")

SOON_SECONDS = 0.05

Register = commands.RegisterProducer | commands.RegisterConsumer
Ack = replies.ProducerRegistered | replies.ConsumerRegistered


class Registration:
    """A producer or consumer of this process. True while the hub knows it; closing it twice is harmless."""

    def __init__(self, command: Register, heartbeats: "Heartbeats") -> None:
        self.command = command
        self.ack: Ack | None = None
        self.error: HubError | None = None
        self.local: Ack | None = None
        self.on_close: Callable[[], None] | None = None
        self.is_closed = False
        self._heartbeats = heartbeats

    @property
    def channel(self) -> str:
        return self.command.channel

    @property
    def source(self) -> str | None:
        """Who took it: `broker`, `files` while only the directory of this host has it, or None."""
        if self.ack is not None:
            return "broker"
        return "files" if self.local is not None else None

    @property
    def shm_name(self) -> str | None:
        taken = self.ack or self.local
        return taken.shm_name if taken else None

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
    def __init__(self, connection: Connection, *, lease: str) -> None:
        self.lease = lease
        self.notices: list[replies.Notice] = []
        self._connection = connection
        self._registrations: list[Registration] = []
        self._lock = threading.Lock()
        self._is_connected = False
        self._broker_id = ""
        self._seconds = connection.settings.heartbeat_seconds
        self._next_at = 0.0
        self._beat_at = 0.0

    def register(self, command: Register, *, timeout: float, required: bool) -> Registration:
        """Register now if a broker answers, else as soon as one does (unless `required`)."""
        registration = Registration(command, self)
        with self._lock:
            self._registrations.append(registration)
        try:
            ack = self._connection.request(command, timeout=timeout)
            assert isinstance(ack, Ack)
            registration.ack = ack
        except BrokerUnavailable as error:
            if required:
                self._forget(registration)
                raise
            registration.error = error
        except BaseException:
            self._forget(registration)
            raise
        self._connection.wake()
        return registration

    def renew(self, registration: Registration, *, timeout: float) -> None:
        """Say it again now: the broker answers with what holds at this moment."""
        ack = self._connection.request(registration.command, timeout=timeout)
        assert isinstance(ack, Ack)
        registration.ack, registration.error = ack, None

    def end(self, registration: Registration) -> None:
        """Unregister. A broker that is gone will end the lease by itself."""
        if not self._forget(registration) or registration.ack is None:
            return
        try:
            self._connection.request(unregistration(registration.ack, self.lease), timeout=self._seconds)
        except HubError as error:
            log.debug("%r ended without the broker: %s", registration, error)

    def end_all(self) -> None:
        for registration in list(self._registrations):
            self.end(registration)

    def forget_parent(self) -> None:
        """In a forked child: what the parent registered is the parent's."""
        self._lock = threading.Lock()
        for registration in self._registrations:
            registration.is_closed, registration.on_close = True, None
        self._registrations = []
        self._is_connected = False

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._registrations)

    def topics(self) -> set[bytes]:
        return {channel_topic(registration.channel).encode() for registration in list(self._registrations)}

    def on_event(self, topic: bytes, payload: bytes) -> None:
        """Something happened to a channel of ours: fetch the notice of it now instead of with the next heartbeat."""
        if glance_of(payload).broker_id is None and topic in self.topics():
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

    def tick(self, now: float) -> float:
        if not self._is_connected or not self._registrations:
            return now + 60.0
        if now >= self._next_at:
            self._schedule()
            self._connection.submit(commands.Heartbeat(lease=self.lease), self._after_beat, timeout=self._seconds)
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
                    self._forget(registration)
                    log.warning("channel %r was destroyed; %r ends", notice.channel, registration)

    def _register_again(self, registration: Registration) -> None:
        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:
            if isinstance(reply, Ack):
                registration.ack, registration.error = reply, None
                return
            refused = _refusal(reply, error)
            registration.ack, registration.error = None, refused
            if not refused.retryable:
                self._forget(registration)
                log.warning("%r was refused after a reconnect: %s", registration, refused)

        self._connection.submit(registration.command, done, timeout=self._connection.settings.request_timeout_seconds)

    def _forget(self, registration: Registration) -> bool:
        """Whether it was still wanted."""
        with self._lock:
            registration.is_closed = True
            if registration not in self._registrations:
                return False
            self._registrations.remove(registration)
            return True


def _refusal(reply: Any, error: HubError | None) -> HubError:
    if isinstance(reply, replies.Error):
        refused = HubError(reply.message)
        refused.code, refused.retryable = reply.code, reply.retryable  # type: ignore[misc]  # of this instance only
        return refused
    return error or HubError("the broker's answer makes no sense")


def unregistration(ack: Ack, lease: str) -> commands.Command:
    if isinstance(ack, replies.ProducerRegistered):
        return commands.UnregisterProducer(channel=ack.channel, producer_id=ack.producer_id, lease=lease)
    return commands.UnregisterConsumer(channel=ack.channel, consumer_id=ack.consumer_id, lease=lease)
