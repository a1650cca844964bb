"""Filters that are pushed down may keep too much, never too little."""

import datetime
import decimal
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from messagehub.shm.tables.column_statistics import Collector
from messagehub.spark.filters import predicates

BATCH = pa.RecordBatch.from_pydict(
    {
        "n": [1, 2, None, 4],
        "s": ["ab", None, "b", "abc"],
        "f": [1.0, float("nan"), None, 2.0],
        "t": pa.array([datetime.datetime(2024, 1, day, tzinfo=datetime.UTC) for day in (1, 2, 3, 4)]),
    }
)


def kept(*filters: spark.Filter) -> list[int]:
    batch = BATCH.append_column("row", pa.array([0, 1, 2, 3]))
    for predicate in pickle.loads(pickle.dumps(predicates(filters, BATCH.schema))):
        batch = predicate.keep(batch)
    return batch.column("row").to_pylist()


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (spark.EqualTo(("n",), 2), [1]),
        (spark.Not(spark.EqualTo(("n",), 2)), [0, 3]),
        (spark.GreaterThanOrEqual(("n",), 2), [1, 3]),
        (spark.In(("n",), (1, 4, None)), [0, 3]),
        (spark.Not(spark.In(("n",), (1,))), [1, 3]),
        (spark.IsNull(("n",)), [2]),
        (spark.IsNotNull(("s",)), [0, 2, 3]),
        (spark.StringStartsWith(("s",), "ab"), [0, 3]),
        (spark.StringContains(("s",), "b"), [0, 2, 3]),
        (spark.LessThan(("t",), datetime.datetime(2024, 1, 2, 1, tzinfo=datetime.UTC)), [0, 1]),
        (spark.GreaterThan(("f",), 1.5), [1, 3]),  # to Spark NaN is larger
        (spark.Not(spark.LessThanOrEqual(("f",), 1.5)), [1, 3]),
    ],
)
def test_rows_that_cannot_match_are_dropped(wanted: spark.Filter, rows: list[int]) -> None:
    assert kept(wanted) == rows


@pytest.mark.parametrize(
    "wanted",
    [
        spark.EqualTo(("f",), float("nan")),
        spark.EqualTo(("deep", "er"), 1),
        spark.EqualNullSafe(("n",), None),
        spark.EqualTo(("n",), "text"),
        spark.EqualTo(("gone",), 1),
    ],
)
def test_what_cannot_be_decided_here_is_left_to_spark(wanted: Any) -> None:
    assert kept(wanted) == [0, 1, 2, 3]


def may_match(wanted: spark.Filter, values: list[Any], kind: pa.DataType, name: str = "c") -> bool:
    """Whether a part with these values would be read."""
    batch = pa.record_batch([pa.array(values, kind)], names=[name])
    collector = Collector(batch.schema, every_text=True)
    assert len(list(collector.passing([batch]))) == 1
    (predicate,) = predicates([wanted], batch.schema)
    return predicate.may_match(collector.found()[name], kind, len(values))


C = ("c",)
COMPARED = [spark.EqualTo, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan, spark.LessThanOrEqual]


@pytest.mark.parametrize(
    ("wanted", "is_read"),
    [
        (spark.EqualTo(C, 9), False),
        (spark.EqualTo(C, 10), True),
        (spark.EqualTo(C, 20), True),
        (spark.EqualTo(C, 21), False),
        (spark.Not(spark.EqualTo(C, 9)), True),
        (spark.GreaterThan(C, 20), False),
        (spark.GreaterThanOrEqual(C, 20), True),
        (spark.LessThan(C, 10), False),
        (spark.LessThanOrEqual(C, 10), True),
        (spark.Not(spark.LessThan(C, 21)), False),
        (spark.Not(spark.GreaterThan(C, 9)), False),
        (spark.In(C, (1, 15)), True),
        (spark.In(C, (1, 30, None)), False),
        (spark.In(C, (None,)), False),
        (spark.Not(spark.In(C, (1,))), True),
        (spark.IsNull(C), True),
        (spark.Not(spark.IsNull(C)), True),
        (spark.IsNotNull(C), True),
    ],
)
def test_parts_in_which_no_row_can_match_are_not_read(wanted: spark.Filter, is_read: bool) -> None:
    assert may_match(wanted, [10, None, 20], pa.int64()) == is_read


@pytest.mark.parametrize(
    ("wanted", "is_read"),
    [
        (spark.StringStartsWith(C, "kl"), True),
        (spark.StringStartsWith(C, "m"), True),
        (spark.StringStartsWith(C, "a"), False),
        (spark.StringStartsWith(C, "n"), False),
        (spark.StringStartsWith(C, ""), True),
        (spark.StringContains(C, "z"), True),
        (spark.GreaterThan(C, "n"), False),
        (spark.EqualTo(C, "l"), True),
    ],
)
def test_parts_are_skipped_by_text(wanted: spark.Filter, is_read: bool) -> None:
    assert may_match(wanted, ["klm", "m" * 1000], pa.string()) == is_read


def test_nulls_nan_and_decimals_skip_parts_as_spark_orders_them() -> None:
    nan, double, money = float("nan"), pa.float64(), pa.decimal128(10, 2)
    assert may_match(spark.GreaterThan(C, 5.0), [1.0, nan], double), "to Spark NaN is larger"
    assert not may_match(spark.GreaterThan(C, 5.0), [1.0, 2.0], double)
    assert not may_match(spark.EqualTo(C, 1), [None, None], pa.int64())
    assert not may_match(spark.IsNotNull(C), [None, None], pa.int64())
    assert not may_match(spark.IsNull(C), [1, 2], pa.int64())
    assert not may_match(spark.EqualTo(C, decimal.Decimal("9.99")), [decimal.Decimal("10.00")], money)
    assert may_match(spark.EqualTo(C, decimal.Decimal("10")), [decimal.Decimal("10.00")], money)
    day = datetime.date(2024, 1, 1)
    assert not may_match(spark.LessThan(C, day), [day], pa.date32())
    assert not may_match(spark.EqualTo(C, True), [False], pa.bool_())


NUMBERS = st.one_of(st.none(), st.integers(-5, 5))
FILTERS = st.one_of(
    st.builds(lambda kind, value: kind(C, value), st.sampled_from(COMPARED), st.integers(-6, 6)),
    st.builds(lambda values: spark.In(C, tuple(values)), st.lists(NUMBERS, max_size=3)),
    st.just(spark.IsNull(C)),
    st.just(spark.IsNotNull(C)),
)


@given(st.lists(NUMBERS, max_size=6), FILTERS, st.booleans(), st.sampled_from([pa.int64(), pa.float64()]))
def test_a_part_that_is_skipped_has_no_row_that_is_kept(
    values: list[Any], wanted: Any, is_negated: bool, kind: pa.DataType
) -> None:
    wanted = spark.Not(wanted) if is_negated else wanted
    batch = pa.record_batch([pa.array(values, kind)], names=["c"])
    for predicate in predicates([wanted], batch.schema):
        assert may_match(wanted, values, kind) or predicate.keep(batch).num_rows == 0
