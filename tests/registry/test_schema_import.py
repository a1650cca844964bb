"""Mode IMPORT: what is registered brings its own id and number, and nothing else may be registered."""

import pytest

from registry.errors import IdMismatch, InvalidSchema, OperationNotPermitted, SchemaNotFound, VersionNotFound
from registry.schemas.catalog import MAX_ID
from tests.registry.driving import Driver
from tests.registry.observing import schema_hash
from tests.registry.test_schema_catalog import OBJECT, STRING, register


@pytest.fixture
def importing(hub: Driver) -> Driver:
    hub.ask("SCHEMA_MODE_SET", mode="IMPORT")
    return hub


def numbers(hub: Driver, subject: str) -> list[tuple[int, int]]:
    listed = hub.ask("SCHEMA_LIST_REQUEST", subject=subject, deleted="with").versions
    return [(version.version, version.schema_id) for version in listed]


def test_versions_come_with_their_ids_and_numbers_in_any_order_and_unchecked(importing: Driver) -> None:
    assert register(importing, "s", STRING, schema_id=70, version=7) == (7, 70)
    assert register(importing, "s", OBJECT, schema_id=30, version=3) == (3, 30)
    assert register(importing, "s", True, schema_id=80) == (8, 80)
    assert numbers(importing, "s") == [(3, 30), (7, 70), (8, 80)]
    assert importing.ask("SCHEMA_REQUEST", subject="s").schema.version == 8
    importing.ask("SCHEMA_MODE_SET", mode="READWRITE")
    assert register(importing, "t", False) == (1, 81), "the next id is one more than the highest"


def test_importing_again_changes_nothing(importing: Driver) -> None:
    register(importing, "s", STRING, schema_id=70, version=7)
    assert register(importing, "s", STRING, schema_id=70, version=7) == (7, 70)
    assert register(importing, "t", STRING, schema_id=70, version=2) == (2, 70)
    assert importing.refused(IdMismatch, "SCHEMA_REGISTER", subject="s", schema=STRING, schema_id=9).details == {
        "subject": "s",
        "version": 7,
        "schema_id": 70,
    }


def test_nothing_is_overwritten(importing: Driver) -> None:
    register(importing, "s", STRING, schema_id=70, version=7)
    importing.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="t", schema=OBJECT, schema_id=70)
    importing.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="s", schema=OBJECT, schema_id=71, version=7)


def test_an_id_is_taken_in_mode_import_only_and_is_needed_there(importing: Driver) -> None:
    importing.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="s", schema=STRING)
    importing.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="s", schema=STRING, version=1)
    importing.ask("SCHEMA_MODE_SET", subject="s", mode="READWRITE")
    importing.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="s", schema=STRING, schema_id=1)
    importing.refused(InvalidSchema, "SCHEMA_REGISTER", subject="s", schema=STRING, version=2)
    assert register(importing, "s", STRING, version=1) == (1, 1)


def test_one_content_may_have_two_ids_and_each_ends_by_itself(importing: Driver) -> None:
    register(importing, "s", STRING, schema_id=5)
    register(importing, "t", STRING, schema_id=6)
    guid = importing.ask("SCHEMA_REQUEST", schema_id=5).schema.guid
    assert importing.ask("SCHEMA_REQUEST", guid=guid).schema.schema_id == 5
    for permanent in (False, True):
        importing.ask("SCHEMA_DELETE", subject="s", permanent=permanent)
    importing.refused(SchemaNotFound, "SCHEMA_REQUEST", schema_id=5)
    assert importing.ask("SCHEMA_REQUEST", guid=guid).schema.schema_id == 6
    importing.ask("SCHEMA_MODE_SET", mode="READWRITE")
    assert register(importing, "u", STRING) == (1, 6)


def test_softly_deleted_versions_make_room_for_an_import(hub: Driver) -> None:
    register(hub, "s", STRING)
    register(hub, "other", OBJECT)
    hub.ask("SCHEMA_DELETE", subject="s")
    hub.refused(OperationNotPermitted, "SCHEMA_MODE_SET", mode="IMPORT")
    assert hub.ask("SCHEMA_MODE_SET", subject="s", mode="IMPORT").mode == "IMPORT"
    assert hub.types() == ["SCHEMA_DELETED", "SCHEMA_MODE_CHANGED"]
    assert register(hub, "s", False, schema_id=1, version=1) == (1, 1)
    hub.ask("SCHEMA_MODE_SET", subject="s", mode="IMPORT")
    assert hub.happened == [], "it was in that mode already"


def test_ids_fit_into_what_clients_send(importing: Driver) -> None:
    assert register(importing, "s", STRING, schema_id=MAX_ID) == (1, MAX_ID)
    importing.ask("SCHEMA_MODE_SET", subject="t", mode="READWRITE")
    assert register(importing, "t", STRING) == (1, MAX_ID)
    importing.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="t", schema={"type": ["string", "null"]})


def test_the_newest_is_never_a_deleted_one(hub: Driver) -> None:
    hub.ask("SCHEMA_CONFIG_SET", config={"compatibility": "NONE"})
    for schema in (STRING, OBJECT, True):
        register(hub, "s", schema)
    assert hub.ask("SCHEMA_DELETE", subject="s", version=-1).versions == [3]
    assert hub.ask("SCHEMA_REQUEST", subject="s", version=-1, deleted=True).schema.version == 2
    assert hub.ask("SCHEMA_DELETE", subject="s", version=-1).versions == [2]
    assert hub.ask("SCHEMA_DELETE", subject="s", version=-1).versions == [1]
    hub.refused(VersionNotFound, "SCHEMA_DELETE", subject="s", version=-1, permanent=True)
    hub.refused(VersionNotFound, "SCHEMA_REQUEST", subject="s", version=-1, deleted=True)


def test_what_is_registered_again_takes_the_place_of_what_was_hidden(hub: Driver) -> None:
    hub.ask("SCHEMA_CONFIG_SET", config={"compatibility": "NONE"})
    register(hub, "s", STRING)
    register(hub, "s", OBJECT)
    hub.ask("SCHEMA_DELETE", subject="s")
    assert register(hub, "s", STRING) == (3, 1)
    assert numbers(hub, "s") == [(2, 2), (3, 1)]
    hub.produce("s", schema_hash(OBJECT), schema=OBJECT)
    assert numbers(hub, "s") == [(3, 1), (4, 2)]
