"""Data frames of pandas, polars and other libraries, as tables of a given Arrow schema.

Rule: columns are taken by name, and values keep their meaning. Texts, integers, floats and times may be stored in
another way (another width, a dictionary, views), whereby a narrower float rounds; what would have to be converted, or
does not fit, is refused.
"""

from collections.abc import Sequence
from typing import Any

from messagehub.shm.errors import PayloadRefused, PayloadSchemaMismatch


def table_of(frame: Any, schema: Any) -> Any:
    """Return the table of a data frame, or of anything with Arrow's stream protocol."""
    import pyarrow as pa

    try:
        table = _without_plain_index(frame, schema) if type(frame).__module__.startswith("pandas") else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise PayloadRefused(f"this {type(frame).__name__} has no form in Arrow: {error}") from None
    check_columns(table.column_names, schema, f"a {type(frame).__name__}")
    if not table.num_rows:
        return schema.empty_table()  # an empty frame has no types to compare
    columns = [_column(table.column(field.name), field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def check_columns(names: Sequence[str], schema: Any, what: str) -> None:
    """Refuse data that has other columns than the schema; their order is free."""
    missing = [name for name in schema.names if name not in names]
    unknown = [name for name in names if name not in schema.names]
    twice = sorted({name for name in names if names.count(name) != schema.names.count(name)} - {*unknown})
    if missing or unknown or twice:
        flaws = [
            f"{flaw} {', '.join(map(repr, found))}"
            for flaw, found in (("without column", missing), ("with column", unknown), ("with two columns", twice))
            if found
        ]
        raise PayloadSchemaMismatch(
            f"columns {', '.join(map(repr, schema.names))}",
            f"{what} {', '.join(flaws)}",
            "Give these columns, in any order, or open another channel for it.",
        )


def _without_plain_index(frame: Any, schema: Any) -> Any:
    """Return the table of a pandas frame; its index is a column only if the schema has one of that name."""
    import pyarrow as pa

    has_index = any(name in schema.names for name in frame.index.names if name is not None)
    return pa.Table.from_pandas(frame, preserve_index=has_index)


def _column(column: Any, field: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type.equals(field.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = _decoded(column)
    wanted = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not _has_same_meaning(column.type, wanted):
        raise PayloadRefused(f"column {field.name!r} is {column.type}, the schema has {field.type}: convert it first")
    try:
        found = column.cast(wanted)
        if pa.types.is_floating(wanted) and not pc.is_finite(found).equals(pc.is_finite(column)):
            raise PayloadRefused(f"column {field.name!r} has a number that {field.type} cannot hold")
        return found if wanted.equals(field.type) else pc.dictionary_encode(found).cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise PayloadRefused(f"column {field.name!r} does not fit {field.type}: {error}") from None


def _decoded(column: Any) -> Any:
    """Return the values of a dictionary-encoded column. pyarrow 26 takes nothing from views, so they become texts."""
    import pyarrow as pa

    kind = column.type.value_type
    kind = pa.string() if pa.types.is_string_view(kind) else pa.binary() if pa.types.is_binary_view(kind) else kind
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind)).dictionary_decode()
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, kind)


def _has_same_meaning(given: Any, wanted: Any) -> bool:
    """Return whether a value of the one type can be stored as the other, if it fits."""
    import pyarrow as pa

    if pa.types.is_null(given) or given.equals(wanted):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if pa.types.is_integer(given):
        return bool(pa.types.is_integer(wanted) or pa.types.is_floating(wanted))
    if _is_list(given) and _is_list(wanted):
        inner, outer = given.value_type, wanted.value_type
        is_narrower = pa.types.is_floating(inner) and pa.types.is_floating(outer) and outer.bit_width < inner.bit_width
        return _has_same_meaning(inner, outer) and not is_narrower
    kinds = (pa.types.is_floating, _is_text, _is_binary, pa.types.is_duration, pa.types.is_time)
    return any(is_kind(given) and is_kind(wanted) for is_kind in kinds)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
