"""Consumers: expectations, readiness, identity."""

import pytest

from registry.errors import (
    ChannelNotFound,
    ChannelNotReady,
    ConsumerAlreadyRegistered,
    InvalidName,
    NotOwner,
    NotRegistered,
    SchemaMismatch,
)
from tests.registry.driving import Driver


def test_consumer_is_told_where_the_data_is(hub: Driver) -> None:
    hub.produce("sensor_data", "abc", schema_version="1.0.0")
    ack = hub.consume("sensor_data", "consumer_001", expected_schema_hash="abc")
    assert (ack.shm_name, ack.schema_hash, ack.schema_version, ack.status) == (
        "/pylabhub_sensor_data",
        "abc",
        "1.0.0",
        "active",
    )
    assert [block.shm_name for block in ack.blocks] == ["/pylabhub_sensor_data"]


def test_consumer_of_an_unknown_channel_is_refused(hub: Driver) -> None:
    hub.refused(ChannelNotFound, "CONSUMER_REGISTER", channel="c", consumer_id="reader")


def test_a_member_of_a_group_makes_its_channel_which_ends_with_it(hub: Driver) -> None:
    """The rings of a channel that ended may still be there, with what the group has not read."""
    ack = hub.consume("c", "reader", group="crew")
    assert ack.assignment is not None
    assert (ack.assignment.index, ack.assignment.count, ack.blocks) == (0, 1, [])
    hub.ask("CONSUMER_UNREGISTER", channel="c", consumer_id="reader")
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="c")


def test_a_member_of_a_group_that_is_refused_makes_no_channel(hub: Driver) -> None:
    hub.refused(InvalidName, "CONSUMER_REGISTER", channel="c", consumer_id="reader", group="a/b@")
    hub.refused(ChannelNotFound, "CONSUMER_REGISTER", channel="c", consumer_id="reader", group="crew", required=True)
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="c")


def test_a_member_of_a_group_names_its_channel_as_it_is_displayed(hub: Driver) -> None:
    assert hub.consume("c | pid:1-0", "reader", group="crew").channel == "c"
    assert hub.consume("c | pid:1-0", "other", group="crew").channel == "c"


def test_wrong_expected_schema_is_refused_with_both_hashes(hub: Driver) -> None:
    hub.produce()
    refusal = hub.refused(
        SchemaMismatch, "CONSUMER_REGISTER", channel="c", consumer_id="reader", expected_schema_hash="x"
    )
    assert (refusal.details["expected"], refusal.details["actual"]) == ("x", "h")


def test_expectation_cannot_be_wrong_while_nothing_says_what_the_schema_is(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c")
    assert hub.consume(expected_schema_hash="x").schema_hash is None


def test_expectation_is_checked_against_a_binding_declaration(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c", schema_hash="h")
    hub.refused(SchemaMismatch, "CONSUMER_REGISTER", channel="c", consumer_id="reader", expected_schema_hash="x")


def test_consumer_waits_for_a_channel_that_is_not_ready_unless_it_requires_it(hub: Driver) -> None:
    hub.produce(ready=False)
    refusal = hub.refused(ChannelNotReady, "CONSUMER_REGISTER", channel="c", consumer_id="reader", required=True)
    assert refusal.details["status"] == "pending"
    assert hub.consume().status == "pending"


def test_saying_the_same_again_gives_the_same_answer_and_no_event(hub: Driver) -> None:
    hub.produce()
    first = hub.consume()
    hub.now += 1
    assert hub.consume() == first
    assert hub.happened == []


def test_same_consumer_id_from_another_lease_is_refused_while_the_first_lives(hub: Driver) -> None:
    hub.produce()
    hub.consume(lease="L1", pid=1, host="h1")
    refusal = hub.refused(ConsumerAlreadyRegistered, "CONSUMER_REGISTER", channel="c", consumer_id="reader", lease="L2")
    assert refusal.details == {"channel": "c", "consumer_id": "reader", "pid": 1, "host": "h1"}


def test_same_consumer_id_from_another_process_without_a_lease_is_refused_while_the_first_lives(hub: Driver) -> None:
    hub.produce()
    hub.consume(pid=1)
    hub.refused(ConsumerAlreadyRegistered, "CONSUMER_REGISTER", channel="c", consumer_id="reader", pid=2)


def test_stalled_consumer_is_replaced(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c")
    hub.consume(lease="L1")
    hub.wait(15)
    hub.consume(lease="L2")
    assert hub.types() == ["CONSUMER_UNREGISTERED", "CONSUMER_REGISTERED"]
    assert [n.reason for n in hub.beat("L1").notices] == ["replaced"]


def test_consumer_named_default_does_not_keep_the_default_producer_alive(hub: Driver) -> None:
    hub.produce()
    lease = hub.consume(consumer_id="default").lease
    hub.wait(14)
    hub.beat(lease)
    hub.wait(1)
    assert hub.discover().status == "stalled"


def test_only_the_owner_may_unregister(hub: Driver) -> None:
    hub.produce()
    hub.consume(lease="L1")
    hub.refused(NotOwner, "CONSUMER_UNREGISTER", channel="c", consumer_id="reader")
    hub.refused(NotRegistered, "CONSUMER_UNREGISTER", channel="c", consumer_id="other")
    hub.ask("CONSUMER_UNREGISTER", channel="c", consumer_id="reader", lease="L1")
    assert hub.ask("CONSUMER_LIST_REQUEST", channel="c").consumers == []


def test_unregistering_without_a_lease_ends_what_was_registered_without_one(hub: Driver) -> None:
    hub.produce()
    hub.consume()
    hub.ask("CONSUMER_UNREGISTER", channel="c", consumer_id="reader")
    assert hub.types() == ["CONSUMER_UNREGISTERED"]


def test_producer_lists_who_consumes_its_channel(hub: Driver) -> None:
    hub.produce()
    hub.consume(consumer_id="r1", group="g", host="h1", pid=3, metadata={"a": 1})
    hub.consume(consumer_id="r2")
    listed = hub.ask("CONSUMER_LIST_REQUEST", channel="c").consumers
    assert [(c.consumer_id, c.group, c.pid, c.metadata) for c in listed] == [
        ("r1", "g", 3, {"a": 1}),
        ("r2", None, None, {}),
    ]
    assert hub.discover().consumer_count == 2


def test_consumer_keeps_an_undeclared_channel_alive(hub: Driver) -> None:
    hub.produce()
    hub.consume()
    hub.ask("PRODUCER_UNREGISTER", channel="c")
    assert hub.discover().status == "pending"
    hub.ask("CONSUMER_UNREGISTER", channel="c", consumer_id="reader")
    assert hub.types() == ["CONSUMER_UNREGISTERED", "CHANNEL_ENDED"]
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="c")


@pytest.mark.parametrize(("field", "value"), [("consumer_id", "1st"), ("group", "a b"), ("channel", "sys")])
def test_bad_names_are_refused(hub: Driver, field: str, value: str) -> None:
    hub.produce()
    fields = {"channel": "c", "consumer_id": "reader"} | {field: value}
    hub.refused(InvalidName, "CONSUMER_REGISTER", **fields)
