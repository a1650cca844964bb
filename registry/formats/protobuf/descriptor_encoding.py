"""A linked schema as FileDescriptorProto in base64, for clients that ask for it (`format=serialized`)."""

import base64

from registry.formats.protobuf import descriptor_options as options
from registry.formats.protobuf.descriptor import EDITION_NUMBERS, LABELS, MAP_ENTRY, TYPES
from registry.formats.protobuf.linking import Linked
from registry.formats.protobuf.model import (
    SCALARS,
    Enum,
    Extend,
    Field,
    File,
    Message,
    ServiceType,
    json_name,
    option_of,
)
from registry.formats.protobuf.tokens import unquote
from registry.formats.protobuf.wire import blob_field, number_field

LABEL_NUMBERS = {label: number for number, label in LABELS.items()}


def encode_descriptor(linked: Linked, name: str) -> str:
    return base64.b64encode(_Encoder(linked).file(linked.file, name)).decode()


def _options(number: int, data: bytes) -> bytes:
    return blob_field(number, data) if data else b""


def _default(value: str, kind: str) -> str:
    """Return a default value: strings unquoted, bytes with the escapes of `quote`, all else as in the source."""
    if kind == "string":
        return unquote(value)
    return value[1:-1] if kind == "bytes" else value


class _Encoder:
    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.is_proto3 = linked.file.syntax == "proto3"

    def file(self, file: File, name: str) -> bytes:
        data = blob_field(1, name)
        if file.package:
            data += blob_field(2, file.package)
        data += b"".join(blob_field(3, item.name) for item in file.imports)
        data += b"".join(blob_field(4, self._message(message, file.package)) for message in file.messages)
        data += b"".join(blob_field(5, _enum(enum)) for enum in file.enums)
        data += b"".join(blob_field(6, _service(service)) for service in file.services)
        data += self._extends(7, file.extends)
        data += _options(8, options.encode_options(file.options, options.FILE))
        for index, item in enumerate(file.imports):
            if item.modifier in ("public", "weak"):
                data += number_field(10 if item.modifier == "public" else 11, index)
        if file.syntax != "proto2":
            data += blob_field(12, file.syntax)
        for number, edition in EDITION_NUMBERS.items():
            if edition == file.edition:
                data += number_field(14, number)
        return data

    def _message(self, message: Message, scope: str) -> bytes:
        full = f"{scope}.{message.name}" if scope else message.name
        oneofs = [oneof.name for oneof in message.oneofs]
        synthetic = [field.name for field in message.fields if self._is_synthetic(field)]
        places = {name: index for index, name in enumerate([*oneofs, *(f"_{name}" for name in synthetic)])}
        data = blob_field(1, message.name)
        entries = b""
        for field in message.fields:
            if field.key:
                entry = json_name(f"_{field.name}") + "Entry"
                entries += blob_field(3, self._map_entry(entry, field))
                data += blob_field(2, _map_field(field, f".{full}.{entry}"))
                continue
            place = places.get(field.oneof or f"_{field.name}", -1)
            data += blob_field(2, self._field(field, place if field.oneof or self._is_synthetic(field) else -1))
        data += b"".join(blob_field(3, self._message(nested, full)) for nested in message.messages) + entries
        data += b"".join(blob_field(4, _enum(enum)) for enum in message.enums)
        for item in message.extension_ranges:
            chosen = options.encode_options(item.options, options.EXTENSION_RANGE)
            data += blob_field(5, _range(item.start, item.end + 1) + _options(3, chosen))
        data += self._extends(6, message.extends)
        data += _options(7, options.encode_options(message.options, options.MESSAGE))
        for oneof in message.oneofs:
            chosen = options.encode_options(oneof.options, options.ONEOF)
            data += blob_field(8, blob_field(1, oneof.name) + _options(2, chosen))
        data += b"".join(blob_field(8, blob_field(1, f"_{name}")) for name in synthetic)
        data += b"".join(blob_field(9, _range(start, end + 1)) for start, end in message.reserved)
        return data + b"".join(blob_field(10, name) for name in message.reserved_names)

    def _is_synthetic(self, field: Field) -> bool:
        """Explicit presence in proto3 is told by a oneof of one."""
        return self.is_proto3 and field.label == "optional"

    def _map_entry(self, name: str, field: Field) -> bytes:
        key = self._field(Field("key", 1, field.key), -1)
        value = self._field(Field("value", 2, field.type), -1)
        marked = blob_field(7, number_field(MAP_ENTRY, 1))
        return blob_field(1, name) + blob_field(2, key) + blob_field(2, value) + marked

    def _field(self, field: Field, oneof: int, extendee: str = "") -> bytes:
        data = blob_field(1, field.name)
        if extendee:
            data += blob_field(2, extendee)
        data += number_field(3, field.number) + number_field(4, LABEL_NUMBERS[field.label or "optional"])
        data += number_field(5, TYPES.index(self._kind(field)) + 1)
        if field.type not in SCALARS:
            data += blob_field(6, field.type)
        default = option_of(field.options, "default")
        if default:
            text = _default(default, field.type)
            data += blob_field(7, text.encode("utf-8", "surrogateescape"))
        data += _options(8, options.encode_options(field.options, options.FIELD))
        if oneof >= 0:
            data += number_field(9, oneof)
        data += blob_field(10, _json_name(field))
        return data + number_field(17, 1) if self._is_synthetic(field) and oneof >= 0 else data

    def _kind(self, field: Field) -> str:
        if field.type in SCALARS:
            return field.type
        if field.is_group:
            return "group"
        return "enum" if isinstance(self.linked.types[field.type[1:]].type, Enum) else "message"

    def _extends(self, number: int, extends: list[Extend]) -> bytes:
        return b"".join(
            blob_field(number, self._field(field, -1, extend.extendee)) for extend in extends for field in extend.fields
        )


def _json_name(field: Field) -> str:
    chosen = option_of(field.options, "json_name")
    return unquote(chosen) if chosen else json_name(field.name)


def _map_field(field: Field, entry: str) -> bytes:
    data = blob_field(1, field.name) + number_field(3, field.number) + number_field(4, LABEL_NUMBERS["repeated"])
    data += number_field(5, TYPES.index("message") + 1) + blob_field(6, entry)
    data += _options(8, options.encode_options(field.options, options.FIELD))
    return data + blob_field(10, _json_name(field))


def _range(start: int, end: int) -> bytes:
    return number_field(1, start) + number_field(2, end)


def _enum(enum: Enum) -> bytes:
    data = blob_field(1, enum.name)
    for value in enum.values:
        chosen = options.encode_options(value.options, options.ENUM_VALUE)
        data += blob_field(2, blob_field(1, value.name) + number_field(2, value.number) + _options(3, chosen))
    data += _options(3, options.encode_options(enum.options, options.ENUM))
    data += b"".join(blob_field(4, _range(start, end)) for start, end in enum.reserved)
    return data + b"".join(blob_field(5, name) for name in enum.reserved_names)


def _service(service: ServiceType) -> bytes:
    data = blob_field(1, service.name)
    for method in service.methods:
        item = blob_field(1, method.name) + blob_field(2, method.input) + blob_field(3, method.output)
        item += _options(4, options.encode_options(method.options, options.METHOD))
        item += number_field(5, 1) if method.client_streaming else b""
        item += number_field(6, 1) if method.server_streaming else b""
        data += blob_field(2, item)
    return data + _options(3, options.encode_options(service.options, options.SERVICE))
