"""Named positions of retained topics: which message is held by whom until when, and which are done.

Rule 1: a message before `next_offset` is done, unless it is unacknowledged; from there on none was handed out.
Rule 2: a message is held by one member at a time. It is free again when that member gives it back or ends, or when its
time is over. How often it was handed out stays known.
Rule 3: what is free is handed out before what is new, the oldest first.
Rule 4: at most `max_unacked` messages are handed out and not acknowledged.
Rule 5: acknowledging is final, whoever does it, and doing it again is harmless.
Rule 6: handing out and acknowledging are events. Who holds a message until when is not: after a restart nobody is known
to hold what is unacknowledged, and it is handed out again when one `ack_wait_seconds` has passed.
Rule 7: positions end with their topic, so that one of the same name begins without any.
"""

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from registry import commands, events, names, replies
from registry.errors import InvalidRequest, PolicyMismatch, PositionNotFound, TopicLimitExceeded, TopicNotFound
from registry.records import RetainedTopic, TopicPosition
from registry.topics.retained import Decision, TopicCatalog

ACK_WAIT_SECONDS = 30.0
MAX_UNACKED = 1_000
MOST_POSITIONS = 1_000
"""Of one topic."""
_SETTINGS = ("ack_wait_seconds", "max_unacked", "max_deliveries")


class SavedPosition(NamedTuple):
    """A position, and how often each message was handed out that is not acknowledged."""

    position: TopicPosition
    deliveries: dict[int, int]


class _Unacked(Struct):
    deliveries: int
    member_id: str | None
    until: float

    def is_free(self, now: float) -> bool:
        return self.until <= now


class _Position:
    __slots__ = ("record", "unacked")

    def __init__(self, record: TopicPosition) -> None:
        self.record = record
        self.unacked: dict[int, _Unacked] = {}


