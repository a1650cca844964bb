"""Arrow compatibility: what a reader that selects and casts can take, and what can be read in place."""

import json
import pickle
from typing import Any, NamedTuple

import pytest

from registry.formats import arrow


class Case(NamedTuple):
    reason: str
    old: list[Any]
    new: list[Any]
    expected: list[tuple[str, str]] = []  # noqa: RUF012  never changed


def field(name: str, kind: str, *children: Any, nullable: bool = True, **more: Any) -> dict[str, Any]:
    value = {"name": name, "type": kind, "nullable": nullable, **more}
    return value | {"children": list(children)} if children else value


def parse(fields: list[Any]) -> arrow.ArrowSchema:
    return arrow.parse(json.dumps({"fields": fields}), {})


def retyped(reason: str, old: str, new: str, *kinds: str) -> Case:
    return Case(reason, [field("x", old)], [field("x", new)], [(kind, "/x") for kind in kinds])


def item(kind: str, **more: Any) -> dict[str, Any]:
    return field("item", kind, **more)


def dictionary(kind: str, index: str = "int32", *, ordered: bool = False) -> dict[str, Any]:
    return field("x", kind, dictionary={"index": index, "ordered": ordered})


def mapping(key: str, value: str, kind: str = "map") -> dict[str, Any]:
    return field("x", kind, field("key", key), field("value", value))


A = field("a", "int64")
B = field("b", "utf8")
CHANGED = "TYPE_CHANGED"

