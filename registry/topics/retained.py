"""Retained topics: which there are, within which bounds, and who published what last.

Rule 1: offsets of a topic begin with 1, go up by one, and are never given twice within an incarnation.
Rule 2: messages that a publisher sends again under the same number are stored once, and get the same answer.
Rule 3: what all topics together may keep is bounded when they are defined, so that no publisher is refused later.
In a site that holds for the topics of one home host.
Rule 4: a topic of a site stays at its home host until it is deleted.
The messages themselves are in the store only; those of a site's topics in that of their home host.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from registry import commands, events, replies
from registry.channels.state import SortedNames
from registry.errors import InvalidRequest, TopicAlreadyExists, TopicLimitExceeded, TopicNotFound
from registry.records import LastBatch, RetainedMessage, RetainedTopic
from registry.topics.patterns import END, Pattern, check_topic

DEFAULT_LIMIT_BYTES = 64 * 2**30
PLAIN_SECONDS = 2.0
"""For how long a publisher that was told that a topic is not retained may go on without asking again."""
MOST_PUBLISHERS = 4096
_encode = msgspec.json.Encoder().encode


class SavedTopic(NamedTuple):
    topic: RetainedTopic
    publishers: dict[str, LastBatch]


Decision = tuple[replies.Reply, events.AnyTopicEvent | None]


class TopicCatalog:
    def __init__(self) -> None:
        self.limit_bytes = DEFAULT_LIMIT_BYTES
        self.is_of_site = False
        """Whether topics have a home host. `KeepTopic` names it then."""
        self.limits: dict[str, int] = {}
        """By home host, where it has another limit than this one."""
        self._topics: dict[str, RetainedTopic] = {}
        self._publishers: dict[str, dict[str, LastBatch]] = {}
        self._names = SortedNames(self._topics)

    @property
    def count(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> RetainedTopic:
        found = self._topics.get(name)
        if found is None:
            raise TopicNotFound(f"topic {check_topic(name)!r} is not retained", topic=name)
        return found

    def revision(self, name: str) -> int:
        found = self._topics.get(name)
        return found.revision if found else 0

    def every(self) -> list[SavedTopic]:
        return [SavedTopic(topic, dict(self._publishers.get(name, {}))) for name, topic in self._topics.items()]

    def restore(self, saved: Iterable[SavedTopic]) -> None:
        for topic, publishers in saved:
            self._topics[topic.name] = topic
            self._publishers[topic.name] = publishers
            self._names.add(topic.name)

    def home_of(self, name: str) -> str | None:
        """Return the home host of a topic; None if it is not retained, or has none."""
        found = self._topics.get(name)
        return found.home if found is not None else None

    # -- change --------------------------------------------------------------------------------------------

    def evolve(self, event: events.AnyTopicEvent) -> None:
        if isinstance(event, events.MessagesRetained):
            topic = self._topics[event.name]
            topic.next_offset = event.offset + len(event.messages)
            topic.total_bytes = event.total_bytes
            if event.publisher is not None:
                last = LastBatch(number=event.number, count=len(event.messages), offset=event.offset)
                remember(self._publishers[event.name], event.publisher, last)
        elif isinstance(event, events.TopicRetained):
            present = self._topics.get(event.name)
            topic = msgspec.structs.replace(event.record, revision=event.revision)
            if present is None:
                self._publishers[event.name] = {}
                self._names.add(event.name)
            self._topics[event.name] = topic
        elif isinstance(event, events.TopicDeleted):
            del self._topics[event.name], self._publishers[event.name]

    # -- decisions: they raise or return, and change nothing -----------------------------------------------

    def decide(self, command: commands.Command, *, revision: int, now: float) -> Decision:
        return TOPIC_COMMANDS[type(command)](self, command, revision, now)

    def keep(self, command: commands.KeepTopic, revision: int, now: float) -> Decision:
        name = check_topic(command.topic)
        present = self._topics.get(name)
        home = command.home
        if home is not None and not self.is_of_site:
            raise InvalidRequest("a home host is for topics of a site, and this hub is on its own: leave out home")
        if present is not None:
            if home not in (None, present.home):
                raise TopicAlreadyExists(
                    f"topic {name!r} is retained with {present.home!r} as its home host, not {home!r}: leave out home,"
                    " or delete the topic first, with its messages",
                    topic=name,
                    home=present.home,
                )
            home = present.home
        if present is not None and present.keep == command.keep:
            return replies.TopicRetained(topic=present, revision=present.revision), None
        if present is not None and not command.replace:
            raise TopicAlreadyExists(
                f"topic {name!r} is retained within other bounds; `replace` changes them",
                topic=name,
                keep=msgspec.to_builtins(present.keep),
            )
        others = sum(
            topic.keep.size_bytes for topic in self._topics.values() if topic is not present and topic.home == home
        )
        limit = self.limits.get(home, self.limit_bytes) if home is not None else self.limit_bytes
        if others + command.keep.size_bytes > limit:
            where = f" of host {home!r}" if home is not None else ""
            raise TopicLimitExceeded(
                f"with {command.keep.size_bytes} bytes for {name!r} all topics{where} together would keep more than"
                f" {limit} bytes: give it fewer, or the hub{where} a higher kept_limit_bytes",
                limit_bytes=limit,
                kept_bytes=others,
            )
        if present is None:
            record = RetainedTopic(name=name, keep=command.keep, incarnation=revision + 1, created_at=now, home=home)
        else:
            record = msgspec.structs.replace(present, keep=command.keep)
        record.revision = revision + 1
        return replies.TopicRetained(topic=record, revision=revision + 1), events.TopicRetained(
            name=name, record=record
        )

    def delete(self, command: commands.DeleteTopic, revision: int, _now: float) -> Decision:
        topic = self.get(command.topic)
        deleted = events.TopicDeleted(name=topic.name, incarnation=topic.incarnation)
        return replies.TopicDeleted(topic=topic.name, revision=revision + 1), deleted

    def find(self, command: commands.ListTopics, revision: int, _now: float) -> Decision:
        pattern = Pattern(command.pattern)
        prefix = pattern.prefix.rstrip(END).decode()
        page, following = self._names.page(prefix=prefix, after=command.after, limit=command.limit)
        found = [self._topics[name] for name in page if pattern.matches(name)]
        return replies.TopicList(topics=found, next=following, revision=revision), None

    def publish(self, command: commands.PublishMessages, _revision: int, _now: float) -> Decision:
        topic = self.get(command.topic)
        last = self._publishers[topic.name].get(command.publisher) if command.publisher is not None else None
        if last is not None and command.number < last.number + last.count:
            return self._said_again(command, topic, last), None
        sizes = [size_bytes(message) for message in command.messages]
        if max(sizes) > topic.keep.size_bytes:
            raise InvalidRequest(
                f"a message of {max(sizes)} bytes is more than topic {topic.name!r} may keep in all",
                topic=topic.name,
                size_bytes=max(sizes),
                limit_bytes=topic.keep.size_bytes,
            )
        stored = events.MessagesRetained(
            name=topic.name,
            incarnation=topic.incarnation,
            offset=topic.next_offset,
            total_bytes=topic.total_bytes + sum(sizes),
            messages=command.messages,
            publisher=command.publisher,
            number=command.number,
        )
        return _acknowledgement(topic.name, stored.offset, len(stored.messages)), stored

    def _said_again(self, command: commands.PublishMessages, topic: RetainedTopic, last: LastBatch) -> replies.Reply:
        if (command.number, len(command.messages)) != (last.number, last.count):
            raise InvalidRequest(
                f"publisher {command.publisher!r} sent number {last.number + last.count - 1} last: numbers go up",
                topic=topic.name,
                number=command.number,
                last_number=last.number + last.count - 1,
                last_offset=last.offset + last.count - 1,
                last_count=last.count,
            )
        return _acknowledgement(topic.name, last.offset, last.count, duplicate=True)


TOPIC_COMMANDS: dict[type[commands.Command], Callable[[TopicCatalog, Any, int, float], Decision]] = {
    commands.KeepTopic: TopicCatalog.keep,
    commands.DeleteTopic: TopicCatalog.delete,
    commands.ListTopics: TopicCatalog.find,
    commands.PublishMessages: TopicCatalog.publish,
}


def size_bytes(message: RetainedMessage) -> int:
    """Return the size of a message, as it counts against the bounds."""
    return len(message.payload) + (len(_encode(message.headers)) if message.headers else 0)


def remember(publishers: dict[str, LastBatch], publisher: str, last: LastBatch) -> None:
    """Note what a publisher sent last. Of too many publishers, the one that has been silent longest is forgotten."""
    publishers.pop(publisher, None)
    publishers[publisher] = last
    if len(publishers) > MOST_PUBLISHERS:
        del publishers[next(iter(publishers))]


def _acknowledgement(topic: str, offset: int, count: int, *, duplicate: bool = False) -> replies.MessagesRetained:
    return replies.MessagesRetained(topic=topic, offset=offset, count=count, duplicate=duplicate)
