"""Values of a channel as rows of plain values: what JSON can say, and a person can read.

Times are ISO text to their last digit, complex and extended numbers are text: JSON has no number for them.
"""

from typing import Any


def rows_of(value: Any) -> tuple[list[str], list[list[Any]]]:
    """Headings, and the cells of each row."""
    if hasattr(value, "column_names") or hasattr(value, "schema"):
        names = list(value.schema.names)
        columns = [[_arrow(cell) for cell in column] for column in value.columns]
        return names, [list(row) for row in zip(*columns, strict=True)]
    if hasattr(value, "dtype"):
        names = list(value.dtype.names or ())
        if names:
            return names, [[_numpy(row[name]) for name in names] for row in value.reshape(-1)]
        return ["value"], [[_numpy(row)] for row in (value if value.ndim else value.reshape(1))]
    return ["bytes"], [[_text(bytes(value))]]


def count_rows(value: Any) -> int:
    if hasattr(value, "num_rows"):
        return int(value.num_rows)
    if hasattr(value, "dtype"):
        return int(value.size if value.dtype.names else (len(value) if value.ndim else 1))
    return 1


def first_rows(value: Any, count: int) -> Any:
    """Return the value cut to its first rows; whole where it has not more."""
    if count_rows(value) <= count:
        return value
    if hasattr(value, "num_rows"):
        return value.slice(0, count)
    return value.reshape(-1)[:count] if value.dtype.names else value[:count]


def records_of(value: Any) -> list[dict[str, Any]]:
    headings, rows = rows_of(value)
    return [dict(zip(headings, row, strict=True)) for row in rows]


def _numpy(value: Any) -> Any:
    import numpy as np

    dtype = value.dtype
    if isinstance(value, np.ndarray) and value.ndim:
        return [_numpy(each) for each in value]
    if dtype.names:
        return {name: _numpy(value[name]) for name in dtype.names}
    if dtype.kind in "mM":
        return None if np.isnat(value) else str(value)
    if dtype.kind == "c" or (dtype.kind == "f" and dtype.itemsize > 8):
        return str(value).strip("()")
    plain = value.tolist()
    return _text(plain) if isinstance(plain, bytes) else plain


def _arrow(scalar: Any) -> Any:
    import pyarrow as pa

    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _arrow(scalar[index]) for index, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [[_arrow(entry[0]), _arrow(entry[1])] for entry in scalar.values]
    if hasattr(scalar, "values"):  # all kinds of lists
        return [_arrow(each) for each in scalar.values]
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or isinstance(scalar, pa.UnionScalar):
        inner = scalar.value if not pa.types.is_run_end_encoded(kind) else scalar.as_py()
        return _arrow(inner) if isinstance(inner, pa.Scalar) else inner
    if isinstance(scalar, pa.ExtensionScalar):
        return _arrow(scalar.value)
    if pa.types.is_duration(kind):
        return f"{scalar.value} {kind.unit}"
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return scalar.cast(pa.string()).as_py()
    plain = scalar.as_py()
    return _text(plain) if isinstance(plain, bytes) else plain


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")
