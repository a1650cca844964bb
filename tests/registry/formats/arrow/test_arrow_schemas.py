"""Arrow text: what is refused, which schemas are the same, and pyarrow there and back."""

import json
from typing import Any

import pyarrow as pa
import pytest

from registry.formats import arrow, bounded_json
from registry.formats.arrow import fields as arrow_fields
from registry.formats.differences import BudgetExceeded, MalformedSchema


def text(*fields: Any) -> str:
    return json.dumps({"fields": fields})


def field(kind: Any = "int64", **more: Any) -> dict[str, Any]:
    return {"name": "a", "type": kind, **more}


INVALID = [
    ("not JSON", "{", "not JSON"),
    ("half a character", "\ud800", "Unicode"),
    ("no object", "[]", '"fields"'),
    ("no fields", "{}", '"fields"'),
    ("something else beside the fields", '{"fields": [], "metadata": {}}', '"fields"'),
    ("a field that is no object", text("a"), "object"),
    ("a field without name", text({"type": "int8"}), '"name"'),
    ("a field without type", text({"name": "a"}), '"type"'),
    ("a type that is no string", text(field({"name": "int"})), '"type"'),
    ("metadata", text(field(metadata={})), '"metadata"'),
    ("nullable that is no truth", text(field(nullable="yes")), '"nullable"'),
    ("an unknown type", text(field("int7")), "int7"),
    ("an unknown unit", text(field("timestamp[m]")), "timestamp"),
    ("a unit that the width does not hold", text(field("time32[ns]")), "time32"),
    ("too many digits", text(field("decimal128(39, 0)")), "precision"),
    ("no digits", text(field("decimal64(0, 0)")), "precision"),
    ("an endless size", text(field("fixed_size_binary[99999999999]")), "unknown type"),
    ("a size beyond 32 bits", text(field("fixed_size_list[4294967296]")), "unknown type"),
    ("two columns of one name", text(field(), field()), "two fields"),
    ("two fields of one name in a struct", text(field("struct", children=[field(), field()])), "two fields"),
    ("nulls that are none", text(field("null", nullable=False)), "nullable"),
    ("a list without item", text(field("list")), "item"),
    ("a list of two items", text(field("list", children=[field(), field()])), "item"),
    ("a map without value", text(field("map", children=[field()])), "key, value"),
    ("a number with children", text(field(children=[field()])), "no children"),
    ("children that are no list", text(field("struct", children={})), '"children"'),
    ("a union with too few members", text(field("dense_union[0, 1]", children=[field()])), "type code"),
    ("a union with a code twice", text(field("dense_union[1, 1]", children=[field(), field()])), "codes"),
    ("a dictionary without index", text(field(dictionary={})), '"index"'),
    ("a dictionary with a text index", text(field(dictionary={"index": "utf8"})), "integers"),
    ("a dictionary with something else", text(field(dictionary={"index": "int8", "id": 1})), '"dictionary"'),
    ("runs that end at text", text(field(run_ends="utf8")), '"run_ends"'),
    ("runs of a dictionary", text(field(run_ends="int32", dictionary={"index": "int8"})), '"run_ends"'),
]


@pytest.mark.parametrize(("reason", "schema", "words"), INVALID, ids=[case[0] for case in INVALID])
def test_invalid_schema_is_refused_with_a_reason(reason: str, schema: str, words: str) -> None:
    with pytest.raises(MalformedSchema) as caught:
        arrow.parse(schema, {})
    assert words in str(caught.value)


def test_references_are_refused() -> None:
    with pytest.raises(MalformedSchema, match="references"):
        arrow.parse(text(), {"other": text()})


@pytest.mark.parametrize("depth", [70, 1_000, 50_000])
def test_deep_nesting_exceeds_a_named_budget(depth: int) -> None:
    opening = '{"name":"a","type":"list","children":['
    with pytest.raises(BudgetExceeded, match="nesting"):
        arrow.parse('{"fields":[' + opening * depth + '{"name":"a","type":"int8"}' + "]}" * depth + "]}", {})


def test_huge_schemas_exceed_named_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BudgetExceeded, match="bytes"):
        arrow.parse(" " * (bounded_json.MAX_TEXT_BYTES + 1), {})
    monkeypatch.setattr(arrow_fields, "MAX_FIELDS", 2)
    with pytest.raises(BudgetExceeded, match="fields"):
        arrow.parse(text(*({"name": name, "type": "int8"} for name in "abc")), {})


