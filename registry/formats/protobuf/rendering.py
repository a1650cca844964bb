"""The canonical text of a linked file: one way to write it, whatever the source looked like.

Left out: comments, white space, the spelling of type names, options that say the default. Put in order:
imports, options, reserved numbers and names. Kept as written: the order of messages (serializers number
them), fields and values.
"""

from collections.abc import Iterable

from registry.formats.protobuf.model import Enum, Extend, Field, File, Message, Option, ServiceType, json_name
from registry.formats.protobuf.tokens import quote


def render(file: File) -> str:
    head = f'edition = "{file.edition}";' if file.edition else f'syntax = "{file.syntax}";'
    lines = [head]
    if file.package:
        lines.append(f"package {file.package};")
    for item in sorted(file.imports):
        lines.append(f"import {item.modifier + ' ' if item.modifier else ''}{quote(item.name)};")
    lines += _options(file.options, "")
    groups = _groups(file)
    for message in file.messages:
        if message.name not in groups:
            lines += _message(message, "", f"message {message.name}")
    for enum in file.enums:
        lines += _enum(enum, "")
    for extend in file.extends:
        lines += _extend(extend, groups, "")
    for service in file.services:
        lines += _service(service)
    return "\n".join(lines) + "\n"


def _sorted(options: Iterable[Option]) -> list[Option]:
    """By name only: values of one repeated option keep their order."""
    return sorted(options, key=lambda option: option.name)


def _options(options: list[Option], indent: str) -> list[str]:
    return [f"{indent}option {option.name} = {option.value};" for option in _sorted(options)]


def _compact(options: Iterable[Option]) -> str:
    parts = [f"{option.name} = {option.value}" for option in _sorted(options)]
    return f" [{', '.join(parts)}]" if parts else ""


def _groups(scope: File | Message) -> dict[str, Message]:
    """Messages that are written where their field is."""
    fields = [field for extend in scope.extends for field in extend.fields]
    if isinstance(scope, Message):
        fields += scope.fields
    names = {field.type.rpartition(".")[2] for field in fields if field.is_group}
    return {message.name: message for message in scope.messages if message.name in names}


def _message(message: Message, indent: str, head: str) -> list[str]:
    inner = indent + "  "
    lines = [f"{indent}{head} {{", *_options(message.options, inner)]
    ranges = [f"{start} to {end}" if start != end else f"{start}" for start, end in sorted(message.reserved)]
    if ranges:
        lines.append(f"{inner}reserved {', '.join(ranges)};")
    if message.reserved_names:
        lines.append(f"{inner}reserved {', '.join(map(quote, sorted(message.reserved_names)))};")
    for item in sorted(message.extension_ranges, key=lambda item: item.start):
        lines.append(f"{inner}extensions {item.start} to {item.end}{_compact(item.options)};")
    groups = _groups(message)
    lines += _fields(message, groups, inner)
    for nested in message.messages:
        if nested.name not in groups:
            lines += _message(nested, inner, f"message {nested.name}")
    for enum in message.enums:
        lines += _enum(enum, inner)
    for extend in message.extends:
        lines += _extend(extend, groups, inner)
    return [*lines, indent + "}"]


def _fields(message: Message, groups: dict[str, Message], indent: str) -> list[str]:
    """A oneof stands where its first field does."""
    options = {oneof.name: oneof.options for oneof in message.oneofs}
    members: dict[str, list[Field]] = {}
    for field in message.fields:
        members.setdefault(field.oneof, []).append(field)
    lines: list[str] = []
    for field in message.fields:
        if not field.oneof:
            lines += _field(field, groups, indent)
        elif field is members[field.oneof][0]:
            lines += [f"{indent}oneof {field.oneof} {{", *_options(options[field.oneof], indent + "  ")]
            for member in members[field.oneof]:
                lines += _field(member, groups, indent + "  ")
            lines.append(indent + "}")
    return lines


def _field(field: Field, groups: dict[str, Message], indent: str) -> list[str]:
    options = _compact(
        option for option in field.options if option.name != "json_name" or option.value != quote(json_name(field.name))
    )
    label = f"{field.label} " if field.label else ""
    if field.is_group:
        name = field.type.rpartition(".")[2]
        return _message(groups[name], indent, f"{label}group {name} = {field.number}{options}")
    kind = f"map<{field.key}, {field.type}>" if field.key else field.type
    return [f"{indent}{label}{kind} {field.name} = {field.number}{options};"]


def _enum(enum: Enum, indent: str) -> list[str]:
    inner = indent + "  "
    lines = [f"{indent}enum {enum.name} {{", *_options(enum.options, inner)]
    if enum.reserved:
        ranges = [f"{start} to {end}" if start != end else f"{start}" for start, end in sorted(enum.reserved)]
        lines.append(f"{inner}reserved {', '.join(ranges)};")
    if enum.reserved_names:
        lines.append(f"{inner}reserved {', '.join(map(quote, sorted(enum.reserved_names)))};")
    lines += [f"{inner}{value.name} = {value.number}{_compact(value.options)};" for value in enum.values]
    return [*lines, indent + "}"]


def _extend(extend: Extend, groups: dict[str, Message], indent: str) -> list[str]:
    lines = [f"{indent}extend {extend.extendee} {{"]
    for field in extend.fields:
        lines += _field(field, groups, indent + "  ")
    return [*lines, indent + "}"]


def _service(service: ServiceType) -> list[str]:
    lines = [f"service {service.name} {{", *_options(service.options, "  ")]
    for method in service.methods:
        given = f"{'stream ' if method.client_streaming else ''}{method.input}"
        answered = f"{'stream ' if method.server_streaming else ''}{method.output}"
        lines.append(f"  rpc {method.name} ({given}) returns ({answered}) {{")
        lines += [*_options(method.options, "    "), "  }"]
    return [*lines, "}"]
