"""Avro schema resolution, one case per sentence of the specification (section Schema Resolution).

Every verdict is also held against `avro.compatibility`; the few cases where that library departs from the
specification say so.
"""

import json
import pickle
from typing import Any, NamedTuple

import avro.compatibility
import avro.schema
import pytest

from registry.formats import avro as avro_format


class Case(NamedTuple):
    reason: str
    old: Any
    new: Any
    expected: list[tuple[str, str]] = []  # noqa: RUF012  never changed
    library_agrees: bool = True


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


A = field("a", "int")
B = field("b", "string")
LIST = record(field("value", "int"), field("next", ["null", "Node"]), name="Node")
LIST_LONG = record(field("value", "long"), field("next", ["null", "Node"]), name="Node")
LIST_TEXT = record(field("value", "string"), field("next", ["null", "Node"]), name="Node")
MISMATCH = "TYPE_MISMATCH"
NO_BRANCH = "MISSING_UNION_BRANCH"
NO_DEFAULT = "READER_FIELD_MISSING_DEFAULT_VALUE"

PRIMITIVES = [
    Case(f"a schema reads what it wrote: {kind}", kind, kind)
    for kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
]
PROMOTIONS = [
    Case("int is promotable to long", "int", "long"),
    Case("int is promotable to float", "int", "float"),
    Case("int is promotable to double", "int", "double"),
    Case("long is promotable to float", "long", "float"),
    Case("long is promotable to double", "long", "double"),
    Case("float is promotable to double", "float", "double"),
    Case("string is promotable to bytes", "string", "bytes"),
    Case("bytes is promotable to string", "bytes", "string"),
    Case("long does not fit into int", "long", "int", [(MISMATCH, "")]),
    Case("float is not promotable to long", "float", "long", [(MISMATCH, "")]),
    Case("double does not fit into float", "double", "float", [(MISMATCH, "")]),
    Case("double is not promotable to int", "double", "int", [(MISMATCH, "")]),
    Case("boolean is no number", "boolean", "int", [(MISMATCH, "")]),
    Case("int is not promotable to string", "int", "string", [(MISMATCH, "")]),
    Case("null is read only by null", "null", "string", [(MISMATCH, "")]),
    Case("string is not read as null", "string", "null", [(MISMATCH, "")]),
]
RECORDS = [
    Case("a removed field is skipped by the reader", record(A, B), record(A)),
    Case("a new field needs a default", record(A), record(A, B), [(NO_DEFAULT, "/fields/1")]),
    Case("a new field with a default is filled in", record(A), record(A, field("b", "string", default=""))),
    Case(
        "null is a default like any other",
        record(A),
        record(A, field("b", ["null", "string"], default=None)),
    ),
    Case(
        "a nullable field is not optional: it still needs a default",
        record(A),
        record(A, field("b", ["null", "string"])),
        [(NO_DEFAULT, "/fields/1")],
    ),
    Case(
        "the default of an enum type is for unknown symbols, not for a missing field",
        record(A),
        record(A, field("e", enum("X", default="X"))),
        [(NO_DEFAULT, "/fields/1")],
    ),
    Case("fields are matched by name, so order is free", record(A, B), record(B, A)),
    Case(
        "a renamed field without alias is a new field",
        record(A),
        record(field("z", "int")),
        [(NO_DEFAULT, "/fields/0")],
    ),
    Case("an alias finds the old field", record(A), record(field("z", "int", aliases=["a"]))),
    Case(
        "the aliased field must resolve too",
        record(B),
        record(field("z", "int", aliases=["b"])),
        [(MISMATCH, "/fields/0/type")],
    ),
    Case(
        "the field's own name comes before its aliases",
        record(A, B),
        record(field("a", "int", aliases=["b"])),
    ),
    Case("a field is promoted", record(A), record(field("a", "long"))),
    Case("a field's type changed", record(A), record(field("a", "string")), [(MISMATCH, "/fields/0/type")]),
    Case(
        "two faults are two differences",
        record(A),
        record(field("a", "string"), B),
        [(NO_DEFAULT, "/fields/1"), (MISMATCH, "/fields/0/type")],
    ),
    Case("records are matched by name", record(A), record(A, name="S"), [("NAME_MISMATCH", "/name")]),
    Case(
        "the unqualified name decides, not the namespace",
        record(A, namespace="one"),
        record(A, namespace="two"),
    ),
    Case("an alias stands for the old name", record(A), record(A, name="S", aliases=["R"])),
    Case(
        "an alias is relative to the namespace of its type",
        record(A, namespace="n"),
        record(A, name="S", namespace="n", aliases=["R"]),
        library_agrees=False,
    ),
    Case(
        "an alias may name another namespace",
        record(A, namespace="old"),
        record(A, name="S", namespace="new", aliases=["old.R"]),
    ),
    Case("a doc is no difference", record(A), record(A, doc="now explained")),
    Case("an own property is no difference", record(A), record(A, owner="team")),
    Case("a record is no map", record(A), mapping("int"), [(MISMATCH, "")]),
    Case("an empty record reads any record of its name", record(A, B), record()),
    Case(
        "a nested record is followed",
        record(field("r", record(A, name="I"))),
        record(field("r", record(A, B, name="I"))),
        [(NO_DEFAULT, "/fields/0/type/fields/1")],
    ),
]
ENUMS = [
    Case("the same symbols in another order", enum("X", "Y"), enum("Y", "X")),
    Case("a new symbol was never written", enum("X"), enum("X", "Y")),
    Case("a removed symbol cannot be read", enum("X", "Y"), enum("X"), [("MISSING_ENUM_SYMBOLS", "/symbols")]),
    Case("a removed symbol becomes the reader's default", enum("X", "Y"), enum("X", default="X")),
    Case(
        "the writer's default is of no use to the reader",
        enum("X", "Y", default="X"),
        enum("X"),
        [("MISSING_ENUM_SYMBOLS", "/symbols")],
    ),
    Case("enums are matched by name", enum("X"), enum("X", name="G"), [("NAME_MISMATCH", "/name")]),
    Case("an enum's alias stands for the old name", enum("X"), enum("X", name="G", aliases=["E"])),
    Case("an enum is no string", enum("X"), "string", [(MISMATCH, "")]),
    Case("a string is no enum", "string", enum("X"), [(MISMATCH, "")]),
]
FIXED = [
    Case("the same size", fixed(16), fixed(16)),
    Case("another size", fixed(16), fixed(8), [("FIXED_SIZE_MISMATCH", "/size")]),
    Case("fixed types are matched by name", fixed(16), fixed(16, "G"), [("NAME_MISMATCH", "/name")]),
    Case("a fixed type's alias stands for the old name", fixed(16), fixed(16, "G", aliases=["F"])),
    Case("fixed is not bytes", fixed(16), "bytes", [(MISMATCH, "")]),
    Case("bytes is not fixed", "bytes", fixed(16), [(MISMATCH, "")]),
]
CONTAINERS = [
    Case("items are promoted", array("int"), array("long")),
    Case("items do not resolve", array("int"), array("string"), [(MISMATCH, "/items")]),
    Case("values are promoted", mapping("int"), mapping("double")),
    Case("values do not resolve", mapping("long"), mapping("int"), [(MISMATCH, "/values")]),
    Case("an array is no map", array("int"), mapping("int"), [(MISMATCH, "")]),
    Case("an item is no array", "int", array("int"), [(MISMATCH, "")]),
    Case("depth does not matter", array(mapping(array("int"))), array(mapping(array("long")))),
    Case(
        "the path leads into the depth",
        array(mapping(array("int"))),
        array(mapping(array("string"))),
        [(MISMATCH, "/items/values/items")],
    ),
]
UNIONS = [
    Case("a type becomes a union that has it", "int", ["null", "int"]),
    Case("a type becomes a union that promotes it", "int", ["null", "long"]),
    Case("a type becomes a union without it", "int", ["null", "string"], [(NO_BRANCH, "")]),
    Case("a union loses a branch that was written", ["null", "int"], "int", [(MISMATCH, "")]),
    Case("a union of one is its branch", ["int"], "long"),
    Case("each branch of the writer is promoted", ["int", "float"], "double"),
    Case("a union gains a branch", ["null", "int"], ["null", "int", "string"]),
    Case("a union's branches in another order", ["null", "int"], ["int", "null"]),
    Case("a union loses a branch", ["null", "int", "boolean"], ["null", "int"], [(NO_BRANCH, "")]),
    Case("a branch is promoted", ["null", "int"], ["null", "double"]),
    Case("a branch is demoted", ["null", "long"], ["null", "int"], [(NO_BRANCH, "")]),
    Case("nothing reads from an empty union", "int", [], [(NO_BRANCH, "")]),
    Case("an empty union writes nothing", [], "int"),
    Case(
        "a record in a union is explained from inside",
        ["null", record(A)],
        ["null", record(A, B)],
        [(NO_DEFAULT, "/1/fields/1")],
    ),
    Case(
        "two records in a union are told apart by name",
        [record(A, name="P"), record(B, name="Q")],
        [record(B, name="Q"), record(A, name="P")],
    ),
    Case(
        "a union's record was renamed",
        ["null", record(A)],
        ["null", record(A, name="S")],
        [(NO_BRANCH, "")],
    ),
    Case(
        "a union of arrays: items are followed",
        ["null", array("int")],
        ["null", array("boolean")],
        [(MISMATCH, "/1/items")],
    ),
    Case("an enum in a union gains a symbol", ["null", enum("X")], ["null", enum("X", "Y")]),
    Case(
        "an enum in a union loses a symbol",
        ["null", enum("X", "Y")],
        ["null", enum("X")],
        [("MISSING_ENUM_SYMBOLS", "/1/symbols")],
    ),
]
LOGICAL = [
    Case("a logical type may be added", "int", {"type": "int", "logicalType": "date"}),
    Case("a logical type may be dropped", {"type": "string", "logicalType": "uuid"}, "string"),
    Case("a logical type does not stop promotion", {"type": "int", "logicalType": "date"}, "long"),
    Case("the same decimal", decimal(9, 2), decimal(9, 2)),
    Case("a decimal may grow in precision", decimal(9, 2), decimal(18, 2)),
    Case(
        "another scale would shift every value",
        decimal(9, 2),
        decimal(9, 3),
        [("DECIMAL_MISMATCH", "")],
        library_agrees=False,
    ),
    Case(
        "a smaller precision would round values",
        decimal(9, 2),
        decimal(4, 2),
        [("DECIMAL_MISMATCH", "")],
        library_agrees=False,
    ),
    Case(
        "an invalid decimal is plain bytes, as the specification says",
        decimal(2, 9),
        decimal(9, 3),
    ),
]
RECURSION = [
    Case("a recursive type reads itself", LIST, LIST),
    Case("a promotion within a recursive type", LIST, LIST_LONG),
    Case("a fault within a recursive type is met once", LIST, LIST_TEXT, [(MISMATCH, "/fields/0/type")]),
    Case("a recursive type against a flat one", LIST, record(field("value", "int"), name="Node")),
    Case(
        "a flat type against a recursive one",
        record(field("value", "int"), name="Node"),
        LIST,
        [(NO_DEFAULT, "/fields/1")],
    ),
]
CASES = PRIMITIVES + PROMOTIONS + RECORDS + ENUMS + FIXED + CONTAINERS + UNIONS + LOGICAL + RECURSION


