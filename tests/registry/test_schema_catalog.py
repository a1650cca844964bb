"""The schema catalogue: ids name content for ever, versions only grow, and what is compatible is decided by level."""

import json
from typing import Any

import pytest

from registry.errors import (
    CompatibilityNotSet,
    InvalidRequest,
    InvalidSchema,
    ModeNotSet,
    OperationNotPermitted,
    ReferenceExists,
    SchemaHashMismatch,
    SchemaIncompatible,
    SchemaInUse,
    SchemaMismatch,
    SchemaNotFound,
    SchemaTooComplex,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from tests.registry.driving import Driver, digest_of

OBJECT = {"type": "object"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
STRING = {"type": "string"}
DEEP = '{"items":' * 5000 + "{}" + "}" * 5000


def register(hub: Driver, subject: str, schema: object, **fields: object) -> tuple[int, int]:
    ack = hub.ask("SCHEMA_REGISTER", subject=subject, schema=schema, **fields)
    return ack.version, ack.schema_id


def configure(hub: Driver, level: str, subject: str | None = None) -> None:
    hub.ask("SCHEMA_CONFIG_SET", subject=subject, config={"compatibility": level})


# -- registering and finding -------------------------------------------------------------------------------


def test_versions_count_from_one_per_subject_and_ids_over_all(hub: Driver) -> None:
    assert register(hub, "s", INTEGER) == (1, 1)
    assert register(hub, "s", NUMBER) == (2, 2)
    assert register(hub, "t", NUMBER) == (1, 2)
    assert register(hub, "t", True) == (2, 3)


def test_same_content_again_gives_the_same_version_and_no_event(hub: Driver) -> None:
    first = hub.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT)
    register(hub, "t", STRING)
    again = hub.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT)
    assert (again.version, again.schema_id, again.guid) == (first.version, first.schema_id, first.guid)
    assert hub.happened == []


def test_white_space_and_text_or_value_make_no_difference(hub: Driver) -> None:
    first = register(hub, "s", {"type": "object", "title": "x"})
    assert register(hub, "s", '{ "type": "object",\n "title": "x" }') == first


def test_same_text_as_another_type_is_another_schema(hub: Driver) -> None:
    configure(hub, "NONE")
    assert register(hub, "s", STRING) != register(hub, "s", STRING, schema_type="AVRO")


def test_metadata_rules_and_references_take_part_in_identity(hub: Driver) -> None:
    ids = {
        register(hub, "s", OBJECT)[1],
        register(hub, "s", OBJECT, metadata={"properties": {"owner": "a"}})[1],
        register(hub, "s", OBJECT, metadata={"properties": {"owner": "b"}})[1],
        register(hub, "s", OBJECT, rule_set={"domainRules": []})[1],
    }
    assert len(ids) == 4


def test_schema_is_found_by_id_guid_hash_version_and_as_the_newest(hub: Driver) -> None:
    first = hub.ask("SCHEMA_REGISTER", subject="s", schema=INTEGER)
    register(hub, "s", NUMBER)
    register(hub, "t", INTEGER)
    by_id = hub.ask("SCHEMA_REQUEST", schema_id=1)
    assert (json.loads(by_id.schema.schema), by_id.schema.schema_hash) == (INTEGER, digest_of(INTEGER))
    assert [(place.subject, place.version) for place in by_id.places] == [("s", 1), ("t", 1)]
    assert by_id.max_id == 2
    assert hub.ask("SCHEMA_REQUEST", schema_hash=digest_of(INTEGER)).schema.schema_id == 1
    assert hub.ask("SCHEMA_REQUEST", guid=first.guid).schema.schema_id == 1
    assert hub.ask("SCHEMA_REQUEST", subject="s", version=1).schema.version == 1
    assert hub.ask("SCHEMA_REQUEST", subject="s").schema.version == 2
    assert hub.ask("SCHEMA_REQUEST", subject="s", version=-1).schema.version == 2


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"schema_id": 2}, SchemaNotFound),
        ({"schema_id": 0}, SchemaNotFound),
        ({"schema_hash": "x"}, SchemaNotFound),
        ({"guid": "x"}, SchemaNotFound),
        ({"subject": "t"}, SubjectNotFound),
        ({"subject": "s", "version": 0}, VersionNotFound),
        ({"subject": "s", "version": 2}, VersionNotFound),
    ],
)
def test_schema_that_nobody_registered_is_not_found(
    hub: Driver, asked: dict[str, object], refusal: type[SchemaNotFound]
) -> None:
    register(hub, "s", OBJECT)
    assert type(hub.refused(refusal, "SCHEMA_REQUEST", **asked)) is refusal


