"""Producers: who may, who replaces whom, what must agree."""

from typing import Any

import pytest

from registry.errors import (
    InvalidName,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    ProducerAlreadyRegistered,
    SchemaHashMismatch,
    SchemaMismatch,
)
from registry.registry import Registry
from tests.registry.driving import Driver

OBJECT_HASH = "9a0e7f8dcf77ddbcfcb98cc5b1fba7c29e0ef3d1a5d2ae71d7b9ef9b3d3f8c11"


def test_draft_producer_is_active_at_once_under_the_default_owner_and_name(hub: Driver) -> None:
    ack = hub.produce("sensor_data")
    assert (ack.producer_id, ack.shm_name) == ("sensor_data/default", "/pylabhub_sensor_data")
    assert ack.lease == "sensor_data/default"
    assert hub.types() == ["CHANNEL_CREATED", "PRODUCER_REGISTERED"]
    assert hub.discover("sensor_data").status == "active"


def test_saying_the_same_again_gives_the_same_answer_and_no_event(hub: Driver) -> None:
    first = hub.produce(config={"policy": "RingBuffer"})
    hub.now += 1
    assert hub.produce(config={"policy": "RingBuffer"}) == first
    assert hub.happened == []


def test_saying_something_new_registers_anew(hub: Driver) -> None:
    first = hub.produce(schema_version="1")
    second = hub.produce(schema_version="2")
    assert hub.types() == ["PRODUCER_REGISTERED"]
    assert second.revision > first.revision
    assert hub.discover().schema_version == "2"


def test_full_metadata_in_is_the_same_metadata_out_of_discovery(hub: Driver) -> None:
    said: dict[str, Any] = {
        "schema_version": "1.2.3",
        "config": {"policy": "RingBuffer", "capacity": 10, "nested": [1, {"a": None}]},
        "producer_id": "camera",
        "lease": "process-1",
        "shm_name": "/mine",
        "host": "h1",
        "pid": 7,
        "start_time": 99,
        "boot_id": "b",
        "metadata": {"unit": "mV"},
    }
    hub.produce(**said, blocks=[{"shm_name": "/mine", "host": "h1", "format": "arrow"}])
    (producer,) = hub.discover().producers
    assert {name: getattr(producer, name) for name in said} == said
    assert [(block.shm_name, block.format) for block in hub.discover().blocks] == [("/mine", "arrow")]


def test_second_producer_of_an_exclusive_channel_is_refused(hub: Driver) -> None:
    hub.produce(producer_id="p1", pid=7, host="h1")
    refusal = hub.refused(
        ProducerAlreadyRegistered, "PRODUCER_REGISTER", channel="c", schema_hash="h", producer_id="p2"
    )
    assert refusal.details == {"channel": "c", "producer_id": "p1", "pid": 7, "host": "h1"}
    assert refusal.retryable


def test_same_producer_id_from_another_lease_is_refused_while_the_first_lives(hub: Driver) -> None:
    hub.produce(producer_id="p1", lease="L1")
    hub.refused(
        ProducerAlreadyRegistered, "PRODUCER_REGISTER", channel="c", schema_hash="h", producer_id="p1", lease="L2"
    )


@pytest.mark.parametrize("access", ["exclusive", "shared"])
def test_same_producer_id_from_another_process_without_a_lease_is_refused_while_the_first_lives(
    hub: Driver, access: str
) -> None:
    hub.produce(producer_id="p1", pid=1, host="h1", access=access)
    another = {"channel": "c", "schema_hash": "h", "producer_id": "p1", "pid": 2, "host": "h1", "access": access}
    hub.refused(ProducerAlreadyRegistered, "PRODUCER_REGISTER", **another)
    hub.wait(15)
    hub.ask("PRODUCER_REGISTER", **another)
    assert [p.pid for p in hub.discover().producers] == [2]


