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
            columns.append(pa.nulls(value.num_rows, field.type) if place < 0 else value.column(place).cast(field.type))
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"column {field.name!r} of channel {channel!r} cannot be read as {field.type}: {error}", channel=channel
            ) from None
    return type(value).from_arrays(columns, schema=schema)
