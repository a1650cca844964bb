"""What a broker sees of its host: deaths, held leases, conflicts, tables."""

import pytest
from msgspec.structs import replace

from registry import commands, events
from registry.channels.leases import Member, Terms
from registry.errors import ChannelNotFound, ProducerAlreadyRegistered
from registry.registry import Registry

TERMS = Terms(heartbeat_seconds=1.0, stall_seconds=3.0, lease_seconds=6.0)
REGISTER = commands.RegisterProducer(channel="c", schema_hash="h", lease="one")
TABLE = commands.RegisterTable(channel="t", generation=3, shm_name="/t/g3.json", schema_hash="th")


def registered() -> Registry:
    registry = Registry(terms=TERMS)
    registry.apply(REGISTER, now=0.0)
    return registry


def test_a_held_lease_is_stalled_but_never_ended_and_never_replaced() -> None:
    registry = registered()
    registry.leases.hold("one", is_held=True)
    happened = [type(event) for at in range(1, 60) for event in registry.expire(now=float(at))]
    assert happened == [events.ProducerStalled]
    with pytest.raises(ProducerAlreadyRegistered):
        registry.apply(commands.RegisterProducer(channel="c", schema_hash="h", lease="two"), now=60.0)
    (recovered,) = registry.apply(commands.Heartbeat(lease="one"), now=61.0).events
    assert isinstance(recovered, events.ProducerRecovered)


def test_a_lease_that_is_let_go_of_ends_when_silent() -> None:
    registry = registered()
    registry.leases.hold("one", is_held=True)
    registry.expire(now=30.0)
    registry.leases.hold("one", is_held=False)
    happened = [type(event) for at in range(31, 60) for event in registry.expire(now=float(at))]
    assert happened == [events.ProducerUnregistered, events.ChannelEnded]


def test_the_dead_are_removed_at_once_and_only_once() -> None:
    registry = registered()
    gone = Member("producer", "c", "c/default")
    happened = registry.host_events.died([gone], now=1.0)
    assert [type(event) for event in happened] == [events.ProducerUnregistered, events.ChannelEnded]
    assert registry.host_events.died([gone], now=1.0) == []


def test_a_conflict_is_shown_and_ends() -> None:
    registry = registered()
    registry.host_events.show_conflict("c", "two claim it", now=1.0)
    found = registry.apply(commands.Discover(channel="c"), now=1.0).reply
    assert (found.status, found.conflict) == ("conflict", "two claim it")  # type: ignore[attr-defined]
    assert registry.host_events.show_conflict("c", "two claim it", now=2.0) == []
    registry.host_events.show_conflict("c", None, now=3.0)
    assert registry.apply(commands.Discover(channel="c"), now=3.0).reply.status == "active"  # type: ignore[attr-defined]


def test_a_conflict_of_an_unknown_channel_keeps_it_until_it_ends() -> None:
    registry = Registry()
    registry.host_events.show_conflict("ghost", "destroyed, but it lives", now=1.0)
    assert registry.channels["ghost"].status() == "conflict"
    registry.host_events.show_conflict("ghost", None, now=2.0)
    with pytest.raises(ChannelNotFound):
        registry.apply(commands.Discover(channel="ghost"), now=2.0)


def test_a_table_is_active_without_anybody_alive() -> None:
    registry = Registry()
    registry.apply(TABLE, now=1.0)
    found = registry.apply(commands.Discover(channel="t"), now=1.0).reply
    assert (found.status, found.generation, found.shm_name, found.schema_hash) == (  # type: ignore[attr-defined]
        "active",
        3,
        "/t/g3.json",
        "th",
    )
    registry.host_events.table_gone("t", now=2.0)
    assert "t" not in registry.channels


def test_a_table_outlives_its_producer() -> None:
    registry = registered()
    registry.apply(replace(TABLE, channel="c"), now=1.0)
    registry.host_events.died([Member("producer", "c", "c/default")], now=2.0)
    assert registry.channels["c"].status() == "active"
    assert registry.channels["c"].schema_hash == "th"
