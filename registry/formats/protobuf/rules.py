"""What protoc demands of one file by itself: numbers, names, labels, and the differences between syntaxes."""

from collections.abc import Iterable
from itertools import pairwise

from registry.formats.differences import InvalidSchema
from registry.formats.protobuf.model import (
    INTERNAL_NUMBERS,
    MAX_ENUM_NUMBER,
    MAX_FIELD_NUMBER,
    SCALARS,
    Enum,
    Extend,
    Field,
    File,
    Message,
    json_name,
    option_of,
)

MAP_KEYS = SCALARS - {"double", "float", "bytes"}


def check_file(file: File) -> None:
    path = file.package
    _unique(path, _declared(file), (service.name for service in file.services))
    for message in file.messages:
        _message(message, file.syntax, _join(path, message.name))
    for enum in file.enums:
        _enum(enum, file, _join(path, enum.name))
    _extends(file.extends, file.syntax, path)
    for service in file.services:
        _unique(_join(path, service.name), (method.name for method in service.methods))


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _declared(scope: File | Message) -> Iterable[str]:
    """The names that a scope holds; the values of an enum belong to the scope around it."""
    yield from (message.name for message in scope.messages)
    for enum in scope.enums:
        yield enum.name
        yield from (value.name for value in enum.values)
    for extend in scope.extends:
        yield from (field.name for field in extend.fields)


def _unique(path: str, *groups: Iterable[str]) -> None:
    seen: set[str] = set()
    for group in groups:
        for name in group:
            if name in seen:
                raise InvalidSchema(f'"{name}" is defined twice in {path or "the file"}', path)
            seen.add(name)


def _message(message: Message, syntax: str, path: str) -> None:
    _unique(
        path,
        _declared(message),
        (field.name for field in message.fields),
        (oneof.name for oneof in message.oneofs),
    )
    _ranges(message, syntax, path)
    numbers: dict[int, str] = {}
    for field in message.fields:
        here = _join(path, field.name)
        _field(field, syntax, here)
        if field.number in numbers:
            raise InvalidSchema(f'"{field.name}" has number {field.number} of "{numbers[field.number]}"', here)
        numbers[field.number] = field.name
        _free(message, field, here)
    if syntax == "proto3":
        _json_names(message, path)
    members = {field.oneof for field in message.fields}
    for oneof in message.oneofs:
        if oneof.name not in members:
            raise InvalidSchema(f'the oneof "{oneof.name}" has no field', path)
    _extends(message.extends, syntax, path)
    for inner in message.messages:
        _message(inner, syntax, _join(path, inner.name))
    for enum in message.enums:
        _enum(enum, File(syntax), _join(path, enum.name))


def _field(field: Field, syntax: str, path: str) -> None:
    if not 1 <= field.number <= MAX_FIELD_NUMBER:
        raise InvalidSchema(f"the field number {field.number} is not within 1 and {MAX_FIELD_NUMBER}", path)
    if field.number in INTERNAL_NUMBERS:
        raise InvalidSchema("the field numbers 19000 to 19999 belong to Protobuf itself", path)
    if field.key and field.key not in MAP_KEYS:
        raise InvalidSchema(f"{field.key} cannot be the key of a map", path)
    has_no_label = not field.label and not field.key and not field.oneof
    if syntax == "proto2" and has_no_label:
        raise InvalidSchema("a field of proto2 is optional, required or repeated", path)
    if syntax == "proto3" and (field.label == "required" or field.is_group):
        raise InvalidSchema("proto3 has no required fields and no groups", path)
    if syntax == "proto3" and option_of(field.options, "default"):
        raise InvalidSchema("proto3 has no default values", path)
    if syntax == "editions" and (field.label in ("optional", "required") or field.is_group):
        raise InvalidSchema("editions say field presence and groups with features", path)


def _free(message: Message, field: Field, path: str) -> None:
    if field.name in message.reserved_names:
        raise InvalidSchema(f'the name "{field.name}" is reserved', path)
    if any(start <= field.number <= end for start, end in message.reserved):
        raise InvalidSchema(f"the field number {field.number} is reserved", path)
    if any(item.start <= field.number <= item.end for item in message.extension_ranges):
        raise InvalidSchema(f"the field number {field.number} is kept for extensions", path)


def _ranges(message: Message, syntax: str, path: str) -> None:
    if syntax == "proto3" and message.extension_ranges:
        raise InvalidSchema("proto3 has no extension ranges", path)
    ranges = sorted([*message.reserved, *((item.start, item.end) for item in message.extension_ranges)])
    if any(start < 1 or end > MAX_FIELD_NUMBER for start, end in ranges):
        raise InvalidSchema(f"a range of field numbers is not within 1 and {MAX_FIELD_NUMBER}", path)
    for (_, end), (start, _) in pairwise(ranges):
        if start <= end:
            raise InvalidSchema(f"two ranges of field numbers overlap at {start}", path)
    _unique(path, message.reserved_names)


def _json_names(message: Message, path: str) -> None:
    seen: dict[str, str] = {}
    for field in message.fields:
        name = option_of(field.options, "json_name").strip('"') or json_name(field.name)
        if name in seen:
            raise InvalidSchema(f'"{field.name}" and "{seen[name]}" are both "{name}" in JSON', path)
        seen[name] = field.name


def _enum(enum: Enum, file: File, path: str) -> None:
    if not enum.values:
        raise InvalidSchema("an enum has at least one value", path)
    is_open = file.syntax == "proto3"
    if is_open and enum.values[0].number != 0:
        raise InvalidSchema("the first value of a proto3 enum is zero", path)
    may_repeat = option_of(enum.options, "allow_alias") == "true"
    numbers: set[int] = set()
    for value in enum.values:
        if not -MAX_ENUM_NUMBER - 1 <= value.number <= MAX_ENUM_NUMBER:
            raise InvalidSchema(f"the enum value {value.number} does not fit into 32 bits", path)
        if value.number in numbers and not may_repeat:
            raise InvalidSchema(f"two values have the number {value.number} without allow_alias", path)
        numbers.add(value.number)
        if value.name in enum.reserved_names or any(a <= value.number <= b for a, b in enum.reserved):
            raise InvalidSchema(f'"{value.name}" = {value.number} is reserved', path)


def _extends(extends: list[Extend], syntax: str, path: str) -> None:
    for extend in extends:
        for field in extend.fields:
            if field.label == "required" or field.key:
                raise InvalidSchema("an extension is neither required nor a map", path)
            if field.label or syntax != "proto2":
                _field(field, syntax, _join(path, field.name))
            else:
                raise InvalidSchema("an extension in proto2 is optional or repeated", path)
