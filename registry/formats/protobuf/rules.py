"""What protoc demands of one file by itself: numbers, names, labels, and the differences between syntaxes."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from registry.formats.differences import MalformedSchema
from registry.formats.protobuf import descriptor_options as options
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
    ServiceType,
    json_name,
    option_of,
)

MAP_KEYS = SCALARS - {"double", "float", "bytes"}


def check_file(file: File) -> None:
    path = file.package
    options.check_options(file.options, options.FILE, path)
    _unique(path, _declared(file), (service.name for service in file.services))
    for message in file.messages:
        _message(message, file.syntax, _join(path, message.name))
    for enum in file.enums:
        _enum(enum, file, _join(path, enum.name))
    _extends(file.extends, file.syntax, path)
    for service in file.services:
        _service(service, _join(path, service.name))


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _declared(scope: File | Message) -> Iterable[str]:
    """Return the names that a scope holds. The values of an enum belong to the scope around it."""
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
                raise MalformedSchema(f'"{name}" is defined twice in {path or "the file"}', path)
            seen.add(name)


def _message(message: Message, syntax: str, path: str) -> None:
    _unique(
        path,
        _declared(message),
        (field.name for field in message.fields),
        (oneof.name for oneof in message.oneofs),
    )
    options.check_options(message.options, options.MESSAGE, path)
    for oneof in message.oneofs:
        options.check_options(oneof.options, options.ONEOF, _join(path, oneof.name))
    _ranges(message, syntax, path)
    numbers: dict[int, str] = {}
    reserved = _Reserved(message, path)
    for field in message.fields:
        here = _join(path, field.name)
        _field(field, syntax, here)
        if field.number in numbers:
            raise MalformedSchema(f'"{field.name}" has number {field.number} of "{numbers[field.number]}"', here)
        numbers[field.number] = field.name
        reserved.check(field.name, field.number, here)
    if syntax == "proto3":
        _json_names(message, path)
    members = {field.oneof for field in message.fields}
    for oneof in message.oneofs:
        if oneof.name not in members:
            raise MalformedSchema(f'the oneof "{oneof.name}" has no field', path)
    _extends(message.extends, syntax, path)
    for inner in message.messages:
        _message(inner, syntax, _join(path, inner.name))
    for enum in message.enums:
        _enum(enum, File(syntax), _join(path, enum.name))


def _field(field: Field, syntax: str, path: str) -> None:
    if not 1 <= field.number <= MAX_FIELD_NUMBER:
        raise MalformedSchema(f"the field number {field.number} is not within 1 and {MAX_FIELD_NUMBER}", path)
    if field.number in INTERNAL_NUMBERS:
        raise MalformedSchema("the field numbers 19000 to 19999 belong to Protobuf itself", path)
    options.check_options(field.options, options.FIELD, path)
    _texts(field, path)
    if field.key and field.key not in MAP_KEYS:
        raise MalformedSchema(f"{field.key} cannot be the key of a map", path)
    if field.oneof and (field.key or field.label):
        raise MalformedSchema("a field of a oneof has no label and is no map", path)
    has_no_label = not field.label and not field.key and not field.oneof
    if syntax == "proto2" and has_no_label:
        raise MalformedSchema("a field of proto2 is optional, required or repeated", path)
    if syntax == "proto3" and (field.label == "required" or field.is_group):
        raise MalformedSchema("proto3 has no required fields and no groups", path)
    if syntax == "proto3" and option_of(field.options, "default"):
        raise MalformedSchema("proto3 has no default values", path)
    if syntax == "editions" and (field.label in ("optional", "required") or field.is_group):
        raise MalformedSchema("editions say field presence and groups with features", path)


def _texts(field: Field, path: str) -> None:
    """A JSON name is text; a default is text exactly for strings and bytes."""
    default, name = option_of(field.options, "default"), option_of(field.options, "json_name")
    is_text = field.type in ("string", "bytes") and field.label != "repeated"
    if (default and default.startswith('"') != is_text) or (name and not name.startswith('"')):
        raise MalformedSchema("the default or the JSON name is of the wrong type", path)


class _Reserved:
    """The names and numbers that a message or enum keeps from its members, in ranges that do not overlap."""

    def __init__(self, scope: Message | Enum, path: str) -> None:
        self.names = set(scope.reserved_names)
        self.ranges = [(start, end, "reserved") for start, end in scope.reserved]
        if isinstance(scope, Message):
            self.ranges += [(item.start, item.end, "kept for extensions") for item in scope.extension_ranges]
        self.ranges.sort()
        for (_, end, _), (start, _, _) in pairwise(self.ranges):
            if start <= end:
                raise MalformedSchema(f"two ranges of numbers overlap at {start}", path)
        _unique(path, scope.reserved_names)

    def check(self, name: str, number: int, path: str) -> None:
        if name in self.names:
            raise MalformedSchema(f'the name "{name}" is reserved', path)
        place = bisect_right(self.ranges, number, key=lambda item: item[0]) - 1
        if place >= 0 and number <= self.ranges[place][1]:
            raise MalformedSchema(f"the number {number} is {self.ranges[place][2]}", path)


def _ranges(message: Message, syntax: str, path: str) -> None:
    if syntax == "proto3" and message.extension_ranges:
        raise MalformedSchema("proto3 has no extension ranges", path)
    ranges = [*message.reserved, *((item.start, item.end) for item in message.extension_ranges)]
    if any(start < 1 or end > MAX_FIELD_NUMBER for start, end in ranges):
        raise MalformedSchema(f"a range of field numbers is not within 1 and {MAX_FIELD_NUMBER}", path)


def _json_names(message: Message, path: str) -> None:
    seen: dict[str, str] = {}
    for field in message.fields:
        name = option_of(field.options, "json_name").strip('"') or json_name(field.name)
        if name in seen:
            raise MalformedSchema(f'"{field.name}" and "{seen[name]}" are both "{name}" in JSON', path)
        seen[name] = field.name


def _enum(enum: Enum, file: File, path: str) -> None:
    if not enum.values:
        raise MalformedSchema("an enum has at least one value", path)
    options.check_options(enum.options, options.ENUM, path)
    is_open = file.syntax == "proto3"
    if is_open and enum.values[0].number != 0:
        raise MalformedSchema("the first value of a proto3 enum is zero", path)
    may_repeat = option_of(enum.options, "allow_alias") == "true"
    reserved = _Reserved(enum, path)
    numbers: set[int] = set()
    for value in enum.values:
        if not -MAX_ENUM_NUMBER - 1 <= value.number <= MAX_ENUM_NUMBER:
            raise MalformedSchema(f"the enum value {value.number} does not fit into 32 bits", path)
        if value.number in numbers and not may_repeat:
            raise MalformedSchema(f"two values have the number {value.number} without allow_alias", path)
        numbers.add(value.number)
        reserved.check(value.name, value.number, path)
        options.check_options(value.options, options.ENUM_VALUE, path)


def _service(service: ServiceType, path: str) -> None:
    _unique(path, (method.name for method in service.methods))
    options.check_options(service.options, options.SERVICE, path)
    for method in service.methods:
        options.check_options(method.options, options.METHOD, _join(path, method.name))


def _extends(extends: list[Extend], syntax: str, path: str) -> None:
    for extend in extends:
        for field in extend.fields:
            if field.label == "required" or field.key:
                raise MalformedSchema("an extension is neither required nor a map", path)
            if field.label or syntax != "proto2":
                _field(field, syntax, _join(path, field.name))
            else:
                raise MalformedSchema("an extension in proto2 is optional or repeated", path)
