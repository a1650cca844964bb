"""FileDescriptorProto in base64, the form in which many serializers send and ask for Protobuf schemas."""

import base64
import binascii
import re

from registry.formats.differences import BudgetExceeded, InvalidSchema, TooLarge
from registry.formats.protobuf import descriptor_options as options
from registry.formats.protobuf.cursor import MAX_NESTING
from registry.formats.protobuf.grammar import EDITIONS
from registry.formats.protobuf.model import (
    SCALARS,
    Enum,
    EnumValue,
    Extend,
    ExtensionRange,
    Field,
    File,
    Import,
    Message,
    Method,
    Oneof,
    Option,
    ServiceType,
)
from registry.formats.protobuf.tokens import MAX_TEXT_BYTES, quote, unquote
from registry.formats.protobuf.wire import Part

BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}\Z")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
TYPE_NAME = re.compile(r"\.?[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
PLAIN_VALUE = re.compile(r"-?[A-Za-z0-9_.+\-]+\Z")
# In the order of FieldDescriptorProto.Type, which begins at 1.
TYPES = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group"),
    *("message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
SCALAR_TYPES = {(kind,) for kind in TYPES if kind in SCALARS}
LABELS = {1: "optional", 2: "required", 3: "repeated"}
EDITION_NUMBERS = {1000 + index: edition for index, edition in enumerate(EDITIONS)}
MAP_ENTRY = 7


def decode_descriptor(text: str) -> File | None:
    """The file that the text encodes, or None when the text is not base64 at all."""
    text = text.strip()
    if not BASE64.match(text):
        return None
    if len(text) > MAX_TEXT_BYTES:
        raise TooLarge("schema text bytes", MAX_TEXT_BYTES)
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidSchema(f"the text is neither .proto source nor base64: {error}") from None
    return _file(Part(data))


def _name(value: str, pattern: re.Pattern[str] = NAME) -> str:
    if not pattern.match(value):
        raise InvalidSchema(f"{quote(value)} in the descriptor is not a name")
    return value


def _file(part: Part) -> File:
    syntax = part.text(12) or "proto2"
    if syntax not in ("proto2", "proto3", "editions"):
        raise InvalidSchema(f"the descriptor has an unknown syntax {quote(syntax)}")
    file = File(syntax, package=part.text(2) and _name(part.text(2), TYPE_NAME))
    if syntax == "editions":
        file.edition = EDITION_NUMBERS.get(part.integer(14), "")
        if not file.edition:
            raise InvalidSchema(f"the descriptor has an unknown edition {part.integer(14)}")
    public, weak = set(part.integers(10)), set(part.integers(11))
    for index, name in enumerate(part.texts(3)):
        if not name.isprintable():
            raise InvalidSchema(f"{quote(name)} in the descriptor is not printable text")
        file.imports.append(Import(name, "public" if index in public else "weak" if index in weak else ""))
    file.messages = [_message(item, syntax, 1) for item in part.parts(4)]
    file.enums = [_enum(item) for item in part.parts(5)]
    file.services = [_service(item) for item in part.parts(6)]
    file.extends = _extends(part.parts(7), syntax)
    file.options = options.decode_options(part.part(8), options.FILE)
    return file


def _message(part: Part, syntax: str, depth: int) -> Message:
    if depth > MAX_NESTING:
        raise BudgetExceeded("schema nesting", MAX_NESTING)
    message = Message(_name(part.text(1)))
    nested = part.parts(3)
    entries = {}
    for item in nested:
        if item.part(7).integer(MAP_ENTRY):
            entries[item.text(1)] = [_field(field, syntax) for field in item.parts(2)]
    message.messages = [_message(item, syntax, depth + 1) for item in nested if not item.part(7).integer(MAP_ENTRY)]
    oneofs = [Oneof(_name(item.text(1)), options.decode_options(item.part(2), options.ONEOF)) for item in part.parts(8)]
    for item in part.parts(2):
        field = _map_field(_field(item, syntax), entries)
        index = item.integer(9, -1)
        if index >= 0 and not item.integer(17):
            if index >= len(oneofs):
                raise InvalidSchema(f'"{field.name}" in the descriptor belongs to no oneof')
            field.oneof = oneofs[index].name
            field.label = "" if field.label == "optional" else field.label
        message.fields.append(field)
    used = {field.oneof for field in message.fields}
    message.oneofs = [oneof for oneof in oneofs if oneof.name in used]
    message.enums = [_enum(item) for item in part.parts(4)]
    message.extends = _extends(part.parts(6), syntax)
    message.extension_ranges = [
        ExtensionRange(
            item.integer(1),
            item.integer(2) - 1,
            options.decode_options(item.part(3), options.EXTENSION_RANGE),
        )
        for item in part.parts(5)
    ]
    message.reserved = [(item.integer(1), item.integer(2) - 1) for item in part.parts(9)]
    message.reserved_names = [_reserved_name(name) for name in part.texts(10)]
    message.options = options.decode_options(part.part(7), options.MESSAGE)
    return message


def _reserved_name(name: str) -> str:
    if not name.isprintable():
        raise InvalidSchema(f"{quote(name)} in the descriptor is not printable text")
    return name


def _map_field(field: Field, entries: dict[str, list[Field]]) -> Field:
    """A map is written as a repeated nested message that is marked as an entry."""
    pair = entries.get(field.type.rpartition(".")[2], [])
    if field.label == "repeated" and len(pair) == 2:
        field.key, field.type, field.label = pair[0].type, pair[1].type, ""
    return field


def _field(part: Part, syntax: str) -> Field:
    code = part.integer(5)
    named = part.text(6)
    if not named and TYPES[code - 1 : code] not in SCALAR_TYPES:
        raise InvalidSchema(f"the descriptor has a field of unknown type {code}")
    kind = _name(named, TYPE_NAME) if named else TYPES[code - 1]
    label = LABELS.get(part.integer(4), "")
    if label == "optional" and syntax != "proto2" and not part.integer(17):
        label = ""
    field = Field(_name(part.text(1)), part.integer(3), kind, label)
    field.is_group = bool(named) and TYPES[code - 1 : code] == ("group",)
    field.options = options.decode_options(part.part(8), options.FIELD)
    if part.fields.get(7):
        field.options.append(Option("default", _default(part.text(7), kind)))
    if part.text(10):
        field.options.append(Option("json_name", quote(part.text(10))))
    if field.is_group and syntax == "editions":
        field.is_group = False
    return field


def _default(value: str, kind: str) -> str:
    if kind == "string":
        return quote(value)
    if kind == "bytes":
        return quote(unquote(f'"{value}"'))
    return _name(value, PLAIN_VALUE)


def _extends(parts: list[Part], syntax: str) -> list[Extend]:
    """Extensions stand singly in descriptors; those of one message are one block again."""
    extends: dict[str, Extend] = {}
    for part in parts:
        extendee = _name(part.text(2), TYPE_NAME)
        extends.setdefault(extendee, Extend(extendee)).fields.append(_field(part, syntax))
    return list(extends.values())


def _enum(part: Part) -> Enum:
    enum = Enum(_name(part.text(1)))
    for item in part.parts(2):
        value_options = options.decode_options(item.part(3), options.ENUM_VALUE)
        enum.values.append(EnumValue(_name(item.text(1)), item.integer(2), value_options))
    enum.options = options.decode_options(part.part(3), options.ENUM)
    enum.reserved = [(item.integer(1), item.integer(2)) for item in part.parts(4)]
    enum.reserved_names = [_reserved_name(name) for name in part.texts(5)]
    return enum


def _service(part: Part) -> ServiceType:
    service = ServiceType(_name(part.text(1)), options=options.decode_options(part.part(3), options.SERVICE))
    for item in part.parts(2):
        service.methods.append(
            Method(
                _name(item.text(1)),
                _name(item.text(2), TYPE_NAME),
                _name(item.text(3), TYPE_NAME),
                bool(item.integer(5)),
                bool(item.integer(6)),
                options.decode_options(item.part(4), options.METHOD),
            )
        )
    return service
