"""JSON payloads: an object's properties are columns. What has no one type is a column of JSON text."""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jsonschema_rs
import msgspec
import pyarrow as pa

from messagehub.spark.encodings.payloads import Encoding, InvalidPayload, Registered, check_count
from messagehub.spark.errors import UnsupportedColumn

_Convert = Callable[[Any], Any]
_SCALARS: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_decode = msgspec.json.Decoder().decode
_encoder = msgspec.json.Encoder()
_AMBIGUOUS: Final = ("oneOf", "anyOf", "allOf", "if", "patternProperties")


class _Column(NamedTuple):
    type: pa.DataType
    decode: _Convert
    """From the value of JSON to that of Arrow."""
    encode: _Convert
    """And back."""


class JsonEncoding(Encoding):
    def __init__(self, schema: Registered) -> None:
        document = json.loads(schema.text)
        if not isinstance(document, dict):
            raise UnsupportedColumn(f"schema {schema.schema_id} says nothing about columns: it is {schema.text}")
        self.type, self._to_arrow, self._from_arrow = _Types(document, schema.references).of(document, document, ())
        self._validator = None if schema.references else jsonschema_rs.validator_for(document)

    def decode(self, body: bytes, writer: Registered, *, has_id: bool = True) -> Any:  # noqa: ARG002  JSON names its members
        try:
            value = _decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidPayload(f"it is no JSON: {error}") from None
        try:
            return self._to_arrow(value)
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidPayload(f"it is not what its schema says: {error}") from None

    def encode(self, value: Any, *, has_id: bool = True) -> bytes:  # noqa: ARG002  the same either way
        """A schema that refers to others is not checked: they are not here in full."""
        try:
            body = _encoder.encode(self._from_arrow(value))
            if self._validator is not None:
                self._validator.validate(_decode(body))
        except (TypeError, ValueError, msgspec.DecodeError, jsonschema_rs.ValidationError) as error:
            raise InvalidPayload(f"the schema does not take it: {error}") from None
        return body


class _Types:
    """Arrow types of schemas, and functions that bring values from one form into the other."""

    def __init__(self, document: Any, references: Mapping[str, str]) -> None:
        self._documents = {name: json.loads(text) for name, text in references.items()} | {"": document}
        self._counter = itertools.count(1)

    def of(self, schema: Any, document: Any, open_: tuple[int, ...]) -> _Column:
        check_count(next(self._counter))
        if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            schema, document = self._resolved(schema["$ref"], document)
        if not isinstance(schema, dict) or id(schema) in open_ or any(word in schema for word in _AMBIGUOUS):
            return _TEXT
        kinds = schema.get("type", "object" if "properties" in schema else None)
        others = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
        kind = others[0] if len(others) == 1 else "number" if set(others) == {"integer", "number"} else None
        if kind in _SCALARS:
            return _Column(_SCALARS[kind], _same, _same)
        inside = (*open_, id(schema))
        if kind == "array" and isinstance(schema.get("items"), dict):
            item = self.of(schema["items"], document, inside)
            return _Column(pa.list_(item.type), _each(item.decode), _each(item.encode))
        if kind == "object" and schema.get("properties"):
            return self._object(schema, document, inside)
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            item = self.of(schema["additionalProperties"], document, inside)
            return _Column(pa.map_(pa.string(), item.type), _pairs(item.decode), _from_pairs(item.encode))
        return _TEXT

    def _object(self, schema: Any, document: Any, inside: tuple[int, ...]) -> _Column:
        columns = {name: self.of(each, document, inside) for name, each in schema["properties"].items()}
        required = schema.get("required", ())
        return _Column(
            pa.struct([pa.field(name, column.type) for name, column in columns.items()]),
            _members({name: column.decode for name, column in columns.items()}),
            _present_members({name: column.encode for name, column in columns.items()}, set(required)),
        )

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


def _to_text(value: Any) -> str | None:
    return None if value is None else _encoder.encode(value).decode()


def _from_text(text: str | None) -> Any:
    if text is None:
        return None
    _decode(text)  # a text that is no JSON would make the whole payload none
    return msgspec.Raw(text.encode())


_TEXT: Final = _Column(pa.string(), _to_text, _from_text)


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


def _present_members(converts: dict[str, _Convert], required: set[str]) -> _Convert:
    """A member that is null is left out unless it is required."""

    def members(value: Any) -> Any:
        if value is None:
            return None
        found = {name: convert(value[name]) for name, convert in converts.items()}
        return {name: item for name, item in found.items() if item is not None or name in required}

    return members


def _pairs(convert: _Convert) -> _Convert:
    def pairs(value: Any) -> Any:
        return None if value is None else [(name, convert(item)) for name, item in value.items()]

    return pairs


def _from_pairs(convert: _Convert) -> _Convert:
    def entries(value: Any) -> Any:
        return None if value is None else {name: convert(item) for name, item in value}

    return entries
