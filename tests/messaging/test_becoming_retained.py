"""A topic that becomes a retained one while others publish to it plainly misses nothing from then on."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.errors import SendTimeout
from registry.topics.retained import PLAIN_SECONDS
from tests.conftest import QUICK
from tests.integration.harness import Peer, Served
from tests.messaging.service_harness import SECONDS, patient_hub


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place: Path = tmp_path_factory.mktemp("broker")
    broker = Served(place / "hub", "--no-http", **QUICK)
    yield broker
    broker.close()


@pytest.fixture
def hubs(served: Served) -> Iterator[tuple[MessageHub, MessageHub]]:
    with patient_hub(served) as publisher, patient_hub(served) as keeper:
        yield publisher, keeper


def stored(hub: MessageHub, topic: str) -> list[object]:
    with hub.subscribe(topic, since=0) as subscription:
        count = hub.topic(topic).describe().messages
        return [subscription.receive(SECONDS).payload for _ in range(count)]


def test_all_that_is_published_after_a_topic_became_retained_is_stored(hubs: tuple[MessageHub, MessageHub]) -> None:
    publisher, keeper = hubs
    publisher.publish("late", "plain")
    keeper.topic("late", keep=100, timeout=SECONDS)
    publisher.publish("late", "stored")
    assert stored(keeper, "late") == ["stored"]


def test_whoever_says_it_a_second_time_waits_too(hubs: tuple[MessageHub, MessageHub], served: Served) -> None:
    publisher, keeper = hubs
    publisher.publish("twice", "plain")
    with Peer(served.endpoint) as peer:
        first = peer.ask({"type": "TOPIC_KEEP", "topic": "twice", "keep": {"messages": 100}})
        assert 0 < first["settles_in_seconds"] <= PLAIN_SECONDS + 1
    keeper.topic("twice", keep=100, timeout=SECONDS)
    publisher.publish("twice", "stored")
    assert stored(keeper, "twice") == ["stored"]


def test_a_topic_that_nobody_publishes_to_is_retained_at_once(served: Served) -> None:
    with Peer(served.endpoint) as peer:
        reply = peer.ask({"type": "TOPIC_KEEP", "topic": "quiet", "keep": {"messages": 100}})
        assert reply.get("settles_in_seconds", 0.0) == 0.0


def test_a_deadline_that_is_too_short_is_said_and_the_rest_can_be_waited_for(
    hubs: tuple[MessageHub, MessageHub],
) -> None:
    publisher, keeper = hubs
    publisher.publish("hasty", "plain")
    with pytest.raises(SendTimeout, match="say it again"):
        keeper.topic("hasty", keep=100, timeout=0.2)
    keeper.topic("hasty", keep=100, timeout=SECONDS)
    publisher.publish("hasty", "stored")
    assert stored(keeper, "hasty") == ["stored"]


def test_a_publisher_that_never_pauses_loses_nothing_from_the_return_on(hubs: tuple[MessageHub, MessageHub]) -> None:
    publisher, keeper = hubs
    is_retained, is_over = threading.Event(), threading.Event()
    after: list[int] = []

    def publish() -> None:
        number = 0
        while not is_over.wait(0.002):
            number += 1
            is_after = is_retained.is_set()
            publisher.publish("busy", number)
            if is_after:
                after.append(number)
            if len(after) == 50:
                is_over.set()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        keeper.topic("busy", keep=10_000, timeout=SECONDS)
        is_retained.set()
        assert is_over.wait(SECONDS)
    finally:
        is_over.set()
        thread.join()
    assert stored(keeper, "busy")[-50:] == after


def test_a_broker_that_was_restarted_knows_that_another_may_have_told_publishers(tmp_path: Path) -> None:
    with Served(tmp_path / "hub", "--no-http", **QUICK) as broker:
        with patient_hub(broker) as hub:
            hub.topic("other", keep=1)
        broker.kill()
        broker.start()
        with Peer(broker.endpoint) as peer:
            reply = peer.ask({"type": "TOPIC_KEEP", "topic": "t", "keep": {"messages": 100}})
            assert reply["settles_in_seconds"] > 0