SAME = [
    (
        "white space and order of keys",
        '{"fields":[{"type":"int8","name":"a"}]}',
        text({"name": "a", "type": "int8"}),
    ),
    ("nullable is the default", text(field()), text(field(nullable=True))),
    ("spellings of pyarrow", text(field("double")), text(field("float64"))),
    ("the width of text", text(field("utf8")), text(field("large_utf8"))),
    ("a view of text", text(field("utf8")), text(field("string_view"))),
    ("the width of binary", text(field("binary")), text(field("large_binary"))),
    (
        "a dictionary is its value type",
        text(field("utf8", dictionary={"index": "int8"})),
        text(field("utf8")),
    ),
    ("runs are their value type", text(field("utf8", run_ends="int16")), text(field("utf8"))),
    ("the name of a zone", text(field("timestamp[us, tz=UTC]")), text(field("timestamp[us, tz=Asia/Tokyo]"))),
    (
        "the name of an item",
        text(field("list", children=[{"name": "element", "type": "int8"}])),
        text(field("large_list", children=[{"name": "item", "type": "int8"}])),
    ),
]
DIFFERENT = [
    ("nullability", text(field()), text(field(nullable=False))),
    ("a zone", text(field("timestamp[us]")), text(field("timestamp[us, tz=UTC]"))),
    ("a unit", text(field("timestamp[us]")), text(field("timestamp[ms]"))),
    ("the width of a number", text(field("int32")), text(field("int64"))),
    ("text and binary", text(field("utf8")), text(field("binary"))),
    ("order of columns", text(field(), field() | {"name": "b"}), text(field() | {"name": "b"}, field())),
]


@pytest.mark.parametrize(("reason", "one", "other"), SAME, ids=[case[0] for case in SAME])
def test_canonical_form_ignores(reason: str, one: str, other: str) -> None:
    assert arrow.parse(one, {}).canonical == arrow.parse(other, {}).canonical
    assert arrow.parse(one, {}).hash == arrow.parse(other, {}).hash


@pytest.mark.parametrize(("reason", "one", "other"), DIFFERENT, ids=[case[0] for case in DIFFERENT])
def test_canonical_form_keeps(reason: str, one: str, other: str) -> None:
    assert arrow.parse(one, {}).hash != arrow.parse(other, {}).hash


def test_shape_leaves_out_nullability_and_layout_keeps_everything() -> None:
    one, other = (
        arrow.parse(text(field("utf8")), {}),
        arrow.parse(text(field("large_utf8", nullable=False)), {}),
    )
    assert one.hash != other.hash
    assert one.shape_hash == other.shape_hash
    assert one.layout_hash != other.layout_hash
    assert '"large_utf8"' in other.layout


def test_canonical_form_is_sorted_json() -> None:
    schema = text(field("struct", nullable=False, children=[{"name": "b", "type": "string_view"}]))
    assert arrow.normalize(schema, {}) == (
        '{"fields":[{"children":[{"name":"b","nullable":true,"type":"utf8"}],'
        '"name":"a","nullable":false,"type":"struct"}]}'
    )


TYPES = [
    *(pa.bool_(), pa.int8(), pa.uint16(), pa.int64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.binary(7), pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(38, 10), pa.decimal256(76, -3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "+02:00"), pa.duration("us")),
    *(pa.month_day_nano_interval(), pa.list_(pa.int8()), pa.large_list(pa.field("item", pa.int8(), False))),
    *(pa.list_view(pa.int8()), pa.large_list_view(pa.int8()), pa.list_(pa.int8(), 3)),
    pa.struct([pa.field("x", pa.int8(), False), ("y", pa.list_(pa.string())), ("z", pa.null())]),
    *(pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int8(), keys_sorted=True)),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.uint32(), pa.struct([("x", pa.int8())]), ordered=True),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.dense_union([pa.field("i", pa.int8()), pa.field("s", pa.string())], [3, 5]),
    pa.sparse_union([pa.field("i", pa.int8())]),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_pyarrow_types_survive_the_way_through_text(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("a", kind, nullable=False), pa.field("b", kind)])
    described = arrow.from_arrow(schema)
    assert arrow.to_arrow(described).equals(schema)
    assert arrow.parse(described, {}).layout == described


def test_equivalent_pyarrow_schemas_have_one_hash() -> None:
    schemas = [
        pa.schema([("s", pa.string()), ("l", pa.list_(pa.string())), ("t", pa.timestamp("us", "UTC"))]),
        pa.schema(
            [
                ("s", pa.large_string()),
                ("l", pa.large_list(pa.string_view())),
                ("t", pa.timestamp("us", "CET")),
            ]
        ),
        pa.schema(
            [
                pa.field("s", pa.dictionary(pa.int32(), pa.string()), metadata={"k": "v"}),
                pa.field("l", pa.list_(pa.field("element", pa.string()))),
                pa.field("t", pa.timestamp("us", "Europe/Berlin")),
            ],
            metadata={"pandas": "{}"},
        ),
    ]
    assert len({arrow.parse(arrow.from_arrow(schema), {}).hash for schema in schemas}) == 1


def test_an_extension_type_is_its_storage() -> None:
    assert '"fixed_size_binary[16]"' in arrow.from_arrow(pa.schema([("id", pa.uuid())]))


def test_pyarrow_schemas_beyond_the_budget_are_refused() -> None:
    kind = pa.int8()
    for _ in range(300):
        kind = pa.list_(kind)
    with pytest.raises(BudgetExceeded, match="nesting"):
        arrow.from_arrow(pa.schema([("a", kind)]))


def test_a_type_without_pyarrow_constructor_is_named() -> None:
    with pytest.raises(MalformedSchema, match="interval"):
        arrow.to_arrow(text(field("interval[month]")))
