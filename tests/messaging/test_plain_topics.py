"""Which plain topics are published to: publishers tell the broker, which does not see their messages."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.broker.topics.plain import (
    CURRENT_SECONDS,
    FORGET_SECONDS,
    MOST_LISTED,
    MOST_PUBLISHERS,
    MOST_TOPICS,
    PlainTopics,
)
from messagehub.errors import BrokerRequired, InvalidName
from tests.integration.harness import Served


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_topics_are_listed_with_their_publishers(served: Callable[..., Served]) -> None:
    server = served()
    began_at = time.time()
    with MessageHub(dir=server.dir) as one, MessageHub(dir=server.dir) as other:
        assert one.plain_topics() == []
        one.topic("kept", keep=10)
        for hub in (one, other):
            hub.publish("orders.eu", 1)
            hub.publish("kept", 1)
        one.publish("orders.us.west", 1)
        one.publish("inside", 1, local=True)
        found = one.plain_topics()
        assert [(topic.name, topic.publishers) for topic in found] == [("orders.eu", 2), ("orders.us.west", 1)]
        assert all(began_at <= topic.asked_at <= time.time() for topic in found)
        assert [topic.name for topic in one.plain_topics("orders.*")] == ["orders.eu"]
        with other.subscribe("not.published"):
            assert one.plain_topics("not.>") == []
        one.topic("orders.eu", keep=10)
        assert [topic.name for topic in one.plain_topics()] == ["orders.us.west"]
        with pytest.raises(InvalidName):
            one.plain_topics("a..b")


def test_without_a_broker_nobody_knows(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub, pytest.raises(BrokerRequired, match="topics need a broker"):
        hub.plain_topics()


def test_publishers_that_fell_silent_do_not_count_and_are_forgotten() -> None:
    clock = Clock()
    topics = PlainTopics(clock)
    topics.note("a", "p1")
    clock.now += CURRENT_SECONDS + 1
    topics.note("a", "p2")
    topics.note("b", "p1")
    assert [(one.name, one.publishers) for one in topics.find(">")] == [("a", 1), ("b", 1)]
    clock.now += FORGET_SECONDS - 1
    topics.note("b", "p1")
    clock.now += 2
    assert [one.name for one in topics.find(">")] == ["b"]


def test_what_is_noted_is_bounded() -> None:
    clock = Clock()
    topics = PlainTopics(clock)
    for number in range(MOST_TOPICS + 10):
        topics.note(f"t{number}", "p")
    found = {one.name for one in topics.find(">")}
    assert len(found) == MOST_LISTED
    assert f"t{MOST_TOPICS + 9}" in found
    assert topics.find("t5") == []
    assert [one.name for one in topics.find("t15")] == ["t15"]
    for number in range(2 * MOST_PUBLISHERS):
        topics.note("t15", f"p{number}")
    (busy,) = topics.find("t15")
    assert busy.publishers == MOST_PUBLISHERS
