"""Avro decoded by columns is what fastavro decodes one by one, for any payload: the same values, the same reasons."""

import datetime
import decimal
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagehub import MessageHub
from messagehub.spark.encodings.avro import AvroEncoding
from messagehub.spark.encodings.payload_columns import PayloadColumn
from messagehub.spark.encodings.payloads import InvalidPayload, Registered, framed
from messagehub.spark.errors import PayloadNotDecoded
from messagehub.spark.options import Options
from messagehub.spark.registry_functions import FEWEST_TOGETHER, Decoder, Mode

Draw = Callable[[st.SearchStrategy[Any]], Any]
TEXT = st.text(max_size=20)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
FLOATS = st.floats(width=32, allow_nan=False)
DOUBLES = st.floats(allow_nan=False)
UTC = st.just(datetime.UTC)


@dataclass(frozen=True)
class Kind:
    """A type of Avro, made anew for each use so that each has a name of its own, and its values."""

    schema: Callable[[str], Any]
    values: st.SearchStrategy[Any]


def logical(avro: str, name: str, values: st.SearchStrategy[Any], **more: Any) -> Kind:
    return Kind(lambda _: {"type": avro, "logicalType": name} | more, values)


def decimals(precision: int, scale: int, size: int | None = None) -> Kind:
    most = 10**precision - 1
    values = st.integers(-most, most).map(lambda number: decimal.Decimal(number).scaleb(-scale, WIDE))
    more = {"logicalType": "decimal", "precision": precision, "scale": scale}
    if size is None:
        return Kind(lambda _: {"type": "bytes"} | more, values)
    return Kind(lambda name: {"type": "fixed", "name": name, "size": size} | more, values)


