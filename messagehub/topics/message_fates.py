"""What became of one message at a subscription, worked out when somebody asks.

Rule 1: a message that arrives and is taken costs nothing more than before. What is remembered is what goes wrong (the
numbers that were lost, and why) and where counting began; the rest follows from the newest number and the buffer.
Rule 2: what is remembered is bounded. Of a message before that, the answer is that nobody knows any more.
"""

from collections import deque
from typing import Final, NamedTuple

from messagehub.topics.messages import Message
from registry.records import AskedMessage, MessageOutcome

MOST_RANGES: Final = 1_000
"""Of the numbers of messages of one publisher that were lost for one reason."""
MOST_RANGES_IN_ALL: Final = 10_000
"""Of one subscription: about a megabyte."""
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
        self._count = 0
        self._forgotten_to: dict[Source, int] = {}
        self._has_forgotten = False
        self._newest: list[int] = [0, -2]
        """The range that `add_one` made longer last, and of which publisher and reason it is."""
        self._newest_of: tuple[str, bytes, bool, str] | None = None

    def add_one(self, message: Message, why: str) -> None:
        """As `add` of one message. A reader that is too slow loses many in a row, so that must cost little."""
        newest, of, number = self._newest, self._newest_of, message.number
        if (
            newest[1] + 1 == number
            and of is not None
            and of[3] is why
            and of[1] == message.publisher
            and of[0] == message.topic
            and of[2] is message.is_retained
        ):
            newest[1] = number
            return
        self.add((message.topic, message.publisher, message.is_retained), number, number, why)

    def add(self, source: Source, first: int, last: int, why: str) -> None:
        key = (*source, why)
        ranges = self._ranges.get(key)
        if ranges is None:
            if len(self._ranges) >= MOST_PUBLISHERS:
                self._forget_publisher()
            ranges = self._ranges[key] = deque()
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1][1] = last
        else:
            ranges.append([first, last])
            self._count += 1
            if len(ranges) > MOST_RANGES or (self._count > MOST_RANGES_IN_ALL and len(ranges) > 1):
                self._forgotten_to[source] = max(self._forgotten_to.get(source, 0), ranges.popleft()[1])
                self._count -= 1
        self._newest, self._newest_of = ranges[-1], key

    def _forget_publisher(self) -> None:
        key = next(iter(self._ranges))
        self._count -= len(self._ranges.pop(key))
        self._forgotten_to.pop(key[:3], None)
        self._has_forgotten = True

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
