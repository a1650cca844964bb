"""Payloads in the formats of the registry, as values of Arrow types and back.

Each format has a class with the members of `Encoding`. It is made for one schema, which says what the columns are;
payloads may have been written with another version of it.

Payloads are input: whatever their bytes are, and whichever registered schema they name, decoding them returns a value
or raises InvalidPayload.
"""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from messagehub.spark.errors import UnsupportedColumn
from registry.records import SchemaType

if TYPE_CHECKING:
    from messagehub.spark.encodings.payload_columns import Mask, PayloadColumn

MAGIC = 0
MOST_FIELDS = 10_000
"""Types are expanded where they are used: a small schema could have more columns than anybody can read."""
_HEAD = struct.Struct(">bI")
HEAD_BYTES = _HEAD.size


class Registered(NamedTuple):
    """A schema of the registry, with the texts that it refers to."""

    schema_id: int
    schema_type: SchemaType
    text: str
    references: Mapping[str, str]


class InvalidPayload(ValueError):
    """A payload is not what its schema says, or a value is not one of its schema. The text says why."""


class Encoding(Protocol):
    type: pa.DataType
    """Of the values that `decode` returns."""

    def decode_columns(self, payloads: "PayloadColumn", writer: Registered) -> "tuple[pa.Array, Mask] | None":  # noqa: ARG002  where a format can
        """Return a value for each payload, and for which of them it is what `decode` returns; None where for none."""
        return None

    def decode(self, body: bytes, writer: Registered, *, has_id: bool = True) -> Any:
        """Return the value of a payload that was written with `writer`. `has_id`: an id stood before it."""

    def encode(self, value: Any, *, has_id: bool = True) -> bytes:
        """Return the payload of a value of this type, as `pa.Array.to_pylist` gives it."""


def check_count(count: int) -> None:
    if count > MOST_FIELDS:
        raise UnsupportedColumn(f"the schema has over {MOST_FIELDS} fields, counted wherever they are used")


def framed(schema_id: int, body: bytes) -> bytes:
    """As serializers of Confluent's registry write it: a zero byte, the id of the schema, the payload."""
    return _HEAD.pack(MAGIC, schema_id) + body


def unframed(payload: bytes) -> tuple[int, bytes]:
    """Return the id of the schema and what follows it."""
    if len(payload) < _HEAD.size or payload[0] != MAGIC:
        raise InvalidPayload("it does not begin with a zero byte and the id of a schema")
    return _HEAD.unpack_from(payload)[1], payload[_HEAD.size :]
