"""Retained topics, as rules: offsets, numbers, definitions and bounds."""

from typing import Any

import pytest

from registry import commands, replies
from registry.errors import InvalidName, InvalidRequest, TopicAlreadyExists, TopicLimitExceeded, TopicNotFound
from registry.events import MessagesRetained, TopicDeleted, TopicRetained
from registry.records import Keep, RetainedMessage
from registry.registry import Outcome, Registry
from registry.topics.retained import MOST_PUBLISHERS
from tests.registry.observing import whole_state


@pytest.fixture
def registry() -> Registry:
    return Registry()


def keep(registry: Registry, topic: str, **fields: Any) -> Outcome:
    replace = fields.pop("replace", False)
    return registry.apply(commands.KeepTopic(topic=topic, keep=Keep(**fields), replace=replace), now=1.0)


def publish(registry: Registry, topic: str, *texts: bytes, **fields: Any) -> Outcome:
    messages = [RetainedMessage(payload=text) for text in texts or (b"x",)]
    return registry.apply(commands.PublishMessages(topic=topic, messages=messages, **fields), now=2.0)


def offset(outcome: Outcome) -> int:
    assert isinstance(outcome.reply, replies.MessagesRetained)
    return outcome.reply.offset


def test_offsets_begin_with_one_and_have_no_holes(registry: Registry) -> None:
    keep(registry, "t")
    assert [offset(publish(registry, "t", *[b"x"] * count)) for count in (1, 3, 2)] == [1, 2, 5]
    assert registry.topics.get("t").next_offset == 7
    (event,) = publish(registry, "t", b"ab", b"cde").events
    assert isinstance(event, MessagesRetained)
    assert (event.offset, event.total_bytes, event.durable) == (7, 11, True)


def test_the_same_definition_again_changes_nothing(registry: Registry) -> None:
    (event,) = keep(registry, "t", messages=5).events
    assert isinstance(event, TopicRetained)
    before = whole_state(registry)
    again = keep(registry, "t", messages=5)
    assert again.events == []
    assert isinstance(again.reply, replies.TopicRetained)
    assert again.reply.topic == event.record
    assert whole_state(registry) == before


def test_other_bounds_are_refused_or_replaced(registry: Registry) -> None:
    keep(registry, "t", messages=5)
    publish(registry, "t")
    before = whole_state(registry)
    with pytest.raises(TopicAlreadyExists):
        keep(registry, "t", messages=6)
    assert whole_state(registry) == before
    keep(registry, "t", messages=6, replace=True)
    topic = registry.topics.get("t")
    assert (topic.keep.messages, topic.next_offset, topic.incarnation) == (6, 2, 1)


def test_a_deleted_topic_is_gone_and_its_name_begins_anew(registry: Registry) -> None:
    keep(registry, "t")
    publish(registry, "t", publisher="p", number=1)
    (event,) = registry.apply(commands.DeleteTopic(topic="t"), now=3.0).events
    assert isinstance(event, TopicDeleted)
    for refused in (commands.DeleteTopic(topic="t"), commands.PublishMessages(topic="t", messages=[])):
        with pytest.raises(TopicNotFound):
            registry.apply(refused, now=3.0)
    keep(registry, "t")
    assert registry.topics.get("t").incarnation > event.incarnation
    assert offset(publish(registry, "t", publisher="p", number=1)) == 1


def test_a_publisher_that_says_it_again_gets_the_same_answer_and_no_event(registry: Registry) -> None:
    keep(registry, "t")
    first = publish(registry, "t", b"a", b"b", publisher="p", number=10)
    publish(registry, "t", publisher="other", number=10)
    again = publish(registry, "t", b"a", b"b", publisher="p", number=10)
    assert isinstance(again.reply, replies.MessagesRetained)
    assert (again.reply.offset, again.reply.duplicate, again.events) == (offset(first), True, [])
    assert offset(publish(registry, "t", publisher="p", number=12)) == 4
    before = whole_state(registry)
    for number, count in ((10, 2), (12, 2), (11, 1), (0, 1)):
        with pytest.raises(InvalidRequest):
            publish(registry, "t", *[b"x"] * count, publisher="p", number=number)
    assert whole_state(registry) == before


def test_numbers_may_leave_holes_and_nobody_need_number(registry: Registry) -> None:
    keep(registry, "t")
    assert offset(publish(registry, "t", publisher="p", number=1)) == 1
    assert offset(publish(registry, "t", publisher="p", number=900)) == 2
    assert [offset(publish(registry, "t")) for _ in range(3)] == [3, 4, 5]


def test_of_very_many_publishers_the_one_silent_longest_is_forgotten(registry: Registry) -> None:
    keep(registry, "t")
    for number in range(MOST_PUBLISHERS + 1):
        publish(registry, "t", publisher=f"p{number}", number=1)
    ((_, publishers),) = registry.topics.every()
    assert len(publishers) == MOST_PUBLISHERS
    assert "p0" not in publishers


def test_what_all_topics_may_keep_together_is_bounded(registry: Registry) -> None:
    registry.topics.limit_bytes = 1000
    keep(registry, "a", size_bytes=600)
    before = whole_state(registry)
    with pytest.raises(TopicLimitExceeded):
        keep(registry, "b", size_bytes=401)
    with pytest.raises(TopicLimitExceeded):
        keep(registry, "a", size_bytes=1001, replace=True)
    assert whole_state(registry) == before
    keep(registry, "b", size_bytes=400)
    keep(registry, "a", size_bytes=500, replace=True)


def test_a_message_larger_than_its_topic_is_refused(registry: Registry) -> None:
    keep(registry, "t", size_bytes=100)
    before = whole_state(registry)
    with pytest.raises(InvalidRequest):
        publish(registry, "t", b"x", b"x" * 101)
    assert whole_state(registry) == before
    publish(registry, "t", b"x" * 100, b"x" * 100)


def test_names_are_checked_when_a_topic_is_kept(registry: Registry) -> None:
    for name in ("", ".a", "a..b", "a.*", ">", "ü", "a" * 65, "a b"):
        with pytest.raises(InvalidName):
            keep(registry, name)
    for name in ("1", "a_b-c.0", "a" * 64):
        keep(registry, name)


def test_topics_are_listed_by_pattern_in_pages(registry: Registry) -> None:
    for name in ("a", "a.b", "a.b.c", "a.c", "ab.c", "b.b"):
        keep(registry, name)

    def listed(pattern: str, limit: int = 1000) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            asked = commands.ListTopics(pattern=pattern, after=after, limit=limit)
            page = registry.apply(asked, now=1.0).reply
            assert isinstance(page, replies.TopicList)
            found += [topic.name for topic in page.topics]
            after = page.next
        return found

    for limit in (1, 2, 1000):
        assert listed(">", limit) == ["a", "a.b", "a.b.c", "a.c", "ab.c", "b.b"]
        assert listed("a.*", limit) == ["a.b", "a.c"]
        assert listed("a.>", limit) == ["a.b", "a.b.c", "a.c"]
        assert listed("*.b", limit) == ["a.b", "b.b"]
        assert listed("a", limit) == ["a"]
        assert listed("nope", limit) == []
    with pytest.raises(InvalidName):
        listed("a.>.b")
