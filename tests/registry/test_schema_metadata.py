"""Metadata and rules: from the config, from the version before, and as part of what is looked up."""

from typing import Any

from registry.errors import OperationNotPermitted, SchemaNotFound
from tests.registry.driving import Driver
from tests.registry.observing import schema_hash
from tests.registry.test_schema_catalog import OBJECT, STRING, register

OWNED = {"properties": {"owner": "lab"}}
MASK = {"domainRules": [{"name": "mask", "kind": "TRANSFORM", "type": "CEL"}]}


def newest(hub: Driver, subject: str = "s") -> Any:
    return hub.ask("SCHEMA_REQUEST", subject=subject).schema


def test_a_version_without_any_takes_those_of_the_one_before(hub: Driver) -> None:
    register(hub, "s", {"type": "string"}, metadata=OWNED, rule_set=MASK)
    assert register(hub, "s", {"type": ["string", "null"]}) == (2, 2)
    assert (newest(hub).metadata, newest(hub).rule_set) == (OWNED, MASK)
    assert register(hub, "s", {"type": ["string", "null"]}) == (2, 2)
    register(hub, "s", True, metadata={"properties": {}})
    assert (newest(hub).metadata, newest(hub).rule_set) == ({"properties": {}}, MASK)


def test_defaults_and_overrides_of_the_config_are_merged_in(hub: Driver) -> None:
    register(hub, "s", STRING)
    default = {"properties": {"owner": "all", "site": "x"}, "tags": {"a": ["PII"]}, "sensitive": ["k"]}
    rules = {"domainRules": [{"name": "mask", "kind": "CONDITION", "type": "CEL"}, {"name": "trim", "type": "CEL"}]}
    hub.ask("SCHEMA_CONFIG_SET", config={"default_metadata": default, "default_rule_set": rules})
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"override_metadata": {"properties": {"site": "y"}}})
    own = OWNED | {"tags": {"a": ["SECRET"], "b": ["C"]}, "sensitive": ["l"]}
    assert register(hub, "s", STRING, metadata=own, rule_set=MASK) == (2, 2)
    assert newest(hub).metadata == {
        "properties": {"owner": "lab", "site": "y"},
        "tags": {"a": ["PII", "SECRET"], "b": ["C"]},
        "sensitive": ["k", "l"],
    }
    assert newest(hub).rule_set == {"domainRules": [rules["domainRules"][1], *MASK["domainRules"]]}
    assert register(hub, "s", STRING, metadata=own, rule_set=MASK) == (2, 2)
    register(hub, "t", OBJECT)
    assert (newest(hub, "t").metadata, newest(hub, "t").rule_set) == (default, rules)


def test_a_lookup_with_metadata_finds_the_version_that_has_it(hub: Driver) -> None:
    register(hub, "s", STRING, metadata=OWNED)
    register(hub, "s", STRING, metadata={"properties": {"owner": "me"}})

    def found(**fields: object) -> int:
        version: int = hub.ask("SCHEMA_LOOKUP_REQUEST", subject="s", schema=STRING, **fields).schema.version
        return version

    assert found(metadata=OWNED) == 1
    assert found(metadata={"properties": {"owner": "me"}}) == 2
    assert found() == 2, "the newest that has the content"
    hub.refused(SchemaNotFound, "SCHEMA_LOOKUP_REQUEST", subject="s", schema=STRING, metadata={"properties": {}})
    register(hub, "s", STRING, rule_set=MASK)
    assert found(rule_set=MASK, metadata={"properties": {"owner": "me"}}) == 3


def test_documents_of_any_shape_are_merged(hub: Driver) -> None:
    odd = {"tags": 5, "properties": [], "sensitive": {"a": 1}}
    fine = {"tags": {"a": 1}, "properties": {"a": "b"}, "sensitive": ["x"]}
    for number, (default, own) in enumerate([(odd, fine), (fine, odd), (odd, odd)]):
        name = f"s{number}"
        hub.ask("SCHEMA_CONFIG_SET", subject=name, config={"default_metadata": default})
        assert register(hub, name, STRING, metadata=own)[0] == 1


