"""What a producer's `schema=` means: how payloads get into slots, and the hash that readers compare.

Equal schemas have equal hashes on every host. An Arrow schema hashes as the registry hashes it, so it can be kept
there; a NumPy dtype is registered as the Arrow schema that it maps to. Raw bytes, and a dtype that Arrow has no type
for (complex numbers), hash under names of their own, so that they never equal one of another kind, and stay unverified.
"""

import hashlib
from typing import Any, NamedTuple

import msgspec

from messagehub.errors import ConfigurationError
from messagehub.shm.layout import PayloadFormat
from messagehub.shm.payloads import Codec, NumpyCodec, codec_for, is_arrow
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


def payload_schema(
    schema: Any, schema_hash: str | None = None, *, split_rows: bool = False, name: str = "schema"
) -> PayloadSchema:
    """None is raw bytes, for which the hash may be any agreed text; else an Arrow schema or a NumPy dtype."""
    if split_rows and not is_arrow(schema):
        raise ConfigurationError("split_rows is for an Arrow schema: other payloads have no rows to split by")
    codec = codec_for(schema, split_rows=split_rows, name=name)
    if codec.payload_format == PayloadFormat.RAW:
        return PayloadSchema(codec, schema_hash or _hash({"payload": "raw"}))
    if schema_hash is not None:
        raise ConfigurationError("schema_hash is for raw bytes: an Arrow schema or a dtype has a hash of its own")
    if isinstance(codec, NumpyCodec):
        schema = arrow_schema(codec.dtype)
        if schema is None:
            return PayloadSchema(codec, _hash({"payload": "numpy", "dtype": codec.description.decode()}))
    text = arrow.from_arrow(schema)
    return PayloadSchema(codec, arrow.parse(text, {}).hash, text, "ARROW")


def arrow_schema(dtype: Any) -> Any:
    """The Arrow schema whose columns hold what the dtype does: one a field, or `value`; None where Arrow has no type.

    Arrays have no nulls, so no column is nullable.
    """
    import pyarrow as pa

    names = dtype.names or ("value",)
    try:
        return pa.schema([_column(name, dtype.fields[name][0] if dtype.names else dtype) for name in names])
    except pa.ArrowException:
        return None


def _column(name: str, dtype: Any) -> Any:
    import pyarrow as pa

    return pa.field(name, _arrow_type(dtype), nullable=False)


def _arrow_type(dtype: Any) -> Any:
    import pyarrow as pa

    if dtype.subdtype is not None:
        kind, shape = dtype.subdtype
        found = _arrow_type(kind)
        for size in reversed(shape):
            found = pa.list_(pa.field("item", found, nullable=False), size)
        return found
    if dtype.names:
        return pa.struct([_column(name, dtype.fields[name][0]) for name in dtype.names])
    if dtype.kind in "SV":
        return pa.binary(dtype.itemsize)
    if dtype.kind == "U":
        return pa.string()
    return pa.from_numpy_dtype(dtype.newbyteorder("="))


def given_schema(expected: Any) -> Any:
    """The Arrow schema or dtype that a consumer expects; None where it names only a hash, or expects raw bytes."""
    return None if expected is None or isinstance(expected, str) else codec_for(expected, name="expected_schema").schema


def hash_of(expected: Any) -> str:
    """The hash of what a consumer expects: a schema as producers give it, or the hash itself."""
    return expected if isinstance(expected, str) else payload_schema(expected, name="expected_schema").schema_hash


def _hash(description: dict[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(description, order="sorted")).hexdigest()
