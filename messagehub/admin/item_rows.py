"""Values of channels and messages as columns and rows of JSON, bounded: what a page shows of them."""

from typing import Any

import msgspec

from messagehub.payloads.rows import count_rows, first_rows, rows_of

MAX_CELLS = 20_000
"""Of one answer."""
MAX_TEXT = 1000
MAX_RAW_BYTES = 4096
MAX_LIST = 1000


class ColumnAnswer(msgspec.Struct):
    name: str
    type: str
    numeric: bool


class RowsAnswer(msgspec.Struct, kw_only=True):
    """`truncated`: cells were cut, or rows left out that were asked for."""

    row_count: int
    columns: list[ColumnAnswer]
    rows: list[list[Any]]
    truncated: bool = False


def shown_rows(value: Any, most_rows: int, most_cells: int = MAX_CELLS) -> RowsAnswer:
    """Return the first rows of a batch, table, array or bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value[:MAX_RAW_BYTES])
        columns, is_cut = [ColumnAnswer("bytes", "binary", False)], len(value) > MAX_RAW_BYTES
        return RowsAnswer(row_count=1, columns=columns, rows=rows_of(data)[1], truncated=is_cut)
    columns, width = _columns(value)
    allowed = max(most_cells // max(width, 1), 1)
    count = count_rows(value)
    _, rows = rows_of(first_rows(value, min(most_rows, allowed)))
    rows, is_cut = _shortened(rows)
    return RowsAnswer(
        row_count=count, columns=columns, rows=rows, truncated=is_cut or (allowed < most_rows and allowed < count)
    )


def _columns(value: Any) -> tuple[list[ColumnAnswer], int]:
    """Return the columns, and how many cells a row has."""
    if hasattr(value, "schema"):
        import pyarrow.types as kinds

        def is_number(kind: Any) -> bool:
            return bool(kinds.is_integer(kind) or kinds.is_floating(kind))

        columns = [ColumnAnswer(field.name, str(field.type), is_number(field.type)) for field in value.schema]
        return columns, len(columns)
    names = list(value.dtype.names or ())
    if names:
        fields = [(name, value.dtype[name]) for name in names]
        return [ColumnAnswer(name, str(kind), kind.kind in "iuf") for name, kind in fields], len(names)
    width = int(value[0].size) if value.ndim > 1 and len(value) else 1
    return [ColumnAnswer("value", str(value.dtype), value.ndim <= 1 and value.dtype.kind in "iuf")], width


def _shortened(rows: list[list[Any]]) -> tuple[list[list[Any]], bool]:
    """Return the rows without very long texts and lists, and whether there were any."""
    is_cut = False
    for row in rows:
        for index, cell in enumerate(row):
            if isinstance(cell, str) and len(cell) > MAX_TEXT:
                row[index], is_cut = cell[:MAX_TEXT] + "…", True
            elif isinstance(cell, list) and len(cell) > MAX_LIST:
                row[index], is_cut = cell[:MAX_LIST], True
    return rows, is_cut
