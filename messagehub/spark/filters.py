"""Spark's filters as Arrow expressions over one column.

Rule: a predicate may keep rows that do not match, since Spark looks at every row again, but never loses one that
does. So floats are left out (to Spark NaN equals NaN and is the largest) and so is whatever cannot be translated.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from messagehub.spark.options import Options
from messagehub.spark.reader import TableReader

_COMPARISONS: Final[dict[type[spark.Filter], Callable[[Any, Any], Any]]] = {
    spark.EqualTo: pc.equal,
    spark.GreaterThan: pc.greater,
    spark.GreaterThanOrEqual: pc.greater_equal,
    spark.LessThan: pc.less,
    spark.LessThanOrEqual: pc.less_equal,
}
_TEXTS: Final[dict[type[spark.Filter], Callable[..., Any]]] = {
    spark.StringStartsWith: pc.starts_with,
    spark.StringEndsWith: pc.ends_with,
    spark.StringContains: pc.match_substring,
}


@dataclass(frozen=True)
class Predicate:
    """Plain data, pickled to the tasks."""

    column: str
    filter: spark.Filter
    value: Any = None

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(_mask(self.filter, batch.column(self.column), self.value))


class FilteringTableReader(TableReader):
    """Rows that cannot match never reach Spark."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._predicates: list[Predicate] = []

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802  Spark's name
        self._predicates = predicates(filters, self._schema)
        return filters

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            kept = batch
            for predicate in self._predicates:
                kept = predicate.keep(kept)
            yield kept


def predicates(filters: Iterable[spark.Filter], schema: pa.Schema) -> list[Predicate]:
    """Those of the filters that can be used here."""
    found = (_predicate(each, schema) for each in filters)
    return [each for each in found if each is not None]


def _predicate(wanted: spark.Filter, schema: pa.Schema) -> Predicate | None:
    inner: Any = wanted.child if isinstance(wanted, spark.Not) else wanted
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    kind = schema.field(path[0]).type
    if isinstance(inner, spark.IsNull | spark.IsNotNull):
        return Predicate(path[0], wanted)
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return None
    if type(inner) in _TEXTS:
        return Predicate(path[0], wanted, inner.value) if pa.types.is_string(kind) else None
    if type(inner) not in _COMPARISONS and not isinstance(inner, spark.In):
        return None
    try:
        many = isinstance(inner, spark.In)
        value = pa.array(inner.value, kind) if many else pa.scalar(inner.value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return Predicate(path[0], wanted, value)


def _mask(wanted: spark.Filter, column: pa.Array, value: Any) -> pa.Array:
    """True, false, or null where SQL says unknown; a filter drops unknown rows, as SQL does."""
    if isinstance(wanted, spark.Not):
        return pc.invert(_mask(wanted.child, column, value))
    if isinstance(wanted, spark.IsNull):
        return column.is_null()
    if isinstance(wanted, spark.IsNotNull):
        return column.is_valid()
    if isinstance(wanted, spark.In):
        found = pc.is_in(column, value_set=value, skip_nulls=True)
        return pc.if_else(column.is_valid(), found, None)
    if type(wanted) in _TEXTS:
        return _TEXTS[type(wanted)](column, value)
    return _COMPARISONS[type(wanted)](column, value)
