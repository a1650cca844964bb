"""What a manifest says about the columns of a part: how many nulls, and bounds of the values.

Rule 1: bounds are for skipping parts, so they may be wider than the values and never narrower. What cannot be said
safely is left out: bounds of floats with NaN (to Spark the largest), an upper bound of text that cannot be rounded up.
Rule 2: bounds are plain values of JSON: whole numbers for integers, booleans, dates, times and timestamps (in the unit
of the column), floats, text, and the text of a decimal. What they mean is said by the type of the column in the schema;
a bound that is not of that type is ignored.
Rule 3: the first columns of a table have statistics. Nested, binary, dictionary and duration columns have none. Text
has bounds where all values of a batch are equally long and short, as dates and codes are, whoever writes the table:
others take longer than all the rest. Compaction, for which nobody waits, looks at every text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

COLUMNS: Final = 32
NAME_CHARACTERS: Final = 128
TEXT_CHARACTERS: Final = 64
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

Bound = int | float | str


@dataclass(frozen=True)
class ColumnStatistics:
    """No value is below `low` or above `high`; None: nothing is known."""

    nulls: int
    low: Bound | None = None
    high: Bound | None = None

    def flaw(self, rows: int) -> str | None:
        """Return why no writer wrote this of a column with so many rows."""
        if not 0 <= self.nulls <= rows:
            return f"{self.nulls} nulls in {rows} rows"
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if bounds and self.nulls == rows:
            return "bounds of values that are all null"
        if any(isinstance(bound, str) and len(bound) > TEXT_CHARACTERS for bound in bounds):
            return "a bound that is too long"
        return None

    def bounds(self, kind: Any) -> tuple[Any, Any]:
        """Return the bounds as values that can be compared with `comparable` ones; None where nothing is known."""
        low, high = _understood(self.low, kind), _understood(self.high, kind)
        return (None, None) if low is not None and high is not None and low > high else (low, high)


class Collector:
    """Statistics of the batches that pass."""

    def __init__(self, schema: Any, *, every_text: bool = False) -> None:
        """With `every_text`, texts of different lengths have bounds too."""
        self._columns = [
            _Column(index, field, every_text=every_text)
            for index, field in enumerate(schema)
            if index < COLUMNS and has_statistics(field.type) and len(field.name) <= NAME_CHARACTERS
        ]

    def passing(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for column in self._columns:
                column.add(batch.column(column.index))
            yield batch

    def found(self) -> dict[str, ColumnStatistics]:
        return {column.name: column.statistics() for column in self._columns}


def has_statistics(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_decimal128(kind)
        or (types.is_temporal(kind) and not types.is_duration(kind) and not types.is_interval(kind))
        or is_text(kind)
    )


def is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def comparable(scalar: Any) -> Any:
    """Return the value of an Arrow scalar in the order of its column: a whole number for dates, times and booleans."""
    import pyarrow as pa

    if pa.types.is_temporal(scalar.type):
        return scalar.value
    value = scalar.as_py()
    return int(value) if isinstance(value, bool) else value


class _Column:
    def __init__(self, index: int, field: Any, *, every_text: bool) -> None:
        self.index = index
        self.name = field.name
        self._plain_type = _plain_type(field.type)
        self._is_text_of_one_length = is_text(field.type) and not every_text
        self._nulls = 0
        self._is_unordered = False
        self._low: Any = None
        self._high: Any = None

    def add(self, column: Any) -> None:
        self._nulls += column.null_count
        if column.null_count == len(column) or self._is_unordered:
            return
        try:
            low, high = self._bounds(column.drop_null() if column.null_count else column)
        except UnicodeDecodeError:
            low = high = None
        if not (low == low and low is not None):  # noqa: PLR0124  NaN, or text that is none or too slow
            self._is_unordered = True
            return
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)

    def _bounds(self, present: Any) -> tuple[Any, Any]:
        if self._plain_type:
            return _of_numbers(present, self._plain_type)
        if not self._is_text_of_one_length:
            return _of_others(present)
        from messagehub.shm.tables.text_bounds import (
            bounds_of_one_length,  # NumPy is loaded by those who write tables
        )

        return bounds_of_one_length(present) or (None, None)

    def statistics(self) -> ColumnStatistics:
        if self._is_unordered:
            return ColumnStatistics(self._nulls)
        high = _rounded_up(self._high)
        low = self._low[:TEXT_CHARACTERS] if isinstance(self._low, str) else self._low
        return ColumnStatistics(self._nulls, _plain(low), _plain(high))


def _plain_type(kind: Any) -> Any:
    """Return the type of number that a column consists of, in memory; None if it does not."""
    import pyarrow as pa

    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return None


def _of_numbers(present: Any, kind: Any) -> tuple[Any, Any]:
    """Return the least and the greatest; NaN if there is one. By NumPy, which is faster here than Arrow."""
    values = present.view(kind).to_numpy()
    return values.min().item(), values.max().item()


def _of_others(present: Any) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    found = pc.min_max(present)
    return comparable(found["min"]), comparable(found["max"])


def _plain(value: Any) -> Bound | None:
    """Return a bound as JSON can hold it: finite floats only. A decimal that is too long as text is left out."""
    if isinstance(value, Decimal):
        text = str(value)
        return text if len(text) <= TEXT_CHARACTERS else None
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    found: Bound | None = value
    return found


def _rounded_up(value: Any) -> Any:
    """Return a text that is short enough and not below `value`; None where there is none. Others stay."""
    if not isinstance(value, str) or len(value) <= TEXT_CHARACTERS:
        return value
    kept = value[:TEXT_CHARACTERS]
    while kept and ord(kept[-1]) == _LAST_CHARACTER:
        kept = kept[:-1]
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _understood(bound: Bound | None, kind: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if bound is None:
        return None
    if types.is_decimal(kind):
        try:
            value = Decimal(bound) if isinstance(bound, str) else None
        except InvalidOperation:
            return None
        return value if value is not None and value.is_finite() else None
    if is_text(kind):
        return bound if isinstance(bound, str) else None
    if types.is_floating(kind):
        return bound if isinstance(bound, float) else None
    return bound if type(bound) is int and has_statistics(kind) else None
