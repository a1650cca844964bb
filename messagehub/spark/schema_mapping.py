"""StructType <-> Arrow <-> the registry's text.

Rule 1: what is written is nullable throughout, as with Spark's own file formats: nullability follows from
expressions there, so two equal jobs would otherwise have two schemas.
Rule 2: zoned timestamps are in UTC and microseconds, whatever the session's time zone is called.
Rule 3: what cannot be carried without loss is refused by column, before any task runs.
"""

import difflib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from messagehub.errors import SchemaMismatch
from messagehub.spark.errors import UnsupportedColumn
from registry.formats import arrow

_CARRIED: Final = (
    spark.BooleanType,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.StringType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.DayTimeIntervalType,
    spark.TimeType,
    spark.NullType,
)


COMMENT: Final = b"comment"


def written_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema under which a DataFrame of this type is published."""
    if not schema.fields:
        raise UnsupportedColumn(
            "a DataFrame without columns has nothing to publish, not even its rows: select a column"
        )
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise UnsupportedColumn(f"column {field.name!r} is there twice: rename one of them", column=field.name)
        seen.add(field.name)
    found = [f"{path} ({kind.simpleString()})" for path, kind in _uncarried(schema, "")]
    if found:
        raise UnsupportedColumn(
            f"Arrow cannot carry {_listed(found)}: cast to another type, or leave out with drop()", columns=found
        )
    return _plain(to_arrow_schema(_nullable(schema), timezone="UTC"))


def read_schema(schema: spark.StructType) -> pa.Schema:
    """What Spark wants to be given for a DataFrame of this type."""
    return to_arrow_schema(schema, timezone="UTC")


def struct_of(schema: pa.Schema) -> spark.StructType:
    """The type of a DataFrame over such data."""
    found: list[str] = []
    fields = []
    for field in schema:
        for path, kind in _foreign(field, field.name):
            found.append(f"{path} ({kind})")
        if not found:
            said = {"comment": field.metadata[COMMENT].decode()} if COMMENT in (field.metadata or ()) else None
            fields.append(spark.StructField(field.name, from_arrow_type(_decoded(field.type)), field.nullable, said))
    if found:
        raise UnsupportedColumn(
            f"Spark has no type for {_listed(found)}: cast it in the producer, or give .schema(…) without it",
            columns=found,
        )
    return spark.StructType(fields)


def comments_of(schema: spark.StructType) -> dict[str, str]:
    """Return the comments of the columns. A schema of the registry has none: they are kept beside it."""
    found = {field.name: field.metadata.get("comment") for field in schema if field.metadata}
    return {name: comment for name, comment in found.items() if isinstance(comment, str)}


def commented(schema: pa.Schema, comments: Any) -> pa.Schema:
    """Return the schema with the comments of its columns, as `struct_of` takes them over."""
    if not isinstance(comments, dict):
        return schema
    return pa.schema(
        [
            field.with_metadata({COMMENT: said.encode()})
            if isinstance(said := comments.get(field.name), str)
            else field
            for field in schema
        ]
    )


def schema_text(schema: pa.Schema) -> str:
    return arrow.from_arrow(schema)


def schema_hash(text: str) -> str:
    """Return a hash that is equal for equal tables, whatever wrote them and however their bytes are arranged."""
    return arrow.parse(text, {}).hash


def conform(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Exactly the wanted columns, in their order and types; free of cost where they are so already."""
    if batch.schema.equals(wanted):
        return batch
    if not len(wanted):  # rows without columns, as for a count
        return batch.select([])
    columns = [_cast(batch, field) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def matched_by_name(written: pa.Schema, table: pa.Schema) -> dict[str, str] | None:
    """Return, by each column of a table, the column of a DataFrame that is appended to it; None where they do not fit.

    As Spark's own tables do: the order does not matter, nor do upper and lower case where only one column can be meant.
    A nullable column may be missing. A column that the table does not have, or has with another type, does not fit.
    """
    by_lower: dict[str, list[str]] = {}
    for name in written.names:
        by_lower.setdefault(name.lower(), []).append(name)
    found: dict[str, str] = {}
    for field in table:
        named = [field.name] if field.name in written.names else by_lower.get(field.name.lower(), [])
        if len(named) > 1 or (named and not written.field(named[0]).type.equals(field.type)):
            return None
        if named:
            found[field.name] = named[0]
        elif not field.nullable:
            return None
    return found if set(found.values()) == set(written.names) and len(found) == len(written.names) else None


def appended(batch: pa.RecordBatch, table: pa.Schema, sources: dict[str, str]) -> pa.RecordBatch:
    """Return the batch as rows of the table; `sources` is what `matched_by_name` gave."""
    columns = [
        batch.column(sources[field.name]) if field.name in sources else pa.nulls(batch.num_rows, field.type)
        for field in table
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table)


def check_columns(available: pa.Schema, wanted: spark.StructType, where: str) -> None:
    """A projection can only name what is there. `where` is the channel or topic, for the error."""
    for field in wanted:
        if field.name not in available.names:
            near = difflib.get_close_matches(field.name, available.names, n=1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SchemaMismatch(
                f"{where} has no column {field.name!r}{hint} It has: {', '.join(available.names)}",
                column=field.name,
            )


def _cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    column = batch.column(field.name)
    if column.type.equals(field.type):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"column {field.name!r} is {column.type} and cannot be read as {field.type}: {error}", column=field.name
        ) from None


def _uncarried(kind: spark.DataType, path: str) -> Iterator[tuple[str, spark.DataType]]:
    """Every part of a type that Arrow has no place for, with its path."""
    if isinstance(kind, spark.StructType):
        for field in kind:
            yield from _uncarried(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, spark.ArrayType):
        yield from _uncarried(kind.elementType, f"{path}[]")
    elif isinstance(kind, spark.MapType):
        yield from _uncarried(kind.keyType, f"{path}.key")
        yield from _uncarried(kind.valueType, f"{path}.value")
    elif type(kind) not in _CARRIED or (isinstance(kind, spark.StringType) and not kind.isUTF8BinaryCollation()):
        yield path, kind


def _nullable(kind: Any) -> Any:
    if isinstance(kind, spark.StructType):
        return spark.StructType([spark.StructField(f.name, _nullable(f.dataType), True) for f in kind])
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, spark.MapType):
        return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


def _foreign(field: pa.Field, path: str) -> Iterator[tuple[str, pa.DataType]]:
    kind = _decoded(field.type)
    nested = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if nested:
        yield from _foreign(kind.value_field, f"{path}[]")
    elif pa.types.is_map(kind):
        yield from _foreign(kind.key_field, f"{path}.key")
        yield from _foreign(kind.item_field, f"{path}.value")
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _foreign(kind.field(index), f"{path}.{kind.field(index).name}")
    elif not _is_of_spark(kind):
        yield path, kind


def _is_of_spark(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.bit_width == 128)
    try:
        from_arrow_type(kind)
    except PySparkException:
        return False
    return True


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _listed(found: list[str]) -> str:
    return "column " + ", ".join(found) if len(found) == 1 else "columns " + ", ".join(found)
