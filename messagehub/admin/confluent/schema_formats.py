"""Other forms of a registered schema, asked for as `format=`; each type has its own.

AVRO      resolved           one text: what it refers to stands where it is first named
PROTOBUF  serialized         a FileDescriptorProto in base64
PROTOBUF  ignore_extensions  the canonical text without `extend` blocks
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from messagehub.admin.errors import HttpError
from registry.formats import avro, protobuf
from registry.formats.protobuf.model import Message
from registry.formats.protobuf.rendering import render
from registry.records import SchemaType

PLAIN = ("", "default")
References = Mapping[str, str]


def formatted(schema_type: SchemaType, text: str, references: References, wanted: str) -> str:
    forms = _FORMS.get(schema_type, {})
    if wanted in PLAIN:
        return text
    if wanted not in forms:
        known = ", ".join(["default", *forms])
        raise HttpError(422, 422, f"{schema_type} schemas have the formats {known}, not {wanted[:40]!r}")
    return forms[wanted](text, references)


def _resolved(text: str, references: References) -> str:
    """Return one text with all references in it.

    Every type has its full name, so that it means the same wherever it is.
    """
    definitions: dict[str, Any] = {}
    for other in references.values():
        _collect(msgspec.json.decode(avro.parse(other, references).canonical), definitions)
    parsed = msgspec.json.decode(avro.parse(text, references).canonical)
    return msgspec.json.encode(_inlined(parsed, definitions, set())).decode()


def _collect(shape: Any, definitions: dict[str, Any]) -> None:
    if isinstance(shape, dict):
        if "name" in shape:
            definitions.setdefault(shape["name"], shape)
        for part in _parts(shape):
            _collect(part, definitions)
    elif isinstance(shape, list):
        for branch in shape:
            _collect(branch, definitions)


def _parts(shape: dict[str, Any]) -> list[Any]:
    return [field["type"] for field in shape.get("fields", ())] + [
        shape[part] for part in ("items", "values") if part in shape
    ]


def _inlined(shape: Any, definitions: Mapping[str, Any], seen: set[str]) -> Any:
    match shape:
        case list():
            return [_inlined(branch, definitions, seen) for branch in shape]
        case str():
            if shape not in definitions or shape in seen:
                return shape
            return _inlined(definitions[shape], definitions, seen)
        case {"name": str() as name}:
            if name in seen:
                return name
            seen.add(name)
            made = shape if "." in name else {**shape, "namespace": ""}
            if "fields" in shape:
                fields = [{**f, "type": _inlined(f["type"], definitions, seen)} for f in shape["fields"]]
                made = {**made, "fields": fields}
            return made
    return {
        key: _inlined(value, definitions, seen) if key in ("items", "values") else value for key, value in shape.items()
    }


def _serialized(text: str, references: References) -> str:
    return protobuf.serialized(protobuf.parse(text, references))


def _without_extensions(text: str, references: References) -> str:
    file = protobuf.parse(text, references).linked.file
    messages = [_plain(message) for message in file.messages]
    return render(msgspec.structs.replace(file, extends=[], messages=messages))


def _plain(message: Message) -> Message:
    nested = [_plain(inner) for inner in message.messages]
    return msgspec.structs.replace(message, extends=[], messages=nested)


_FORMS: dict[SchemaType, dict[str, Callable[[str, References], str]]] = {
    "AVRO": {"resolved": _resolved},
    "PROTOBUF": {"serialized": _serialized, "ignore_extensions": _without_extensions},
}
