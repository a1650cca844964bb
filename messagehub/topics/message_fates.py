"""What became of one message at a subscription, worked out when somebody asks.

Rule 1: a message that arrives and is taken costs nothing more than before. What is remembered is what goes wrong (the
numbers that were lost, and why) and where counting began; the rest follows from the newest number and the buffer.
Rule 2: what is remembered is bounded. Of a message before that, the answer is that nobody knows any more.
"""

from collections import deque
from typing import Final, NamedTuple

from registry.records import AskedMessage, MessageOutcome

MOST_RANGES: Final = 64
"""Of the numbers that one publisher's messages lost for one reason."""
MOST_PUBLISHERS: Final = 256
MOST_STARTS: Final = 10_000
"""How many publishers may be known when a subscription begins, so that it is known where each was."""
Source = tuple[str, bytes, bool]
"""Topic, publisher, and whether the topic is a retained one: who counts messages."""
FORGOTTEN: Final = "forgotten"

IN_TRANSIT = "it did not reach the process: the process or the broker was too slow, or the broker was away"
DROPPED_OLDEST = "the buffer was full, and its oldest messages were dropped (drop_oldest)"
DROPPED_NEWEST = "the buffer was full, and what came was dropped (drop_newest)"
DISCONNECTED = "the buffer was full, and the subscription was ended (disconnect)"
DISCARDED = "its callback was stopped before it came to it"
NOT_CERTAIN = "the member of the group did not know whether it was still its own"
REMOVED = "the topic's bounds removed it before it was read"


class Fate(NamedTuple):
    outcome: MessageOutcome
    reason: str | None = None


class Heard(NamedTuple):
    """What has come of one publisher of a topic to a process."""

    first: int
    next: int
    is_first_certain: bool
    """Whether nothing that came before `first` was forgotten."""
    is_of_site: bool
    """Whether it comes from another host."""


class LostMessages:
    """Which messages a subscription lost, and why: the newest ranges of numbers of each publisher."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, bytes, bool, str], deque[list[int]]] = {}
        self._forgotten_to: dict[Source, int] = {}
        self._has_forgotten = False

    def add(self, source: Source, first: int, last: int, why: str) -> None:
        key = (*source, why)
        ranges = self._ranges.get(key)
        if ranges is None:
            if len(self._ranges) >= MOST_PUBLISHERS:
                del self._ranges[next(iter(self._ranges))]
                self._has_forgotten = True
            ranges = self._ranges[key] = deque()
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1][1] = last
            return
        ranges.append([first, last])
        if len(ranges) > MOST_RANGES:
            if len(self._forgotten_to) >= MOST_PUBLISHERS:
                self._forgotten_to.clear()
                self._has_forgotten = True
            self._forgotten_to[source] = max(self._forgotten_to.get(source, 0), ranges.popleft()[1])

    def why(self, source: Source, number: int) -> str | None:
        """Return why a message was lost, None if it was not, FORGOTTEN if that is not known any more."""
        is_known = False
        for (*key, why), ranges in self._ranges.items():
            if tuple(key) == source:
                is_known = True
                if any(first <= number <= last for first, last in ranges):
                    return why
        if number <= self._forgotten_to.get(source, 0) or (self._has_forgotten and not is_known):
            return FORGOTTEN
        return None


def source_of(message: AskedMessage) -> Source:
    return message.topic, bytes.fromhex(message.publisher), message.retained


def not_heard(number: int, heard: Heard | None) -> Fate:
    if heard is None:
        return Fate("not_heard", "nothing of this publisher has come to its process since it began")
    return Fate("not_heard", f"the newest that has come to its process is {heard.next - 1}, not yet {number}")


def earlier(first: int) -> Fate:
    return Fate(
        "earlier", f"published before it began, or lost before anything else came: the first it heard is {first}"
    )


TOO_LONG_AGO = Fate("unknown", "its process does not remember so far back")
