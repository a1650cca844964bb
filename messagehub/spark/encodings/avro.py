"""Avro payloads, by fastavro."""

import io
import json
from collections.abc import Iterator
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from messagehub.spark.encodings import NotDecoded, Registered
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
_WIDER: Final = (({"int", "long"}, "long"), ({"float", "double"}, "double"))


class AvroEncoding:
    def __init__(self, schema: Registered) -> None:
        self._schema = schema
        self._parsed = _parsed(schema)
        self.type = _Types().of(self._parsed)
        self._writers = {schema.schema_id: self._parsed}

    def decode(self, body: bytes, writer: Registered) -> Any:
        written = self._writers.get(writer.schema_id)
        if written is None:
            written = self._writers[writer.schema_id] = _parsed(writer)
        source = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, written, self._parsed if written is not self._parsed else None)
        except Exception as error:  # noqa: BLE001  fastavro raises whatever its reading of foreign bytes comes to
            raise NotDecoded(f"it is no Avro of schema {writer.schema_id}: {error!r}") from None
        if source.tell() != len(body):
            raise NotDecoded(f"{len(body) - source.tell()} bytes follow its end")
        return value

    def encode(self, value: Any) -> bytes:
        target = io.BytesIO()
        try:
            fastavro.schemaless_writer(target, self._parsed, value, strict=True)
        except Exception as error:  # noqa: BLE001  and whatever a value leads it to
            raise NotDecoded(f"the schema does not take it: {error}") from None
        return target.getvalue()


def _parsed(schema: Registered) -> Any:
    """As fastavro takes it: in one piece, with each schema that it refers to where its name first stands."""
    others = {_full_name(found): found for found in map(json.loads, schema.references.values())}
    try:
        return fastavro.parse_schema(_carried(_inlined(json.loads(schema.text), others, "")))
    except (SchemaParseException, UnknownType) as error:
        raise UnsupportedColumn(f"schema {schema.schema_id} cannot be used by fastavro: {error!r}") from None


def _full_name(schema: Any, namespace: str = "") -> str:
    if not isinstance(schema, dict) or "name" not in schema:
        return ""
    name, space = schema["name"], schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _inlined(schema: Any, others: dict[str, Any], namespace: str) -> Any:
    """`others` loses what was put into its place: from then on its name is enough."""
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


def _carried(schema: Any) -> Any:
    """Without the logical types that have no Spark type: their values are those of the type beneath."""
    if isinstance(schema, list):
        return [_carried(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _carried(value)
        for name, value in schema.items()
        if not (name == "logicalType" and value not in (*_LOGICAL, "decimal"))
    }


class _Types:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def of(self, schema: Any, path: str = "the payload") -> pa.DataType:
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
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind in ("record", "error"):
            return self._record(schema, path)
        if kind == "array":
            return pa.list_(self.of(schema["items"], f"{path}[]"))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], f"{path}[]"))
        return self._primitive(kind, path)

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
