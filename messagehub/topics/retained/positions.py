"""Where a subscription to retained topics begins: what `since` means, and positions that a program can save.

A position is the offset behind what was received and the incarnation of its topic: offsets of a topic that was deleted
and made again begin anew, so that an offset alone would skip its messages.
"""

import datetime
import logging
import math
import operator
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from messagehub.arguments import plain
from messagehub.errors import ConfigurationError, HomeHostUnavailable
from registry import commands, replies
from registry.records import RetainedTopic

log = logging.getLogger("messagehub.topics")

NamedStart = Literal["oldest", "newest", "last", "now"]
Since = int | float | datetime.datetime | datetime.timedelta | Mapping[str, int | Mapping[str, int]] | NamedStart
"""Offset (0: the oldest), time, age, `subscription.positions` of before, or a named start ("now" is "newest")."""
AHEAD_SECONDS = 60.0
"""How far a time may be in the future, since the clocks of two hosts differ. A larger one is a mistake."""
_RULE = (
    "since is an offset (an integer, 0 for the oldest), a time (a datetime, or seconds since the epoch as a float), an"
    ' age (a timedelta), "oldest", "newest", "last", or the positions of a subscription'
)


class Begin(NamedTuple):
    """Where to begin in a topic.

    `offset` 0 is the oldest message. With `is_exact`, messages from `offset` on that retention removed count as lost.
    """

    offset: int
    since: float | None = None
    is_exact: bool = True


class _Saved(NamedTuple):
    offset: int
    incarnation: int | None


class Start:
    """A checked `since`."""

    def __init__(self, since: Since) -> None:
        self._named_start: NamedStart | None = None
        self._offset: int | None = None
        self._since: float | None = None
        self.saved: dict[str, _Saved] | None = None
        since = plain(since)
        if isinstance(since, str):
            if since not in get_args(NamedStart):
                raise ConfigurationError(f"{_RULE}, not {since!r}")
            self._named_start = since
        elif isinstance(since, Mapping):
            self.saved = {topic: _saved(topic, position) for topic, position in since.items()}
        else:
            self._offset = _number(since)
            self._since = _instant(since) if self._offset is None else None

    def of(self, topic: RetainedTopic) -> Begin:
        """Return where to begin in this topic. Raise ConfigurationError if the topic ends before that."""
        if self.saved is not None:
            return _continued(topic, self.saved.get(topic.name))
        if self._since is not None:
            return Begin(0, self._since)
        if self._offset is not None:
            return Begin(_within(topic, self._offset))
        if self._named_start == "last":
            return Begin(max(topic.next_offset - 1, 1), is_exact=False)
        return Begin(0 if self._named_start == "oldest" else topic.next_offset)


def with_known_ends(topics: list[RetainedTopic]) -> list[RetainedTopic]:
    """Return the topics if it is known of all how far they are; raise HomeHostUnavailable if it is not."""
    for topic in topics:
        if not topic.next_offset:
            raise HomeHostUnavailable(
                f"topic {topic.name!r} has its messages on host {topic.home!r}, which does not answer, so it is not"
                " known how far it is: try again",
                topic=topic.name,
                home=topic.home,
            )
    return topics


def resolve(start: Start, topic: str, ask: Callable[[commands.Command], Any]) -> int:
    """Return the offset that a start means now, in a topic of the broker."""
    described: replies.TopicDescription = ask(commands.DescribeTopic(topic=topic))
    begin = start.of(described.topic)
    if begin.since is None:
        return max(begin.offset, described.first_offset)
    page: replies.TopicPage = ask(commands.ReadTopic(topic=topic, since=begin.since, limit=1))
    return page.messages[0].offset if page.messages else page.next_offset


def saved_position(offset: int, incarnation: int) -> dict[str, int]:
    """Return a position as `subscription.positions` shows it and `since` takes it, also through JSON."""
    return {"offset": offset, "incarnation": incarnation}


def _continued(topic: RetainedTopic, saved: _Saved | None) -> Begin:
    if saved is None:
        return Begin(0)
    if saved.incarnation not in (None, topic.incarnation):
        log.warning("topic %r was deleted and made again since its position was saved: it is read anew", topic.name)
        return Begin(1)
    return Begin(_within(topic, saved.offset))


def _within(topic: RetainedTopic, offset: int) -> int:
    if offset > topic.next_offset:
        raise ConfigurationError(
            f"since says offset {offset}, but the next message of topic {topic.name!r} has offset {topic.next_offset}."
            " An integer is an offset: give a time as a datetime, a timedelta, or seconds since the epoch as a float",
            topic=topic.name,
            offset=offset,
            next_offset=topic.next_offset,
        )
    return offset


def _saved(topic: Any, given: Any) -> _Saved:
    if isinstance(given, Mapping) and set(given) == {"offset", "incarnation"}:
        offset, incarnation = given["offset"], given["incarnation"]
    else:
        offset, incarnation = given, None
    saved = _number(offset)
    if not isinstance(topic, str) or saved is None or (incarnation is not None and _number(incarnation) is None):
        raise ConfigurationError(
            f"since has {given!r} for topic {topic!r}: a position is an offset, or offset and incarnation as"
            " subscription.positions has them"
        )
    return _Saved(saved, _number(incarnation))


def _number(given: Any) -> int | None:
    """Return an integer of Python or NumPy that is not negative; None for anything else."""
    try:
        number = operator.index(given)
    except TypeError:
        return None
    return None if isinstance(given, bool) or number < 0 else number


def _instant(since: Any) -> float:
    now = time.time()
    if isinstance(since, datetime.datetime):
        at = since.timestamp()
    elif isinstance(since, datetime.timedelta):
        at = now - since.total_seconds()
    elif isinstance(since, float) and math.isfinite(since):
        at = float(since)
    else:
        raise ConfigurationError(f"{_RULE}, not {since!r}")
    if at > now + AHEAD_SECONDS:
        raise ConfigurationError(
            f"since is {since!r}, a time that has not come yet: times are seconds, not milliseconds, and an age is a"
            " positive timedelta"
        )
    return at
