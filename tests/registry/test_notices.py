"""Notices: what a process hears of its channels with its next heartbeat."""

from tests.registry.driving import Driver


def heard(hub: Driver, lease: str) -> list[tuple[str, str | None]]:
    return [(notice.event, notice.member) for notice in hub.beat(lease).notices]


def test_members_hear_of_each_other_and_not_of_themselves(hub: Driver) -> None:
    hub.produce(lease="P")
    hub.consume(lease="C")
    assert heard(hub, "P") == [("CONSUMER_REGISTERED", "reader")]
    assert heard(hub, "C") == []
    hub.ask("CONSUMER_UNREGISTER", channel="c", consumer_id="reader", lease="C")
    assert heard(hub, "P") == [("CONSUMER_UNREGISTERED", "reader")]


def test_producer_hears_that_a_consumer_died(hub: Driver) -> None:
    hub.produce(lease="P")
    hub.consume(lease="C")
    for _ in range(6):
        hub.wait(10)
        last = hub.beat("P").notices
    assert [(n.event, n.member, n.reason) for n in last] == [("CONSUMER_UNREGISTERED", "reader", "expired")]


def test_consumer_hears_of_a_producer_that_has_its_own_name(hub: Driver) -> None:
    hub.produce(producer_id="camera", lease="P")
    hub.consume(consumer_id="camera", lease="C")
    hub.wait(14)
    hub.beat("C")
    hub.wait(1)
    assert heard(hub, "C") == [("PRODUCER_STALLED", "camera")]


def test_members_hear_that_their_channel_was_declared(hub: Driver) -> None:
    hub.produce(lease="P")
    hub.ask("CHANNEL_CREATE", channel="c")
    assert heard(hub, "P") == [("CHANNEL_DECLARED", None)]


def test_notice_is_given_once(hub: Driver) -> None:
    hub.produce(lease="P")
    hub.consume(lease="C")
    assert heard(hub, "P")
    assert heard(hub, "P") == []


def test_other_channels_are_not_told(hub: Driver) -> None:
    hub.produce("a", lease="A")
    hub.produce("b", lease="B")
    hub.consume("b")
    assert heard(hub, "A") == []