WIDE = decimal.Context(prec=60)
SCALARS = [
    Kind(lambda _: "null", st.none()),
    Kind(lambda _: "boolean", st.booleans()),
    Kind(lambda _: "int", INTS),
    Kind(lambda _: "long", LONGS),
    Kind(lambda _: "float", FLOATS),
    Kind(lambda _: "double", DOUBLES),
    Kind(lambda _: "bytes", st.binary(max_size=80)),
    Kind(lambda _: "string", TEXT),
    Kind(lambda name: {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)),
    Kind(lambda name: {"type": "enum", "name": name, "symbols": ["A", "B"]}, st.sampled_from("AB")),
    Kind(lambda _: {"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
    logical("int", "date", st.dates()),
    logical("long", "timestamp-micros", st.datetimes(timezones=UTC)),
    logical("long", "timestamp-millis", st.datetimes(timezones=UTC).map(lambda at: at.replace(microsecond=123_000))),
    logical("long", "local-timestamp-micros", st.datetimes()),
    logical("long", "local-timestamp-millis", st.datetimes().map(lambda at: at.replace(microsecond=0))),
    decimals(9, 2),
    decimals(38, 10),
    decimals(18, 0, 8),
    decimals(20, 3, 16),
    Kind(lambda _: ["int", "long"], LONGS),
    Kind(lambda _: ["null", "float", "double"], st.none() | FLOATS),
]


def nullable(kind: Kind, *, is_last: bool) -> Kind:
    def schema(name: str) -> Any:
        return [kind.schema(name), "null"] if is_last else ["null", kind.schema(name)]

    return Kind(schema, st.none() | kind.values)


def record(kinds: list[Kind]) -> Kind:
    def schema(name: str) -> Any:
        fields = [{"name": f"f{n}", "type": kind.schema(f"{name}_{n}")} for n, kind in enumerate(kinds)]
        return {"type": "record", "name": name, "fields": fields}

    return Kind(schema, st.fixed_dictionaries({f"f{n}": kind.values for n, kind in enumerate(kinds)}))


def can_be_null(kind: Kind) -> bool:
    schema = kind.schema("T")
    return schema == "null" or isinstance(schema, list)


@st.composite
def fields(draw: Draw) -> list[Kind]:
    """Some kinds, a few nullable, a few inside of a record."""
    found = []
    for kind in draw(st.lists(st.sampled_from(SCALARS), min_size=1, max_size=5)):
        inner = record([kind, kind]) if draw(st.integers(0, 4)) == 0 else kind
        if not can_be_null(inner) and draw(st.booleans()):
            inner = nullable(inner, is_last=draw(st.booleans()))
        found.append(inner)
    return found


@st.composite
def batches(draw: Draw) -> tuple[Any, list[bytes], list[bool]]:
    """A schema, payloads of it, and which of them were damaged."""
    kind = record(draw(fields()))
    schema = kind.schema("R")
    bodies, damaged = [], []
    for value in draw(st.lists(kind.values, min_size=1, max_size=8)):
        body = avro(schema, value)
        changed = draw(damages(body))
        bodies.append(changed)
        damaged.append(changed != body)
    return schema, bodies, damaged


def damages(body: bytes) -> st.SearchStrategy[bytes]:
    some = st.integers(0, max(len(body) - 1, 0))
    return st.one_of(
        st.just(body),
        st.just(body),
        some.map(lambda size: body[:size]),
        st.binary(min_size=1, max_size=3).map(lambda more: body + more),
        st.tuples(some, st.binary(min_size=1, max_size=12)).map(
            lambda change: body[: change[0]] + change[1] + body[change[0] + len(change[1]) :]
        ),
        st.binary(max_size=30),
    )


def avro(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def registered(schema: Any, number: int = 1) -> Registered:
    return Registered(number, "AVRO", json.dumps(schema), {})


def decoder(schema: Registered, mode: Mode = "PERMISSIVE", error_column: str | None = None) -> Decoder:
    kind = AvroEncoding(schema).type
    if error_column:
        kind = pa.struct([*kind, pa.field(error_column, pa.string())])
    return Decoder(Options(dir="nowhere"), schema, None, kind, mode, error_column, has_id=True)


def columns(encoding: AvroEncoding, bodies: list[bytes], writer: Registered) -> tuple[pa.Array, list[bool]]:
    found = encoding.decode_columns(PayloadColumn.of(pa.array(bodies, pa.binary())), writer)
    assert found is not None
    values, is_decoded = found
    values.filter(pa.array(is_decoded)).validate(full=True)
    return values, is_decoded.tolist()


def one_by_one(encoding: AvroEncoding, body: bytes, writer: Registered) -> pa.Array | None:
    try:
        return pa.array([encoding.decode(body, writer)], encoding.type)
    except (InvalidPayload, pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


@settings(max_examples=200, deadline=None)
@given(batches())
def test_what_columns_accept_is_what_fastavro_decodes(batch: tuple[Any, list[bytes], list[bool]]) -> None:
    schema, bodies, damaged = batch
    writer = registered(schema)
    encoding = AvroEncoding(writer)
    values, is_decoded = columns(encoding, bodies, writer)
    for row, body in enumerate(bodies):
        expected = one_by_one(encoding, body, writer)
        if is_decoded[row]:
            assert expected is not None
            assert same(values[row].as_py(), expected[0].as_py())
        else:
            assert damaged[row], "a payload as fastavro writes it is decoded by columns"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124  NaN


@settings(max_examples=60, deadline=None)
@given(batches(), st.data())
def test_a_batch_gives_the_values_and_reasons_of_its_payloads(
    batch: tuple[Any, list[bytes], list[bool]], data: st.DataObject
) -> None:
    """Fewer than FEWEST_TOGETHER are decoded one by one."""
    schema, bodies, _ = batch
    decode = decoder(registered(schema), error_column="why")
    rows: list[bytes | None] = [framed(1, body) for body in bodies]
    rows += [None, b"", b"\x00\x00", b"\x07" + bodies[0]] + [framed(1, bodies[0])] * FEWEST_TOGETHER
    rows = data.draw(st.permutations(rows))
    found = decode(pa.array(rows, pa.binary()))
    for row, payload in enumerate(rows):
        (alone,) = decode(pa.array([payload], pa.binary()))
        assert found[row].is_valid == alone.is_valid
        assert not alone.is_valid or same(found[row].as_py(), alone.as_py())


EVOLVING = st.sampled_from(
    [
        ("int", "long", INTS),
        ("int", "double", INTS),
        ("long", "double", LONGS),
        ("float", "double", FLOATS),
        ("int", ["null", "int"], INTS),
        ("string", "bytes", TEXT),
        (["null", "int"], ["null", "long"], st.none() | INTS),
    ]
)


@settings(max_examples=60, deadline=None)
@given(fields(), EVOLVING, st.data())
def test_payloads_of_another_version_are_read_as_fastavro_reads_them(
    kinds: list[Kind], evolving: tuple[Any, Any, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    before, after, values = evolving
    older = record([*kinds, Kind(lambda _: "string", TEXT)]).schema("R")
    newer = record(kinds).schema("R")
    older["fields"].append({"name": "changed", "type": before})
    newer["fields"].insert(0, {"name": "changed", "type": after})
    newer["fields"].append({"name": "added", "type": ["null", "long"], "default": None})
    newer["fields"].append({"name": "more", "type": "string", "default": "none"})
    some = st.fixed_dictionaries({"changed": values, f"f{len(kinds)}": TEXT})
    bodies = []
    for value in data.draw(st.lists(record(kinds).values, min_size=1, max_size=5)):
        bodies.append(data.draw(damages(avro(older, value | data.draw(some)))))
    writer, encoding = registered(older), AvroEncoding(registered(newer, 2))
    found = encoding.decode_columns(PayloadColumn.of(pa.array(bodies, pa.binary())), writer)
    if found is None:
        return
    for row, body in enumerate(bodies):
        expected = one_by_one(encoding, body, writer)
        if found[1][row]:
            assert expected is not None
            assert same(found[0][row].as_py(), expected[0].as_py())


def flat(*types: Any, name: str = "R", **more: Any) -> Any:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)],
    } | more


def test_an_older_version_is_decoded_by_columns_with_the_defaults_of_the_newer() -> None:
    older, newer = flat("int", "string"), flat("long", "string")
    newer["fields"].append({"name": "note", "type": "string", "default": "none"})
    encoding = AvroEncoding(registered(newer, 2))
    bodies = [avro(older, {"f0": n, "f1": "x" * n}) for n in range(3)]
    values, is_decoded = columns(encoding, bodies, registered(older))
    assert is_decoded == [True] * 3
    assert values.to_pylist() == [{"f0": n, "f1": "x" * n, "note": "none"} for n in range(3)]


def test_fields_that_were_renamed_are_read_by_fastavro() -> None:
    older, newer = flat("int"), flat("int")
    newer["fields"][0] |= {"name": "renamed", "aliases": ["f0"]}
    encoding, writer = AvroEncoding(registered(newer, 2)), registered(older)
    body = avro(older, {"f0": 5})
    assert encoding.decode_columns(PayloadColumn.of(pa.array([body])), writer) is None
    assert encoding.decode(body, writer) == {"renamed": 5}


def test_a_record_of_another_name_is_refused_by_fastavro() -> None:
    encoding, writer = AvroEncoding(registered(flat("int"), 2)), registered(flat("int", name="Other"))
    body = avro(flat("int"), {"f0": 5})
    assert encoding.decode_columns(PayloadColumn.of(pa.array([body])), writer) is None
    with pytest.raises(InvalidPayload):
        encoding.decode(body, writer)


@pytest.mark.parametrize(
    "kind", [{"type": "array", "items": "int"}, {"type": "map", "values": "int"}, flat(name="Empty")]
)
def test_what_has_no_columns_of_its_own_is_decoded_by_fastavro(kind: Any) -> None:
    schema = registered(flat("int", kind))
    assert AvroEncoding(schema).decode_columns(PayloadColumn.of(pa.array([b"\x02\x00"])), schema) is None


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (flat("long"), b"\xff" * 9 + b"\x02"),  # 65 bits
        (flat("long"), b"\x80" * 10 + b"\x00"),  # eleven bytes
        (flat("int"), b"\xfe\xff\xff\xff\x1f"),  # 33 bits
        (flat("string"), b"\x01"),  # a negative length
        (flat("string"), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01abc"),  # the greatest length
        (flat("string"), b"\x02\xff"),  # no text
        (flat("string", "string"), b"\x02\xc3\x02\xa4"),  # a character across two fields
        (flat("boolean"), b"\x02"),
        (flat(["null", "int"]), b"\x04\x00"),
        (flat(["null", "int"]), b"\x01\x00"),
        (flat({"type": "enum", "name": "E", "symbols": ["A"]}), b"\x02"),
        (flat({"type": "int", "logicalType": "date"}), b"\xfe\xff\xff\xff\x0f"),
        (flat({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}), b"\x02\x64"),  # 100
        (flat({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}), b"\x00"),
        (flat("double"), b"\x00" * 7),
        (flat("null"), b"\x00"),
    ],
)
def test_unusual_payloads_are_left_to_fastavro(schema: Any, body: bytes) -> None:
    writer = registered(schema)
    encoding = AvroEncoding(writer)
    for neighbour in (b"", b"\x02" * 20):
        found = encoding.decode_columns(PayloadColumn.of(pa.array([neighbour, body, neighbour])), writer)
        assert found is not None
        assert not found[1][1]


def test_a_slice_of_a_column_with_nulls_is_decoded() -> None:
    schema = registered(flat("string", ["null", "string"]))
    values = [{"f0": "ä" * n, "f1": None if n % 3 else str(n)} for n in range(40)]
    payloads = [framed(1, avro(json.loads(schema.text), value)) for value in values]
    payloads[7:9] = [None, None]  # type: ignore[list-item]
    expected = [*values[3:7], None, None, *values[9:]]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        column = pa.array(payloads, pa.binary()).cast(kind)[3:]
        assert decoder(schema)(column).to_pylist() == expected


def test_several_schemas_in_a_batch_are_each_decoded_as_their_own(hub: MessageHub, domain: str, tmp_path: Path) -> None:
    older, newer = flat("int"), flat("long")
    newer["fields"].append({"name": "note", "type": "string", "default": "none"})
    first, second = (
        hub.register_schema("s", json.dumps(each), schema_type="AVRO").schema_id for each in (older, newer)
    )
    options = Options(dir=str(tmp_path / "hub"), domain=domain)
    kind = pa.struct([("f0", pa.int64()), ("note", pa.string()), ("why", pa.string())])
    decode = Decoder(options, registered(newer, second), None, kind, "PERMISSIVE", "why", has_id=True)
    payloads = [
        framed(second, avro(newer, {"f0": n, "note": str(n)}))
        if n % 3 == 0
        else framed(first, avro(older, {"f0": n}))
        if n % 3 == 1
        else framed(9999, b"\x02")
        for n in range(90)
    ]
    found = decode(pa.array(payloads)).to_pylist()
    why = "its schema 9999 is not registered"
    expected = [[(n, str(n), None), (n, "none", None), (None, None, why)][n % 3] for n in range(90)]
    assert [tuple(row.values()) for row in found] == expected


def test_one_payload_that_is_none_fails_a_strict_batch() -> None:
    schema = registered(flat("long"))
    good = [framed(1, b"\x02")] * 40
    assert decoder(schema, "FAILFAST")(pa.array(good)).to_pylist() == [{"f0": 1}] * 40
    with pytest.raises(PayloadNotDecoded, match="1 bytes follow its end"):
        decoder(schema, "FAILFAST")(pa.array([*good, framed(1, b"\x02\x02")]))


def test_a_column_that_holds_no_payloads_is_refused() -> None:
    with pytest.raises(PayloadNotDecoded, match="payloads are a column of binary, not of int64"):
        decoder(registered(flat("long")))(pa.array([1]))


def test_payloads_that_decode_to_nothing_at_all_are_an_empty_column() -> None:
    schema = registered(flat("long", "string"))
    for empty in (pa.array([], pa.binary()), pa.array([None, None], pa.binary())):
        assert decoder(schema)(empty).null_count == len(empty)
