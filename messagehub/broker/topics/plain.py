"""Which plain topics are published to: libzmq carries their messages past the broker, so publishers tell it.

Rule 1: nothing is counted on the way of a message. A publisher asks every PLAIN_SECONDS whether its topic is retained,
and names itself when it does; that request is noted here.
Rule 2: what is noted is bounded, in topics and in publishers of a topic, and is forgotten after FORGET_SECONDS.
"""

from collections.abc import Callable
from typing import Final

from registry.records import PlainTopic
from registry.topics.patterns import Pattern
from registry.topics.retained import PLAIN_SECONDS

MOST_TOPICS: Final = 10_000
MOST_PUBLISHERS: Final = 100
MOST_LISTED: Final = 1_000
FORGET_SECONDS: Final = 600.0
CURRENT_SECONDS: Final = 2 * PLAIN_SECONDS
"""A publisher that asked so long ago still counts: it asks again only when it publishes again."""


class PlainTopics:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._asked: dict[str, dict[str, float]] = {}
        """By topic, the one that was asked for last at the end: when each publisher asked."""

    def note(self, topic: str, publisher: str) -> None:
        publishers = self._asked.pop(topic, {})
        publishers.pop(publisher, None)
        publishers[publisher] = self._now()
        if len(publishers) > MOST_PUBLISHERS:
            del publishers[next(iter(publishers))]
        self._asked[topic] = publishers
        if len(self._asked) > MOST_TOPICS:
            del self._asked[next(iter(self._asked))]

    def forget(self, topic: str) -> None:
        """The topic is retained now."""
        self._asked.pop(topic, None)

    def find(self, pattern: str) -> list[PlainTopic]:
        """Return the topics that match and were published to lately, by name; of very many, those of the last ones."""
        matches, now = Pattern(pattern).matches, self._now()
        found: list[PlainTopic] = []
        for topic, publishers in reversed(self._asked.items()):
            asked_at = max(publishers.values())
            if len(found) == MOST_LISTED or now - asked_at > FORGET_SECONDS:
                break
            if matches(topic):
                current = sum(now - at <= CURRENT_SECONDS for at in publishers.values())
                found.append(PlainTopic(name=topic, publishers=current, asked_at=asked_at))
        return sorted(found, key=lambda one: one.name)