def test_stalled_producer_is_replaced_by_another_process(hub: Driver) -> None:
    hub.produce(producer_id="p1", lease="L1")
    hub.wait(15)
    hub.produce(producer_id="p1", lease="L2")
    assert hub.types() == ["PRODUCER_UNREGISTERED", "PRODUCER_REGISTERED"]
    assert hub.happened[0].reason == "replaced"  # type: ignore[union-attr]
    assert [p.lease for p in hub.discover().producers] == ["L2"]


def test_stalled_exclusive_producer_is_replaced_by_another_producer(hub: Driver) -> None:
    hub.produce(producer_id="p1", lease="L1")
    hub.wait(15)
    hub.produce(producer_id="p2", lease="L2", schema_hash="other")
    assert list(hub.registry.channels["c"].producers) == ["p2"]
    assert hub.discover().schema_hash == "other"


def test_replaced_process_hears_of_it_with_its_next_heartbeat(hub: Driver) -> None:
    hub.produce("c", producer_id="p1", lease="L1")
    hub.produce("d", producer_id="p1", lease="L1")
    hub.wait(15)
    hub.produce("c", producer_id="p1", lease="L2")
    ack = hub.beat("L1")
    assert ack.known
    assert [(n.event, n.channel, n.member, n.reason) for n in ack.notices] == [
        ("PRODUCER_UNREGISTERED", "c", "p1", "replaced")
    ]


def test_shared_producers_live_side_by_side_with_a_name_each(hub: Driver) -> None:
    hub.produce(producer_id="p1", access="shared")
    ack = hub.produce(producer_id="p2", access="shared")
    assert ack.shm_name == "/pylabhub_c@p2"
    assert [block.shm_name for block in hub.discover().blocks] == ["/pylabhub_c@p1", "/pylabhub_c@p2"]


def test_shared_producer_does_not_join_a_living_exclusive_one(hub: Driver) -> None:
    hub.produce(producer_id="p1")
    refusal = hub.refused(
        PolicyMismatch, "PRODUCER_REGISTER", channel="c", schema_hash="h", producer_id="p2", access="shared"
    )
    assert (refusal.details["expected"], refusal.details["actual"]) == ("exclusive", "shared")


def test_shared_producers_agree_on_the_schema(hub: Driver) -> None:
    hub.produce(producer_id="p1", access="shared")
    refusal = hub.refused(
        SchemaMismatch, "PRODUCER_REGISTER", channel="c", schema_hash="x", producer_id="p2", access="shared"
    )
    assert (refusal.details["expected"], refusal.details["actual"]) == ("h", "x")


def test_shared_producers_agree_on_the_policy(hub: Driver) -> None:
    hub.produce(producer_id="p1", access="shared", config={"policy": "RingBuffer"})
    hub.refused(
        PolicyMismatch,
        "PRODUCER_REGISTER",
        channel="c",
        schema_hash="h",
        producer_id="p2",
        access="shared",
        config={"policy": "Single"},
    )


def test_sole_producer_may_change_schema_and_access(hub: Driver) -> None:
    hub.produce(producer_id="p1")
    hub.produce(producer_id="p1", schema_hash="new", access="shared")
    found = hub.discover()
    assert (found.schema_hash, found.access) == ("new", "shared")


def test_channel_has_no_schema_when_its_last_producer_is_gone(hub: Driver) -> None:
    hub.produce()
    hub.consume()
    hub.ask("PRODUCER_UNREGISTER", channel="c")
    found = hub.discover()
    assert (found.status, found.shm_name, found.schema_hash, found.schema, found.access) == (
        "pending",
        None,
        None,
        None,
        None,
    )


def test_channel_shows_what_the_newest_remaining_producer_says(hub: Driver) -> None:
    hub.produce(producer_id="p1", access="shared", schema_version="1")
    hub.produce(producer_id="p2", access="shared", schema_version="2")
    assert hub.discover().schema_version == "2"
    hub.ask("PRODUCER_UNREGISTER", channel="c", producer_id="p2")
    assert hub.discover().schema_version == "1"


def test_producer_that_is_not_ready_is_pending(hub: Driver) -> None:
    hub.produce(ready=False)
    assert hub.discover().status == "pending"
    hub.produce(ready=True)
    assert hub.discover().status == "active"


