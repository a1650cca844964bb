"""Topics after a broker was killed and started again: what its publisher is told to be sent reaches who subscribed."""

import contextlib
import time
from collections.abc import Callable

import pytest

from messagehub import MessageHub
from messagehub.errors import BrokerRequired, ReceiveTimeout, SendTimeout
from messagehub.topics.subscriptions import Subscription
from tests.conftest import QUICK
from tests.integration.harness import Served, eventually, hub_of

SECONDS = 30.0
AWAY_SECONDS = 1.5  # long enough that whoever tries to connect again, ever more seldom, has become patient


def publish_while_away(hub: MessageHub) -> None:
    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        with pytest.raises((BrokerRequired, SendTimeout)):
            hub.publish("news", "nobody takes it", timeout=0.1)


def succeeds(hub: MessageHub, number: int) -> bool:
    """The first that succeeds: for a moment a client may still believe that there is no broker."""
    try:
        hub.publish("news", number, timeout=SECONDS)
    except BrokerRequired:
        return False
    return True


@pytest.mark.parametrize("is_used", [False, True], ids=["nothing else stored", "channels stored"])
def test_what_is_published_after_a_restart_reaches_everybody_who_subscribed_before(
    served: Callable[..., Served], is_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = served(**QUICK)
    with contextlib.ExitStack() as opened:
        publisher, *hubs = [opened.enter_context(hub_of(broker)) for _ in range(7)]
        if is_used:
            publisher.register_producer("c", schema_hash="h", required=True)
        subscriptions = [hub.subscribe("news") for hub in hubs]
        publisher.publish("news", "before")
        for subscription in subscriptions:
            assert subscription.receive(SECONDS).payload == "before"
        broker.kill()
        publish_while_away(publisher)
        broker.start()
        eventually(lambda: succeeds(publisher, 0))
        for number in range(1, 500):
            publisher.publish("news", number, timeout=SECONDS)
        for subscription in subscriptions:
            assert [subscription.receive(SECONDS).payload for _ in range(500)] == list(range(500))
            assert subscription.lost == 0
        assert publisher.metrics()["topics"]["interruptions"] == 1
        assert hubs[0].metrics()["topics"]["interruptions"] == 0, "it published nothing"
    assert "may not have reached its subscribers" in caplog.text


def test_thousands_of_topics_are_heard_also_after_a_restart(served: Callable[..., Served]) -> None:
    """Unless it is told otherwise, libzmq drops those beyond a thousand."""
    broker = served(**QUICK)
    topics = [f"news.{number}" for number in range(3_000)]
    with (
        hub_of(broker) as publisher,
        hub_of(broker) as hub,
        hub.subscribe(topics, buffer=10_000) as subscription,
    ):
        assert heard(publisher, subscription, topics) == topics
        broker.kill()
        broker.start()
        eventually(lambda: succeeds(publisher, 0))
        eventually(lambda: heard(publisher, subscription, topics) == topics)  # as soon as all subscriptions are back


def heard(publisher: MessageHub, subscription: Subscription, topics: list[str]) -> list[str]:
    """The topics of which a message comes when one is published to each."""
    for topic in topics:
        publisher.publish(topic, b"", timeout=SECONDS)
    found: list[str] = []
    with contextlib.suppress(ReceiveTimeout):
        while len(found) < len(topics):
            found.append(subscription.receive(2.0).topic)
    return found
