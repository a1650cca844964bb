"""What a process tells the broker about its subscriptions, so that people can see who gets a topic's messages.

Rule 1: nothing is done for a message. The counts that subscriptions have anyway are read every REPORT_SECONDS, and sent
if they have changed; unchanged ones are sent every ALIVE_SECONDS, before the broker would forget them.
Rule 2: it is for people to look at: a report that fails is sent again with the next one, and no caller hears of it. A
broker that does not know the request is not asked again before the next connection.
Rule 3: what became of a message (message_fates.py) is worked out only while the broker says that somebody asks.
Rule 4: all reports, the last one too, are sent by the I/O thread: they arrive in the order in which they were made.
"""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from messagehub.client.connection import Connection
from messagehub.client.identity import program
from messagehub.errors import HubError
from messagehub.topics.message_fates import Fate
from messagehub.topics.subscriptions import Subscription
from registry import commands, replies
from registry.records import AskedMessage, MessageFate, SubscriptionState

log = logging.getLogger("messagehub.topics")

REPORT_SECONDS = 2.0
ALIVE_SECONDS = 5.0
ASKED_SECONDS = 0.5
"""How often it reports while somebody asks what became of a message."""
SOON_SECONDS = 0.05
"""So that a program that subscribes to many topics in a row tells of them together."""
ANSWER_SECONDS = 2.0
CLOSE_SECONDS = 0.5
MOST_SUBSCRIPTIONS, MOST_PATTERNS, MOST_FATES = 500, 100, 1000
IDLE_SECONDS = 3600.0


class SubscriptionReports:
    def __init__(
        self,
        connection: Connection,
        subscriptions: Callable[[], Collection[Subscription]],
        fates: Callable[[Subscription, list[AskedMessage]], list[Fate]],
        *,
        owner: dict[str, Any],
    ) -> None:
        """`owner` names this process; `subscriptions` gives those of now, on any thread.

        `fates` says what became of messages at one of them.
        """
        self._connection = connection
        self._subscriptions = subscriptions
        self._fates = fates
        self._asked: list[AskedMessage] = []
        self._owner = {name: owner[name] for name in ("lease", "host", "pid")}
        self._counted: WeakKeyDictionary[Subscription, tuple[int, float | None]] = WeakKeyDictionary()
        """How many messages each had when it was looked at, and when that number was first seen."""
        self._begun: deque[weakref.ref[Subscription]] = deque()
        self._sent: list[SubscriptionState] = []
        self._fates_sent: list[MessageFate] = []
        self._is_connected = self._is_unknown = False
        self._is_used = self._is_ending = self._has_ended = False
        self._was_last_answered = threading.Event()
        self._look_at = self._alive_at = 0.0

    def begun(self, subscription: Subscription) -> None:
        """A subscription has begun: tell of it soon, also if it ends before that."""
        self._begun.append(subscription.reference)
        self._is_used = True
        self._look_at = min(self._look_at, time.monotonic() + SOON_SECONDS)
        self._connection.wake()

    def close(self) -> None:
        """Tell that there are no more, if there is a broker: it would show them until it has forgotten them."""
        if self._is_used and not self._is_unknown and self._connection.hello is not None:
            self._is_ending = True
            self._connection.wake()
            if not self._was_last_answered.wait(CLOSE_SECONDS):
                log.debug("the broker was not told of the end of subscriptions within %s s", CLOSE_SECONDS)

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._sent) or bool(self._subscriptions())

    def topics(self) -> set[bytes]:
        return set()

    def on_connected(self, hello: replies.HelloAck) -> None:  # noqa: ARG002  any broker will do
        self._is_connected, self._is_unknown = True, False
        self._look_at = self._alive_at = 0.0

    def on_disconnected(self) -> None:
        self._is_connected = False
        self._sent, self._fates_sent, self._asked = [], [], []

    def on_event(self, topic: bytes, payload: bytes) -> None:
        """Nothing that the broker publishes is about subscriptions."""

    def tick(self, now: float) -> float:
        if not self._is_connected or self._is_unknown:
            return now + IDLE_SECONDS
        if self._is_ending:
            if not self._has_ended:
                self._has_ended = True
                self._connection.submit(self._command([], []), self._last_answered, timeout=CLOSE_SECONDS)
            return now + IDLE_SECONDS
        if now >= self._look_at:
            self._look_at = now + (ASKED_SECONDS if self._asked else REPORT_SECONDS)
            subscriptions = self._reported()
            states = [self._state(one) for one in subscriptions]
            fates = self._fates_of(subscriptions) if self._asked else []
            is_due = bool(states) and (now >= self._alive_at or bool(self._asked))
            if is_due or (states, fates) != (self._sent, self._fates_sent):
                self._sent, self._fates_sent, self._alive_at = states, fates, now + ALIVE_SECONDS
                self._connection.submit(self._command(states, fates), self._answered, timeout=ANSWER_SECONDS)
        return self._look_at if self._sent or self._subscriptions() else now + IDLE_SECONDS

    def _answered(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        if isinstance(reply, replies.SubscriptionsNoted):
            if set(reply.asked) - set(self._asked):
                self._look_at = 0.0  # somebody waits for the answer
                self._connection.wake()
            self._asked = reply.asked
            return
        self._is_unknown = isinstance(reply, replies.Error) and not reply.retryable
        self._alive_at = 0.0  # said again with the next look
        log.debug("the broker was not told of subscriptions: %s", error or reply)

    def _last_answered(self, _: replies.AnyReply | None, __: HubError | None) -> None:
        self._was_last_answered.set()

    def _reported(self) -> list[Subscription]:
        """Return the subscriptions to tell of, the oldest first, and once more those that have ended since."""
        while self._begun:
            begun = self._begun.popleft()()
            if begun is not None:
                self._counted[begun] = (0, None)
        going_on = [one for one in self._subscriptions() if not one.is_closed]
        ended = [one for one in self._counted if one.is_closed]
        for one in ended:
            del self._counted[one]
        return sorted([*ended, *going_on], key=lambda one: one.began_at)[:MOST_SUBSCRIPTIONS]

    def _fates_of(self, subscriptions: list[Subscription]) -> list[MessageFate]:
        found: list[MessageFate] = []
        for place, one in enumerate(subscriptions):
            asked = [] if one.is_closed else [message for message in self._asked if one.matches(message.topic)]
            found += [
                MessageFate(message=message, subscription=place, outcome=fate.outcome, reason=fate.reason)
                for message, fate in zip(asked, self._fates(one, asked), strict=True)
            ]
        return found[:MOST_FATES]

    def _state(self, subscription: Subscription) -> SubscriptionState:
        received = subscription.received
        counted, received_at = self._counted.get(subscription, (0, None))
        if received != counted:
            received_at = time.time()
        failure = subscription.failure
        ended_by = None if not subscription.is_closed else failure.code if failure is not None else "closed"
        if ended_by is None:
            self._counted[subscription] = (received, received_at)
        kind, name = subscription.reported_as
        return SubscriptionState(
            patterns=[*subscription.patterns[:MOST_PATTERNS]],
            kind=kind,
            name=name,
            received=received,
            buffered=subscription.buffered,
            lost=subscription.lost,
            began_at=subscription.began_at,
            received_at=received_at,
            ended_by=ended_by,
        )

    def _command(self, states: list[SubscriptionState], fates: list[MessageFate]) -> commands.ReportSubscriptions:
        return commands.ReportSubscriptions(program=program(), subscriptions=states, fates=fates, **self._owner)