COLUMNS = [
    Case("nothing changed", [A, B], [A, B]),
    Case("columns are selected by name, so order is free", [A, B], [B, A]),
    Case("a removed column is not selected", [A, B], [A]),
    Case("a new column is filled with nulls", [A], [A, B]),
    Case(
        "a new column without nulls cannot be filled",
        [A],
        [A, field("b", "utf8", nullable=False)],
        [("FIELD_ADDED_NOT_NULLABLE", "/b")],
    ),
    Case("a renamed column is a new one", [A], [field("z", "int64")]),
    Case("nulls may be allowed", [field("a", "int64", nullable=False)], [A]),
    Case(
        "nulls may not be forbidden",
        [A],
        [field("a", "int64", nullable=False)],
        [("FIELD_BECAME_NOT_NULLABLE", "/a")],
    ),
    Case("names are exact", [field("a", "int64")], [field("A", "int64")]),
]
WIDENING = [
    retyped("int8 fits into int64", "int8", "int64"),
    retyped("int64 does not fit into int32", "int64", "int32", CHANGED),
    retyped("uint8 fits into uint16", "uint8", "uint16"),
    retyped("uint32 fits into int64", "uint32", "int64"),
    retyped("uint64 does not fit into int64", "uint64", "int64", CHANGED),
    retyped("a negative number is not unsigned", "int8", "uint64", CHANGED),
    retyped("float32 fits into float64", "float32", "float64"),
    retyped("float64 does not fit into float32", "float64", "float32", CHANGED),
    retyped("int16 is exact in float32", "int16", "float32"),
    retyped("int32 is exact in float64", "int32", "float64"),
    retyped("int32 is not exact in float32", "int32", "float32", CHANGED),
    retyped("int64 is not exact in float64", "int64", "float64", CHANGED),
    retyped("a fraction is no integer", "float32", "int64", CHANGED),
    retyped("int32 has ten digits", "int32", "decimal128(12, 2)"),
    retyped("nine digits are too few for int32", "int32", "decimal128(11, 2)", CHANGED),
    retyped("a number is no text", "int32", "utf8", CHANGED),
    retyped("a truth is no number", "bool", "int8", CHANGED),
]
DECIMALS = [
    retyped("more digits before the point", "decimal128(10, 2)", "decimal128(12, 2)"),
    retyped("more digits after the point, as many before", "decimal128(10, 2)", "decimal128(12, 4)"),
    retyped("fewer digits before the point", "decimal128(10, 2)", "decimal128(10, 4)", CHANGED),
    retyped("fewer digits after the point", "decimal128(10, 2)", "decimal128(10, 1)", CHANGED),
    retyped("more bits for the same digits", "decimal64(10, 2)", "decimal256(10, 2)"),
    retyped("a decimal is not exact in binary", "decimal128(10, 2)", "float64", CHANGED),
]
TIMES = [
    retyped("a finer unit", "timestamp[s]", "timestamp[us]"),
    retyped("a coarser unit drops digits", "timestamp[us]", "timestamp[ms]", CHANGED),
    retyped("nanoseconds end in 2262", "timestamp[us]", "timestamp[ns]", CHANGED),
    retyped("another zone shows the same instant", "timestamp[us, tz=UTC]", "timestamp[us, tz=Europe/Berlin]"),
    retyped("a local time is no instant", "timestamp[us]", "timestamp[us, tz=UTC]", "TIMEZONE_CHANGED"),
    retyped("an instant is no local time", "timestamp[us, tz=UTC]", "timestamp[us]", "TIMEZONE_CHANGED"),
    retyped("a day in either width", "date32", "date64"),
    retyped("a day is no instant", "date32", "timestamp[us]", CHANGED),
    retyped("a finer time of day", "time32[s]", "time64[ns]"),
    retyped("a coarser time of day", "time64[us]", "time32[ms]", CHANGED),
    retyped("a finer duration", "duration[s]", "duration[us]"),
    retyped("intervals of different kinds", "interval[month]", "interval[month_day_nano]", CHANGED),
]
BYTES = [
    retyped("the width of offsets is free", "utf8", "large_utf8"),
    retyped("and back", "large_utf8", "utf8"),
    retyped("a view is the same text", "utf8", "utf8_view"),
    retyped("text is bytes", "utf8", "binary"),
    retyped("bytes need not be text", "binary", "utf8", CHANGED),
    retyped("bytes of one length are bytes", "fixed_size_binary[4]", "binary"),
    retyped("bytes need not be of one length", "binary", "fixed_size_binary[4]", CHANGED),
    retyped("another length", "fixed_size_binary[4]", "fixed_size_binary[8]", CHANGED),
    Case("a dictionary is its values", [dictionary("utf8")], [field("x", "utf8")]),
    Case("values may become a dictionary", [field("x", "utf8")], [dictionary("utf8")]),
    Case("the index of a dictionary is free", [dictionary("utf8", "int8")], [dictionary("utf8", "int64")]),
    Case("a dictionary's values", [dictionary("utf8")], [dictionary("int32")], [(CHANGED, "/x")]),
    Case("runs are their values", [field("x", "int32", run_ends="int32")], [field("x", "int64")]),
]
NESTED = [
    Case("items are widened", [field("x", "list", item("int32"))], [field("x", "list", item("int64"))]),
    Case(
        "items change",
        [field("x", "list", item("int64"))],
        [field("x", "list", item("int32"))],
        [(CHANGED, "/x/item")],
    ),
    Case(
        "items may not lose their nulls",
        [field("x", "list", item("int64"))],
        [field("x", "list", item("int64", nullable=False))],
        [("FIELD_BECAME_NOT_NULLABLE", "/x/item")],
    ),
    Case(
        "the name of an item means nothing",
        [field("x", "list", field("element", "int8"))],
        [field("x", "list", item("int8"))],
    ),
    Case(
        "the width of a list's offsets is free",
        [field("x", "list", item("int8"))],
        [field("x", "large_list_view", item("int8"))],
    ),
    Case(
        "a list of one length is a list",
        [field("x", "fixed_size_list[3]", item("int8"))],
        [field("x", "list", item("int8"))],
    ),
    Case(
        "a list need not be of one length",
        [field("x", "list", item("int8"))],
        [field("x", "fixed_size_list[3]", item("int8"))],
        [(CHANGED, "/x")],
    ),
    Case("a struct gains a field", [field("x", "struct", A)], [field("x", "struct", A, B)]),
    Case("a struct loses a field", [field("x", "struct", A, B)], [field("x", "struct", B)]),
    Case(
        "a struct gains a field without nulls",
        [field("x", "struct", A)],
        [field("x", "struct", A, field("b", "utf8", nullable=False))],
        [("FIELD_ADDED_NOT_NULLABLE", "/x/b")],
    ),
    Case("a struct is no list", [field("x", "struct", A)], [field("x", "list", A)], [(CHANGED, "/x")]),
    Case("a map's value is widened", [mapping("utf8", "int8")], [mapping("utf8", "int16")]),
    Case("a map's key changes", [mapping("utf8", "int8")], [mapping("int8", "int8")], [(CHANGED, "/x/key")]),
    Case("sorted keys need not be", [mapping("utf8", "int8", "map[sorted]")], [mapping("utf8", "int8")]),
    Case(
        "keys were not sorted",
        [mapping("utf8", "int8")],
        [mapping("utf8", "int8", "map[sorted]")],
        [("KEYS_NOT_SORTED", "/x")],
    ),
    Case("a union gains a member", [field("x", "dense_union[0]", A)], [field("x", "sparse_union[0, 1]", A, B)]),
    Case(
        "a union loses a member",
        [field("x", "dense_union[0, 5]", A, B)],
        [field("x", "dense_union[0]", A)],
        [("UNION_MEMBER_REMOVED", "/x/5")],
    ),
    Case(
        "the path leads into the depth, with its slashes escaped",
        [field("x/y", "list", item("struct") | {"children": [mapping("utf8", "int64")]})],
        [field("x/y", "list", item("struct") | {"children": [mapping("utf8", "int8")]})],
        [(CHANGED, "/x~1y/item/x/value")],
    ),
]
CASES = COLUMNS + WIDENING + DECIMALS + TIMES + BYTES + NESTED


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.reason)
def test_new_schema_takes_old_tables_or_says_where_not(case: Case) -> None:
    found = arrow.compare(parse(case.old), parse(case.new))
    assert [(difference.kind, difference.path) for difference in found] == case.expected
    assert all(difference.message.endswith(".") for difference in found)


