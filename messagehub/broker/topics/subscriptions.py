"""Who subscribes to which topics: libzmq carries the messages past the broker, so subscribers tell it.

Rule 1: nothing is counted on the way of a message. Each process reports its subscriptions every few seconds, and what
it reports replaces what it reported before.
Rule 2: a process that is silent for FORGET_SECONDS is forgotten, and the number of subscriptions is bounded: the ones
whose process reported longest ago make room.
"""

import time
from typing import Final

import msgspec

from registry import commands, replies
from registry.registry import Registry
from registry.topics.patterns import check_pattern, check_topic, is_match

FORGET_SECONDS: Final = 15.0
MOST_SUBSCRIPTIONS: Final = 20_000


class ReportedSubscriptions:
    def __init__(self) -> None:
        self._processes: dict[str, tuple[float, list[replies.ReportedSubscription]]] = {}
        """By lease, the one that reported last at the end: when it did (monotonic), and what."""
        self._count = 0

    def report(self, command: commands.ReportSubscriptions, _: list[bytes], __: Registry) -> replies.Reply:
        for state in command.subscriptions:
            for pattern in state.patterns:
                check_pattern(pattern)  # before anything is changed
        self._forget(command.lease)
        self._forget_silent()
        if command.subscriptions:
            reported_at = time.time()
            self._processes[command.lease] = (
                time.monotonic(),
                [
                    replies.ReportedSubscription(
                        program=command.program,
                        host=command.host,
                        pid=command.pid,
                        reported_at=reported_at,
                        **msgspec.structs.asdict(state),
                    )
                    for state in command.subscriptions
                ],
            )
            self._count += len(command.subscriptions)
            while self._count > MOST_SUBSCRIPTIONS:
                self._forget(next(iter(self._processes)))
        return replies.SubscriptionsNoted(subscriptions=len(command.subscriptions))

    def list(self, command: commands.ListSubscriptions, _: list[bytes], __: Registry) -> replies.Reply:
        self._forget_silent()
        components = None if command.topic is None else check_topic(command.topic).split(".")
        found = [
            one
            for _, subscriptions in self._processes.values()
            for one in subscriptions
            if components is None or any(is_match(pattern, components) for pattern in one.patterns)
        ]
        found.sort(key=lambda one: one.began_at)
        return replies.SubscriptionList(subscriptions=found[: command.limit], total=len(found))

    def _forget_silent(self) -> None:
        oldest = time.monotonic() - FORGET_SECONDS
        while self._processes:
            lease, (reported_at, _) = next(iter(self._processes.items()))
            if reported_at > oldest:
                return
            self._forget(lease)

    def _forget(self, lease: str) -> None:
        forgotten = self._processes.pop(lease, None)
        if forgotten is not None:
            self._count -= len(forgotten[1])
