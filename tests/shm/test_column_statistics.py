"""Bounds of columns: never narrower than the values, and left out where they cannot be said."""

import datetime
import decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagehub.shm.tables.column_statistics import TEXT_CHARACTERS, Collector, ColumnStatistics, comparable

NAN = float("nan")
LAST = "\U0010ffff"


def statistics(*columns: Any, kind: pa.DataType | None = None) -> ColumnStatistics | None:
    """Of one column, whose values come in several batches; as it comes back from a manifest. Every text is compared."""
    batches = [pa.record_batch([pa.array(values, kind)], names=["c"]) for values in columns]
    collector = Collector(batches[0].schema, every_text=True)
    assert list(collector.passing(batches)) == batches
    found = collector.found().get("c")
    return msgspec.json.decode(msgspec.json.encode(found), type=ColumnStatistics | None)


@pytest.mark.parametrize(
    ("columns", "kind", "expected"),
    [
        ([[3, None], [1, 2]], pa.int64(), (1, 1, 3)),
        ([[2**63]], pa.uint64(), (0, 2**63, 2**63)),
        ([[True, False, None]], pa.bool_(), (1, 0, 1)),
        ([[1.5, -0.0]], pa.float64(), (0, -0.0, 1.5)),
        ([[1.5], [NAN, 2.5, None]], pa.float32(), (1, None, None)),
        ([[NAN]], pa.float64(), (0, None, None)),
        ([[float("inf"), 1.0]], pa.float64(), (0, 1.0, None)),
        ([[None, None], [None]], pa.int32(), (3, None, None)),
        ([[]], pa.string(), (0, None, None)),
        ([["b", "ä"], ["a"]], pa.large_string(), (0, "a", "ä")),
        ([[decimal.Decimal("-1.50"), decimal.Decimal("12.25")]], pa.decimal128(38, 2), (0, "-1.50", "12.25")),
        ([[datetime.date(1970, 1, 3)]], pa.date32(), (0, 2, 2)),
        ([[1_700_000_000_123_456]], pa.timestamp("us", "UTC"), (0, 1_700_000_000_123_456, 1_700_000_000_123_456)),
        ([[7]], pa.time64("ns"), (0, 7, 7)),
    ],
)
def test_bounds_and_nulls_of_each_type(columns: Any, kind: pa.DataType, expected: tuple[Any, Any, Any]) -> None:
    found = statistics(*columns, kind=kind)
    assert found is not None
    assert (found.nulls, found.low, found.high) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1], pa.list_(pa.int64())),
        ({"a": 1}, pa.struct([("a", pa.int64())])),
        (b"x", pa.binary()),
        ("x", pa.dictionary(pa.int32(), pa.string())),
        (None, pa.null()),
        (1.0, pa.float16()),
        (1, pa.duration("us")),
        ((1, 2, 3), pa.month_day_nano_interval()),
    ],
)
def test_other_types_have_none(value: Any, kind: pa.DataType) -> None:
    assert statistics([value], kind=kind) is None


def test_wide_tables_have_them_for_the_first_columns_only() -> None:
    batch = pa.record_batch([pa.array([1])] * 40, names=[f"c{n}" for n in range(39)] + ["x" * 1000])
    collector = Collector(batch.schema)
    assert len(list(collector.passing([batch]))) == 1
    assert list(collector.found()) == [f"c{n}" for n in range(32)]


def test_text_that_is_not_utf_8_has_no_bounds() -> None:
    damaged = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    for every_text in (False, True):
        collector = Collector(pa.schema([("c", pa.string())]), every_text=every_text)
        assert len(list(collector.passing([pa.record_batch([damaged], names=["c"])]))) == 1
        assert collector.found() == {"c": ColumnStatistics(0)}


@given(st.lists(st.text(max_size=5).map(lambda text: "a" * (TEXT_CHARACTERS - 2) + text), min_size=1))
def test_bounds_of_long_texts_are_short_and_hold(values: list[str]) -> None:
    found = statistics(values, kind=pa.string())
    assert found is not None
    low, high = found.bounds(pa.string())
    assert low <= min(values) and max(values) <= high  # noqa: PT018  one sentence
    assert len(low) <= TEXT_CHARACTERS >= len(high)
    assert found.flaw(len(values)) is None


@given(
    st.sampled_from(["", "customer ", "ä" * 4, "x" * 15, LAST * 5]),
    st.integers(0, 12),
    st.data(),
    st.sampled_from([pa.string(), pa.large_string()]),
)
def test_texts_of_one_length_have_exact_bounds(beginning: str, size: int, data: st.DataObject, kind: Any) -> None:
    texts = st.text("\0ab\x7f", min_size=size, max_size=size).map(beginning.__add__)
    values = data.draw(st.lists(st.none() | texts, min_size=1, max_size=40))
    batch = pa.record_batch([pa.array(["other", *values, "other"], kind)[1:-1]], names=["c"])
    collector = Collector(batch.schema)
    assert len(list(collector.passing([batch]))) == 1
    present = [value for value in values if value is not None]
    expected = (min(present), max(present)) if present else (None, None)
    assert collector.found()["c"] == ColumnStatistics(values.count(None), *expected)


def test_texts_of_several_lengths_have_bounds_where_nobody_waits_for_them() -> None:
    batch = pa.record_batch([pa.array(["a", "bc", None])], names=["c"])
    found = []
    for collector in (Collector(batch.schema), Collector(batch.schema, every_text=True)):
        assert len(list(collector.passing([batch, batch]))) == 2
        found.append(collector.found()["c"])
    assert found == [ColumnStatistics(2), ColumnStatistics(2, "a", "bc")]


def test_a_text_without_a_larger_one_has_no_upper_bound() -> None:
    found = statistics([LAST * 100], kind=pa.string())
    assert found is not None
    assert (found.low, found.high) == (LAST * TEXT_CHARACTERS, None)
    found = statistics(["\ud7ff" * 100], kind=pa.string())
    assert found is not None
    assert found.high == "\ud7ff" * (TEXT_CHARACTERS - 1) + "\ue000", "no surrogate"


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        (("a", "b"), pa.int64()),
        ((1, 2), pa.string()),
        ((1.0, 2.0), pa.int64()),
        (("x", "NaN"), pa.decimal128(5)),
        ((5, 1), pa.int64()),
        ((1, 2), pa.binary()),
        ((True, True), pa.int64()),
    ],
)
def test_bounds_of_another_type_or_order_are_ignored(bounds: Any, kind: pa.DataType) -> None:
    assert ColumnStatistics(0, *bounds).bounds(kind) == (None, None)


def test_what_no_writer_wrote_is_a_flaw() -> None:
    assert ColumnStatistics(0, 1, 2).flaw(1) is None
    for lie in (ColumnStatistics(-1), ColumnStatistics(2), ColumnStatistics(1, 1, 2), ColumnStatistics(0, "x" * 65)):
        assert lie.flaw(1) is not None


def test_values_compare_as_their_bounds() -> None:
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    assert comparable(pa.scalar(at, pa.timestamp("ms", "UTC"))) == int(at.timestamp() * 1000)
    assert comparable(pa.scalar(True)) == 1