def test_settings_of_what_is_read_only_stay(hub: Driver) -> None:
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"compatibility": "FULL"})
    hub.ask("SCHEMA_MODE_SET", subject="s", mode="READONLY")
    hub.refused(OperationNotPermitted, "SCHEMA_CONFIG_SET", subject="s", config={"compatibility": "NONE"})
    hub.refused(OperationNotPermitted, "SCHEMA_CONFIG_SET", subject="s")
    hub.ask("SCHEMA_MODE_SET", mode="READONLY_OVERRIDE")
    hub.refused(OperationNotPermitted, "SCHEMA_CONFIG_SET", config={"compatibility": "NONE"})


def test_settings_end_with_the_last_version(hub: Driver) -> None:
    register(hub, "s", STRING)
    hub.ask("SCHEMA_CONFIG_SET", subject="s", config={"compatibility": "FULL"})
    hub.ask("SCHEMA_MODE_SET", subject="s", mode="READWRITE")
    hub.ask("SCHEMA_DELETE", subject="s")
    assert hub.types() == ["SCHEMA_DELETED"]
    hub.ask("SCHEMA_DELETE", subject="s", version=1, permanent=True)
    assert hub.types() == ["SCHEMA_DELETED", "SCHEMA_CONFIGURED", "SCHEMA_MODE_CHANGED"]


def test_a_subject_counts_as_deleted_when_all_of_it_is(hub: Driver) -> None:
    register(hub, "s", STRING)
    register(hub, "s", True)
    register(hub, "t", STRING)
    hub.ask("SCHEMA_DELETE", subject="s", version=1)
    assert hub.ask("SCHEMA_LIST_REQUEST", deleted="only").subjects == []
    assert hub.ask("SCHEMA_LIST_REQUEST", deleted="with").subjects == ["s", "t"]
    assert [v.version for v in hub.ask("SCHEMA_LIST_REQUEST", subject="s", deleted="only").versions] == [1]
    assert hub.ask("SCHEMA_LIST_REQUEST", subject="t", deleted="only").versions == []


def test_a_changed_level_and_a_forced_delete_name_who_is_attached(hub: Driver) -> None:
    digest = hub.ask("SCHEMA_REGISTER", subject="c", schema=STRING).schema_hash
    hub.produce("c", digest, producer_id="writer", schema=STRING)
    hub.consume("c", "reader", expected_schema_hash=digest)
    changed = hub.ask("SCHEMA_CONFIG_SET", subject="c", config={"compatibility": "FULL"})
    assert [member.member_id for member in changed.touched] == ["writer", "reader"]
    assert hub.ask("SCHEMA_CONFIG_SET", subject="c", config={"compatibility": "FULL"}).touched == []
    hub.ask("SCHEMA_CONFIG_SET", subject="c", config={"compatibility": "NONE"})
    register(hub, "c", True)
    assert hub.ask("SCHEMA_DELETE", subject="c", version=2).touched == [], "nobody works with that one"
    deleted = hub.ask("SCHEMA_DELETE", subject="c", version=1, force=True)
    assert [member.member_id for member in deleted.touched] == ["writer", "reader"]


def test_a_check_says_who_of_those_attached_would_break(hub: Driver) -> None:
    narrow, wide = {"type": "integer"}, {"type": ["integer", "string"]}
    for name, schema in (("c", narrow), ("wide", wide)):
        register(hub, name, schema)
    digest, wider = (schema_hash(schema) for schema in (narrow, wide))
    hub.produce("c", digest, producer_id="writer", schema=narrow)
    hub.consume("c", "narrow", expected_schema_hash=digest)
    hub.consume("c", "wide", expected_schema_hash=wider)
    hub.consume("c", "silent")

    def broken(schema: object, **fields: object) -> dict[str, bool | None]:
        touched = hub.ask("SCHEMA_CHECK", subject="c", schema=schema, **fields).touched
        return {member.member_id: member.would_break for member in touched}

    assert broken(wide) == {"writer": False, "narrow": True, "wide": False, "silent": None}
    assert broken({"type": "string"}) == {"writer": True, "narrow": True, "wide": False, "silent": None}
    assert broken('"int"', schema_type="AVRO") == {"writer": True, "narrow": True, "wide": True, "silent": None}
