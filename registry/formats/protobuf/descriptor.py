"""FileDescriptorProto in base64, the form in which many serializers send and ask for Protobuf schemas."""

import base64
import binascii
import re

from registry.formats.differences import BudgetExceeded, MalformedSchema, TooLarge
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
from registry.formats.protobuf.wire import WireMessage

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
        raise MalformedSchema(f"the text is neither .proto source nor base64: {error}") from None
    return _file(WireMessage(data))


def _name(value: str, pattern: re.Pattern[str] = NAME) -> str:
    if not pattern.match(value):
        raise MalformedSchema(f"{quote(value)} in the descriptor is not a name")
    return value


def _file(wire: WireMessage) -> File:
    syntax = wire.text(12) or "proto2"
    if syntax not in ("proto2", "proto3", "editions"):
        raise MalformedSchema(f"the descriptor has an unknown syntax {quote(syntax)}")
    file = File(syntax, package=wire.text(2) and _name(wire.text(2), TYPE_NAME))
    if syntax == "editions":
        file.edition = EDITION_NUMBERS.get(wire.integer(14), "")
        if not file.edition:
            raise MalformedSchema(f"the descriptor has an unknown edition {wire.integer(14)}")
    public, weak = set(wire.integers(10)), set(wire.integers(11))
    for index, name in enumerate(wire.texts(3)):
        if not name.isprintable():
            raise MalformedSchema(f"{quote(name)} in the descriptor is not printable text")
        file.imports.append(Import(name, "public" if index in public else "weak" if index in weak else ""))
    file.messages = [_message(item, syntax, 1) for item in wire.messages(4)]
    file.enums = [_enum(item) for item in wire.messages(5)]
    file.services = [_service(item) for item in wire.messages(6)]
    file.extends = _extends(wire.messages(7), syntax)
    file.options = options.decode_options(wire.message(8), options.FILE)
    return file


def _message(wire: WireMessage, syntax: str, depth: int) -> Message:
    if depth > MAX_NESTING:
        raise BudgetExceeded("schema nesting", MAX_NESTING)
    message = Message(_name(wire.text(1)))
    nested = wire.messages(3)
    entries = {}
    for item in nested:
        if item.message(7).integer(MAP_ENTRY):
            entries[item.text(1)] = [_field(field, syntax) for field in item.messages(2)]
    message.messages = [_message(item, syntax, depth + 1) for item in nested if not item.message(7).integer(MAP_ENTRY)]
    oneofs = [
        Oneof(_name(item.text(1)), options.decode_options(item.message(2), options.ONEOF)) for item in wire.messages(8)
    ]
    for item in wire.messages(2):
        field = _map_field(_field(item, syntax), entries)
        index = item.integer(9, -1)
        if index >= 0 and not item.integer(17):
            if index >= len(oneofs):
                raise MalformedSchema(f'"{field.name}" in the descriptor belongs to no oneof')
            field.oneof = oneofs[index].name
            field.label = "" if field.label == "optional" else field.label
        message.fields.append(field)
    used = {field.oneof for field in message.fields}
    message.oneofs = [oneof for oneof in oneofs if oneof.name in used]
    message.enums = [_enum(item) for item in wire.messages(4)]
    message.extends = _extends(wire.messages(6), syntax)
    message.extension_ranges = [
        ExtensionRange(
            item.integer(1),
            item.integer(2) - 1,
            options.decode_options(item.message(3), options.EXTENSION_RANGE),
        )
        for item in wire.messages(5)
    ]
    message.reserved = [(item.integer(1), item.integer(2) - 1) for item in wire.messages(9)]
    message.reserved_names = [_reserved_name(name) for name in wire.texts(10)]
    message.options = options.decode_options(wire.message(7), options.MESSAGE)
    return message


def _reserved_name(name: str) -> str:
    if not name.isprintable():
        raise MalformedSchema(f"{quote(name)} in the descriptor is not printable text")
    return name


def _map_field(field: Field, entries: dict[str, list[Field]]) -> Field:
    """A map is written as a repeated nested message that is marked as an entry."""
    pair = entries.get(field.type.rpartition(".")[2], [])
    if field.label == "repeated" and len(pair) == 2:
        field.key, field.type, field.label = pair[0].type, pair[1].type, ""
    return field


def _field(wire: WireMessage, syntax: str) -> Field:
    code = wire.integer(5)
    named = wire.text(6)
    if not named and TYPES[code - 1 : code] not in SCALAR_TYPES:
        raise MalformedSchema(f"the descriptor has a field of unknown type {code}")
    kind = _name(named, TYPE_NAME) if named else TYPES[code - 1]
    label = LABELS.get(wire.integer(4), "")
    if label == "optional" and syntax != "proto2" and not wire.integer(17):
        label = ""
    field = Field(_name(wire.text(1)), wire.integer(3), kind, label)
    field.is_group = bool(named) and TYPES[code - 1 : code] == ("group",)
    field.options = options.decode_options(wire.message(8), options.FIELD)
    if wire.fields.get(7):
        field.options.append(Option("default", _default(wire.text(7), kind)))
    if wire.text(10):
        field.options.append(Option("json_name", quote(wire.text(10))))
    if field.is_group and syntax == "editions":
        field.is_group = False
    return field


def _default(value: str, kind: str) -> str:
    if kind == "string":
        return quote(value)
    if kind == "bytes":
        return quote(unquote(f'"{value}"'))
    return _name(value, PLAIN_VALUE)


def _extends(wires: list[WireMessage], syntax: str) -> list[Extend]:
    """Extensions stand singly in descriptors; those of one message are one block again."""
    extends: dict[str, Extend] = {}
    for wire in wires:
        extendee = _name(wire.text(2), TYPE_NAME)
        extends.setdefault(extendee, Extend(extendee)).fields.append(_field(wire, syntax))
    return list(extends.values())


def _enum(wire: WireMessage) -> Enum:
    enum = Enum(_name(wire.text(1)))
    for item in wire.messages(2):
        value_options = options.decode_options(item.message(3), options.ENUM_VALUE)
        enum.values.append(EnumValue(_name(item.text(1)), item.integer(2), value_options))
    enum.options = options.decode_options(wire.message(3), options.ENUM)
    enum.reserved = [(item.integer(1), item.integer(2)) for item in wire.messages(4)]
    enum.reserved_names = [_reserved_name(name) for name in wire.texts(5)]
    return enum


def _service(wire: WireMessage) -> ServiceType:
    service = ServiceType(_name(wire.text(1)), options=options.decode_options(wire.message(3), options.SERVICE))
    for item in wire.messages(2):
        service.methods.append(
            Method(
                _name(item.text(1)),
                _name(item.text(2), TYPE_NAME),
                _name(item.text(3), TYPE_NAME),
                bool(item.integer(5)),
                bool(item.integer(6)),
                options.decode_options(item.message(4), options.METHOD),
            )
        )
    return service
