"""Spark's filters as Arrow expressions over one column, and as questions to the statistics of a part.

Rule: a predicate may keep rows and parts that do not match, since Spark looks at every row again, but never loses a row
that does. To Spark NaN equals NaN and is larger than any number; whatever cannot be translated is left to Spark.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from messagehub.shm.tables.column_statistics import ColumnStatistics, comparable, is_text
from messagehub.shm.tables.manifests import Part
from messagehub.shm.tables.snapshot import Snapshot
from messagehub.spark.channels import schema_of
from messagehub.spark.options import Options
from messagehub.spark.reader import TableReader
from messagehub.spark.tracebacks import messages_only

if TYPE_CHECKING:
    from messagehub.flight.remote_tables import RemoteSnapshot

_COMPARISONS: Final[dict[type[spark.Filter], Callable[[Any, Any], Any]]] = {
    spark.EqualTo: pc.equal,
    spark.GreaterThan: pc.greater,
    spark.GreaterThanOrEqual: pc.greater_equal,
    spark.LessThan: pc.less,
    spark.LessThanOrEqual: pc.less_equal,
}
_OPPOSITES: Final[dict[type[spark.Filter], type[spark.Filter]]] = {
    spark.GreaterThan: spark.LessThanOrEqual,
    spark.GreaterThanOrEqual: spark.LessThan,
    spark.LessThan: spark.GreaterThanOrEqual,
    spark.LessThanOrEqual: spark.GreaterThan,
    spark.IsNull: spark.IsNotNull,
    spark.IsNotNull: spark.IsNull,
}
_TEXTS: Final[dict[type[spark.Filter], Callable[..., Any]]] = {
    spark.StringStartsWith: pc.starts_with,
    spark.StringEndsWith: pc.ends_with,
    spark.StringContains: pc.match_substring,
}


@dataclass(frozen=True)
class Predicate:
    """Plain data, pickled to the tasks. `value` is an Arrow scalar, an array (of `In`), or a text."""

    column: str
    filter: spark.Filter
    value: Any = None

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(_mask(self.filter, batch.column(self.column), self.value))

    def may_match(self, statistics: ColumnStatistics, kind: pa.DataType, rows: int) -> bool:
        """Whether any row of a part may match. `kind` is the column's type in the part."""
        is_negated = isinstance(self.filter, spark.Not)
        asked: Any = type(self.filter.child) if isinstance(self.filter, spark.Not) else type(self.filter)
        if is_negated and asked in _OPPOSITES:
            asked, is_negated = _OPPOSITES[asked], False
        if asked is spark.IsNull:
            return statistics.nulls > 0
        if statistics.nulls == rows:  # every other filter is unknown of a null
            return False
        if is_negated or asked in (spark.IsNotNull, spark.StringEndsWith, spark.StringContains):
            return True
        low, high = statistics.bounds(kind)
        if asked is spark.StringStartsWith:
            begin = self.value
            return not ((high is not None and high < begin) or (low is not None and low[: len(begin)] > begin))
        if asked is spark.In:
            return any(_is_within(comparable(value), low, high) for value in self.value if value.is_valid)
        return _may_compare(asked, comparable(self.value), low, high)


@messages_only
class FilteringTableReader(TableReader):
    """Rows that cannot match never reach Spark, and parts in which none can match are not opened."""

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

    def _wanted_parts(self, snapshot: "Snapshot | RemoteSnapshot") -> list[tuple[int, Part]]:
        usable = _ordered_alike(self._predicates, schema_of(snapshot), self._schema)
        return [
            (index, part)
            for index, part in super()._wanted_parts(snapshot)
            if all(
                one.may_match(part.columns[one.column], kind, part.rows)
                for one, kind in usable
                if one.column in part.columns
            )
        ]


def predicates(filters: Iterable[spark.Filter], schema: pa.Schema) -> list[Predicate]:
    """Those of the filters that can be used here."""
    found = (_predicate(each, schema) for each in filters)
    return [each for each in found if each is not None]


def _ordered_alike(
    found: Iterable[Predicate], stored: pa.Schema, read: pa.Schema
) -> list[tuple[Predicate, pa.DataType]]:
    """Return the predicates over columns whose values are ordered as stored as they are as read, with the stored type.

    A projection may ask for another type (`.schema("id string")`), whose values are ordered otherwise.
    """
    usable = []
    for predicate in found:
        if predicate.column not in stored.names:  # of a generation that came after the columns were checked
            continue
        kind, wanted = stored.field(predicate.column).type, read.field(predicate.column).type
        is_whole = pa.types.is_integer(kind) and pa.types.is_integer(wanted)
        if kind.equals(wanted) or is_whole or (is_text(kind) and is_text(wanted)):
            usable.append((predicate, kind))
    return usable


def _predicate(wanted: spark.Filter, schema: pa.Schema) -> Predicate | None:
    inner: Any = wanted.child if isinstance(wanted, spark.Not) else wanted
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    kind = schema.field(path[0]).type
    if isinstance(inner, spark.IsNull | spark.IsNotNull):
        return Predicate(path[0], wanted)
    if pa.types.is_nested(kind):
        return None
    if type(inner) in _TEXTS:
        return Predicate(path[0], wanted, inner.value) if pa.types.is_string(kind) else None
    many = isinstance(inner, spark.In)
    if type(inner) not in _COMPARISONS and not many:
        return None
    if pa.types.is_floating(kind) and (many or not _is_exact(inner.value, kind)):
        return None
    try:
        value = pa.array(inner.value, kind) if many else pa.scalar(inner.value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return Predicate(path[0], wanted, value)


def _is_exact(value: Any, kind: pa.DataType) -> bool:
    """Whether a number is one of the column's; NaN is not."""
    return isinstance(value, float) and pa.scalar(value, kind).as_py() == value


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
    mask = _COMPARISONS[type(wanted)](column, value)
    if pa.types.is_floating(column.type) and isinstance(wanted, spark.GreaterThan | spark.GreaterThanOrEqual):
        return pc.or_(mask, pc.is_nan(column))
    return mask


def _may_compare(asked: type[spark.Filter], value: Any, low: Any, high: Any) -> bool:
    """Whether a value between two bounds, of which each may be unknown, may compare so with `value`."""
    if asked is spark.EqualTo:
        return _is_within(value, low, high)
    if asked is spark.GreaterThan:
        return high is None or high > value
    if asked is spark.GreaterThanOrEqual:
        return high is None or high >= value
    if asked is spark.LessThan:
        return low is None or low < value
    return low is None or low <= value


def _is_within(value: Any, low: Any, high: Any) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)