def test_asking_for_no_schema_in_particular_is_refused(hub: Driver) -> None:
    assert hub.refused(InvalidRequest, "SCHEMA_REQUEST").details == {"field": "subject"}


def test_looking_up_finds_the_version_of_a_content(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    register(hub, "s", NUMBER)
    assert hub.ask("SCHEMA_LOOKUP_REQUEST", subject="s", schema=INTEGER).schema.version == 1
    assert hub.ask("SCHEMA_LOOKUP_REQUEST", subject="s", schema=' {"type" : "number"}').schema.version == 2
    hub.refused(SchemaNotFound, "SCHEMA_LOOKUP_REQUEST", subject="s", schema=STRING)
    hub.refused(SubjectNotFound, "SCHEMA_LOOKUP_REQUEST", subject="t", schema=STRING)


def test_schema_that_does_not_hash_to_its_claim_is_refused(hub: Driver) -> None:
    digest = digest_of(OBJECT)
    refusal = hub.refused(SchemaHashMismatch, "SCHEMA_REGISTER", subject="s", schema=STRING, schema_hash=digest)
    assert refusal.details["claimed"] == digest
    assert register(hub, "s", OBJECT, schema_hash=digest) == (1, 1)
    hub.refused(SchemaHashMismatch, "SCHEMA_REGISTER", subject="s", schema=OBJECT, schema_hash="other")


@pytest.mark.parametrize(
    ("schema_type", "schema"),
    [
        ("JSON", "{"),
        ("JSON", []),
        ("JSON", '"text"'),
        ("AVRO", "{"),
        ("PROTOBUF", {}),
        ("PROTOBUF", "message {"),
        ("ARROW", "{}"),
    ],
)
def test_what_is_no_schema_of_its_type_is_refused(hub: Driver, schema_type: str, schema: object) -> None:
    hub.refused(InvalidSchema, "SCHEMA_REGISTER", subject="s", schema=schema, schema_type=schema_type)


def test_a_schema_past_a_budget_is_refused_and_names_it(hub: Driver) -> None:
    refusal = hub.refused(SchemaTooComplex, "SCHEMA_REGISTER", subject="s", schema=DEEP)
    assert "budget" in refusal.message


def test_listing_pages_through_subjects_and_shows_versions(hub: Driver) -> None:
    for subject in ("t", "s", "u"):
        register(hub, subject, INTEGER)
    register(hub, "s", NUMBER)
    page = hub.ask("SCHEMA_LIST_REQUEST", limit=2)
    assert (page.subjects, page.next) == (["s", "t"], "t")
    assert hub.ask("SCHEMA_LIST_REQUEST", limit=2, after="t").subjects == ["u"]
    assert hub.ask("SCHEMA_LIST_REQUEST", prefix="s").subjects == ["s"]
    listed = hub.ask("SCHEMA_LIST_REQUEST", subject="s")
    assert [(v.version, v.schema_id) for v in listed.versions] == [(1, 1), (2, 2)]
    hub.refused(SubjectNotFound, "SCHEMA_LIST_REQUEST", subject="nobody")
    exported = hub.ask("SCHEMA_EXPORT_REQUEST", limit=1)
    assert ([(s.subject, s.version) for s in exported.schemas], exported.next) == ([("s", 1), ("s", 2)], "s")


def test_events_of_one_subject_are_chained(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    register(hub, "t", OBJECT)
    register(hub, "s", NUMBER)
    (event,) = hub.happened
    assert (event.previous, event.revision, event.topic) == (1, 3, "schema/s/")


# -- compatibility -----------------------------------------------------------------------------------------


def test_an_incompatible_version_is_refused_with_the_place_and_a_counterexample(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    refusal = hub.refused(SchemaIncompatible, "SCHEMA_REGISTER", subject="s", schema=STRING)
    (found,) = refusal.details["differences"]
    assert (found.version, found.differences[0].kind) == (1, "TYPE_CHANGED")
    assert json.loads(found.differences[0].counterexample) == 0


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        ("NONE", {"narrower", "wider", "other"}),
        ("BACKWARD", {"wider"}),
        ("FORWARD", {"narrower"}),
        ("FULL", set()),
    ],
)
def test_levels_say_which_changes_may_be_made(hub: Driver, level: str, allowed: set[str]) -> None:
    changes: dict[str, tuple[Any, Any]] = {
        "narrower": (NUMBER, INTEGER),
        "wider": (INTEGER, NUMBER),
        "other": (INTEGER, STRING),
    }
    configure(hub, level)
    for name, (old, new) in changes.items():
        register(hub, name, old)
        assert hub.ask("SCHEMA_CHECK", subject=name, schema=new).is_compatible == (name in allowed)
        if name in allowed:
            assert register(hub, name, new)[0] == 2
        else:
            hub.refused(SchemaIncompatible, "SCHEMA_REGISTER", subject=name, schema=new)


def test_transitive_levels_look_at_every_version(hub: Driver) -> None:
    configure(hub, "NONE", "s")
    for schema in (STRING, INTEGER):
        register(hub, "s", schema)
    configure(hub, "BACKWARD", "s")
    assert hub.ask("SCHEMA_CHECK", subject="s", schema=NUMBER).is_compatible
    configure(hub, "BACKWARD_TRANSITIVE", "s")
    checked = hub.ask("SCHEMA_CHECK", subject="s", schema=NUMBER)
    assert [found.version for found in checked.differences] == [1]


def test_a_check_can_name_its_version_and_its_level(hub: Driver) -> None:
    configure(hub, "NONE", "s")
    register(hub, "s", STRING)
    register(hub, "s", INTEGER)
    assert hub.ask("SCHEMA_CHECK", subject="s", schema=NUMBER, version=2, level="BACKWARD").is_compatible
    assert not hub.ask("SCHEMA_CHECK", subject="s", schema=NUMBER, version=1, level="BACKWARD").is_compatible
    assert hub.ask("SCHEMA_CHECK", subject="new", schema=NUMBER).is_compatible
    hub.refused(SubjectNotFound, "SCHEMA_CHECK", subject="new", schema=NUMBER, version=-1)


def test_another_type_is_never_compatible(hub: Driver) -> None:
    register(hub, "s", STRING)
    checked = hub.ask("SCHEMA_CHECK", subject="s", schema='"string"', schema_type="AVRO")
    assert checked.differences[0].differences[0].kind == "SCHEMA_TYPE_CHANGED"


def test_config_is_merged_defaulted_and_removed(hub: Driver) -> None:
    assert hub.ask("SCHEMA_CONFIG_REQUEST").config.compatibility == "BACKWARD"
    hub.refused(CompatibilityNotSet, "SCHEMA_CONFIG_REQUEST", subject="s")
    configure(hub, "FULL", "s")
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"normalize": True})
    config = hub.ask("SCHEMA_CONFIG_REQUEST", subject="s").config
    assert (config.compatibility, config.normalize) == ("FULL", True)
    hub.ask("SCHEMA_CONFIG_SET", subject="s")
    hub.refused(CompatibilityNotSet, "SCHEMA_CONFIG_REQUEST", subject="s")
    assert hub.ask("SCHEMA_CONFIG_REQUEST", subject="s", default_to_global=True).config.compatibility == "BACKWARD"
    hub.refused(SubjectNotFound, "SCHEMA_CONFIG_SET", subject="s")


