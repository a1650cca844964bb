"""Committed tables in the registry: checked like rings, registered without a lease, dropped when asked."""

from typing import Any

import pytest

from registry.errors import (
    ChannelHasTable,
    ChannelNotFound,
    SchemaHashMismatch,
    SchemaIncompatible,
    SchemaInUse,
    SchemaMismatch,
    TableNotFound,
    TableOnOtherHost,
)
from tests.registry.driving import Driver

PRICES = '{"fields":[{"name":"id","type":"int64"},{"name":"price","type":"float64"}]}'
WIDER = '{"fields":[{"name":"id","type":"int64"},{"name":"price","type":"float64"},{"name":"note","type":"utf8"}]}'
NARROWED = '{"fields":[{"name":"id","type":"int64"},{"name":"price","type":"int32"}]}'


def table(generation: int = 1, schema: str | None = PRICES, **fields: Any) -> dict[str, Any]:
    said = {
        "channel": "t",
        "generation": generation,
        "shm_name": f"/t/g{generation}.json",
        "host": "here",
        "boot_id": "boot",
        "user": "ada",
        "application": "app-1",
        "pid": 7,
        "committed_at": 1000.0 + generation,
    }
    return said | ({"schema": schema, "schema_type": "ARROW"} if schema else {}) | fields


def test_discovery_of_a_table_shows_what_discovery_of_a_ring_shows(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table())
    found = hub.ask("DISCOVERY_REQUEST", channel="t")
    hub.ask("PRODUCER_REGISTER", channel="ring", schema_hash=found.schema_hash, schema=PRICES, schema_type="ARROW")
    ring = hub.ask("DISCOVERY_REQUEST", channel="ring")
    for name in ("status", "schema", "schema_type", "schema_version", "schema_hash"):
        assert getattr(found, name) == getattr(ring, name), name
    assert (found.status, found.schema, found.schema_version) == ("active", "verified", "1")
    assert found.schema_id is not None
    assert (found.blocks[0].host, found.table.host) == ("here", "here")
    assert (found.table.user, found.table.application, found.table.pid) == ("ada", "app-1", 7)
    assert (found.table.schema_id, found.table.schema_version) == (found.schema_id, "1")
    assert found.producers == []


def test_the_same_again_changes_nothing_and_a_later_generation_supersedes(hub: Driver) -> None:
    first = hub.ask("TABLE_REGISTER", **table())
    again = hub.ask("TABLE_REGISTER", **table())
    assert (again.revision, hub.happened) == (first.revision, [])
    hub.ask("TABLE_REGISTER", **table(3))
    late = hub.ask("TABLE_REGISTER", **table(2))
    assert (late.table.generation, hub.happened) == (3, [])
    assert hub.ask("DISCOVERY_REQUEST", channel="t").generation == 3


@pytest.mark.parametrize("other", [{"host": "there"}, {"boot_id": "next"}, {"committed_at": 5000.0}])
def test_generations_count_only_within_one_life_of_one_host(hub: Driver, other: dict[str, Any]) -> None:
    hub.ask("TABLE_REGISTER", **table(7))
    assert hub.ask("TABLE_REGISTER", **table(1, **other)).table.generation == 1


def test_a_subject_whose_level_forbids_it_refuses_the_table(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table())
    hub.refused(SchemaIncompatible, "TABLE_CHECK", channel="t", schema=NARROWED, schema_type="ARROW")
    hub.refused(SchemaIncompatible, "TABLE_REGISTER", **table(2, NARROWED))
    hub.ask("TABLE_REGISTER", **table(2, WIDER))
    assert hub.ask("DISCOVERY_REQUEST", channel="t").schema_version == "2"


def test_a_check_registers_nothing(hub: Driver) -> None:
    checked = hub.ask("TABLE_CHECK", channel="t", schema=PRICES, schema_type="ARROW")
    assert (checked.schema_id, hub.happened) == (None, [])
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="t")
    assert hub.ask("SCHEMA_LIST_REQUEST").subjects == []
    registered = hub.ask("TABLE_REGISTER", **table())
    checked = hub.ask("TABLE_CHECK", channel="t", schema=PRICES, schema_type="ARROW")
    assert (checked.schema_id, checked.schema_version) == (registered.table.schema_id, "1")


