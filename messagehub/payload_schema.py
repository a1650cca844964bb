"""What a producer's `schema=` means: how payloads get into slots, and the hash that readers compare.

Equal schemas have equal hashes on every host. An Arrow schema hashes as the registry hashes it, so it can be kept
there; NumPy and raw descriptions hash under their own names, so that they never equal one of another kind.
"""

from typing import Any, NamedTuple

from messagehub.datablock.layout import PayloadFormat
from messagehub.datablock.payloads import Codec, codec_for
from registry.canonical import canonical
from registry.records import SchemaType


class PayloadSchema(NamedTuple):
    codec: Codec
    schema_hash: str
    schema: dict[str, Any] | None = None
    schema_type: SchemaType | None = None

    @property
    def format(self) -> str:
        return self.codec.payload_format.name.lower()


def payload_schema(schema: Any, schema_hash: str | None = None) -> PayloadSchema:
    """None is raw bytes, for which the hash may be any agreed text; else an Arrow schema or a NumPy dtype."""
    codec = codec_for(schema)
    match codec.payload_format:
        case PayloadFormat.RAW:
            return PayloadSchema(codec, schema_hash or canonical("JSON", {"payload": "raw"})[1])
        case PayloadFormat.NUMPY:
            return PayloadSchema(
                codec, _own_hash(schema_hash, {"payload": "numpy", "dtype": codec.description.decode()})
            )
    description = arrow_description(schema)
    digest = canonical("ARROW", description)[1]
    if schema_hash not in (None, digest):
        raise ValueError("schema_hash is for raw payloads; an Arrow schema has its own")
    return PayloadSchema(codec, digest, description, "ARROW")


def hash_of(expected: Any) -> str:
    """The hash of what a consumer expects: a schema as producers give it, or the hash itself."""
    return expected if isinstance(expected, str) else payload_schema(expected).schema_hash


def arrow_description(schema: Any) -> dict[str, Any]:
    """Names, types and nullability decide; metadata that no reader needs does not."""
    return {"fields": [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]}


def _own_hash(claimed: str | None, description: dict[str, Any]) -> str:
    if claimed is not None:
        raise ValueError("schema_hash is for raw payloads; a dtype has its own")
    return canonical("JSON", description)[1]
