"""All registrations of one client: what is wanted, what is being closed, and when the broker is asked for which.

Rule 1: a registration that was asked for stays wanted until it is closed, its channel is destroyed, or the
broker refuses it for good; no broker at the moment, or one that is unable, is not a refusal.
Rule 2: what becomes of each is decided by its `RegistrationState`; here are the indexes, the queue and the lock.
Rule 3: the cost of a registration does not depend on how many there are. Of the first few hundred channels the events
are heard at once; of the others, news come with the next heartbeat.
"""

import copy
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from messagehub.client.registration import Ack, Member, Registration
from messagehub.client.registration_state import Step
from messagehub.errors import BrokerUnavailable, HubError, is_unable
from registry import commands

MAX_HEARD = 512
MAX_IN_FLIGHT = 500
MAX_CLOSING = 10_000
IDLE_SECONDS = 60.0

Send = Callable[[Registration, Step, int], None]
_Key = TypeVar("_Key")


class Registrations:
    """Any thread may call any method."""

    def __init__(self) -> None:
        self._open: dict[Registration, None] = {}
        self._workers: dict[Registration, None] = {}
        self._by_channel: dict[str, dict[Registration, None]] = {}
        self._by_member: dict[Member, dict[Registration, None]] = {}
        self._closing: dict[Member, Registration] = {}
        self._untold: dict[Registration, None] = {}  # of those, the ones that no answer came for yet
        self._due: list[tuple[float, int, Registration]] = []
        self._in_flight = 0
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._told = threading.Condition(self._lock)
        self.topics: set[bytes] = set()
        """Of the channels whose events are heard. Replaced, never changed: it is read without the lock."""

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing is registered or to be registered. Some may still have to be unregistered."""
        return not self._open

    @property
    def is_over(self) -> bool:
        return not (self._open or self._closing)

    def every(self) -> list[Registration]:
        """Return those that are not closed."""
        with self._lock:
            return list(self._open)

    def of_channel(self, channel: str) -> list[Registration]:
        with self._lock:
            return list(self._by_channel.get(channel, ()))

    def are_workers_settled(self) -> bool:
        """Whether the broker has registered all workers."""
        with self._lock:
            return all(each.state.name == "acknowledged" for each in self._workers)

    def abandon(self) -> None:
        """In a forked child: all of them are the parent's, and so is the lock."""
        for registration in self._open:
            registration.abandon()

    # -- wanting, and wanting no more ----------------------------------------------------------------------

    def add(self, registration: Registration) -> tuple[int, bool]:
        """Want it. Return the number of its question, which the caller asks, and whether the I/O thread must know.

        It must know of the first, because heartbeats begin, and of every topic.
        """
        with self._lock:
            is_news = not self._open
            self._open[registration] = None
            if isinstance(registration.command, commands.RegisterWorker):
                self._workers[registration] = None
            self._by_channel.setdefault(registration.channel, {})[registration] = None
            self._by_member.setdefault(registration.member, {})[registration] = None
            topic = registration.topic
            if topic is not None and topic not in self.topics and len(self.topics) < MAX_HEARD:
                self.topics = {*self.topics, topic}
                is_news = True
            if registration.member in self._closing:
                self._give_up(registration.member)  # this one takes its place
            return registration.state.ask(), is_news

    def close(self, registration: Registration, *, ask: bool, has_broker: bool) -> int | None:
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
            while len(self._closing) >= MAX_CLOSING and not has_broker:
                self._give_up(next(iter(self._closing)))
            self._closing[member] = registration
            self._untold[registration] = None
            if ask:
                return registration.state.ask()
            self._queue(registration)
            return None

    def end_for(self, registration: Registration, error: HubError) -> bool:
        """End it, because its channel was destroyed or it was evicted; False when it was closed meanwhile."""
        with self._lock:
            if registration not in self._open:
                return False
            registration.error = error
            registration.state.end()
            self._remove(registration)
            return True

    def wait_told(self, seconds: float, is_answering: Callable[[], bool]) -> list[Registration]:
        """Wait while the broker goes on confirming what was closed; return what it has not confirmed."""
        with self._told:
            while self._untold and is_answering():
                left = len(self._untold)
                if not self._told.wait_for(lambda: len(self._untold) < left, seconds):  # noqa: B023  called here
                    break
            return list(self._untold)

    @property
    def is_any_untold(self) -> bool:
        return bool(self._untold)

    # -- what is due ---------------------------------------------------------------------------------------

    def take_steps(self, now: float, send: Send) -> float:
        """Send what is due, so many at a time; return when more will be.

        With the lock, so that nobody's unregistration overtakes the registration that it ends.
        """
        with self._lock:
            while self._due and self._due[0][0] <= now and self._in_flight < MAX_IN_FLIGHT:
                registration = heapq.heappop(self._due)[2]
                step = registration.state.next_step(now)
                if step is not None:
                    self._in_flight += 1
                    send(registration, step, registration.state.ask())
                elif registration.state.retry_at > now:  # queued for an earlier time than it waits for
                    self._queue(registration)
            return self._due[0][0] if self._due and self._in_flight < MAX_IN_FLIGHT else now + IDLE_SECONDS

    def step_ended(self) -> bool:
        """Return whether there is room for more steps again."""
        with self._lock:
            self._in_flight -= 1
            return self._in_flight == MAX_IN_FLIGHT - 1

    def start_over(self, *, is_other: bool) -> None:
        """There is a connection: nothing is waited for any more. Another broker may not know what is acknowledged."""
        with self._lock:
            self._due = []
            for registration in [*self._open, *self._closing.values()]:
                if is_other:
                    registration.state.forgotten()
                registration.state.hurry()
                self._queue(registration)

    def forget_all(self) -> None:
        """The broker does not know our lease any more."""
        with self._lock:
            for registration in self._open:
                self._forget(registration)

    # -- answers -------------------------------------------------------------------------------------------

    def acknowledge(self, registration: Registration, number: int, ack: Ack) -> None:
        with self._lock:
            registration.ack, registration.error = ack, None
            registration.state.acknowledged(number)
            self._queue(registration)

    def fail(self, registration: Registration, number: int, error: BaseException, *, most_seconds: float) -> None:
        """Handle a registration that was refused, was not answered, or cannot be taken by the broker now."""
        now = time.monotonic()
        with self._lock:
            registration.ack = None
            # A copy, without the frames that it was raised in: they hold what the user may forget.
            registration.error = copy.copy(error) if isinstance(error, HubError) else None
            if isinstance(error, HubError) and not error.retryable and not is_unable(error):
                registration.state.refused(number)
            else:
                was_heard = error.was_sent if isinstance(error, BrokerUnavailable) else not isinstance(error, HubError)
                registration.state.failed(number, now=now, most_seconds=most_seconds, was_heard=was_heard)
                self._queue(registration)

    def unregistered(self, registration: Registration, number: int, *, is_done: bool, most_seconds: float) -> None:
        """An unregistration was answered; or, if not `is_done`, it was not, or the broker is unable to do it now."""
        now = time.monotonic()
        with self._told:
            if is_done:
                registration.state.unregistered(number, now=now)
            else:
                registration.state.not_unregistered(number, now=now, most_seconds=most_seconds)
            if registration.state.is_told:
                self._untold.pop(registration, None)
            if registration.state.name == "gone" and self._closing.get(registration.member) is registration:
                del self._closing[registration.member]
            self._queue(registration)
            for other in self._by_member.get(registration.member, ()):
                self._forget(other)  # registered again meanwhile: this may have been its end
            self._told.notify_all()

    # -- with the lock -------------------------------------------------------------------------------------

    def _remove(self, registration: Registration) -> None:
        del self._open[registration]
        self._workers.pop(registration, None)
        _take_out(self._by_member, registration.member, registration)
        _take_out(self._by_channel, registration.channel, registration)
        if registration.topic in self.topics and registration.channel not in self._by_channel:
            self.topics = self.topics - {registration.topic}

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


def _take_out(index: dict[_Key, dict[Registration, None]], key: _Key, registration: Registration) -> None:
    del index[key][registration]
    if not index[key]:
        del index[key]
