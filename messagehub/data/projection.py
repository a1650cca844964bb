"""Arrow data in the schema that a consumer expects: columns by name, cast, and null where there is none.

The registry's rule for such schemas (registry/formats/arrow/comparison.py) is that every value has a place in the
expected type. What pyarrow cannot cast all the same is refused, never changed.
"""

from typing import Any

from messagehub.errors import SchemaMismatch


def as_expected(value: Any, schema: Any, channel: str) -> Any:
    """A record batch or table with exactly these columns; other values, and what fits already, as they are."""
    import pyarrow as pa

    if not isinstance(value, pa.RecordBatch | pa.Table) or value.schema.equals(schema):
        return value
    columns = []
    for field in schema:
        place = value.schema.get_field_index(field.name)
        if place < 0 and not field.nullable:
            raise SchemaMismatch(f"channel {channel!r} has no column {field.name!r}", channel=channel)
        try:
            column = pa.nulls(value.num_rows, field.type) if place < 0 else _cast(value.column(place), field.type)
            column.validate()  # some casts of pyarrow 26 (list views) give arrays that are none
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"column {field.name!r} of channel {channel!r} cannot be read as {field.type}: {error}", channel=channel
            ) from None
        columns.append(column)
    return type(value).from_arrays(columns, schema=schema)


def _cast(column: Any, kind: Any) -> Any:
    """Runs are decoded and encoded: pyarrow casts neither from nor to them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type.equals(kind):
        return column
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(column.cast(kind.value_type), run_end_type=kind.run_end_type)
    return column.cast(kind)
