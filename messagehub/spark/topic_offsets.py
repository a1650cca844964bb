"""Where a read of retained topics begins and ends.

An offset of Spark is, for each topic, the next message to read and the topic's incarnation:
{topic: {"incarnation": …, "offset": …}}. A topic that is deleted and made again counts its messages anew, so that an
offset alone would skip some. The offset in which a topic comes up for the first time also has the `first` message that
it had then: that is where the read of it begins.
"""

import logging
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from messagehub.errors import DataLost, TopicNotFound
from messagehub.spark.errors import BadOption
from messagehub.spark.hubs import RUNNING_SECONDS, patiently
from messagehub.spark.options import EARLIEST, LATEST, Options
from messagehub.topics.retained.positions import AHEAD_SECONDS, Start, resolve, with_known_ends
from registry.records import RetainedTopic

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

log = logging.getLogger("messagehub")

TopicOffset = dict[str, int]
Offset = dict[str, TopicOffset]


def topics_of(
    options: Options, hub: "MessageHub", *, seconds: float, may_be_none: bool = False, known: Collection[str] = ()
) -> dict[str, RetainedTopic]:
    """Return the retained topics that the option names, by name.

    TopicNotFound where one that is named in full is not there, unless it is `known` from before.
    """
    patterns = options.patterns

    def matching(pattern: str) -> list[RetainedTopic]:
        return with_known_ends(hub.topics(pattern))

    found = {
        topic.name: topic for pattern in patterns.texts for topic in patiently(partial(matching, pattern), seconds)
    }
    missing = [name for name in patterns.topics if name not in found and name not in known]
    if missing:
        raise TopicNotFound(
            f"topic {missing[0]!r} is not retained, so there is nothing to read later: hub.topic({missing[0]!r},"
            f" keep=…) or `messagehub topics keep {missing[0]}` makes it so",
            topic=missing[0],
        )
    if not found and not may_be_none:
        raise TopicNotFound(f"no retained topic matches {patterns.text!r}", pattern=patterns.text)
    return dict(sorted(found.items()))


def first_offsets(options: Options, hub: "MessageHub", topics: Mapping[str, RetainedTopic]) -> Offset:
    """Return where a new query, or a batch, begins."""
    return {name: _topic_offset(topic, _first(options, hub, topic)) for name, topic in topics.items()}


def last_offsets(options: Options, topics: Mapping[str, RetainedTopic]) -> Offset:
    """Return where a batch ends."""
    said = options.ending_offsets
    _check_named("endingOffsets", said, topics)
    wanted = said if isinstance(said, dict) else {}
    return {name: _topic_offset(topic, _within(topic, wanted.get(name, LATEST))) for name, topic in topics.items()}


def heads(hub: "MessageHub", topics: Mapping[str, RetainedTopic], start: Offset) -> Offset:
    """Return where the topics end now, and where those begin that the start does not have."""
    found = {name: _topic_offset(topic, topic.next_offset) for name, topic in topics.items()}
    for name, topic in topics.items():
        before = start.get(name)
        if before is None or before["incarnation"] != topic.incarnation:
            try:
                described = patiently(hub.topic(name).describe, RUNNING_SECONDS)
            except TopicNotFound:  # deleted a moment ago, before anything of it was read
                del found[name]
                continue
            found[name]["first"] = min(described.first_offset, topic.next_offset)
    return found


