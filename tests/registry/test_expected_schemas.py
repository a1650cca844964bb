"""A discovery that names an expected schema says whether a reader of it can read the channel."""

import pytest
from msgspec import UNSET

from registry import commands, replies
from registry.errors import SchemaMismatch
from registry.registry import Registry
from tests.registry.driving import Driver, digest_of

INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}


@pytest.fixture
def known(hub: Driver) -> Driver:
    """A hub with a channel of integers, and readers' schemas in its registry."""
    for subject, schema in (("numbers", NUMBER), ("strings", STRING)):
        hub.ask("SCHEMA_REGISTER", subject=subject, schema=schema)
    hub.ask("PRODUCER_REGISTER", channel="c", schema=INTEGER, schema_hash=digest_of(INTEGER))
    return hub


def test_without_an_expected_schema_nothing_is_said(known: Driver) -> None:
    assert known.discover().compatible is UNSET
    assert known.discover().differences is UNSET


@pytest.mark.parametrize(("schema", "is_compatible"), [(INTEGER, True), (NUMBER, True), (STRING, False)])
def test_the_answer_is_that_of_a_consumers_registration(
    known: Driver, schema: dict[str, str], is_compatible: bool
) -> None:
    digest = digest_of(schema)
    found = known.ask("DISCOVERY_REQUEST", channel="c", expected_schema_hash=digest)
    assert found.compatible is is_compatible
    assert bool(found.differences) is not is_compatible
    if is_compatible:
        known.consume(expected_schema_hash=digest)
    else:
        refusal = known.refused(
            SchemaMismatch, "CONSUMER_REGISTER", channel="c", consumer_id="reader", expected_schema_hash=digest
        )
        assert refusal.details["differences"] == found.differences
        assert found.differences[0].version == 1
    assert known.discover().compatible is UNSET, "the answer to everybody else stays as it was"


def test_a_schema_that_is_not_registered_is_said_to_be_so(known: Driver) -> None:
    found = known.ask("DISCOVERY_REQUEST", channel="c", expected_schema_hash="unknown")
    assert found.compatible is False
    (difference,) = found.differences[0].differences
    assert difference.kind == "SCHEMA_NOT_REGISTERED"
    assert "'unknown'" in difference.message


def test_a_channel_without_a_schema_is_compatible_with_any(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="c")
    assert hub.ask("DISCOVERY_REQUEST", channel="c", expected_schema_hash="x").compatible is True


def test_a_table_is_checked_like_a_ring() -> None:
    registry = Registry()
    registry.apply(commands.RegisterTable(channel="c", generation=1, shm_name="/t", schema_hash="h"), now=0.0)
    for expected, is_compatible in (("h", True), ("x", False)):
        found = registry.apply(commands.Discover(channel="c", expected_schema_hash=expected), now=0.0).reply
        assert isinstance(found, replies.Discovered)
        assert found.compatible is is_compatible
    with pytest.raises(SchemaMismatch):
        registry.apply(commands.RegisterConsumer(channel="c", consumer_id="r", expected_schema_hash="x"), now=0.0)


def test_a_display_name_is_checked_as_its_channel(known: Driver) -> None:
    found = known.ask("DISCOVERY_REQUEST", channel="c | pid:1-0", expected_schema_hash=digest_of(NUMBER))
    assert found.compatible is True
