"""Channels: declared and undeclared, listed, described, destroyed."""

from typing import Any

import pytest

from registry.errors import (
    ChannelAlreadyExists,
    ChannelNotFound,
    InvalidName,
    PolicyMismatch,
    ProducerAlreadyRegistered,
    SchemaMismatch,
)
from tests.registry.driving import Driver


def test_declared_channel_stays_without_members(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c", metadata={"owner": "me"})
    assert hub.types() == ["CHANNEL_DECLARED"]
    hub.produce()
    hub.ask("PRODUCER_UNREGISTER", channel="c")
    assert hub.types() == ["PRODUCER_UNREGISTERED"]
    found = hub.discover()
    assert (found.status, found.metadata) == ("pending", {"owner": "me"})


def test_declaring_the_same_again_changes_nothing_and_declaring_otherwise_is_refused(hub: Driver) -> None:
    first = hub.ask("CHANNEL_CREATE", channel="c", schema_hash="h", config={"capacity": 1})
    assert hub.ask("CHANNEL_CREATE", channel="c", schema_hash="h", config={"capacity": 1}) == first
    assert hub.happened == []
    others: list[dict[str, Any]] = [
        {"schema_hash": "x"},
        {"config": {}},
        {"priority": "high"},
        {"access": "shared"},
        {"metadata": {"a": 1}},
    ]
    for other in others:
        fields: dict[str, Any] = {"channel": "c", "schema_hash": "h", "config": {"capacity": 1}} | other
        hub.refused(ChannelAlreadyExists, "CHANNEL_CREATE", **fields)


def test_declaration_binds_the_schema(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c", schema_hash="h", schema_version="1")
    hub.refused(SchemaMismatch, "PRODUCER_REGISTER", channel="c", schema_hash="x")
    hub.produce(schema_version="9")
    assert hub.discover().schema_version == "1"


def test_declaration_with_a_schema_registers_and_binds_it(hub: Driver) -> None:
    ack = hub.ask("CHANNEL_CREATE", channel="c", schema={"type": "object"})
    assert hub.types() == ["SCHEMA_REGISTERED", "CHANNEL_DECLARED"]
    found = hub.discover()
    assert (found.schema, found.schema_id) == ("verified", ack.schema_id)
    hub.refused(SchemaMismatch, "PRODUCER_REGISTER", channel="c", schema_hash="x")
    hub.produce(schema_hash=str(found.schema_hash))


@pytest.mark.parametrize(
    ("access", "advice"), [("exclusive", "give both access='shared'"), ("shared", "use another producer_id")]
)
def test_a_producer_whose_place_is_taken_hears_what_would_do(hub: Driver, access: str, advice: str) -> None:
    wanted = {"channel": "c", "schema_hash": "h", "access": access, "producer_id": "p"}
    hub.ask("PRODUCER_REGISTER", **wanted, lease="one")
    refusal = hub.refused(ProducerAlreadyRegistered, "PRODUCER_REGISTER", **wanted, lease="two")
    assert advice in refusal.message


def test_declaration_binds_access_and_policy(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c", access="shared", config={"policy": "RingBuffer"})
    wanted = {"channel": "c", "schema_hash": "h", "access": "shared", "config": {"policy": "RingBuffer"}}
    hub.refused(PolicyMismatch, "PRODUCER_REGISTER", **(wanted | {"access": "exclusive"}))
    refusal = hub.refused(PolicyMismatch, "PRODUCER_REGISTER", **(wanted | {"config": {"policy": "Single"}}))
    assert refusal.details["what"] == "policy"
    hub.ask("PRODUCER_REGISTER", **wanted)


def test_declared_policy_leaves_producers_that_name_none_alone(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c", config={"policy": "RingBuffer"})
    hub.produce()


def test_declaration_must_fit_the_producers_that_are_there(hub: Driver) -> None:
    hub.produce(config={"policy": "RingBuffer"})
    hub.refused(SchemaMismatch, "CHANNEL_CREATE", channel="c", schema_hash="x")
    hub.refused(PolicyMismatch, "CHANNEL_CREATE", channel="c", access="shared")
    hub.refused(PolicyMismatch, "CHANNEL_CREATE", channel="c", config={"policy": "Single"})


def test_declaring_a_channel_with_members_keeps_them_and_what_they_made_of_it(hub: Driver) -> None:
    hub.produce(schema_version="2")
    hub.consume()
    hub.now += 5
    hub.ask("CHANNEL_CREATE", channel="c", metadata={"a": 1})
    assert hub.types() == ["CHANNEL_DECLARED"]
    found = hub.discover()
    assert (found.status, found.schema_version, found.consumer_count) == ("active", "2", 1)
    assert hub.registry.channels["c"].created_at == 1000.0
    hub.ask("PRODUCER_UNREGISTER", channel="c")
    assert hub.discover().schema_hash is None


def test_destroying_ends_the_channel_and_every_membership(hub: Driver) -> None:
    hub.produce(lease="L1")
    hub.consume(lease="L2")
    hub.ask("CHANNEL_DESTROY", channel="c")
    assert hub.types() == ["CHANNEL_DESTROYED"]
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="c")
    ack = hub.beat("L1")
    assert not ack.known
    assert [(n.event, n.channel) for n in ack.notices][-1] == ("CHANNEL_DESTROYED", "c")


def test_channel_made_again_after_its_end_starts_a_new_chain(hub: Driver) -> None:
    hub.produce()
    hub.ask("PRODUCER_UNREGISTER", channel="c")
    hub.produce()
    assert [event.previous for event in hub.happened] == [0, hub.registry.revision - 1]


def test_first_registration_decides_the_channels_priority(hub: Driver) -> None:
    hub.produce(priority="high")
    hub.consume(priority="low")
    assert hub.registry.priorities == {"c": "high"}
    assert hub.discover().priority == "high"
    hub.ask("CHANNEL_DESTROY", channel="c")
    assert hub.registry.priorities == {}


def test_declaration_decides_the_priority_anew(hub: Driver) -> None:
    hub.produce(priority="high")
    hub.ask("CHANNEL_CREATE", channel="c")
    assert hub.registry.priorities == {}
    assert hub.discover().priority == "normal"


def test_display_name_finds_the_logical_channel(hub: Driver) -> None:
    hub.produce("x")
    shown = "x | pid:1-0"
    assert hub.discover(shown).channel == "x"
    assert hub.consume(shown).channel == "x"
    assert [c.name for c in hub.ask("SNAPSHOT_REQUEST", channel=shown).channels] == ["x"]
    assert hub.ask("CHANNEL_DESCRIBE_REQUEST", channel=shown).channel.name == "x"


def test_unknown_and_impossible_names_are_different_answers(hub: Driver) -> None:
    for wire_type in ("DISCOVERY_REQUEST", "CHANNEL_DESCRIBE_REQUEST", "CHANNEL_DESTROY", "CONSUMER_LIST_REQUEST"):
        assert hub.refused(ChannelNotFound, wire_type, channel="nobody").details == {"channel": "nobody"}
        hub.refused(InvalidName, wire_type, channel="no body")


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_listing_pages_through_all_channels_in_order(hub: Driver, limit: int) -> None:
    for name in ("b", "a.z", "a", "c", "a.b"):
        hub.produce(name)
    listed: list[str] = []
    after: str | None = ""
    while after is not None:
        page = hub.ask("CHANNEL_LIST_REQUEST", after=after, limit=limit)
        assert len(page.channels) <= limit
        listed += [summary.channel for summary in page.channels]
        after = page.next
    assert listed == ["a", "a.b", "a.z", "b", "c"]


def test_listing_by_prefix(hub: Driver) -> None:
    for name in ("a", "ab", "b"):
        hub.produce(name)
    page = hub.ask("CHANNEL_LIST_REQUEST", prefix="a", limit=1)
    assert ([s.channel for s in page.channels], page.next) == (["a"], "a")
    page = hub.ask("CHANNEL_LIST_REQUEST", prefix="a", after="a", limit=5)
    assert ([s.channel for s in page.channels], page.next) == (["ab"], None)


def test_summary_counts_members(hub: Driver) -> None:
    hub.produce(schema_version="1")
    hub.consume()
    (summary,) = hub.ask("CHANNEL_LIST_REQUEST").channels
    assert (summary.status, summary.declared, summary.producer_count, summary.consumer_count) == ("active", False, 1, 1)


def test_snapshot_pages_hold_whole_records_with_their_own_revisions(hub: Driver) -> None:
    hub.produce("a")
    hub.produce("b")
    first = hub.ask("SNAPSHOT_REQUEST", limit=1)
    second = hub.ask("SNAPSHOT_REQUEST", limit=1, after=first.next)
    assert [c.revision for c in (*first.channels, *second.channels)] == [2, 4]
    assert second.next is None
    assert hub.ask("SNAPSHOT_REQUEST", channel="nobody").channels == []


def test_discovery_shows_a_hundred_blocks_and_pages_the_rest(hub: Driver) -> None:
    hub.produce(blocks=[{"shm_name": f"/b{number}"} for number in range(250)])
    assert (len(hub.discover().blocks), hub.discover().blocks_total) == (100, 250)
    last = hub.ask("DISCOVERY_REQUEST", channel="c", blocks_offset=200)
    assert [block.shm_name for block in last.blocks] == [f"/b{number}" for number in range(200, 250)]
    assert hub.ask("DISCOVERY_REQUEST", channel="c", blocks_offset=250).blocks == []


def test_description_is_the_whole_record(hub: Driver) -> None:
    hub.produce(metadata={"a": 1})
    described = hub.ask("CHANNEL_DESCRIBE_REQUEST", channel="c")
    assert described.channel == hub.registry.channels["c"]
    assert (described.status, described.revision) == ("active", 2)