@pytest.mark.parametrize("case", CASES, ids=[case.reason for case in CASES])
def test_new_schema_reads_old_data_or_says_where_not(case: Case) -> None:
    old = avro_format.parse(json.dumps(case.old), {})
    new = avro_format.parse(json.dumps(case.new), {})
    found = avro_format.compare(old, new)
    assert [(difference.kind, difference.path) for difference in found] == case.expected
    assert all(difference.message.endswith(".") for difference in found)


@pytest.mark.filterwarnings("ignore:Invalid decimal")
@pytest.mark.parametrize("case", CASES, ids=[case.reason for case in CASES])
def test_verdict_is_that_of_the_avro_library(case: Case) -> None:
    reader, writer = (avro.schema.parse(json.dumps(schema), validate_names=False) for schema in (case.new, case.old))
    checker = avro.compatibility.ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    verdict = checker.get_compatibility(reader, writer)
    compatible = verdict.compatibility is avro.compatibility.SchemaCompatibilityType.compatible
    assert (compatible == (not case.expected)) == case.library_agrees


def test_parsed_schemas_travel_between_processes() -> None:
    old, new = (avro_format.parse(json.dumps(schema), {}) for schema in (LIST, LIST_TEXT))
    travelled = [pickle.loads(pickle.dumps(schema)) for schema in (old, new)]
    assert avro_format.compare(*travelled) == avro_format.compare(old, new)


def test_a_failed_branch_leaves_no_assumption_behind() -> None:
    """Two mutually recursive candidates: the first fails late, after the second was met under its shadow."""

    def pair(leaf: str) -> list[Any]:
        inner = record(field("back", ["null", "P"]), field("leaf", leaf), name="Q")
        return [record(field("q", inner), field("z", "int"), name="P"), "null"]

    old = avro_format.parse(json.dumps(pair("int")), {})
    new = avro_format.parse(json.dumps(pair("string")), {})
    assert [d.path for d in avro_format.compare(old, new)] == ["/0/fields/0/type/fields/1/type"]
