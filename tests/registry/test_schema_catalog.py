"""The schema catalogue: ids name content for ever, versions count from one, deletion is soft first."""

from typing import Any

import pytest

from registry.errors import (
    CompatibilityNotSet,
    InvalidRequest,
    InvalidSchema,
    ModeNotSet,
    OperationNotPermitted,
    ReferenceExists,
    Refusal,
    SchemaHashMismatch,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
    SchemaTooComplex,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from registry.schemas.catalog import MAX_REFERENCES
from tests.registry.driving import Driver
from tests.registry.observing import schema_hash

OBJECT = {"type": "object"}
STRING = {"type": "string"}
DEEP = '{"a":' + "[" * 5000 + "]" * 5000 + "}"


def register(hub: Driver, subject: str, schema: object, **fields: object) -> tuple[int, int]:
    ack = hub.ask("SCHEMA_REGISTER", subject=subject, schema=schema, **fields)
    return ack.version, ack.schema_id


@pytest.fixture
def lax(hub: Driver) -> Driver:
    """Any schema may follow any other."""
    hub.ask("SCHEMA_CONFIG_SET", config={"compatibility": "NONE"})
    return hub


def test_versions_count_from_one_per_subject_and_ids_over_all(lax: Driver) -> None:
    assert register(lax, "s", OBJECT) == (1, 1)
    assert register(lax, "s", STRING) == (2, 2)
    assert register(lax, "t", STRING) == (1, 2)
    assert register(lax, "t", True) == (2, 3)


def test_same_content_again_gives_the_same_version_and_no_event(hub: Driver) -> None:
    first = hub.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT)
    register(hub, "t", STRING)
    assert hub.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT) == first
    assert hub.happened == []


def test_white_space_and_text_or_value_make_no_difference(hub: Driver) -> None:
    first = register(hub, "s", {"type": "object", "title": "x"})
    assert register(hub, "s", '{ "type": "object",\n "title": "x" }') == first


def test_order_of_members_makes_a_difference_unless_normalized(hub: Driver) -> None:
    first = register(hub, "s", {"type": "object", "title": "x"}, normalize=True)
    assert register(hub, "s", {"title": "x", "type": "object"}, normalize=True) == first
    assert register(hub, "t", {"type": "object", "title": "x"}) != register(hub, "t", {"title": "x", "type": "object"})


def test_normalized_schema_hashes_to_what_its_text_hashes_to(hub: Driver) -> None:
    ack = hub.ask("SCHEMA_REGISTER", subject="s", schema={"type": "object", "title": "x"}, normalize=True)
    kept = hub.ask("SCHEMA_REQUEST", subject="s").schema.schema
    assert ack.schema_hash == schema_hash(kept)
    assert hub.ask("SCHEMA_REGISTER", subject="s", schema=kept).version == 1


def test_metadata_and_rules_take_part_in_identity(hub: Driver) -> None:
    assert register(hub, "s", OBJECT) == (1, 1)
    assert register(hub, "s", OBJECT, metadata={"owner": "me"}) == (2, 2)
    assert register(hub, "s", OBJECT, rule_set={"domainRules": [{"name": "r", "type": "CEL"}]}) == (3, 3)
    assert register(hub, "s", OBJECT, metadata={"owner": "me"}) == (2, 2)


def test_schema_is_found_by_id_by_guid_by_hash_by_version_and_as_the_newest(lax: Driver) -> None:
    first = lax.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT)
    register(lax, "s", STRING)
    asked: dict[str, dict[str, Any]] = {
        "id": {"schema_id": 1},
        "guid": {"guid": first.guid},
        "hash": {"schema_hash": schema_hash(OBJECT)},
        "version": {"subject": "s", "version": 1},
    }
    for question in asked.values():
        found = lax.ask("SCHEMA_REQUEST", **question)
        assert (found.schema.schema_id, found.schema.subject, found.schema.version) == (1, "s", 1)
        assert [(place.subject, place.version) for place in found.places] == [("s", 1)]
    assert lax.ask("SCHEMA_REQUEST", subject="s").schema.version == 2
    assert lax.ask("SCHEMA_REQUEST", subject="s", version=-1).schema.version == 2


def test_hash_finds_what_is_left_when_one_of_two_contents_with_it_is_deleted(lax: Driver) -> None:
    register(lax, "s", OBJECT)
    register(lax, "t", OBJECT, metadata={"owner": "me"})
    for permanent in (False, True):
        lax.ask("SCHEMA_DELETE", subject="s", permanent=permanent)
    assert lax.ask("SCHEMA_REQUEST", schema_hash=schema_hash(OBJECT)).schema.schema_id == 2


