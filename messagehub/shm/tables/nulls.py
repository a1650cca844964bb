"""Nulls in columns that are declared to have none: pyarrow writes them, so they are looked for here."""

from collections.abc import Iterable, Iterator
from typing import Any

from messagehub.shm.errors import PayloadRefused

Columns = list[tuple[int, Any]]
"""Index and field of each column that is searched for nulls."""


def columns_without_nulls(schema: Any) -> Columns:
    return [(index, field) for index, field in enumerate(schema) if _is_strict(field)]


def check_nulls(batch: Any, columns: Columns) -> None:
    """Raise PayloadRefused for the first null where the schema says that there is none."""
    for index, field in columns:
        _check(batch.column(index), field, field.name)


def checked(batches: Iterable[Any], schema: Any) -> Iterator[Any]:
    columns = columns_without_nulls(schema)
    for batch in batches:
        check_nulls(batch, columns)
        yield batch


def _is_strict(field: Any) -> bool:
    """Whether a field, or one inside it, is declared without nulls."""
    kind = field.type
    return not field.nullable or any(_is_strict(kind.field(index)) for index in range(kind.num_fields))


def _check(column: Any, field: Any, path: str) -> None:
    import pyarrow as pa

    if not field.nullable and column.null_count:
        raise PayloadRefused(
            f"column {path!r} is declared without nulls and has {column.null_count}. "
            "Fill them, or declare the column nullable."
        )
    kind = field.type
    if pa.types.is_struct(kind):
        present = column.drop_null() if column.null_count else column
        for index in range(kind.num_fields):
            inner = kind.field(index)
            if _is_strict(inner):
                _check(present.field(index), inner, f"{path}.{inner.name}")
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and _is_strict(kind.value_field):
        _check(column.flatten(), kind.value_field, f"{path}.{kind.value_field.name}")