def limited(start: Offset, end: Offset, rows: int, *, turn: int) -> Offset:
    """Return an end that is at most `rows` messages away, shared among the topics by how many they have.

    At least one message is taken, and with every turn another topic is the first, so that none starves.
    """
    behind = {name: max(reached["offset"] - _begin(start, name, reached), 0) for name, reached in end.items()}
    total = sum(behind.values())
    if total <= rows:
        return end
    order = sorted(end)
    order = order[turn % len(order) :] + order[: turn % len(order)]
    left, found = max(rows, 1), {}
    for name in order:
        share = min(left, -(-behind[name] * rows // total))
        left -= share
        found[name] = end[name] | {"offset": _begin(start, name, end[name]) + share}
    return dict(sorted(found.items()))


def ranges(start: Offset, end: Offset) -> list[tuple[str, int, int, int]]:
    """Return name, incarnation, first message and the offset before which to end, for each topic with messages."""
    found = []
    for name, reached in sorted(end.items()):
        begin = _begin(start, name, reached)
        if begin < reached["offset"]:
            found.append((name, reached["incarnation"], begin, reached["offset"]))
    return found


def check_checkpoint(options: Options, start: Offset) -> None:
    """Refuse an offset of a channel, or of nothing but other topics: the query would begin anew without a word."""
    if any("incarnation" not in reached for reached in start.values()):
        raise BadOption(
            f"the checkpoint is of a channel, and this query reads topic {options.topic!r}: give it a"
            " checkpointLocation of its own"
        )
    if start and not any(options.patterns.matches(name) for name in start):
        raise BadOption(
            f"the checkpoint is of topic {min(start)!r}, and this query reads {options.topic!r}: give it a"
            " checkpointLocation of its own"
        )


def losses(options: Options, start: Offset, topics: Mapping[str, RetainedTopic]) -> dict[str, str]:
    """Return what is no longer there of topics that a query has begun to read, by topic."""
    found = {}
    for name, reached in start.items():
        topic, read = topics.get(name), reached["offset"]
        if not options.patterns.matches(name):
            found[name] = f"topic {name!r}, of which the query has read up to offset {read}, is not in option topic now"
        elif topic is None:
            found[name] = f"topic {name!r}, of which the query has read up to offset {read}, is gone"
        elif topic.incarnation != reached["incarnation"]:
            found[name] = f"topic {name!r}, of which the query had read up to offset {read}, was deleted and made again"
        elif topic.next_offset < read:
            found[name] = f"topic {name!r} ends before offset {read}, up to which the query has read"
    return found


def lose(options: Options, said: str) -> None:
    """Fail the query, or go on with a warning where the user accepts a loss."""
    if options.fail_on_data_loss:
        raise DataLost(
            f"{said}: messages may be lost. Keep more messages, read more often, or accept the loss with"
            " failOnDataLoss=false."
        )
    log.warning("%s; the query goes on", said)


def _begin(start: Offset, name: str, end: TopicOffset) -> int:
    """A topic that came, or was made again, after the start is read from the first message that it had then."""
    before = start.get(name)
    is_known = before is not None and before["incarnation"] == end["incarnation"]
    return before["offset"] if before is not None and is_known else end.get("first", 1)


def _first(options: Options, hub: "MessageHub", topic: RetainedTopic) -> int:
    if options.starting_at is not None:
        if options.starting_at > time.time() + AHEAD_SECONDS:
            raise BadOption("option startingTimestamp is a time that has not come yet: it is in milliseconds")
        return resolve(Start(options.starting_at), topic.name, hub.ask)
    said = options.starting_offsets
    wanted = said.get(topic.name, EARLIEST) if isinstance(said, dict) else EARLIEST if said == "earliest" else LATEST
    if wanted == EARLIEST:
        return resolve(Start("oldest"), topic.name, hub.ask)
    return _within(topic, wanted)


def _within(topic: RetainedTopic, offset: int) -> int:
    if offset > topic.next_offset:
        raise BadOption(
            f"offset {offset} is beyond the end of topic {topic.name!r}, whose next message has {topic.next_offset}"
        )
    return topic.next_offset if offset == LATEST else max(offset, 1)


def _check_named(option: str, said: "str | dict[str, int]", topics: Mapping[str, RetainedTopic]) -> None:
    unknown = sorted(set(said) - set(topics)) if isinstance(said, dict) else []
    if unknown:
        raise BadOption(f"option {option} names topic {unknown[0]!r}, which is not retained or not one of option topic")


def check_starting(options: Options, topics: Mapping[str, RetainedTopic]) -> None:
    _check_named("startingOffsets", options.starting_offsets, topics)


def _topic_offset(topic: RetainedTopic, offset: int) -> TopicOffset:
    return {"incarnation": topic.incarnation, "offset": offset}
