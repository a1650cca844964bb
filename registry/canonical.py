"""Text and hash of a schema: equal content gives equal text, so equal hashes."""

import hashlib
from typing import Any

import msgspec

from registry.errors import InvalidSchema


def canonical(schema_type: str, schema: Any) -> tuple[str, str]:
    """The canonical text and its SHA-256 in hex."""
    text = _text(schema_type, schema)
    return text, hashlib.sha256(text.encode()).hexdigest()


def _text(schema_type: str, schema: Any) -> str:
    if schema_type == "PROTOBUF":
        if not isinstance(schema, str) or not schema.strip():
            raise InvalidSchema("a PROTOBUF schema is the text of a .proto file", schema_type=schema_type)
        return schema.strip()
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            if schema_type == "AVRO" and schema.isidentifier():
                return f'"{schema}"'
            raise InvalidSchema(f"the {schema_type} schema is not JSON: {error}", schema_type=schema_type) from None
    if schema_type == "JSON" and not isinstance(schema, dict | bool):
        raise InvalidSchema("a JSON Schema is an object or a boolean", schema_type=schema_type)
    return msgspec.json.encode(schema, order="sorted").decode()