LAYOUT = [
    Case("nothing changed", [A, B], [A, B]),
    Case("trailing columns may be left unread", [A, B], [A]),
    Case("a column before others may not", [A, B], [B], [("FIELD_MOVED", "/b")]),
    Case("a new column is not in the bytes", [A], [A, B], [("FIELD_ADDED", "/b")]),
    Case("columns are found by position", [A, B], [B, A], [("FIELD_MOVED", "/b"), ("FIELD_MOVED", "/a")]),
    Case("a missing bitmap means no nulls", [field("a", "int64", nullable=False)], [A]),
    Case(
        "a bitmap may hold nulls",
        [A],
        [field("a", "int64", nullable=False)],
        [("FIELD_BECAME_NOT_NULLABLE", "/a")],
    ),
    retyped("a wider integer has other bytes", "int32", "int64", CHANGED),
    retyped("a wider offset has other bytes", "utf8", "large_utf8", CHANGED),
    retyped("a view has other bytes", "utf8", "utf8_view", CHANGED),
    retyped("text is bytes, also in place", "utf8", "binary"),
    retyped("the sign is in the same bytes but not the same value", "int32", "uint32", CHANGED),
    retyped("a day is no number", "date32", "int32", CHANGED),
    retyped("the name of a zone is not in the bytes", "timestamp[us, tz=UTC]", "timestamp[us, tz=Asia/Tokyo]"),
    retyped("the unit is in every value", "timestamp[ms]", "timestamp[us]", CHANGED),
    retyped("instants and local times", "timestamp[us]", "timestamp[us, tz=UTC]", CHANGED),
    retyped("a larger precision reads the same bytes", "decimal128(10, 2)", "decimal128(12, 2)"),
    retyped("a smaller precision may not hold them", "decimal128(12, 2)", "decimal128(10, 2)", CHANGED),
    retyped("another scale shifts the point", "decimal128(10, 2)", "decimal128(12, 4)", CHANGED),
    retyped("a wider decimal has other bytes", "decimal128(10, 2)", "decimal256(10, 2)", CHANGED),
    Case("the same dictionary", [dictionary("utf8")], [dictionary("utf8")]),
    Case(
        "a dictionary is not its values",
        [dictionary("utf8")],
        [field("x", "utf8")],
        [("ENCODING_CHANGED", "/x")],
    ),
    Case(
        "another index",
        [dictionary("utf8", "int8")],
        [dictionary("utf8", "int32")],
        [("ENCODING_CHANGED", "/x")],
    ),
    Case(
        "an order that nobody promised",
        [dictionary("utf8")],
        [dictionary("utf8", ordered=True)],
        [("ENCODING_CHANGED", "/x")],
    ),
    Case("a promised order may be ignored", [dictionary("utf8", ordered=True)], [dictionary("utf8")]),
    Case(
        "runs are not plain values",
        [field("x", "int32", run_ends="int32")],
        [field("x", "int32")],
        [("ENCODING_CHANGED", "/x")],
    ),
    Case(
        "items in place",
        [field("x", "list", item("int32"))],
        [field("x", "list", item("int64"))],
        [(CHANGED, "/x/item")],
    ),
    Case(
        "a list of another width",
        [field("x", "list", item("int8"))],
        [field("x", "large_list", item("int8"))],
        [(CHANGED, "/x")],
    ),
    Case(
        "a struct's fields in another order",
        [field("x", "struct", A, B)],
        [field("x", "struct", B, A)],
        [("FIELD_MOVED", "/x/b"), ("FIELD_MOVED", "/x/a")],
    ),
    Case(
        "a struct that ends earlier moves what follows",
        [field("x", "struct", A, B)],
        [field("x", "struct", A)],
        [("FIELD_REMOVED", "/x")],
    ),
    Case("a map in place", [mapping("utf8", "int8")], [mapping("utf8", "int8")]),
    Case(
        "unsorted keys in place",
        [mapping("utf8", "int8")],
        [mapping("utf8", "int8", "map[sorted]")],
        [("KEYS_NOT_SORTED", "/x")],
    ),
]


