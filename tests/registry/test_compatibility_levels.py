"""Compatibility: what a level lets through, whom a check compares with, and who may read."""

import json
from typing import Any

import pytest

from registry.errors import (
    CompatibilityNotSet,
    InvalidSchema,
    SchemaIncompatible,
    SchemaMismatch,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
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


def test_looking_up_finds_the_version_of_a_content(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    register(hub, "s", NUMBER)
    assert hub.ask("SCHEMA_LOOKUP_REQUEST", subject="s", schema=INTEGER).schema.version == 1
    assert hub.ask("SCHEMA_LOOKUP_REQUEST", subject="s", schema=' {"type" : "number"}').schema.version == 2
    hub.refused(SchemaNotFound, "SCHEMA_LOOKUP_REQUEST", subject="s", schema=STRING)
    hub.refused(SubjectNotFound, "SCHEMA_LOOKUP_REQUEST", subject="t", schema=STRING)


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
    assert hub.ask("SCHEMA_CHECK", subject="new", schema=NUMBER, version=-1).is_compatible
    hub.refused(VersionNotFound, "SCHEMA_CHECK", subject="new", schema=NUMBER, version=1)
    hub.refused(VersionNotFound, "SCHEMA_CHECK", subject="s", schema=NUMBER, version=9)
    text = {"subject": "s", "schema": '"string"', "schema_type": "AVRO", "version": 1}
    assert hub.ask("SCHEMA_CHECK", **text).is_compatible, "at level NONE another type goes too"


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


def test_a_deleted_version_is_not_compared_with(hub: Driver) -> None:
    register(hub, "s", INTEGER)
    hub.ask("SCHEMA_DELETE", subject="s", version=1)
    assert register(hub, "s", STRING)[0] == 2


def test_a_missing_reference_is_an_invalid_schema(hub: Driver) -> None:
    reference = {"name": "x", "subject": "nobody", "version": 1}
    hub.refused(InvalidSchema, "SCHEMA_REGISTER", subject="s", schema=OBJECT, references=[reference])


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
