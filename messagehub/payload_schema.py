"""What a producer's `schema=` means: how payloads get into slots, and the hash that readers compare.

Equal schemas have equal hashes on every host. An Arrow schema hashes as the registry hashes it, so it can be kept
there; NumPy and raw descriptions hash under their own names, so that they never equal one of another kind.
"""

import hashlib
from typing import Any, NamedTuple

import msgspec

from messagehub.datablock.layout import PayloadFormat
from messagehub.datablock.payloads import Codec, codec_for, is_arrow
from messagehub.errors import ConfigurationError
from registry.formats import arrow
from registry.records import SchemaType


class PayloadSchema(NamedTuple):
    codec: Codec
    schema_hash: str
    schema: str | None = None
    schema_type: SchemaType | None = None

    @property
    def format(self) -> str:
        return self.codec.payload_format.name.lower()


def payload_schema(schema: Any, schema_hash: str | None = None, *, split_rows: bool = False) -> PayloadSchema:
    """None is raw bytes, for which the hash may be any agreed text; else an Arrow schema or a NumPy dtype."""
    if split_rows and not is_arrow(schema):
        raise ConfigurationError("split_rows is for an Arrow schema: other payloads have no rows to split by")
    codec = codec_for(schema, split_rows=split_rows)
    if codec.payload_format == PayloadFormat.RAW:
        return PayloadSchema(codec, schema_hash or _hash({"payload": "raw"}))
    if schema_hash is not None:
        raise ConfigurationError("schema_hash is for raw bytes: an Arrow schema or a dtype has a hash of its own")
    if codec.payload_format == PayloadFormat.NUMPY:
        return PayloadSchema(codec, _hash({"payload": "numpy", "dtype": codec.description.decode()}))
    text = arrow.from_arrow(schema)
    return PayloadSchema(codec, arrow.parse(text, {}).hash, text, "ARROW")


def hash_of(expected: Any) -> str:
    """The hash of what a consumer expects: a schema as producers give it, or the hash itself."""
    return expected if isinstance(expected, str) else payload_schema(expected).schema_hash


def _hash(description: dict[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(description, order="sorted")).hexdigest()