def test_a_declaration_that_binds_a_schema_refuses_another_table(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="t", schema=PRICES, schema_type="ARROW")
    hub.ask("SCHEMA_CONFIG_SET", subject="t", config={"compatibility": "NONE"})
    hub.refused(SchemaMismatch, "TABLE_CHECK", channel="t", schema=NARROWED, schema_type="ARROW")
    hub.refused(SchemaMismatch, "TABLE_REGISTER", **table(1, NARROWED))
    hub.refused(SchemaMismatch, "TABLE_REGISTER", **table(1, None))
    hub.ask("TABLE_REGISTER", **table())
    assert len(hub.ask("SCHEMA_LIST_REQUEST", subject="t").versions) == 1


def test_a_declaration_must_fit_the_table_that_is_there(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table())
    hub.refused(SchemaMismatch, "CHANNEL_CREATE", channel="t", schema_hash="another")
    hub.ask("CHANNEL_CREATE", channel="t", schema=PRICES, schema_type="ARROW")


def test_a_hash_that_is_not_the_schemas_is_refused(hub: Driver) -> None:
    hub.refused(SchemaHashMismatch, "TABLE_REGISTER", **table(schema_hash="x"))


def test_a_table_without_its_schema_is_unverified(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table(schema=None, schema_hash="h", schema_version="mine"))
    found = hub.ask("DISCOVERY_REQUEST", channel="t")
    assert (found.schema, found.schema_hash, found.schema_version) == ("unverified", "h", "mine")


def test_a_consumer_that_expects_another_schema_is_refused_a_table_too(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table())
    hub.refused(SchemaMismatch, "CONSUMER_REGISTER", channel="t", consumer_id="r", expected_schema_hash="x")


def test_a_schema_that_a_table_uses_is_not_deleted(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table())
    refused = hub.refused(SchemaInUse, "SCHEMA_DELETE", subject="t")
    assert "table" in str(refused.details)


def test_a_dropped_table_is_gone_and_its_channel_with_it(hub: Driver) -> None:
    hub.refused(ChannelNotFound, "TABLE_DROP", channel="t")
    hub.ask("TABLE_REGISTER", **table())
    hub.refused(TableOnOtherHost, "TABLE_DROP", channel="t", host="there")
    assert hub.ask("TABLE_DROP", channel="t", host="here").table.generation == 1
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="t")
    hub.ask("CHANNEL_CREATE", channel="t")
    hub.refused(TableNotFound, "TABLE_DROP", channel="t")


def test_the_record_of_a_host_that_is_gone_can_be_removed(hub: Driver) -> None:
    hub.ask("TABLE_REGISTER", **table(host="gone"))
    hub.ask("TABLE_DROP", channel="t")
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="t")


def test_a_channel_with_a_table_is_destroyed_only_with_its_data(hub: Driver) -> None:
    hub.ask("CHANNEL_CREATE", channel="t")
    hub.ask("TABLE_REGISTER", **table())
    assert "--data" in hub.refused(ChannelHasTable, "CHANNEL_DESTROY", channel="t").message
    hub.refused(TableOnOtherHost, "CHANNEL_DESTROY", channel="t", data=True, host="there")
    hub.ask("CHANNEL_DESTROY", channel="t", data=True, host="here")
    hub.refused(ChannelNotFound, "DISCOVERY_REQUEST", channel="t")


def test_tables_are_listed_in_pages_of_channels(hub: Driver) -> None:
    for name in ("a", "b", "c"):
        hub.ask("TABLE_REGISTER", **table(channel=name))
    hub.ask("CHANNEL_CREATE", channel="bare")
    page = hub.ask("TABLE_LIST_REQUEST", limit=2)
    assert ([one.channel for one in page.tables], page.next) == (["a", "b"], "b")
    page = hub.ask("TABLE_LIST_REQUEST", after="b", limit=2)
    assert ([one.channel for one in page.tables], page.next) == (["c"], None)
    assert [one.channel for one in hub.ask("TABLE_LIST_REQUEST", prefix="c").tables] == ["c"]


def test_the_registrys_version_is_shown_when_there_is_one(hub: Driver) -> None:
    schema = {"type": "object"}
    made = hub.ask("SCHEMA_REGISTER", subject="r", schema=schema)
    said = {"channel": "r", "schema_hash": made.schema_hash, "schema_version": "mine"}
    hub.ask("PRODUCER_REGISTER", **said)
    assert hub.ask("DISCOVERY_REQUEST", channel="r").schema_version == "mine"
    hub.ask("PRODUCER_REGISTER", **said, schema=schema)
    assert hub.ask("DISCOVERY_REQUEST", channel="r").schema_version == "1"