def test_first_of_several_places_does_not_depend_on_the_order_of_registration(hub: Driver) -> None:
    register(hub, "t", OBJECT)
    register(hub, "s", OBJECT)
    found = hub.ask("SCHEMA_REQUEST", schema_id=1)
    assert found.schema.subject == "s"
    assert [place.subject for place in found.places] == ["s", "t"]


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"schema_id": 2}, SchemaNotFound),
        ({"schema_id": 0}, SchemaNotFound),
        ({"schema_hash": "x"}, SchemaNotFound),
        ({"guid": "x"}, SchemaNotFound),
        ({"subject": "t"}, SubjectNotFound),
        ({"subject": "s", "version": 2}, VersionNotFound),
        ({}, InvalidRequest),
    ],
)
def test_schema_that_nobody_registered_is_not_found(
    hub: Driver, asked: dict[str, object], refusal: type[Refusal]
) -> None:
    register(hub, "s", OBJECT)
    hub.refused(refusal, "SCHEMA_REQUEST", **asked)


def test_schema_that_does_not_hash_to_its_claim_is_refused(hub: Driver) -> None:
    digest = schema_hash(OBJECT)
    refusal = hub.refused(SchemaHashMismatch, "SCHEMA_REGISTER", subject="s", schema=STRING, schema_hash=digest)
    assert refusal.details["claimed"] == digest
    assert register(hub, "s", OBJECT, schema_hash=digest) == (1, 1)


@pytest.mark.parametrize(
    ("schema_type", "schema"),
    [("JSON", "{"), ("JSON", []), ("JSON", '"text"'), ("AVRO", "{"), ("PROTOBUF", "message {")],
)
def test_what_is_no_schema_of_its_type_is_refused(hub: Driver, schema_type: str, schema: object) -> None:
    hub.refused(InvalidSchema, "SCHEMA_REGISTER", subject="s", schema=schema, schema_type=schema_type)


def test_schema_beyond_what_can_be_checked_is_refused_as_too_complex(hub: Driver) -> None:
    hub.refused(SchemaTooComplex, "SCHEMA_REGISTER", subject="s", schema=DEEP)


def test_incompatible_version_is_refused_with_the_differences_and_those_it_would_touch(hub: Driver) -> None:
    hub.produce("s", schema_hash(OBJECT), schema=OBJECT)
    refusal = hub.refused(SchemaIncompatible, "SCHEMA_REGISTER", subject="s", schema=STRING)
    assert refusal.details["level"] == "BACKWARD"
    assert refusal.details["differences"][0].version == 1
    assert [member.member_id for member in refusal.details["touched"]] == ["s/default"]


def test_listing_pages_through_subjects_and_shows_versions(lax: Driver) -> None:
    for subject in ("t", "s", "u"):
        register(lax, subject, OBJECT)
    register(lax, "s", STRING)
    page = lax.ask("SCHEMA_LIST_REQUEST", limit=2)
    assert (page.subjects, page.next) == (["s", "t"], "t")
    assert lax.ask("SCHEMA_LIST_REQUEST", limit=2, after="t").subjects == ["u"]
    assert lax.ask("SCHEMA_LIST_REQUEST", prefix="t").subjects == ["t"]
    listed = lax.ask("SCHEMA_LIST_REQUEST", subject="s")
    assert [(v.version, v.schema_id) for v in listed.versions] == [(1, 1), (2, 2)]
    lax.refused(SubjectNotFound, "SCHEMA_LIST_REQUEST", subject="nobody")


def test_events_of_one_subject_are_chained(lax: Driver) -> None:
    register(lax, "s", OBJECT)
    register(lax, "t", OBJECT)
    register(lax, "s", STRING)
    (event,) = lax.happened
    assert (event.previous, event.revision, event.topic) == (2, 4, "schema/s/")


def test_answer_about_all_subjects_is_of_the_registrys_revision(hub: Driver) -> None:
    register(hub, "s", OBJECT)
    hub.produce()
    asked: list[tuple[str, dict[str, object]]] = [
        ("SCHEMA_LIST_REQUEST", {}),
        ("SCHEMA_EXPORT_REQUEST", {}),
        ("SCHEMA_CONFIG_REQUEST", {}),
        ("SCHEMA_MODE_REQUEST", {}),
    ]
    assert {hub.ask(wire_type, **fields).revision for wire_type, fields in asked} == {3}


# -- deletion ----------------------------------------------------------------------------------------------


