"""Avro payloads: columns of them where `avro_columns` can, one by one with fastavro where not."""

import io
import json
from collections.abc import Iterator
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from messagehub.spark.encodings.avro_columns import (
    Cursors,
    FieldReader,
    Float,
    Integer,
    NotByColumns,
    Record,
    reader_of,
)
from messagehub.spark.encodings.payload_columns import Mask, PayloadColumn
from messagehub.spark.encodings.payloads import Encoding, InvalidPayload, Registered, check_count
from messagehub.spark.errors import UnsupportedColumn

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
MOST_DIGITS: Final = 38
_PROMOTIONS: Final = (
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.int64(), pa.float64()),
    (pa.float32(), pa.float64()),
)
_WIDER: Final = (({"int", "long"}, "long"), ({"float", "double"}, "double"))


class AvroEncoding(Encoding):
    def __init__(self, schema: Registered) -> None:
        self._schema = schema
        self._parsed = _parsed(schema)
        self.type = _Types().of(self._parsed)
        self._writers = {schema.schema_id: self._parsed}
        self._readers: dict[int, FieldReader | None] = {}

    def decode_columns(self, payloads: PayloadColumn, writer: Registered) -> tuple[pa.Array, Mask] | None:
        reader = self._reader(writer)
        if reader is None:
            return None
        cursors = Cursors(payloads.data, payloads.begins, payloads.ends)
        if writer.schema_id == self._schema.schema_id:
            return reader.read(cursors), cursors.finish()
        if not isinstance(reader, Record):
            return None
        columns = reader.columns(cursors)
        is_accepted = cursors.finish()
        if not is_accepted.any():
            return None
        (first,) = payloads.part(np.flatnonzero(is_accepted)[:1]).to_list()
        try:
            example = pa.array([self.decode(first, writer)], self.type)
        except (InvalidPayload, pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
        return self._as_wanted(columns, example), is_accepted

    def _reader(self, writer: Registered) -> FieldReader | None:
        """Return what reads the payloads of a writer by columns; None where fastavro has to."""
        if writer.schema_id not in self._readers:
            self._readers[writer.schema_id] = self._new_reader(writer)
        return self._readers[writer.schema_id]

    def _new_reader(self, writer: Registered) -> FieldReader | None:
        written = self._written(writer)
        if isinstance(written, str):
            return None
        try:
            wanted = reader_of(self._parsed, self.type)
            reader = wanted if written is self._parsed else reader_of(written, _Types().of(written))
        except NotByColumns:
            return None
        return reader if reader is wanted or _is_read_by_name(reader, wanted, self._parsed) else None

    def _as_wanted(self, columns: dict[str, pa.Array], example: pa.Array) -> pa.Array:
        """Return the columns of this schema: those of the writer and, from an `example`, the defaults of the others."""
        count = len(next(iter(columns.values())))
        found = [
            columns[field.name].cast(field.type, safe=False)
            if field.name in columns
            else pa.repeat(example.field(field.name)[0], count)
            for field in self.type
        ]
        return pa.StructArray.from_arrays(found, fields=list(self.type))

    def _written(self, writer: Registered) -> Any:
        if writer.schema_id not in self._writers:
            self._writers[writer.schema_id] = _checked(writer)
        return self._writers[writer.schema_id]

    def decode(self, body: bytes, writer: Registered, *, has_id: bool = True) -> Any:  # noqa: ARG002  the same either way
        written = self._written(writer)
        if isinstance(written, str):
            raise InvalidPayload(written)
        source = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, written, self._parsed if written is not self._parsed else None)
        except EOFError:
            raise InvalidPayload(f"it ends before a value of schema {writer.schema_id} does") from None
        except Exception as error:  # noqa: BLE001  fastavro raises whatever its reading of foreign bytes comes to
            raise InvalidPayload(f"it is no Avro of schema {writer.schema_id}: {error!r}") from None
        if source.tell() != len(body):
            raise InvalidPayload(f"{len(body) - source.tell()} bytes follow its end")
        return value

    def encode(self, value: Any, *, has_id: bool = True) -> bytes:  # noqa: ARG002  the same either way
        target = io.BytesIO()
        try:
            fastavro.schemaless_writer(target, self._parsed, _with_dicts(value, self.type), strict=True)
        except Exception as error:  # noqa: BLE001  and whatever a value leads it to
            raise InvalidPayload(f"the schema does not take it: {error}") from None
        return target.getvalue()


def _is_read_by_name(written: FieldReader, wanted: FieldReader, parsed: Any) -> bool:
    """Whether records differ in nothing but fields that the other lacks, and numbers that only become wider."""
    if not isinstance(written, Record) or not isinstance(wanted, Record):
        return False
    if any("aliases" in field for field in parsed["fields"]):
        return False
    before = dict(written.members)
    return all(
        name not in before or before[name] == reader or (_number(before[name]), _number(reader)) in _PROMOTIONS
        for name, reader in wanted.members
    )


def _number(reader: FieldReader) -> pa.DataType | None:
    return reader.type if isinstance(reader, Integer | Float) else None


