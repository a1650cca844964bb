"""JSON payloads: an object's properties are columns. What has no one type is a column of JSON text."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from messagehub.spark.encodings import NotDecoded, Registered
from messagehub.spark.errors import UnsupportedColumn

_Convert = Callable[[Any], Any]
_SCALARS: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_decode = msgspec.json.Decoder().decode
_encoder = msgspec.json.Encoder(decimal_format="number")
_AMBIGUOUS: Final = ("oneOf", "anyOf", "allOf", "if", "patternProperties")


class JsonEncoding:
    def __init__(self, schema: Registered) -> None:
        document = json.loads(schema.text)
        if not isinstance(document, dict):
            raise UnsupportedColumn(f"schema {schema.schema_id} says nothing about columns: it is {schema.text}")
        self.type, self._convert = _Types(document, schema.references).of(document, document, ())

    def decode(self, body: bytes, writer: Registered) -> Any:  # noqa: ARG002  JSON names its members itself
        try:
            value = _decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NotDecoded(f"it is no JSON: {error}") from None
        try:
            return self._convert(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise NotDecoded(f"it is not what its schema says: {error}") from None

    def encode(self, value: Any) -> bytes:
        try:
            return _encoder.encode(value)
        except (TypeError, ValueError) as error:
            raise NotDecoded(f"it is no JSON: {error}") from None


class _Types:
    """Arrow types of schemas, and functions that bring values into their form."""

    def __init__(self, document: Any, references: Mapping[str, str]) -> None:
        self._documents = {name: json.loads(text) for name, text in references.items()} | {"": document}

    def of(self, schema: Any, document: Any, open_: tuple[int, ...]) -> tuple[pa.DataType, _Convert]:
        if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            schema, document = self._resolved(schema["$ref"], document)
        if not isinstance(schema, dict) or id(schema) in open_ or any(word in schema for word in _AMBIGUOUS):
            return pa.string(), _text
        kinds = schema.get("type", "object" if "properties" in schema else None)
        others = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
        kind = others[0] if len(others) == 1 else "number" if set(others) == {"integer", "number"} else None
        if kind in _SCALARS:
            return _SCALARS[kind], _same
        inside = (*open_, id(schema))
        if kind == "array" and isinstance(schema.get("items"), dict):
            item, convert = self.of(schema["items"], document, inside)
            return pa.list_(item), _each(convert)
        if kind == "object" and schema.get("properties"):
            columns = {name: self.of(each, document, inside) for name, each in schema["properties"].items()}
            fields = [pa.field(name, found[0]) for name, found in columns.items()]
            return pa.struct(fields), _members({name: found[1] for name, found in columns.items()})
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            value, convert = self.of(schema["additionalProperties"], document, inside)
            return pa.map_(pa.string(), value), _entries(convert)
        return pa.string(), _text

    def _resolved(self, reference: str, document: Any) -> tuple[Any, Any]:
        """Inside of the document, or of one that it refers to by name; None where it leads nowhere we know."""
        name, _, pointer = reference.partition("#")
        found = document = self._documents.get(name) if name else document
        for step in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found, document


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else _encoder.encode(value).decode()


def _each(convert: _Convert) -> _Convert:
    def each(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise TypeError(f"{value!r:.80} is no array")
        return value if convert is _same else [convert(item) for item in value]

    return each


def _members(converts: dict[str, _Convert]) -> _Convert:
    def members(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"{value!r:.80} is no object")
        get = value.get
        return {name: convert(get(name)) for name, convert in converts.items()}

    return members


def _entries(convert: _Convert) -> _Convert:
    def entries(value: Any) -> Any:
        return None if value is None else [(name, convert(item)) for name, item in value.items()]

    return entries