def test_deleting_is_soft_first_and_then_permanent(lax: Driver) -> None:
    register(lax, "s", OBJECT)
    register(lax, "s", STRING)
    lax.refused(VersionNotSoftDeleted, "SCHEMA_DELETE", subject="s", version=1, permanent=True)
    lax.refused(SubjectNotSoftDeleted, "SCHEMA_DELETE", subject="s", permanent=True)
    assert lax.ask("SCHEMA_DELETE", subject="s", version=1).versions == [1]
    assert lax.types() == ["SCHEMA_DELETED"]
    lax.refused(VersionSoftDeleted, "SCHEMA_DELETE", subject="s", version=1)
    lax.refused(VersionNotFound, "SCHEMA_REQUEST", subject="s", version=1)
    assert lax.ask("SCHEMA_REQUEST", subject="s", version=1, deleted=True).schema.is_deleted
    assert lax.ask("SCHEMA_DELETE", subject="s").versions == [2]
    lax.refused(SubjectSoftDeleted, "SCHEMA_DELETE", subject="s")
    assert lax.ask("SCHEMA_LIST_REQUEST").subjects == []
    assert lax.ask("SCHEMA_LIST_REQUEST", deleted="only").subjects == ["s"]
    assert lax.ask("SCHEMA_DELETE", subject="s", permanent=True).versions == [1, 2]
    lax.refused(SubjectNotFound, "SCHEMA_DELETE", subject="s")


def test_id_of_a_permanently_deleted_schema_is_not_used_again(lax: Driver) -> None:
    register(lax, "s", OBJECT)
    for permanent in (False, True):
        lax.ask("SCHEMA_DELETE", subject="s", permanent=permanent)
    lax.refused(SchemaNotFound, "SCHEMA_REQUEST", schema_id=1)
    assert register(lax, "s", STRING) == (1, 2)


def test_schema_that_a_live_channel_uses_is_deleted_only_by_force(hub: Driver) -> None:
    hub.produce("s", schema_hash(OBJECT), schema=OBJECT)
    refusal = hub.refused(SchemaInUse, "SCHEMA_DELETE", subject="s", version=1)
    assert [member.role for member in refusal.details["touched"]] == ["producer"]
    assert hub.ask("SCHEMA_DELETE", subject="s", version=1, force=True).versions == [1]


def test_schema_that_another_refers_to_is_not_deleted(hub: Driver) -> None:
    register(hub, "part", OBJECT)
    references = [{"name": "part.json", "subject": "part", "version": -1}]
    register(hub, "whole", {"$ref": "part.json"}, references=references)
    refusal = hub.refused(ReferenceExists, "SCHEMA_DELETE", subject="part")
    assert refusal.details["referrers"] == [{"subject": "whole", "version": 1}]


def test_schema_refers_to_so_many_others_and_no_more(hub: Driver) -> None:
    register(hub, "part", OBJECT)
    references = [{"name": f"{number}.json", "subject": "part", "version": 1} for number in range(MAX_REFERENCES + 1)]
    register(hub, "whole", OBJECT, references=references[:100])
    refusal = hub.refused(SchemaTooComplex, "SCHEMA_REGISTER", subject="whole", schema=OBJECT, references=references)
    assert "references = 256" in refusal.message


# -- settings ----------------------------------------------------------------------------------------------


def test_subject_has_the_registrys_level_until_it_has_its_own(hub: Driver) -> None:
    hub.refused(CompatibilityNotSet, "SCHEMA_CONFIG_REQUEST", subject="s")
    assert hub.ask("SCHEMA_CONFIG_REQUEST", subject="s", default_to_global=True).config.compatibility == "BACKWARD"
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"compatibility": "FULL"})
    assert hub.types() == ["SCHEMA_CONFIGURED"]
    assert hub.ask("SCHEMA_CONFIG_REQUEST", subject="s").config.compatibility == "FULL"
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"compatibility": "FULL"})
    assert hub.happened == []
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"normalize": True}, unset=["compatibility"])
    found = hub.ask("SCHEMA_CONFIG_REQUEST", subject="s").config
    assert (found.compatibility, found.normalize) == (None, True)
    hub.ask("SCHEMA_CONFIG_SET", subject="s")
    hub.refused(CompatibilityNotSet, "SCHEMA_CONFIG_REQUEST", subject="s")


def test_read_only_subject_refuses_writes(hub: Driver) -> None:
    hub.refused(ModeNotSet, "SCHEMA_MODE_REQUEST", subject="s")
    register(hub, "s", OBJECT)
    hub.ask("SCHEMA_MODE_SET", subject="s", mode="READONLY")
    assert hub.types() == ["SCHEMA_MODE_CHANGED"]
    hub.refused(OperationNotPermitted, "SCHEMA_REGISTER", subject="s", schema=True)
    hub.refused(OperationNotPermitted, "SCHEMA_DELETE", subject="s")
    assert register(hub, "s", OBJECT) == (1, 1), "what is there already is no write"


def test_import_mode_needs_an_empty_subject_or_force(hub: Driver) -> None:
    register(hub, "s", OBJECT)
    hub.refused(OperationNotPermitted, "SCHEMA_MODE_SET", subject="s", mode="IMPORT")
    assert hub.ask("SCHEMA_MODE_SET", subject="s", mode="IMPORT", force=True).mode == "IMPORT"