class Positions:
    def __init__(self, topics: TopicCatalog) -> None:
        self._topics = topics
        self._positions: dict[str, dict[str, _Position]] = {}

    def lags(self) -> list[int]:
        """Return for each position how many messages are not acknowledged under it."""
        return [
            _lag(self._topics.get(topic), held)
            for topic, positions in self._positions.items()
            for held in positions.values()
        ]

    def every(self) -> list[SavedPosition]:
        return [
            SavedPosition(held.record, {offset: one.deliveries for offset, one in sorted(held.unacked.items())})
            for positions in self._positions.values()
            for held in positions.values()
        ]

    def restore(self, saved: Iterable[SavedPosition], *, now: float) -> None:
        for record, deliveries in saved:
            held = self._positions.setdefault(record.topic, {})[record.name] = _Position(record)
            until = now + record.ack_wait_seconds
            held.unacked = {offset: _Unacked(count, None, until) for offset, count in deliveries.items()}

    # -- change --------------------------------------------------------------------------------------------

    def evolve(self, event: events.AnyTopicEvent) -> None:
        if isinstance(event, events.TopicDeleted):
            self._positions.pop(event.name, None)
        elif isinstance(event, events.PositionSet):
            record = replace(event.record, revision=event.revision)
            self._positions.setdefault(event.name, {})[event.position] = _Position(record)
        elif isinstance(event, events.PositionDeleted):
            del self._positions[event.name][event.position]
        elif isinstance(event, events.MessagesDelivered):
            held = self._positions[event.name][event.position]
            until = event.at + held.record.ack_wait_seconds
            held.record = replace(held.record, next_offset=event.next_offset)
            for offset in [offset for offset in held.unacked if offset < event.first_offset]:
                del held.unacked[offset]
            for offset, deliveries in event.deliveries:
                held.unacked[offset] = _Unacked(deliveries, event.member_id, until)
        elif isinstance(event, events.MessagesAcknowledged):
            unacked = self._positions[event.name][event.position].unacked
            for offset in event.offsets:
                del unacked[offset]

    def release(self, member_id: str) -> None:
        """Free at once what a member that has ended holds."""
        for positions in self._positions.values():
            for held in positions.values():
                for one in held.unacked.values():
                    if one.member_id == member_id:
                        one.member_id, one.until = None, 0.0

    # -- decisions: they raise or return. Only who holds what until when changes here (rule 6) -------------

    def decide(self, command: commands.Command, *, revision: int, now: float) -> Decision:
        return POSITION_COMMANDS[type(command)](self, command, revision, now)

    def open(self, command: commands.OpenPosition, revision: int, now: float) -> Decision:
        topic = self._topics.get(command.topic)
        name = names.check_role("position", command.position)
        asked = {field: value for field in _SETTINGS if (value := getattr(command, field)) is not None}
        present = self._positions.get(topic.name, {}).get(name)
        if present is not None:
            for field, value in asked.items():
                actual = getattr(present.record, field)
                if value != actual:
                    raise PolicyMismatch(
                        f"position {name!r} of topic {topic.name!r} has {field} {actual}, asked for was {value}: leave"
                        " it out, or delete the position and make it anew",
                        what=field,
                        expected=actual,
                        actual=value,
                    )
            return replies.PositionOpened(position=present.record, created=False), None
        if len(self._positions.get(topic.name, ())) >= MOST_POSITIONS:
            raise TopicLimitExceeded(
                f"topic {topic.name!r} has {MOST_POSITIONS} positions, which is the limit: delete some",
                topic=topic.name,
                limit=MOST_POSITIONS,
            )
        record = TopicPosition(
            topic=topic.name,
            name=name,
            incarnation=topic.incarnation,
            next_offset=(start := _within(topic, command.start)),
            start_offset=start,
            ack_wait_seconds=asked.get("ack_wait_seconds", ACK_WAIT_SECONDS),
            max_unacked=asked.get("max_unacked", MAX_UNACKED),
            max_deliveries=asked.get("max_deliveries"),
            created_at=now,
            revision=revision + 1,
        )
        return replies.PositionOpened(position=record, created=True), _set(record)

    def fetch(self, command: commands.FetchMessages, _revision: int, now: float) -> Decision:
        topic, held = self._of(command)
        record = held.record
        for offset in command.renew:
            one = held.unacked.get(offset)
            if one is not None and one.member_id in (command.member_id, None):
                one.member_id, one.until = command.member_id, now + record.ack_wait_seconds
        first = min(command.first_offset, topic.next_offset)
        passed = sum(offset < first for offset in held.unacked)
        next_offset = max(record.next_offset, first)
        free = sorted(offset for offset, one in held.unacked.items() if offset >= first and one.is_free(now))
        room = max(record.max_unacked - len(held.unacked) + passed, 0)
        new = range(next_offset, min(next_offset + room, topic.next_offset))
        given = list(islice(chain(free, new), command.limit))
        deliveries = [
            replies.Delivery(offset=o, deliveries=n, dead=_is_dead(record, n)) for o, n in _counted(held, given)
        ]
        passed += next_offset - record.next_offset
        until = min((one.until for offset, one in held.unacked.items() if not one.is_free(now)), default=None)
        reply = replies.MessagesFetched(
            topic=topic.name,
            position=record.name,
            messages=deliveries,
            passed=passed,
            wait_seconds=None if until is None else until - now,
            revision=record.revision,
        )
        if not given and not passed:
            return reply, None
        return reply, events.MessagesDelivered(
            name=topic.name,
            position=record.name,
            incarnation=topic.incarnation,
            member_id=command.member_id,
            first_offset=first,
            next_offset=max(next_offset, given[-1] + 1 if given else 0),
            deliveries=[(one.offset, one.deliveries) for one in deliveries],
        )

    def acknowledge(self, command: commands.AcknowledgeMessages, _revision: int, _now: float) -> Decision:
        topic, held = self._of(command)
        done = sorted({offset for offset in command.offsets if offset in held.unacked})
        reply = replies.MessagesAcknowledged(topic=topic.name, position=held.record.name, acknowledged=len(done))
        if not done:
            return reply, None
        return reply, events.MessagesAcknowledged(
            name=topic.name, position=held.record.name, incarnation=topic.incarnation, offsets=done
        )

    def give_back(self, command: commands.ReturnMessages, _revision: int, _now: float) -> Decision:
        topic, held = self._of(command)
        returned: dict[int, int] = {}
        for offset in command.offsets:
            one = held.unacked.get(offset)
            if one is not None and one.member_id in (command.member_id, None):
                returned[offset] = one.deliveries
        reply = replies.MessagesReturned(topic=topic.name, position=held.record.name, returned=len(returned))
        if command.unseen and returned:  # held for as long as its member is there, which leaves now
            return reply, events.MessagesDelivered(
                name=topic.name,
                position=held.record.name,
                incarnation=topic.incarnation,
                member_id=command.member_id,
                first_offset=0,
                next_offset=held.record.next_offset,
                deliveries=[(offset, max(count - 1, 0)) for offset, count in returned.items()],
            )
        for offset in returned:
            held.unacked[offset].member_id, held.unacked[offset].until = None, 0.0
        return reply, None

    def find(self, command: commands.ListPositions, _revision: int, _now: float) -> Decision:
        topic = self._topics.get(command.topic)
        positions = self._positions.get(topic.name, {})
        following = sorted(name for name in positions if name > command.after)
        page = following[: command.limit]
        listed = [_summary(topic, positions[name]) for name in page]
        after = page[-1] if len(following) > len(page) else None
        return replies.PositionList(topic=topic.name, positions=listed, next=after), None

    def describe(self, command: commands.DescribePosition, _revision: int, _now: float) -> Decision:
        topic, held = self._named(command.topic, command.position)
        return replies.PositionDescription(summary=_summary(topic, held), members=[]), None

    def unacked_by(self, topic: str, position: str) -> dict[str, int]:
        """Return how many messages each member holds."""
        counts: dict[str, int] = {}
        for one in self._positions[topic][position].unacked.values():
            if one.member_id is not None:
                counts[one.member_id] = counts.get(one.member_id, 0) + 1
        return counts

    def trace(self, topic: str, offset: int, *, now: float) -> list[replies.TracedPosition]:
        """Return what became of a message under each durable name, as far as positions tell."""
        return [
            _traced(held, offset, now) for _, held in sorted(self._positions.get(topic, {}).items(), key=lambda i: i[0])
        ]

    def reset(self, command: commands.ResetPosition, revision: int, _now: float) -> Decision:
        topic, held = self._named(command.topic, command.position)
        offset = _within(topic, command.offset)
        record = replace(held.record, next_offset=offset, start_offset=offset, revision=revision + 1)
        return replies.PositionReset(position=record), _set(record)

    def delete(self, command: commands.DeletePosition, revision: int, _now: float) -> Decision:
        topic, held = self._named(command.topic, command.position)
        name = held.record.name
        deleted = events.PositionDeleted(name=topic.name, position=name, incarnation=topic.incarnation)
        return replies.PositionDeleted(topic=topic.name, position=name, revision=revision + 1), deleted

    # -- inside --------------------------------------------------------------------------------------------

    def _named(self, topic_name: str, name: str) -> tuple[RetainedTopic, _Position]:
        topic = self._topics.get(topic_name)
        held = self._positions.get(topic.name, {}).get(name)
        if held is None:
            names.check_role("position", name)
            raise PositionNotFound(
                f"topic {topic.name!r} has no position {name!r}, or it was deleted", topic=topic.name, position=name
            )
        return topic, held

    def _of(self, command: commands.PositionCommand) -> tuple[RetainedTopic, _Position]:
        topic = self._topics.get(command.topic)
        if topic.incarnation != command.incarnation:
            raise TopicNotFound(
                f"topic {topic.name!r} was deleted and made again, and its positions ended with it", topic=topic.name
            )
        return self._named(command.topic, command.position)


