"""What a process tells the broker about its subscriptions, so that people can see who gets a topic's messages.

Rule 1: nothing is done for a message. The counts that subscriptions have anyway are read every REPORT_SECONDS, and sent
if they have changed; unchanged ones are sent every ALIVE_SECONDS, before the broker would forget them.
Rule 2: it is for people to look at: a report that fails is sent again with the next one, and no caller hears of it. A
broker that does not know the request is not asked again before the next connection.
Rule 3: all reports, the last one too, are sent by the I/O thread: they arrive in the order in which they were made.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from messagehub.client.connection import Connection
from messagehub.errors import HubError
from messagehub.topics.subscriptions import Subscription
from registry import commands, replies
from registry.records import SubscriptionState

log = logging.getLogger("messagehub.topics")

REPORT_SECONDS = 2.0
ALIVE_SECONDS = 5.0
SOON_SECONDS = 0.05
"""So that a program that subscribes to many topics in a row tells of them together."""
ANSWER_SECONDS = 2.0
CLOSE_SECONDS = 0.5
MOST_SUBSCRIPTIONS, MOST_PATTERNS = 500, 100
IDLE_SECONDS = 3600.0


class SubscriptionReports:
    def __init__(
        self, connection: Connection, subscriptions: Callable[[], Collection[Subscription]], *, owner: dict[str, Any]
    ) -> None:
        """`owner` names this process; `subscriptions` gives those of now, on any thread."""
        self._connection = connection
        self._subscriptions = subscriptions
        self._owner = {name: owner[name] for name in ("lease", "host", "pid")}
        self._counted: WeakKeyDictionary[Subscription, tuple[int, float | None]] = WeakKeyDictionary()
        """How many messages each had when it was looked at, and when that number was first seen."""
        self._sent: list[SubscriptionState] = []
        self._is_connected = self._is_unknown = False
        self._is_used = self._is_ending = self._has_ended = False
        self._was_last_answered = threading.Event()
        self._look_at = self._alive_at = 0.0

    def changed(self) -> None:
        """A subscription has begun: tell of it soon."""
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
        self._sent = []

    def on_event(self, topic: bytes, payload: bytes) -> None:
        """Nothing that the broker publishes is about subscriptions."""

    def tick(self, now: float) -> float:
        if not self._is_connected or self._is_unknown:
            return now + IDLE_SECONDS
        if self._is_ending:
            if not self._has_ended:
                self._has_ended = True
                self._connection.submit(self._command([]), self._last_answered, timeout=CLOSE_SECONDS)
            return now + IDLE_SECONDS
        if now >= self._look_at:
            self._look_at = now + REPORT_SECONDS
            states = self._states()
            if states != self._sent or (states and now >= self._alive_at):
                self._sent, self._alive_at = states, now + ALIVE_SECONDS
                self._connection.submit(self._command(states), self._answered, timeout=ANSWER_SECONDS)
        return self._look_at if self._sent or self._subscriptions() else now + IDLE_SECONDS

    def _answered(self, reply: replies.AnyReply | None, error: HubError | None) -> None:
        if isinstance(reply, replies.SubscriptionsNoted):
            return
        self._is_unknown = isinstance(reply, replies.Error) and not reply.retryable
        self._alive_at = 0.0  # said again with the next look
        log.debug("the broker was not told of subscriptions: %s", error or reply)

    def _last_answered(self, _: replies.AnyReply | None, __: HubError | None) -> None:
        self._was_last_answered.set()

    def _states(self) -> list[SubscriptionState]:
        states = [self._state(one) for one in self._subscriptions() if not one.is_closed]
        states.sort(key=lambda state: state.began_at)
        return states[:MOST_SUBSCRIPTIONS]

    def _state(self, subscription: Subscription) -> SubscriptionState:
        received = subscription.received
        counted, received_at = self._counted.get(subscription, (0, None))
        if received != counted:
            received_at = time.time()
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
        )

    def _command(self, states: list[SubscriptionState]) -> commands.ReportSubscriptions:
        return commands.ReportSubscriptions(program=_program(), subscriptions=states, **self._owner)


def _program() -> str | None:
    """What this process runs, as a person would name it: `billing.py`, or the package of `python -m`."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if path is None or path.name == "-c":
        return None
    return (path.parent.name if path.name == "__main__.py" else path.name)[:200]
