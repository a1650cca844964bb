"""Who subscribes to topics, as the processes that do tell; nothing of it is in the registry, nor outlives the broker.

Rule 1: the broker does not see who gets a message. Processes report what their subscriptions counted, every few
seconds; one that is silent for FORGET_SECONDS is forgotten.
Rule 2: whoever may connect may report, under any name, so a report changes nothing but what is shown to people.
Rule 3: a report replaces what the same lease said before, and the number of subscriptions is bounded: the ones
whose process reported longest ago make room.
Rule 4: the answer to a report says which messages somebody looks for (`ask`), for ASKED_SECONDS after they were asked
for last. A process says what became of them with its reports for as long, and nothing is counted otherwise.
"""

import time
from typing import Final, NamedTuple

import msgspec

from registry import commands, replies
from registry.records import AskedMessage, MessageFate
from registry.registry import Registry
from registry.topics.patterns import check_pattern, check_topic, is_match

FORGET_SECONDS: Final = 15.0
MOST_SUBSCRIPTIONS: Final = 20_000
ASKED_SECONDS: Final = 15.0
MOST_ASKED: Final = 16
ENDED_SECONDS: Final = 600.0
MOST_ENDED: Final = 1_000

Matching = list[tuple[replies.ReportedSubscription, MessageFate | None]]
"""Subscriptions that match, and what their processes say of a message."""
Ended = list[replies.EndedSubscription]
Asked = list[AskedMessage]


class _Report(NamedTuple):
    at: float
    """Monotonic."""
    subscriptions: list[replies.ReportedSubscription]
    fates: list[MessageFate]


class ReportedSubscriptions:
    def __init__(self) -> None:
        self._processes: dict[str, _Report] = {}
        """By lease, the one that reported last at the end."""
        self._count = 0
        self._asked: dict[AskedMessage, float] = {}
        """When each was asked for last (monotonic); the newest at the end."""
        self._ended: dict[tuple[object, ...], replies.EndedSubscription] = {}
        """The one that ended last at the end."""

    def report(self, command: commands.ReportSubscriptions, _: list[bytes], __: Registry) -> replies.Reply:
        for state in command.subscriptions:
            for pattern in state.patterns:
                check_pattern(pattern)  # before anything is changed
        before = self._forget(command.lease)
        self._forget_silent()
        reported_at = time.time()
        subscriptions = [
            replies.ReportedSubscription(
                program=command.program,
                host=command.host,
                pid=command.pid,
                reported_at=reported_at,
                **msgspec.structs.asdict(state),
            )
            for state in command.subscriptions
        ]
        going_on = {_key(command.lease, one) for one in subscriptions if one.ended_by is None}
        for one in subscriptions:
            if one.ended_by is not None:
                self._end(command.lease, one, one.ended_by)
        for one in before.subscriptions if before is not None else ():
            if one.ended_by is None and _key(command.lease, one) not in going_on:
                self._end(command.lease, one, "closed")
        if going_on:
            self._processes[command.lease] = _Report(time.monotonic(), subscriptions, command.fates)
            self._count += len(subscriptions)
            while self._count > MOST_SUBSCRIPTIONS:
                self._forget(next(iter(self._processes)))
        return replies.SubscriptionsNoted(subscriptions=len(going_on), asked=self._asked_now())

    def list(self, command: commands.ListSubscriptions, _: list[bytes], __: Registry) -> replies.Reply:
        found = [one for one, _ in self._matching(command.topic, None)]
        return replies.SubscriptionList(subscriptions=found[: command.limit], total=len(found))

    def ask(self, message: AskedMessage) -> Matching:
        """Return every subscription that matches, and what its process says of the message; ask those that did not."""
        self._asked.pop(message, None)
        self._asked[message] = time.monotonic()
        if len(self._asked) > MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        return self._matching(message.topic, message)

    def ended(self, topic: str) -> Ended:
        """Return the subscriptions that match and have ended lately, the oldest first."""
        self._forget_silent()
        components, oldest = check_topic(topic).split("."), time.time() - ENDED_SECONDS
        return [
            one
            for one in self._ended.values()
            if one.ended_at >= oldest and any(is_match(pattern, components) for pattern in one.patterns)
        ]

    def _matching(self, topic: str | None, message: AskedMessage | None) -> Matching:
        self._forget_silent()
        components = None if topic is None else check_topic(topic).split(".")
        found: Matching = []
        for report in self._processes.values():
            fates = {one.subscription: one for one in report.fates if one.message == message} if message else {}
            found += [
                (one, fates.get(place))
                for place, one in enumerate(report.subscriptions)
                if one.ended_by is None
                and (components is None or any(is_match(pattern, components) for pattern in one.patterns))
            ]
        found.sort(key=lambda each: each[0].began_at)
        return found

    def _asked_now(self) -> Asked:
        oldest = time.monotonic() - ASKED_SECONDS
        while self._asked and self._asked[next(iter(self._asked))] < oldest:
            del self._asked[next(iter(self._asked))]
        return list(self._asked)

    def _forget_silent(self) -> None:
        oldest = time.monotonic() - FORGET_SECONDS
        while self._processes:
            lease, report = next(iter(self._processes.items()))
            if report.at > oldest:
                return
            self._forget(lease)
            for one in report.subscriptions:
                self._end(lease, one, "silent")

    def _forget(self, lease: str) -> _Report | None:
        forgotten = self._processes.pop(lease, None)
        if forgotten is not None:
            self._count -= len(forgotten.subscriptions)
        return forgotten

    def _end(self, lease: str, one: replies.ReportedSubscription, why: str) -> None:
        key = _key(lease, one)
        if key not in self._ended:
            said = msgspec.structs.asdict(one) | {"ended_by": why}
            self._ended[key] = replies.EndedSubscription(ended_at=time.time(), **said)
            if len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]


def _key(lease: str, one: replies.ReportedSubscription) -> tuple[object, ...]:
    return lease, one.began_at, tuple(one.patterns), one.kind, one.name