def test_modes_keep_a_subject_or_everything_from_changing(hub: Driver) -> None:
    hub.refused(ModeNotSet, "SCHEMA_MODE_REQUEST", subject="s")
    hub.ask("SCHEMA_MODE_SET", subject="s", mode="READONLY")
    hub.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="s", schema=OBJECT)
    register(hub, "t", OBJECT)
    hub.ask("SCHEMA_MODE_SET", mode="READONLY_OVERRIDE")
    hub.ask("SCHEMA_MODE_SET", subject="t", mode="READWRITE")
    hub.refused(OperationNotPermitted, "SCHEMA_DELETE", subject="t")
    hub.refused(OperationNotPermitted, "SCHEMA_MODE_SET", mode="IMPORT")
    assert hub.ask("SCHEMA_MODE_SET", mode="IMPORT", force=True).mode == "IMPORT"


# -- deleting ----------------------------------------------------------------------------------------------


def test_a_soft_delete_hides_and_a_permanent_one_forgets(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    register(hub, "s", NUMBER)
    hub.refused(SubjectNotSoftDeleted, "SCHEMA_DELETE", subject="s", permanent=True)
    hub.refused(VersionNotSoftDeleted, "SCHEMA_DELETE", subject="s", version=1, permanent=True)
    assert hub.ask("SCHEMA_DELETE", subject="s", version=1).versions == [1]
    hub.refused(VersionSoftDeleted, "SCHEMA_DELETE", subject="s", version=1)
    hub.refused(VersionNotFound, "SCHEMA_REQUEST", subject="s", version=1)
    assert hub.ask("SCHEMA_REQUEST", subject="s", version=1, deleted=True).schema.is_deleted
    assert hub.ask("SCHEMA_REQUEST", schema_id=1).schema.version == 1
    assert hub.ask("SCHEMA_DELETE", subject="s").versions == [2]
    hub.refused(SubjectSoftDeleted, "SCHEMA_DELETE", subject="s")
    assert hub.ask("SCHEMA_DELETE", subject="s", permanent=True).versions == [1, 2]
    hub.refused(SchemaNotFound, "SCHEMA_REQUEST", schema_id=1)
    hub.refused(SubjectNotFound, "SCHEMA_DELETE", subject="s")


def test_an_id_is_never_used_again_and_versions_start_again(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    hub.ask("SCHEMA_DELETE", subject="s")
    assert register(hub, "s", INTEGER) == (2, 1)
    hub.ask("SCHEMA_DELETE", subject="s")
    hub.ask("SCHEMA_DELETE", subject="s", permanent=True)
    assert register(hub, "s", INTEGER) == (1, 2)


def test_a_deleted_version_is_not_compared_with(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    hub.ask("SCHEMA_DELETE", subject="s", version=1)
    assert register(hub, "s", STRING)[0] == 2


def test_a_referenced_version_stays(hub: Driver) -> None:
    register(hub, "base", {"$id": "base.json", "type": "integer"})
    reference = {"name": "base.json", "subject": "base", "version": -1}
    register(hub, "user", {"properties": {"a": {"$ref": "base.json"}}}, references=[reference])
    hub.refused(ReferenceExists, "SCHEMA_DELETE", subject="base")
    hub.ask("SCHEMA_DELETE", subject="user")
    assert hub.ask("SCHEMA_DELETE", subject="base").versions == [1]


def test_a_missing_reference_is_an_invalid_schema(hub: Driver) -> None:
    reference = {"name": "x", "subject": "nobody", "version": 1}
    hub.refused(InvalidSchema, "SCHEMA_REGISTER", subject="s", schema=OBJECT, references=[reference])


def test_what_a_live_channel_uses_is_deleted_by_force_only(hub: Driver) -> None:
    hub.ask("PRODUCER_REGISTER", channel="s", schema=OBJECT, schema_hash=digest_of(OBJECT))
    refusal = hub.refused(SchemaInUse, "SCHEMA_DELETE", subject="s")
    assert refusal.details["touched"][0].member_id == "s/default"
    assert hub.ask("SCHEMA_DELETE", subject="s", force=True).versions == [1]


# -- channels ----------------------------------------------------------------------------------------------


def test_a_consumer_with_a_compatible_schema_is_let_in(hub: Driver) -> None:
    for schema in (INTEGER, NUMBER, STRING):
        configure(hub, "NONE")
        register(hub, "readers", schema)
    hub.ask("PRODUCER_REGISTER", channel="c", schema=INTEGER, schema_hash=digest_of(INTEGER))
    hub.ask("CONSUMER_REGISTER", channel="c", consumer_id="wide", expected_schema_hash=digest_of(NUMBER))
    refusal = hub.refused(
        SchemaMismatch, "CONSUMER_REGISTER", channel="c", consumer_id="other", expected_schema_hash=digest_of(STRING)
    )
    assert refusal.details["differences"][0].differences
    hub.refused(SchemaMismatch, "CONSUMER_REGISTER", channel="c", consumer_id="x", expected_schema_hash="unknown")