def _checked(writer: Registered) -> Any:
    """Return the schema of a writer or, where payloads of it cannot be read safely, why.

    fastavro reads records that contain themselves as deep as a payload says, and items without a size as often.
    """
    try:
        parsed = _parsed(writer)
        _Types().of(parsed)
    except UnsupportedColumn as refused:
        return f"its schema {writer.schema_id} cannot be used: {refused.message}"
    return parsed


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Arrow with its maps as dicts."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {name: _with_dicts(item, kind.item_type) for name, item in value}
    if pa.types.is_list(kind):
        return [_with_dicts(item, kind.value_type) for item in value]
    return value


def _parsed(schema: Registered) -> Any:
    """As fastavro takes it: in one piece, with each schema that it refers to where its name first stands."""
    others = {_full_name(found): found for found in map(json.loads, schema.references.values())}
    try:
        whole = _inlined(json.loads(schema.text), others, "")
        return fastavro.parse_schema(_without_unsupported_logical_types(whole))
    except (SchemaParseException, UnknownType) as error:
        raise UnsupportedColumn(f"schema {schema.schema_id} cannot be used by fastavro: {error!r}") from None


def _full_name(schema: Any, namespace: str = "") -> str:
    if not isinstance(schema, dict) or "name" not in schema:
        return ""
    name, space = schema["name"], schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _inlined(schema: Any, others: dict[str, Any], namespace: str) -> Any:
    """Replace the first use of each name in `others` by its schema and remove it there; later uses keep the name."""
    if isinstance(schema, str):
        name = schema if schema in others else f"{namespace}.{schema}"
        return _inlined(others.pop(name), others, "") if name in others else schema
    if isinstance(schema, list):
        return [_inlined(each, others, namespace) for each in schema]
    found = dict(schema)
    if "name" in schema:
        namespace = _full_name(schema, namespace).rpartition(".")[0]
    for part in ("type", "items", "values"):
        if part in schema:
            found[part] = _inlined(schema[part], others, namespace)
    if "fields" in schema:
        found["fields"] = [field | {"type": _inlined(field["type"], others, namespace)} for field in schema["fields"]]
    return found


def _without_unsupported_logical_types(schema: Any) -> Any:
    """Remove logical types that Spark has no type for: their values are those of the type beneath."""
    if isinstance(schema, list):
        return [_without_unsupported_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_unsupported_logical_types(value)
        for name, value in schema.items()
        if not (name == "logicalType" and value not in (*_LOGICAL, "decimal"))
    }


class _Types:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self._count = 0

    def of(self, schema: Any, path: str = "the payload") -> pa.DataType:
        self._count += 1
        check_count(self._count)
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            return self._primitive(schema, path)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, path)
        if "name" in schema:
            self._named[schema["name"]] = schema
        logical = schema.get("logicalType")
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if logical == "decimal":
            if not 1 <= schema["precision"] <= MOST_DIGITS:
                raise UnsupportedColumn(f"{path} is a decimal of over {MOST_DIGITS} digits: Spark has no type for that")
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind in ("record", "error"):
            return self._record(schema, path)
        if kind == "array":
            item = self.of(schema["items"], f"{path}[]")
            if self._has_no_size(schema["items"]):
                raise UnsupportedColumn(
                    f"{path} has items without content: a few bytes could say that there are billions"
                )
            return pa.list_(item)
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], f"{path}[]"))
        return self._primitive(kind, path)

    def _has_no_size(self, schema: Any) -> bool:
        """Whether values of a schema that was looked at may take no byte."""
        if isinstance(schema, list):
            return False  # the number of the member comes first
        if isinstance(schema, str):
            return schema == "null" or (schema in self._named and self._has_no_size(self._named[schema]))
        kind = schema["type"]
        if kind in ("record", "error"):
            return all(self._has_no_size(field["type"]) for field in schema["fields"])
        return schema.get("size") == 0 if kind == "fixed" else self._has_no_size(kind)

    def _primitive(self, name: str, path: str) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        return self.of(self._named[name], path)

    def _record(self, schema: Any, path: str) -> pa.DataType:
        if schema["name"] in self._open:
            raise UnsupportedColumn(f"{path} contains itself ({schema['name']}): Spark has no type for that")
        self._open.append(schema["name"])
        fields = list(self._fields(schema, path))
        self._open.pop()
        return pa.struct(fields)

    def _fields(self, schema: Any, path: str) -> Iterator[pa.Field]:
        for field in schema["fields"]:
            yield pa.field(field["name"], self.of(field["type"], f"{path}.{field['name']}"))

    def _union(self, members: list[Any], path: str) -> pa.DataType:
        others = [member for member in members if member != "null"]
        if not others:
            return pa.null()
        if len(others) == 1:
            return self.of(others[0], path)
        for kinds, wider in _WIDER:
            if all(isinstance(member, str) and member in kinds for member in others):
                return _PRIMITIVES[wider]
        raise UnsupportedColumn(f"{path} is a union of several types: Spark has no type for that")
