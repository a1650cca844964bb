"""Avro parsing: what is refused and why, what the canonical form keeps, and references."""

import json
from typing import Any

import pytest

from registry.formats import avro, bounded_json
from registry.formats.avro import resolution
from registry.formats.differences import BudgetExceeded, MalformedSchema


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


INVALID = [
    ("no type at all", {}, 'attribute "type"'),
    ("a number is no type", 5, "not int"),
    ("null is no type", None, "not null"),
    ("an unknown name", "Nowhere", 'unknown type "Nowhere"'),
    ("an unknown kind", {"type": "strin"}, 'unknown type "strin"'),
    ("an array without items", {"type": "array"}, '"items"'),
    ("a map without values", {"type": "map"}, '"values"'),
    ("a record without fields", {"type": "record", "name": "R"}, '"fields"'),
    ("a record without name", {"type": "record", "fields": []}, '"name"'),
    ("a name with a space", record(name="a b"), "not a name"),
    ("a name that begins with a digit", record(name="1a"), "not a name"),
    ("a name with an empty part", record(name="a..b"), "not a name"),
    ("a type named like a primitive", record(name="int"), "primitive"),
    ("a namespace that is no string", record(namespace=4), '"namespace"'),
    ("a field without type", record({"name": "a"}), '"name" and "type"'),
    ("a field that is no object", record("a"), '"name" and "type"'),
    ("a field with a bad name", record(field("a-b", "int")), "not a name"),
    ("two fields of one name", record(field("a", "int"), field("a", "int")), "two fields"),
    ("an unknown order", record(field("a", "int", order="up")), '"order"'),
    ("aliases that are no list", record(field("a", "int", aliases="b")), '"aliases"'),
    ("a type defined twice", record(field("r", record())), "defined twice"),
    ("an enum without symbols", {"type": "enum", "name": "E"}, '"symbols"'),
    ("an enum with a bad symbol", {"type": "enum", "name": "E", "symbols": ["a-b"]}, '"symbols"'),
    ("an enum with a symbol twice", {"type": "enum", "name": "E", "symbols": ["A", "A"]}, "twice"),
    (
        "an enum's default must be a symbol",
        {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
        "default",
    ),
    ("a negative size", {"type": "fixed", "name": "F", "size": -1}, '"size"'),
    ("a size that is no integer", {"type": "fixed", "name": "F", "size": "4"}, '"size"'),
    ("a union in a union", ["null", ["int"]], "directly contain"),
    ("a union with a type twice", ["int", "int"], "only once"),
    (
        "a union with two arrays",
        [{"type": "array", "items": "int"}, {"type": "array", "items": "long"}],
        "only once",
    ),
    ("an int's default is a string", record(field("a", "int", default="1")), "default"),
    ("an int's default is too large", record(field("a", "int", default=1 << 31)), "default"),
    ("true is no int", record(field("a", "int", default=True)), "default"),
    ("null is no default of a string", record(field("a", "string", default=None)), "default"),
    ("no branch takes the default", record(field("a", ["null", "int"], default="x")), "default"),
    ("bytes beyond 255", record(field("a", "bytes", default="\u0100")), "default"),
    (
        "a default of the wrong length",
        record(field("a", {"type": "fixed", "name": "F", "size": 2}, default="a")),
        "def",
    ),
    (
        "a record's default lacks a field",
        record(field("a", record(field("x", "int"), name="I"), default={})),
        "def",
    ),
]


@pytest.mark.parametrize(("reason", "schema", "message"), INVALID, ids=[case[0] for case in INVALID])
def test_invalid_schema_is_refused_with_a_reason(reason: str, schema: Any, message: str) -> None:
    with pytest.raises(MalformedSchema, match=message.replace("(", r"\(")):
        avro.parse(json.dumps(schema), {})


def test_the_error_points_at_the_offending_part() -> None:
    with pytest.raises(MalformedSchema) as caught:
        avro.parse(json.dumps(record(field("a", {"type": "array", "items": ["null", "Foo"]}))), {})
    assert caught.value.path == "/fields/0/type/items/1"


@pytest.mark.parametrize("text", ["", "{", "nul", "\ud800", '"\\ud800"', "[1,", "\x00"])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(MalformedSchema):
        avro.parse(text, {})


@pytest.mark.parametrize("depth", [300, 5_000, 100_000])
def test_deep_nesting_exceeds_a_named_budget(depth: int) -> None:
    text = '{"type":"array","items":' * depth + '"int"' + "}" * depth
    with pytest.raises(BudgetExceeded, match=f"nesting.* {bounded_json.MAX_NESTING}"):
        avro.parse(text, {})


def test_huge_text_exceeds_a_named_budget() -> None:
    with pytest.raises(BudgetExceeded, match="bytes"):
        avro.parse('"' + "a" * bounded_json.MAX_TEXT_BYTES + '"', {})


def test_a_product_of_unions_exceeds_a_named_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    union = [record(name=f"R{number}") for number in range(60)]
    schema = avro.parse(json.dumps(union), {})
    assert avro.compare(schema, schema) == []
    monkeypatch.setattr(resolution, "MAX_STEPS", 1_000)
    with pytest.raises(BudgetExceeded, match="steps"):
        avro.compare(schema, schema)


def test_nested_defaults_of_many_records_are_checked_in_reasonable_time() -> None:
    branches = [record(field("x", ["null", "Top"]), name=f"R{number}") for number in range(8)]
    default: Any = {"x": 1}
    for _ in range(15):
        default = {"u": {"x": default}}
    top = record(field("u", branches), field("last", "Top", default=default), name="Top")
    with pytest.raises(MalformedSchema, match="default"):
        avro.parse(json.dumps(top), {})


SAME = [
    ("spaces", '{"type": "array", "items": "int"}', '{"type":"array","items":"int"}'),
    ("order of keys", '{"items": "int", "type": "array"}', '{"type": "array", "items": "int"}'),
    ("a primitive in an object", '{"type": "int"}', '"int"'),
    (
        "namespace or full name",
        '{"type": "record", "name": "R", "namespace": "a.b", "fields": []}',
        '{"type": "record", "name": "a.b.R", "fields": []}',
    ),
    (
        "the namespace is inherited",
        json.dumps(record(field("i", record(name="I")), namespace="n")),
        json.dumps(record(field("i", record(name="n.I")), name="n.R")),
    ),
    (
        "a name used in its namespace",
        json.dumps(record(field("i", record(name="I")), field("j", "I"), namespace="n")),
        json.dumps(record(field("i", record(name="I")), field("j", "n.I"), namespace="n")),
    ),
    (
        "an alias in its namespace",
        json.dumps(record(namespace="n", aliases=["Old"])),
        json.dumps(record(namespace="n", aliases=["n.Old"])),
    ),
    (
        "the default order",
        json.dumps(record(field("a", "int", order="ascending"))),
        json.dumps(record(field("a", "int"))),
    ),
]
DIFFERENT = [
    ("a default", record(field("a", "int")), record(field("a", "int", default=0))),
    ("an alias", record(), record(aliases=["Old"])),
    ("a doc", record(), record(doc="text")),
    ("a logical type", "int", {"type": "int", "logicalType": "date"}),
    (
        "order of fields",
        record(field("a", "int"), field("b", "int")),
        record(field("b", "int"), field("a", "int")),
    ),
    ("order of a union", ["null", "int"], ["int", "null"]),
    ("an own property", record(), record(owner="team")),
]


@pytest.mark.parametrize(("reason", "one", "other"), SAME, ids=[case[0] for case in SAME])
def test_canonical_form_ignores(reason: str, one: str, other: str) -> None:
    assert avro.parse(one, {}).canonical == avro.parse(other, {}).canonical
    assert avro.parse(one, {}).hash == avro.parse(other, {}).hash


@pytest.mark.parametrize(("reason", "one", "other"), DIFFERENT, ids=[case[0] for case in DIFFERENT])
def test_canonical_form_keeps(reason: str, one: Any, other: Any) -> None:
    assert avro.parse(json.dumps(one), {}).hash != avro.parse(json.dumps(other), {}).hash


def test_a_type_without_namespace_inside_a_namespace_stays_there() -> None:
    text = json.dumps(record(field("i", record(name="I", namespace="")), field("j", "I"), namespace="n"))
    canonical = avro.normalize(text, {})
    assert avro.normalize(canonical, {}) == canonical
    assert '"name":"I","namespace":""' in canonical


ADDRESS = json.dumps(record(field("city", "string"), name="Address", namespace="geo"))
CUSTOMER = json.dumps(record(field("home", "geo.Address"), name="Customer", namespace="crm"))


def test_references_supply_named_types_in_any_order() -> None:
    order = json.dumps(record(field("by", "crm.Customer"), field("to", "geo.Address"), name="Order"))
    for references in ({"crm.Customer": CUSTOMER, "geo.Address": ADDRESS}, {"x": ADDRESS, "y": CUSTOMER}):
        parsed = avro.parse(order, references)
        assert "city" not in parsed.canonical, "the text of a reference is no part of the schema"


def test_a_change_within_a_reference_is_found() -> None:
    order = json.dumps(record(field("to", "geo.Address"), name="Order"))
    changed = ADDRESS.replace('"string"', '"int"')
    old, new = avro.parse(order, {"geo.Address": ADDRESS}), avro.parse(order, {"geo.Address": changed})
    assert old.hash == new.hash
    assert [d.path for d in avro.compare(old, new)] == ["/fields/0/type/fields/0/type"]


def test_an_endless_chain_of_references_exceeds_a_named_budget() -> None:
    chain = {f"T{n}": json.dumps(record(field("next", f"T{n + 1}"), name=f"T{n}")) for n in range(2_000)}
    with pytest.raises(BudgetExceeded, match="type nesting"):
        avro.parse('{"type": "array", "items": "T0"}', chain)


@pytest.mark.parametrize(
    "references",
    [{}, {"crm.Customer": CUSTOMER}, {"geo.Address": "{"}, {"geo.Address": CUSTOMER}],
    ids=["missing", "missing further down", "not JSON", "one that needs itself"],
)
def test_unresolvable_references_are_refused(references: dict[str, str]) -> None:
    with pytest.raises(MalformedSchema):
        avro.parse('{"type": "array", "items": "geo.Address"}', references)
