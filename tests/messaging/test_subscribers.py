"""Who subscribes to a topic, and how many messages each got: subscribers tell the broker, which does not see them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.broker.topics import subscriptions
from messagehub.broker.topics.subscriptions import FORGET_SECONDS, MOST_SUBSCRIPTIONS, ReportedSubscriptions
from messagehub.errors import BrokerRequired, Forbidden, InvalidName
from registry import commands, replies
from registry.access import Rights, check
from registry.records import SubscriptionState
from registry.registry import Registry
from registry.topics.patterns import Pattern, is_match
from tests.integration.harness import Served, eventually

TOLD_SECONDS = FORGET_SECONDS / 2
"""A hub that said nothing when it closed is listed for longer."""


def test_a_hub_that_closed_is_listed_no_longer(served: Callable[..., Served]) -> None:
    """Also when it closed while its I/O thread was just telling of its subscriptions."""
    server = served()
    with MessageHub(dir=server.dir) as other:
        other.topic("kept.a", keep=10)
        other.publish("kept.a", b"1")
        for milliseconds in range(0, 30, 2):
            with MessageHub(dir=server.dir) as hub, hub.subscribe("kept.*", since=0) as subscription:
                assert subscription.receive(timeout=30).payload == b"1"
                time.sleep(milliseconds / 500)
            eventually(lambda: other.subscribers() == [], timeout=TOLD_SECONDS)


def test_subscribers_are_listed_with_what_they_received_and_lost(served: Callable[..., Served]) -> None:
    server = served()
    began_at = time.time()
    with MessageHub(dir=server.dir) as one, MessageHub(dir=server.dir) as other:
        assert one.subscribers() == []
        small = other.subscribe("orders.eu", buffer=1, overflow="drop_newest")
        every = other.subscribe("orders.>")
        member = other.subscribe("orders.>", group="billing")
        cars = other.subscribe("cars.*")
        for number in range(3):
            one.publish("orders.eu", number)
        for subscription in (every, member):
            assert [subscription.receive(timeout=30).payload for _ in range(3)] == [0, 1, 2]
        assert small.receive(timeout=30).payload == 0

        def counted() -> list[tuple[str, str, str | None, int, int]]:
            return [
                (each.patterns[0], each.kind, each.name, each.received, each.lost)
                for each in one.subscribers("orders.eu")
            ]

        eventually(
            lambda: (
                counted()
                == [
                    ("orders.eu", "all", None, 1, 2),
                    ("orders.>", "all", None, 3, 0),
                    ("orders.>", "group", "billing", 3, 0),
                ]
            )
        )
        (car,) = one.subscribers("cars.red")
        assert (car.pid, car.received, car.received_at) == (os.getpid(), 0, None)
        assert began_at <= car.began_at <= car.reported_at <= time.time()
        assert one.subscribers("cars") == []
        assert len(one.subscribers()) == 4
        for ended in (every, cars):
            ended.close()
        eventually(lambda: [each.kind for each in one.subscribers("orders.us")] == ["group"])
        with pytest.raises(InvalidName):
            one.subscribers("orders.>")
    with MessageHub(dir=server.dir) as one:
        eventually(lambda: one.subscribers() == [], timeout=TOLD_SECONDS)  # the hub that was closed said so


def test_retained_topics_are_listed_with_how_they_are_read(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as hub:
        topic = hub.topic("jobs", keep=10)
        topic.publish(1)
        reader, worker = topic.subscribe(since="oldest"), topic.subscribe(durable="worker")
        assert (reader.receive(timeout=30).payload, worker.receive(timeout=30).payload) == (1, 1)
        eventually(
            lambda: (
                [(one.kind, one.name, one.received) for one in hub.subscribers("jobs")]
                == [("retained", None, 1), ("durable", "worker", 1)]
            )
        )


def test_a_restarted_broker_is_told_again(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as hub, hub.subscribe("orders.>"):
        eventually(lambda: len(hub.subscribers("orders.eu")) == 1)
        server.kill()
        server.start()
        with MessageHub(dir=server.dir) as other:  # which waits for no backoff
            eventually(lambda: len(other.subscribers("orders.eu")) == 1)


def test_subscribers_inside_the_process_and_without_a_broker_are_nobodys(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub:
        with hub.subscribe("orders.>", local=True):
            pass
        with pytest.raises(BrokerRequired, match="topics need a broker"):
            hub.subscribers()


def report(reports: ReportedSubscriptions, lease: str, *patterns: str) -> None:
    states = [SubscriptionState(patterns=[pattern]) for pattern in patterns]
    reports.report(commands.ReportSubscriptions(lease=lease, subscriptions=states), [], Registry())


def listed(reports: ReportedSubscriptions, topic: str | None = None, limit: int = 1000) -> replies.SubscriptionList:
    reply = reports.list(commands.ListSubscriptions(topic=topic, limit=limit), [], Registry())
    assert isinstance(reply, replies.SubscriptionList)
    return reply


def test_the_silent_are_forgotten_and_the_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(subscriptions.time, "monotonic", lambda: now)
    reports = ReportedSubscriptions()
    report(reports, "silent", "a", "b")
    now += FORGET_SECONDS / 2
    report(reports, "alive", "a")
    assert (listed(reports).total, len(listed(reports, limit=2).subscriptions)) == (3, 2)
    now += FORGET_SECONDS * 0.6
    assert listed(reports, "a").total == 1
    report(reports, "alive")
    assert listed(reports).total == 0
    for number in range(MOST_SUBSCRIPTIONS // 100 + 5):
        report(reports, f"process {number}", *["x"] * 100)
    assert listed(reports, "x").total == MOST_SUBSCRIPTIONS


def test_a_report_with_something_that_is_no_pattern_changes_nothing() -> None:
    reports = ReportedSubscriptions()
    report(reports, "one", "a")
    with pytest.raises(InvalidName):
        report(reports, "one", "b", "a..b")
    assert [one.patterns for one in listed(reports).subscriptions] == [["a"]]


def test_who_subscribes_takes_the_right_to_observe() -> None:
    check(Rights.parse(["observe:orders.>"]), commands.ListSubscriptions(topic="orders.eu"))
    for topic in ("cars", None):
        with pytest.raises(Forbidden):
            check(Rights.parse(["observe:orders.>"]), commands.ListSubscriptions(topic=topic))


@pytest.mark.parametrize("pattern", ["a", "a.b", "*", "a.*", "*.b", ">", "a.>", "*.>", "a.*.>", "a.*.c", "b.>"])
@pytest.mark.parametrize("topic", ["a", "b", "a.b", "a.c", "a.b.c", "a.b.c.d"])
def test_one_look_at_a_pattern_says_the_same_as_the_compiled_one(pattern: str, topic: str) -> None:
    assert is_match(pattern, topic.split(".")) == bool(Pattern(pattern).matches(topic))
