"""Evicting a member: its registration ends, its process is told, and it does not come back by itself."""

import pytest

from registry.errors import Evicted, InvalidRequest, NotRegistered
from tests.registry.driving import TERMS, Driver


def evict(hub: Driver, member_id: str, **fields: object) -> object:
    return hub.ask("MEMBER_EVICT", channel="c", member_id=member_id, **fields)


def test_an_evicted_consumer_is_gone_and_everybody_hears_why(hub: Driver) -> None:
    hub.produce(lease="L1")
    hub.consume(consumer_id="r", lease="L2", pid=7, host="here")
    gone = evict(hub, "r")
    assert (gone.role, gone.pid, gone.host, gone.revision) == ("consumer", 7, "here", hub.registry.revision)
    assert [(event.consumer_id, event.reason) for event in hub.happened] == [("r", "evicted")]
    assert hub.registry.channels["c"].consumers == {}
    assert [(n.member, n.reason) for n in hub.beat("L1").notices if n.event == "CONSUMER_UNREGISTERED"] == [
        ("r", "evicted")
    ]
    told = hub.beat("L2")
    assert not told.known
    assert [(n.event, n.member, n.reason) for n in told.notices][-1] == ("CONSUMER_UNREGISTERED", "r", "evicted")


def test_an_evicted_member_is_refused_under_the_same_lease_for_one_term(hub: Driver) -> None:
    hub.produce(lease="L1")
    hub.consume(consumer_id="r", lease="L2")
    evict(hub, "r")
    refused = hub.refused(Evicted, "CONSUMER_REGISTER", channel="c", consumer_id="r", lease="L2")
    assert refused.details["member_id"] == "r"
    hub.refused(Evicted, "CONSUMER_REGISTER", channel="c", consumer_id="r", lease="L2", group="g")
    hub.consume(consumer_id="other", lease="L2")
    hub.consume(consumer_id="r", lease="L3")
    hub.ask("CONSUMER_UNREGISTER", channel="c", consumer_id="r", lease="L3")
    hub.wait(TERMS.lease_seconds)
    hub.produce(lease="L1")
    hub.consume(consumer_id="r", lease="L2")


def test_an_evicted_producer_makes_room_for_another(hub: Driver) -> None:
    hub.produce(lease="L1")
    assert evict(hub, "c/default").role == "producer"
    hub.refused(Evicted, "PRODUCER_REGISTER", channel="c", schema_hash="h", lease="L1")
    hub.produce(lease="L2")


def test_who_is_meant_must_be_clear_and_there(hub: Driver) -> None:
    hub.produce(producer_id="x", lease="L1")
    hub.consume(consumer_id="x", lease="L2")
    hub.refused(NotRegistered, "MEMBER_EVICT", channel="c", member_id="nobody")
    hub.refused(InvalidRequest, "MEMBER_EVICT", channel="c", member_id="x")
    assert evict(hub, "x", role="consumer").role == "consumer"
    hub.refused(NotRegistered, "MEMBER_EVICT", channel="c", member_id="x", role="consumer")
    assert evict(hub, "x", role="producer").role == "producer"


def test_the_last_member_takes_its_channel_with_it(hub: Driver) -> None:
    hub.produce(lease="L1")
    evict(hub, "c/default")
    assert hub.types() == ["PRODUCER_UNREGISTERED", "CHANNEL_ENDED"]


@pytest.mark.parametrize("left", [1, 2])
def test_a_group_goes_on_without_an_evicted_member(hub: Driver, left: int) -> None:
    hub.produce(lease="L1")
    for number in range(left + 1):
        hub.consume(consumer_id=f"m{number}", lease=f"G{number}", group="g")
    evict(hub, "m0")
    assert set(hub.registry.channels["c"].groups["g"].members) == {f"m{number}" for number in range(1, left + 1)}
