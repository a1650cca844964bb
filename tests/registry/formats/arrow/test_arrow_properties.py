"""Arrow against pyarrow: what is called readable is cast without loss; any text is a schema or refused."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.formats import arrow
from registry.formats.differences import BudgetExceeded, MalformedSchema
from tests.levels import examples

FLAT = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.binary(3)),
    *(
        pa.decimal128(5, 2),
        pa.decimal128(20, 0),
        pa.decimal128(22, 2),
        pa.decimal256(40, 4),
        pa.date32(),
        pa.date64(),
    ),
    *(pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Tokyo")),
    *(pa.duration("s"), pa.duration("us"), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
]
LARGE_SECONDS = 8_000_000_000_000
DAY_SECONDS = 86_400


def extremes(kind: pa.DataType) -> list[Any]:
    """The values of a type that are the first not to fit elsewhere."""
    if pa.types.is_integer(kind):
        top = (1 << kind.bit_width - (0 if "u" in str(kind) else 1)) - 1
        return [top, 0 if "u" in str(kind) else -top - 1, 1]
    if pa.types.is_decimal(kind):
        digits = pa.scalar("9" * (kind.precision - kind.scale) + ("." + "9" * kind.scale if kind.scale else ""))
        return [digits.cast(kind).as_py()]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}[kind.unit]
        return [LARGE_SECONDS * per_second + per_second - 1]
    if pa.types.is_time(kind):
        per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        return [DAY_SECONDS * per_second - 1]
    samples: dict[str, list[Any]] = {
        "float": [1.5, 3.4e38],
        "double": [1.1, 1e300],
        "bool": [True, False],
        "string": ["ä"],
        "large_string": ["ä"],
    }
    return samples.get(str(kind), [b"\xff\x00z"] if "binary" in str(kind) else [18_000])


def column(kind: pa.DataType) -> pa.Array:
    values = extremes(kind)
    if pa.types.is_date64(kind):
        return pa.array(values, pa.int32()).cast(pa.date32()).cast(kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.array(values, kind)


def as_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def test_what_is_called_readable_is_cast_and_cast_back_without_loss() -> None:
    schemas = {kind: arrow.parse(arrow.from_arrow(pa.schema([("x", kind)])), {}) for kind in FLAT}
    readable = [(old, new) for old in FLAT for new in FLAT if not arrow.compare(schemas[old], schemas[new])]
    assert len(readable) > 2 * len(FLAT), "the rules should allow more than equality"
    for old, new in readable:
        values = column(old)
        assert values.cast(new).cast(old).equals(values), (old, new)
        items = as_list(values)
        assert items.cast(pa.list_(new)).cast(pa.list_(old)).equals(items), (old, new)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(FLAT), st.booleans()), unique_by=lambda c: c[0]))
def test_a_schema_reads_itself_and_its_canonical_form_is_stable(
    columns: list[tuple[str, pa.DataType, bool]],
) -> None:
    schema = arrow.parse(arrow.from_arrow(pa.schema([pa.field(*each) for each in columns])), {})
    assert arrow.compare(schema, schema) == []
    assert arrow.compare_layout(schema, schema) == []
    assert arrow.normalize(schema.canonical, {}) == schema.canonical
    arrow.to_arrow(schema.canonical)


WORDS = st.sampled_from(
    [
        "fields",
        "name",
        "type",
        "nullable",
        "children",
        "dictionary",
        "index",
        "list",
        "map",
        "struct",
        "int8",
        "utf8",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=6,
)
FIELD = st.fixed_dictionaries(
    {"name": st.text(), "type": WORDS | st.text()}, optional={"children": JSON, "dictionary": JSON}
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.text() | JSON.map(json.dumps) | st.lists(FIELD).map(lambda fields: json.dumps({"fields": fields})))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        arrow.parse(text, {})
        arrow.to_arrow(text)
    except (MalformedSchema, BudgetExceeded):
        pass
