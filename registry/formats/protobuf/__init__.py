"""Protobuf: .proto source or a base64 FileDescriptorProto, its canonical text, and what breaks readers."""

import hashlib
from collections.abc import Mapping

from registry.formats.differences import Difference, Parsed
from registry.formats.protobuf.comparison import Comparison
from registry.formats.protobuf.descriptor_encoding import encode_descriptor
from registry.formats.protobuf.linking import Linked, link
from registry.formats.protobuf.rendering import render

__all__ = ["ProtobufSchema", "compare", "normalize", "parse", "serialized"]


class ProtobufSchema(Parsed):
    linked: Linked


def parse(text: str, references: Mapping[str, str]) -> ProtobufSchema:
    """References are named by the paths that import statements give."""
    linked = link(text, references)
    canonical = render(linked.file)
    return ProtobufSchema("PROTOBUF", canonical, hashlib.sha256(canonical.encode()).hexdigest(), linked)


def normalize(text: str, references: Mapping[str, str]) -> str:
    return parse(text, references).canonical


def compare(old: Parsed, new: Parsed) -> list[Difference]:
    """Why readers of the new schema cannot take old data; paths are message names and field numbers."""
    if not isinstance(old, ProtobufSchema) or not isinstance(new, ProtobufSchema):
        raise TypeError("protobuf.compare takes two parsed Protobuf schemas")
    return Comparison(old.linked, new.linked).differences()


def serialized(schema: ProtobufSchema, name: str = "default") -> str:
    """The schema as a FileDescriptorProto in base64, which is what `format=serialized` asks for."""
    return encode_descriptor(schema.linked, name)
