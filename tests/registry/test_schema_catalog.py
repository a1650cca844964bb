"""The schema catalogue: ids name content for ever, versions count from one."""

import pytest

from registry.canonical import canonical
from registry.errors import InvalidRequest, InvalidSchema, SchemaHashMismatch, SchemaNotFound
from tests.registry.driving import Driver

OBJECT = {"type": "object"}
STRING = {"type": "string"}
DEEP = '{"a":' + "[" * 5000 + "]" * 5000 + "}"


def register(hub: Driver, subject: str, schema: object, **fields: object) -> tuple[int, int]:
    ack = hub.ask("SCHEMA_REGISTER", subject=subject, schema=schema, **fields)
    return ack.version, ack.schema_id


def test_versions_count_from_one_per_subject_and_ids_over_all(hub: Driver) -> None:
    assert register(hub, "s", OBJECT) == (1, 1)
    assert register(hub, "s", STRING) == (2, 2)
    assert register(hub, "t", STRING) == (1, 2)
    assert register(hub, "t", True) == (2, 3)


def test_same_content_again_gives_the_same_version_and_no_event(hub: Driver) -> None:
    first = hub.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT)
    register(hub, "t", STRING)
    assert hub.ask("SCHEMA_REGISTER", subject="s", schema=OBJECT) == first
    assert hub.happened == []


def test_order_of_members_and_text_or_value_make_no_difference(hub: Driver) -> None:
    first = register(hub, "s", {"type": "object", "title": "x"})
    assert register(hub, "s", {"title": "x", "type": "object"}) == first
    assert register(hub, "s", '{ "title": "x", "type": "object" }') == first


def test_same_text_as_another_type_is_another_schema(hub: Driver) -> None:
    assert register(hub, "s", OBJECT) != register(hub, "s", OBJECT, schema_type="AVRO")


def test_schema_is_found_by_id_by_hash_by_version_and_as_the_newest(hub: Driver) -> None:
    register(hub, "s", OBJECT)
    register(hub, "s", STRING)
    text, digest = canonical("JSON", OBJECT)
    by_id = hub.ask("SCHEMA_REQUEST", schema_id=1)
    assert (by_id.schema, by_id.schema_hash, by_id.subject, by_id.version) == (text, digest, None, None)
    assert hub.ask("SCHEMA_REQUEST", schema_hash=digest).schema_id == 1
    by_version = hub.ask("SCHEMA_REQUEST", subject="s", version=1)
    assert (by_version.schema, by_version.subject, by_version.version) == (text, "s", 1)
    assert hub.ask("SCHEMA_REQUEST", subject="s").version == 2


@pytest.mark.parametrize(
    "asked",
    [{"schema_id": 2}, {"schema_id": 0}, {"schema_hash": "x"}, {"subject": "t"}]
    + [{"subject": "s", "version": version} for version in (0, 2)],
)
def test_schema_that_nobody_registered_is_not_found(hub: Driver, asked: dict[str, object]) -> None:
    register(hub, "s", OBJECT)
    hub.refused(SchemaNotFound, "SCHEMA_REQUEST", **asked)


def test_asking_for_no_schema_in_particular_is_refused(hub: Driver) -> None:
    assert hub.refused(InvalidRequest, "SCHEMA_REQUEST").details == {"field": "subject"}


def test_schema_that_does_not_hash_to_its_claim_is_refused(hub: Driver) -> None:
    digest = canonical("JSON", OBJECT)[1]
    refusal = hub.refused(SchemaHashMismatch, "SCHEMA_REGISTER", subject="s", schema=STRING, schema_hash=digest)
    assert refusal.details["claimed"] == digest
    assert register(hub, "s", OBJECT, schema_hash=digest) == (1, 1)


@pytest.mark.parametrize(
    ("schema_type", "schema"),
    [
        ("JSON", "{"),
        ("JSON", []),
        ("JSON", '"text"'),
        ("AVRO", "{"),
        ("PROTOBUF", {}),
        ("PROTOBUF", "  "),
        ("JSON", DEEP),
    ],
)
def test_what_is_no_schema_of_its_type_is_refused(hub: Driver, schema_type: str, schema: object) -> None:
    hub.refused(InvalidSchema, "SCHEMA_REGISTER", subject="s", schema=schema, schema_type=schema_type)


def test_listing_pages_through_subjects_and_shows_versions(hub: Driver) -> None:
    for subject in ("t", "s", "u"):
        register(hub, subject, OBJECT)
    register(hub, "s", STRING)
    page = hub.ask("SCHEMA_LIST_REQUEST", limit=2)
    assert (page.subjects, page.next) == (["s", "t"], "t")
    assert hub.ask("SCHEMA_LIST_REQUEST", limit=2, after="t").subjects == ["u"]
    listed = hub.ask("SCHEMA_LIST_REQUEST", subject="s")
    assert [(v.version, v.schema_id) for v in listed.versions] == [(1, 1), (2, 2)]
    hub.refused(SchemaNotFound, "SCHEMA_LIST_REQUEST", subject="nobody")


def test_events_of_one_subject_are_chained(hub: Driver) -> None:
    register(hub, "s", OBJECT)
    register(hub, "t", OBJECT)
    register(hub, "s", STRING)
    (event,) = hub.happened
    assert (event.previous, event.revision, event.topic) == (1, 3, "schema/s/")