@pytest.mark.parametrize("case", LAYOUT, ids=lambda case: case.reason)
def test_bytes_in_memory_stay_readable_in_place_or_it_says_where_not(case: Case) -> None:
    found = arrow.compare_layout(parse(case.old), parse(case.new))
    assert [(difference.kind, difference.path) for difference in found] == case.expected


@pytest.mark.parametrize("case", LAYOUT, ids=lambda case: case.reason)
def test_what_is_readable_in_place_is_readable_by_casting(case: Case) -> None:
    if not case.expected:
        assert arrow.compare(parse(case.old), parse(case.new)) == []


def test_parsed_schemas_travel_between_processes() -> None:
    old, new = parse([mapping("utf8", "int8")]), parse([mapping("utf8", "utf8")])
    travelled = [pickle.loads(pickle.dumps(schema)) for schema in (old, new)]
    assert arrow.compare(*travelled) == arrow.compare(old, new)


def test_a_column_of_nulls_may_become_any_type_that_takes_nulls() -> None:
    for new in (field("x", "struct", A), field("x", "int8"), field("x", "list", item("int8"))):
        assert arrow.compare(parse([field("x", "null")]), parse([new])) == []
    found = arrow.compare(parse([field("x", "null")]), parse([field("x", "int8", nullable=False)]))
    assert [difference.kind for difference in found] == ["FIELD_BECAME_NOT_NULLABLE"]
