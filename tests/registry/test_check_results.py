"""A result counts only for the check that was run: what changed meanwhile is checked again."""

from typing import Any

import msgspec
import pytest

from registry import commands
from registry.errors import SchemaIncompatible, SchemaMismatch
from registry.registry import Registry
from registry.schemas.checks import CheckResult, run_check
from tests.registry.driving import digest_of

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}
EITHER = {"type": ["integer", "string"]}
NEWEST = [{"name": "a.json", "subject": "a", "version": -1}]


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    for subject, schema in [("readers", EITHER), ("a", STRING), ("a", INTEGER), ("b", INTEGER), ("c", BOOLEAN)]:
        ask(made, "SCHEMA_CONFIG_SET", subject=subject, config={"compatibility": "NONE"})
        ask(made, "SCHEMA_REGISTER", subject=subject, schema=schema)
    ask(made, "SCHEMA_CONFIG_SET", subject="b", config={"compatibility": "BACKWARD"})
    return made


def command_of(wire_type: str, **fields: Any) -> commands.AnyCommand:
    return msgspec.convert({"type": wire_type, **fields}, commands.AnyCommand)


def ask(registry: Registry, wire_type: str, *, result: CheckResult | None = None, **fields: Any) -> Any:
    return registry.apply(command_of(wire_type, **fields), now=1.0, result=result).reply


def result_of(registry: Registry, wire_type: str, **fields: Any) -> CheckResult:
    check = registry.needed_check(command_of(wire_type, **fields))
    assert check is not None
    return run_check(check)


def test_reader_is_checked_against_the_schema_that_the_channel_has_now(registry: Registry) -> None:
    ask(registry, "PRODUCER_REGISTER", channel="c", schema_hash=digest_of(INTEGER))
    reader = {"channel": "c", "consumer_id": "r", "expected_schema_hash": digest_of(EITHER)}
    result = result_of(registry, "CONSUMER_REGISTER", **reader)
    assert not result.differences
    ask(registry, "PRODUCER_REGISTER", channel="c", schema_hash=digest_of(BOOLEAN))
    with pytest.raises(SchemaMismatch) as refused:
        ask(registry, "CONSUMER_REGISTER", result=result, **reader)
    assert refused.value.details["differences"], "checked anew"


def test_result_of_a_known_schema_does_not_count_for_one_that_nobody_knows(registry: Registry) -> None:
    ask(registry, "PRODUCER_REGISTER", channel="c", schema_hash=digest_of(INTEGER))
    reader = {"channel": "c", "consumer_id": "r", "expected_schema_hash": digest_of(EITHER)}
    result = result_of(registry, "CONSUMER_REGISTER", **reader)
    ask(registry, "PRODUCER_REGISTER", channel="c", schema_hash="unknown")
    with pytest.raises(SchemaMismatch):
        ask(registry, "CONSUMER_REGISTER", result=result, **reader)


def test_reader_that_names_the_channel_by_its_display_name_is_checked_too(registry: Registry) -> None:
    ask(registry, "PRODUCER_REGISTER", channel="c", schema_hash=digest_of(INTEGER))
    shown = {"channel": "c | pid:1-0", "consumer_id": "r", "expected_schema_hash": digest_of(EITHER)}
    assert result_of(registry, "CONSUMER_REGISTER", **shown).check is not None


def test_schema_is_registered_against_the_references_that_it_was_checked_with(registry: Registry) -> None:
    whole = {"subject": "b", "schema": {"$ref": "a.json"}, "references": NEWEST}
    result = result_of(registry, "SCHEMA_REGISTER", **whole)
    assert not result.differences
    ask(registry, "SCHEMA_DELETE", subject="a", version=2)
    with pytest.raises(SchemaIncompatible):
        ask(registry, "SCHEMA_REGISTER", result=result, **whole)


def test_schema_is_checked_at_the_level_and_against_the_versions_of_now(registry: Registry) -> None:
    ask(registry, "SCHEMA_CONFIG_SET", subject="b", config={"compatibility": "NONE"})
    result = result_of(registry, "SCHEMA_REGISTER", subject="b", schema=STRING)
    ask(registry, "SCHEMA_CONFIG_SET", subject="b", config={"compatibility": "BACKWARD"})
    with pytest.raises(SchemaIncompatible):
        ask(registry, "SCHEMA_REGISTER", result=result, subject="b", schema=STRING)


def test_what_does_not_matter_to_a_verdict_may_change_meanwhile(registry: Registry) -> None:
    asked = command_of("SCHEMA_REGISTER", subject="b", schema=EITHER)
    before = registry.needed_check(asked)
    ask(registry, "SCHEMA_REGISTER", subject="a", schema=EITHER)
    ask(registry, "SCHEMA_CONFIG_SET", subject="a", config={"compatibility": "FULL"})
    assert registry.needed_check(asked) == before