POSITION_COMMANDS: dict[type[commands.Command], Callable[[Positions, Any, int, float], Decision]] = {
    commands.OpenPosition: Positions.open,
    commands.FetchMessages: Positions.fetch,
    commands.AcknowledgeMessages: Positions.acknowledge,
    commands.ReturnMessages: Positions.give_back,
    commands.ListPositions: Positions.find,
    commands.DescribePosition: Positions.describe,
    commands.ResetPosition: Positions.reset,
    commands.DeletePosition: Positions.delete,
}


def _set(record: TopicPosition) -> events.PositionSet:
    return events.PositionSet(name=record.topic, position=record.name, incarnation=record.incarnation, record=record)


def _within(topic: RetainedTopic, offset: int) -> int:
    """Return an offset of the topic. 0 is the first one, too."""
    if offset > topic.next_offset:
        raise InvalidRequest(
            f"offset {offset} is beyond the end of topic {topic.name!r}: its next message has {topic.next_offset}",
            topic=topic.name,
            offset=offset,
            next_offset=topic.next_offset,
        )
    return max(offset, 1)


def _counted(held: _Position, offsets: list[int]) -> Iterable[tuple[int, int]]:
    for offset in offsets:
        before = held.unacked.get(offset)
        yield offset, before.deliveries + 1 if before is not None else 1


def _is_dead(record: TopicPosition, deliveries: int) -> bool:
    return record.max_deliveries is not None and deliveries > record.max_deliveries


def _lag(topic: RetainedTopic, held: _Position) -> int:
    return topic.next_offset - held.record.next_offset + len(held.unacked)


def _summary(topic: RetainedTopic, held: _Position) -> replies.PositionSummary:
    record, unacked = held.record, held.unacked
    return replies.PositionSummary(
        position=record,
        acknowledged_to=min(unacked, default=record.next_offset),
        unacked=len(unacked),
        lag=_lag(topic, held),
    )


def _traced(held: _Position, offset: int, now: float) -> replies.TracedPosition:
    record, one = held.record, held.unacked.get(offset)
    if one is not None:
        is_held = one.member_id is not None
        return replies.TracedPosition(
            position=record.name,
            outcome="handed_out",
            deliveries=one.deliveries,
            member_id=one.member_id,
            again_in_seconds=max(one.until - now, 0.0) if is_held or not one.is_free(now) else 0.0,
        )
    if offset >= record.next_offset:
        return replies.TracedPosition(position=record.name, outcome="waiting")
    is_earlier = offset < record.start_offset
    return replies.TracedPosition(position=record.name, outcome="earlier" if is_earlier else "acknowledged")
