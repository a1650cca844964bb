"""Where a reader of retained topics begins, and positions that outlive the program and the topic."""

import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError, InvalidName, TopicNotFound
from messagehub.topics.subscriptions import Subscription
from tests.conftest import QUICK
from tests.integration.harness import Embedded, eventually, hub_of

SECONDS = 30.0


@pytest.fixture
def hub(embedded: Callable[..., Embedded]) -> Iterator[MessageHub]:
    with hub_of(embedded(**QUICK)) as connected:
        yield connected


def read(subscription: Subscription, count: int) -> list[Any]:
    return [subscription.receive(SECONDS).payload for _ in range(count)]


def filled(hub: MessageHub, name: str, count: int = 5, keep: int = 100) -> None:
    hub.topic(name, keep=keep).publish_all([f"{name}{n}" for n in range(1, count + 1)])


@pytest.mark.parametrize("since", [0, "oldest", 1, np.int64(0), datetime.timedelta(hours=1)])
def test_reading_begins_with_the_oldest(hub: MessageHub, since: Any) -> None:
    filled(hub, "t")
    with hub.subscribe("t", since=since) as subscription:
        assert read(subscription, 5) == ["t1", "t2", "t3", "t4", "t5"]


@pytest.mark.parametrize("since", ["newest", "now", 6])
def test_reading_begins_with_what_comes_next(hub: MessageHub, since: Any) -> None:
    filled(hub, "t")
    with hub.subscribe("t", since=since) as subscription:
        hub.publish("t", "next")
        assert read(subscription, 1) == ["next"]


def test_reading_begins_with_the_last_message_of_each_topic(hub: MessageHub) -> None:
    filled(hub, "v.a")
    filled(hub, "v.b", count=1)
    hub.topic("v.empty", keep=10)
    with hub.subscribe("v.>", since="last") as subscription:
        assert sorted(read(subscription, 2)) == ["v.a5", "v.b1"]
        hub.publish("v.empty", "first")
        hub.publish("v.a", "next")
        assert sorted(read(subscription, 2)) == ["first", "next"]
        assert subscription.lost == 0


def test_a_last_message_that_has_grown_too_old_is_not_counted_as_lost(hub: MessageHub) -> None:
    hub.topic("t", keep=datetime.timedelta(seconds=6)).publish("old")
    eventually(lambda: hub.topic("t").describe().messages == 0)
    with hub.subscribe("t", since="last") as subscription:
        hub.publish("t", "next")
        assert read(subscription, 1) == ["next"]
        assert subscription.lost == 0


MINUTE_AGO = 1_763_359_000  # as `int(time.time()) - 60` gives it


@pytest.mark.parametrize("since", [7, MINUTE_AGO, {"t": 7}], ids=str)
def test_an_offset_beyond_the_end_is_refused(hub: MessageHub, since: Any) -> None:
    filled(hub, "t")
    with pytest.raises(ConfigurationError, match="offset 6"):
        hub.subscribe("t", since=since)


def test_an_offset_beyond_the_end_of_one_of_the_topics_is_refused(hub: MessageHub) -> None:
    filled(hub, "v.long", count=50)
    filled(hub, "v.short")
    with pytest.raises(ConfigurationError, match=r"v\.short"):
        hub.subscribe("v.>", since=30)


@pytest.mark.parametrize(
    "since",
    [
        *("yesterday", "", -1, True, float("nan"), float("inf"), [1], b"oldest"),
        *(MINUTE_AGO * 1000.0, datetime.timedelta(days=-1), datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)),
        *({"t": -1}, {"t": "5"}, {"t": {"offset": 1}}, {"t": {"offset": 1, "incarnation": "a"}}, {7: 1}, {"other": 1}),
    ],
    ids=str,
)
def test_what_says_no_place_is_refused_by_name(hub: MessageHub, since: Any) -> None:
    filled(hub, "t")
    with pytest.raises(ConfigurationError, match="since"):
        hub.subscribe("t", since=since)


def test_positions_go_through_json_and_on_where_they_were(hub: MessageHub) -> None:
    filled(hub, "v.a")
    filled(hub, "v.b")
    with hub.subscribe("v.>", since="oldest") as subscription:
        first = read(subscription, 7)
        saved = json.loads(json.dumps(subscription.positions))
    with hub.subscribe("v.>", since=saved) as again:
        assert sorted([*first, *read(again, 3)]) == [f"v.{name}{n}" for name in "ab" for n in range(1, 6)]
        assert again.lost == 0


