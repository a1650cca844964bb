"""Payloads of the registry's formats as Arrow values and back, compared with what other libraries write and read."""

import contextlib
import datetime
import decimal
import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from messagehub.errors import SchemaNotFound
from messagehub.spark import registry_functions
from messagehub.spark.encodings.formats import encoding_of
from messagehub.spark.encodings.payloads import InvalidPayload, Registered, framed, unframed
from messagehub.spark.errors import PayloadNotDecoded, UnsupportedColumn
from messagehub.spark.options import Options
from messagehub.spark.registry_functions import Decoder, Encoder
from registry.records import SchemaType

NOW = datetime.datetime(2026, 5, 1, 12, 30, 15, 123456, tzinfo=datetime.UTC)
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "size", "type": ["int", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "double"]}},
        {
            "name": "item",
            "type": {"type": "record", "name": "Item", "fields": [{"name": "raw", "type": "bytes"}]},
        },
        {"name": "other", "type": ["null", "shop.Item"]},
    ],
}
ORDER = {
    "id": 7,
    "note": None,
    "size": 3,
    "at": NOW,
    "day": NOW.date(),
    "price": decimal.Decimal("12.50"),
    "key": "8f2e7a0c-0000-4000-8000-000000000000",
    "state": "DONE",
    "tags": ["a", "b"],
    "more": {"x": 1.5, "y": None},
    "item": {"raw": b"\x00\xff"},
    "other": {"raw": b"z"},
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum State { NEW = 0; DONE = 1; }
message Item { bytes raw = 1; }
message Order {
  int64 id = 1;
  optional string note = 2;
  uint64 size = 3;
  google.protobuf.Timestamp at = 4;
  State state = 5;
  repeated string tags = 6;
  map<string, double> more = 7;
  Item item = 8;
  repeated Item items = 9;
  uint32 count = 10;
  float ratio = 11;
}
"""
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["null", "string"]},
        "total": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "additionalProperties": {"type": "number"}},
        "item": {"$ref": "#/definitions/item"},
        "any": {},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "definitions": {"item": {"type": "object", "properties": {"raw": {"type": "string"}}}},
}


def registered(
    schema: Any, kind: SchemaType = "AVRO", number: int = 1, references: dict[str, str] | None = None
) -> Registered:
    return Registered(number, kind, schema if isinstance(schema, str) else json.dumps(schema), references or {})


def table_of(schema: Registered, body: bytes, writer: Registered | None = None, message: str | None = None) -> Any:
    """Through Arrow, as executors do it."""
    encoding = encoding_of(schema, message)
    return pa.array([encoding.decode(body, writer or schema)], encoding.type)[0].as_py()


def encoded(schema: Registered, value: Any, message: str | None = None) -> bytes:
    """From a column of Arrow, as executors do it; without the head."""
    kind = encoding_of(schema, message).type
    (payload,) = Encoder(schema, message, has_id=True)(pa.array([value], kind)).to_pylist()
    return unframed(payload)[1]


def avro(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def test_the_head_of_a_payload_names_its_schema() -> None:
    assert framed(258, b"x") == b"\x00\x00\x00\x01\x02x"
    assert unframed(b"\x00\x00\x00\x01\x02x") == (258, b"x")
    for bad in (b"", b"\x00\x00", b"\x01\x00\x00\x00\x01x"):
        with pytest.raises(InvalidPayload, match="does not begin with a zero byte"):
            unframed(bad)


# -- Avro


def test_avro_of_every_type_comes_back_as_it_was() -> None:
    schema = registered(AVRO)
    found = table_of(schema, avro(AVRO, ORDER))
    assert found | {"more": dict(found["more"])} == ORDER
    assert table_of(schema, encoded(schema, found)) == found


def test_avro_of_an_older_version_is_read_as_the_newer() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "long"}, {"name": "c", "type": "string", "default": "none"}],
    }
    assert table_of(registered(new, number=2), avro(old, {"a": 1, "b": "x"}), registered(old)) == {"a": 1, "c": "none"}


def test_avro_refers_to_other_schemas() -> None:
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}
    order = {"type": "record", "name": "shop.Order", "fields": [{"name": "item", "type": "shop.Item"}]}
    listed = {"type": "array", "items": "shop.Order"}
    references = {"order": json.dumps(order), "item": json.dumps(item)}
    whole = {"type": "array", "items": order | {"fields": [{"name": "item", "type": item}]}}
    body = avro(whole, [{"item": {"n": 1}}])
    assert table_of(registered(listed, references=references), body) == [{"item": {"n": 1}}]
    twice = {
        "type": "record",
        "name": "shop.Two",
        "fields": [{"name": "a", "type": "Item"}, {"name": "b", "type": ["null", "shop.Item"]}],
    }
    two = registered(twice, references=references)
    assert table_of(two, encoded(two, {"a": {"n": 1}, "b": {"n": 2}})) == {"a": {"n": 1}, "b": {"n": 2}}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (["int", "string"], "is a union of several types"),
        ({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}, "contains itself"),
    ],
)
def test_avro_that_spark_has_no_type_for_is_refused_by_its_field(kind: Any, said: str) -> None:
    with pytest.raises(UnsupportedColumn, match=rf"the payload\.f.*{said}"):
        encoding_of(registered({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}))


# -- JSON


def test_json_has_a_column_for_each_property_and_text_for_what_has_no_type() -> None:
    schema = registered(JSON, "JSON")
    value = {
        "id": 1,
        "note": None,
        "total": 2,
        "tags": ["a"],
        "more": {"x": 1},
        "item": {"raw": "r", "unknown": 1},
        "any": {"x": [1]},
        "either": 5,
        "unknown": True,
    }
    found = table_of(schema, json.dumps(value).encode())
    assert found == {
        "id": 1,
        "note": None,
        "total": 2.0,
        "tags": ["a"],
        "more": [("x", 1.0)],
        "item": {"raw": "r"},
        "any": '{"x":[1]}',
        "either": "5",
    }
    assert json.loads(encoded(schema, found)) == {
        name: item for name, item in value.items() if item is not None and name != "unknown"
    } | {"item": {"raw": "r"}}
    assert table_of(schema, b'{"either": "5"}')["either"] == '"5"'
    assert table_of(schema, b"{}") == dict.fromkeys(found)
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}
    assert table_of(registered(tree, "JSON"), b'{"v":1,"next":{"v":2}}') == {"v": 1, "next": '{"v":2}'}


# -- Protobuf


def test_protobuf_of_every_type_comes_back_as_it_was() -> None:
    schema = registered(PROTO, "PROTOBUF")
    value = {
        "id": -7,
        "note": "n",
        "size": 2**63,
        "at": NOW,
        "state": "DONE",
        "tags": ["a", "b"],
        "more": [("x", 1.5)],
        "item": {"raw": b"\x00"},
        "items": [{"raw": b"1"}, {"raw": b"2"}],
        "count": 2**32 - 1,
        "ratio": 0.5,
    }
    body = encoded(schema, value, "Order")
    assert table_of(schema, body, message="Order") == value
    empty = table_of(schema, encoded(schema, {}, "Order"), message="Order")
    assert (empty["id"], empty["note"], empty["at"], empty["state"], empty["tags"]) == (0, None, None, "NEW", [])
    assert encoded(schema, {"raw": b"x"}) == b"\x00\x0a\x01x"
    bare = Encoder(schema, None, has_id=False)(pa.array([{"raw": b"x"}])).to_pylist()
    assert bare == [b"\x0a\x01x"], "what every Protobuf parser takes"
    assert encoding_of(schema).decode(bare[0], schema, has_id=False) == {"raw": b"x"}
    with pytest.raises(InvalidPayload, match=r"it is a shop\.Item, not a shop\.Order"):
        table_of(schema, b"\x00\x0a\x01x", message="Order")
    with pytest.raises(UnsupportedColumn, match=r"has the messages \['Item', 'Order'\], and not 'Odrer'"):
        encoding_of(schema, "Odrer")


def test_protobuf_of_another_version_and_with_imports_is_read() -> None:
    old = registered('syntax = "proto3"; message R { int32 a = 1; string gone = 2; }', "PROTOBUF", 1)
    new = registered(
        'syntax = "proto3"; import "item.proto"; message R { int32 a = 1; Item item = 3; }',
        "PROTOBUF",
        2,
        {"item.proto": 'syntax = "proto3"; message Item { string name = 1; }'},
    )
    body = encoded(old, {"a": 5, "gone": "x"})
    assert table_of(new, body, old) == {"a": 5, "item": None}
    full = {"a": 1, "item": {"name": "n"}}
    assert table_of(new, encoded(new, full)) == full


# -- what is none


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (registered(AVRO), b""),
        (registered(AVRO), b"\xff" * 30),
        (registered({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}), b"\x02\x02"),
        (registered(JSON, "JSON"), b"{"),
        (registered(JSON, "JSON"), b"[" * 100_000),
        (registered(JSON, "JSON"), b"[1]"),
        (registered(JSON, "JSON"), b'{"tags": 5}'),
        (registered(PROTO, "PROTOBUF"), b""),
        (registered(PROTO, "PROTOBUF"), b"\x00\xff\xff"),
        (registered(PROTO, "PROTOBUF"), b"\x02\x20"),
    ],
)
def test_bytes_that_are_no_payload_are_told_as_such(schema: Registered, body: bytes) -> None:
    with pytest.raises(InvalidPayload):
        table_of(schema, body)


R = {"type": "record", "name": "R"}


@pytest.mark.parametrize(
    ("kind", "text", "column"),
    [
        ("AVRO", R | {"fields": [{"name": "a", "type": "int"}]}, pa.array([{"a": 2**40}])),
        ("AVRO", R | {"fields": [{"name": "a", "type": "long"}]}, pa.array([{"a": 1.7}])),
        ("AVRO", R | {"fields": [{"name": "a", "type": "boolean"}]}, pa.array([{"a": "no"}])),
        (
            "AVRO",
            R | {"fields": [{"name": "a", "type": "int"}]},
            pa.array([{"a": None}], pa.struct([("a", pa.int32())])),
        ),
        ("AVRO", R | {"fields": [{"name": "a", "type": "int"}]}, pa.array([{"a": 1, "b": 2}])),
        ("PROTOBUF", PROTO, pa.array([{"raw": 5}])),
        ("PROTOBUF", PROTO, pa.array([{"nothing": b"5"}])),
        ("JSON", JSON, pa.array([{"id": "x"}])),
        ("JSON", JSON, pa.array([{"total": float("nan")}])),
        ("JSON", JSON, pa.array([{"any": "{"}])),
        ("JSON", JSON | {"required": ["id"]}, pa.array([{"note": "x"}])),
    ],
    ids=str,
)
def test_values_that_the_schema_does_not_take_are_refused(kind: SchemaType, text: Any, column: pa.Array) -> None:
    with pytest.raises(PayloadNotDecoded, match="a value cannot be encoded"):
        Encoder(registered(text, kind), None, has_id=True)(column)


def test_maps_are_encoded_as_maps() -> None:
    numbers = pa.array([{"m": [("x", 1.5)]}], pa.struct([("m", pa.map_(pa.string(), pa.float64()))]))
    avro_map = R | {"fields": [{"name": "m", "type": {"type": "map", "values": "double"}}]}
    json_map = {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": {"type": "number"}}}}
    schemas = [
        registered(avro_map),
        registered(json_map, "JSON"),
        registered('syntax = "proto3"; message R { map<string, double> m = 1; }', "PROTOBUF"),
    ]
    for schema in schemas:
        (payload,) = Encoder(schema, None, has_id=True)(numbers).to_pylist()
        assert table_of(schema, unframed(payload)[1]) == {"m": [("x", 1.5)]}, schema.schema_type
    large = registered('syntax = "proto3"; message R { map<uint64, string> m = 1; }', "PROTOBUF")
    assert table_of(large, encoded(large, {"m": [(2**63, "x")]})) == {"m": [(2**63, "x")]}


# -- hostile


def test_a_writers_schema_that_could_not_be_read_safely_is_refused() -> None:
    """A payload names any registered schema: one that contains itself would end the process, by its depth."""
    reader = registered(R | {"fields": [{"name": "a", "type": "int"}]}, number=1)
    deep = registered(R | {"fields": [{"name": "a", "type": "int"}, {"name": "n", "type": ["null", "R"]}]}, number=2)
    with pytest.raises(InvalidPayload, match=r"its schema 2 cannot be used: .* contains itself"):
        table_of(reader, b"\x02\x02" * 2_000_000, deep)
    empty = {"type": "record", "name": "E", "fields": []}
    for items in ("null", empty, {"type": "fixed", "name": "F", "size": 0}):
        fields = [{"name": "a", "type": "int"}, {"name": "many", "type": {"type": "array", "items": items}}]
        many = R | {"fields": fields}
        with pytest.raises(InvalidPayload, match="items without content"):
            table_of(reader, b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00", registered(many, number=3))
        with pytest.raises(UnsupportedColumn, match="items without content"):
            encoding_of(registered(many))


def test_times_and_numbers_beyond_what_arrow_holds_are_told_as_such() -> None:
    schema = registered(
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message R { google.protobuf.Timestamp at = 1; }',
        "PROTOBUF",
    )
    with pytest.raises(InvalidPayload, match="it is no R"):
        table_of(schema, b"\x00\x0a\x0a\x08\x80\x80\x80\x80\x80\x80\x80\x80\x20")
    digits = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 0}
    with pytest.raises(UnsupportedColumn, match="a decimal of over 38 digits"):
        encoding_of(registered(R | {"fields": [{"name": "d", "type": digits}]}))


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_types_that_double_with_every_level_are_refused_in_time(kind: SchemaType) -> None:
    levels = 30
    if kind == "AVRO":
        inner: Any = R | {"name": "L0", "fields": [{"name": "a", "type": "int"}]}
        for level in range(1, levels):
            fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"L{level - 1}"}]
            inner = R | {"name": f"L{level}", "fields": fields}
        schema = registered(inner)
    elif kind == "JSON":
        named = {
            f"L{n}": {"type": "object", "properties": {part: {"$ref": f"#/d/L{n - 1}"} for part in "ab"}}
            for n in range(levels)
        }
        schema = registered({"$ref": f"#/d/L{levels - 1}", "d": named}, "JSON")
    else:
        messages = [f"message L{n} {{ L{n - 1} a = 1; L{n - 1} b = 2; }}" for n in range(levels - 1, 0, -1)]
        schema = registered(f'syntax = "proto3"; {" ".join(messages)} message L0 {{ int32 a = 1; }}', "PROTOBUF")
    with pytest.raises(UnsupportedColumn, match="over 10000 fields"):
        encoding_of(schema)


def test_an_id_that_nobody_knows_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Hub:
        def schema(self, *, schema_id: int) -> None:
            asked.append(schema_id)
            raise SchemaNotFound("no such schema")

    @contextlib.contextmanager
    def hub_of(_: Options) -> Iterator[Hub]:
        yield Hub()

    monkeypatch.setattr(registry_functions, "hub_of", hub_of)
    schema = registered(JSON, "JSON")
    decode = Decoder(Options(dir="nowhere"), schema, None, encoding_of(schema).type, "PERMISSIVE", None, has_id=True)
    assert decode(pa.array([framed(77, b"{}")] * 100)).null_count == 100
    assert asked == [77]


def test_an_arrow_schema_and_a_message_of_avro_are_refused() -> None:
    with pytest.raises(UnsupportedColumn, match="is for channels"):
        encoding_of(registered("{}", "ARROW"))
    with pytest.raises(UnsupportedColumn, match="message is for PROTOBUF"):
        encoding_of(registered(AVRO), "Order")
