"""Filters that are pushed down may keep too much, never too little."""

import datetime
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark

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
    ],
)
def test_rows_that_cannot_match_are_dropped(wanted: spark.Filter, rows: list[int]) -> None:
    assert kept(wanted) == rows


@pytest.mark.parametrize(
    "wanted",
    [
        spark.GreaterThan(("f",), 1.5),  # to Spark NaN is larger
        spark.EqualTo(("f",), float("nan")),
        spark.EqualTo(("deep", "er"), 1),
        spark.EqualNullSafe(("n",), None),
        spark.EqualTo(("n",), "text"),
        spark.EqualTo(("gone",), 1),
    ],
)
def test_what_cannot_be_decided_here_is_left_to_spark(wanted: Any) -> None:
    assert kept(wanted) == [0, 1, 2, 3]