def test_positions_of_a_topic_that_was_made_again_lose_nothing(
    hub: MessageHub, caplog: pytest.LogCaptureFixture
) -> None:
    filled(hub, "t", count=20)
    with hub.subscribe("t", since="oldest") as subscription:
        read(subscription, 20)
        saved = subscription.positions
    hub.topic("t").delete()
    filled(hub, "t", count=20)
    with hub.subscribe("t", since=saved) as again:
        assert read(again, 20) == [f"t{n}" for n in range(1, 21)]
        assert again.lost == 0
    assert "made again" in caplog.text
    hub.topic("t").delete()
    filled(hub, "t", count=20, keep=15)
    with hub.subscribe("t", since=saved) as late:
        assert read(late, 15) == [f"t{n}" for n in range(6, 21)]
        assert late.lost == 5


def test_a_reader_with_positions_sees_all_of_a_topic_that_is_made_again_under_it(hub: MessageHub) -> None:
    filled(hub, "v.t", count=5)
    filled(hub, "v.other", count=1)
    with hub.subscribe("v.>", since={"v.t": 5, "v.other": 2}) as subscription:
        assert read(subscription, 1) == ["v.t5"]
        hub.topic("v.t").delete()
        filled(hub, "v.t", count=5)
        assert read(subscription, 5) == [f"v.t{n}" for n in range(1, 6)]


def test_what_a_deleted_topic_takes_from_its_reader_is_counted(hub: MessageHub) -> None:
    filled(hub, "v.t", count=20)
    with hub.subscribe("v.>", since=1, buffer=5) as subscription:
        eventually(lambda: subscription.buffered == 5)
        hub.topic("v.t").delete()
        eventually(lambda: subscription.lost == 15)
        assert read(subscription, 5) == [f"v.t{n}" for n in range(1, 6)]


# -- several patterns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "local", "retained"])
def test_a_message_that_matches_several_patterns_comes_once(hub: MessageHub, kind: str) -> None:
    options: dict[str, Any] = {"plain": {}, "local": {"local": True}, "retained": {"since": "oldest"}}[kind]
    names = ["orders.eu", "orders.us", "audit", "other"]
    if kind == "retained":
        for name in names:
            hub.topic(name, keep=10)
    with hub.subscribe(["orders.>", "orders.eu", "audit"], **options) as subscription:
        for name in names:
            hub.publish(name, name, local=kind == "local")
        assert sorted(read(subscription, 3)) == ["audit", "orders.eu", "orders.us"]
        hub.publish("audit", "end", local=kind == "local")
        assert read(subscription, 1) == ["end"]
        assert subscription.patterns == ("orders.>", "orders.eu", "audit")
    with hub.subscribe("audit", **options) as after:
        if kind == "retained":
            read(after, 2)
        hub.publish("audit", "still heard", local=kind == "local")
        assert read(after, 1) == ["still heard"]


def test_one_of_several_topics_that_is_not_retained_is_named(hub: MessageHub) -> None:
    hub.topic("here", keep=10)
    with pytest.raises(TopicNotFound, match="missing"):
        hub.subscribe(["here", "missing"], since="oldest")


@pytest.mark.parametrize("pattern", [None, 7, [], [""], ["ok", None], [["a"]], {"a"}, b"a", "a..b"], ids=str)
def test_a_pattern_that_is_none_is_refused_by_name(hub: MessageHub, pattern: Any) -> None:
    for options in ({}, {"local": True}, {"since": 0}):
        with pytest.raises(InvalidName, match="pattern"):
            hub.subscribe(pattern, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("topic", [None, 7, ["a"], b"a", ""], ids=str)
def test_a_topic_that_is_none_is_refused_by_name(hub: MessageHub, topic: Any) -> None:
    for call in (
        lambda: hub.publish(topic, 1),
        lambda: hub.publish(topic, 1, local=True),
        lambda: hub.topic(topic),
        lambda: hub.topics(topic),
    ):
        with pytest.raises(InvalidName if isinstance(topic, str) else ConfigurationError, match=r"topic|pattern|name"):
            call()


# -- how much is retained --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "messages", "seconds"),
    [
        *((7, 7, None), (np.int64(7), 7, None)),
        *(("7d", None, 604800.0), ("30s", None, 30.0), (datetime.timedelta(hours=2), None, 7200.0)),
    ],
    ids=str,
)
def test_bounds_are_a_number_an_age_or_text(hub: MessageHub, keep: Any, messages: int | None, seconds: Any) -> None:
    for name, made in (("a", hub.topic("a", keep=keep)), ("b", hub.topic("b"))):
        if name == "b":
            made.keep(keep)
        found = made.describe().topic.keep
        assert (found.messages, found.seconds) == (messages, seconds)


@pytest.mark.parametrize(
    "keep", ["", "90", "7 days", "-1d", "0s", 0, -5, True, 1.5, [7], datetime.timedelta(0)], ids=str
)
def test_bounds_that_are_none_are_refused_by_name(hub: MessageHub, keep: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep"):
        hub.topic("a", keep=keep)
    assert hub.topics() == []