def test_discovery_leads_with_the_longest_registered_of_the_most_alive(hub: Driver) -> None:
    hub.produce(producer_id="p1", lease="L1", access="shared")
    hub.produce(producer_id="p2", lease="L2", access="shared")
    assert hub.discover().shm_name == "/pylabhub_c@p1"
    hub.wait(14)
    hub.beat("L2")
    hub.wait(1)
    found = hub.discover()
    assert (found.status, found.shm_name) == ("active", "/pylabhub_c@p2")


def test_only_the_owner_may_unregister(hub: Driver) -> None:
    hub.produce(producer_id="p1", lease="L1")
    hub.refused(NotOwner, "PRODUCER_UNREGISTER", channel="c", producer_id="p1", lease="L2")
    hub.refused(NotOwner, "PRODUCER_UNREGISTER", channel="c", producer_id="p1")
    ack = hub.ask("PRODUCER_UNREGISTER", channel="c", producer_id="p1", lease="L1")
    assert ack.revision == hub.registry.revision
    assert hub.types() == ["PRODUCER_UNREGISTERED", "CHANNEL_ENDED"]


def test_unregistering_an_unknown_producer_is_refused(hub: Driver) -> None:
    hub.produce()
    hub.refused(NotRegistered, "PRODUCER_UNREGISTER", channel="c", producer_id="p2")


def test_schema_that_came_along_is_registered_under_the_channels_name(hub: Driver) -> None:
    digest = hub.ask("SCHEMA_REGISTER", subject="probe", schema={"type": "object"}).schema_hash
    ack = hub.produce(schema={"type": "object"}, schema_hash=digest)
    assert hub.types() == ["SCHEMA_REGISTERED", "CHANNEL_CREATED", "PRODUCER_REGISTERED"]
    found = hub.discover()
    assert (found.schema, found.schema_id, found.schema_type) == ("verified", ack.schema_id, "JSON")
    assert hub.ask("SCHEMA_REQUEST", subject="c").schema.schema_hash == digest


def test_hash_without_the_schema_is_taken_as_given_and_unverified(hub: Driver) -> None:
    hub.produce(schema_hash="abc123...")
    found = hub.discover()
    assert (found.schema_hash, found.schema, found.schema_id) == ("abc123...", "unverified", None)


def test_schema_that_does_not_hash_to_its_claim_is_refused(hub: Driver) -> None:
    refusal = hub.refused(
        SchemaHashMismatch, "PRODUCER_REGISTER", channel="c", schema_hash=OBJECT_HASH, schema={"type": "object"}
    )
    assert refusal.details["claimed"] == OBJECT_HASH


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("channel", "hub.x"),
        ("channel", "c | pid:1-0"),
        ("channel", ""),
        ("producer_id", "no spaces"),
        ("producer_id", "d/default"),
        ("shm_name", "relative"),
        ("shm_name", "/../etc/passwd"),
        ("shm_name", "/a\0b"),
    ],
)
def test_bad_names_are_refused_with_the_name(hub: Driver, field: str, value: str) -> None:
    fields = {"channel": "c", "schema_hash": "h"} | {field: value}
    assert hub.refused(InvalidName, "PRODUCER_REGISTER", **fields).details["name"] == value


def test_default_owner_can_be_named_in_full(hub: Driver) -> None:
    first = hub.produce("c")
    assert hub.produce("c", producer_id="c/default") == first


def test_prefix_of_default_shm_names_is_configurable() -> None:
    assert Driver(Registry(shm_prefix="lab_")).produce().shm_name == "/lab_c"


def test_what_an_event_says_does_not_change_later(hub: Driver) -> None:
    hub.produce()
    created, registered = hub.happened
    hub.consume()
    hub.wait(15)
    assert not created.record.producers  # type: ignore[union-attr]
    assert not created.record.consumers  # type: ignore[union-attr]
    assert registered.producer.status == "active"  # type: ignore[union-attr]
    assert hub.discover().status == "stalled"
