"""Linking: imports are found, every name means one type, and the rules of protoc hold.

Imports come from the references or from the well-known files; nothing is ever read from disk. An import that
nobody supplies is a fault only when a type is missed: files that merely define custom options are often left
out, and other registries take such schemas. After linking a field's type is a scalar or an absolute name
(`.pkg.Outer.Inner`), so two spellings of one type are equal.
"""

from collections.abc import Mapping

import msgspec

from registry.formats.differences import BudgetExceeded, MalformedSchema
from registry.formats.protobuf.descriptor import decode_descriptor
from registry.formats.protobuf.grammar import read_file
from registry.formats.protobuf.known import known_types
from registry.formats.protobuf.model import SCALARS, Enum, Extend, Field, File, Message
from registry.formats.protobuf.rules import check_file

MAX_IMPORT_DEPTH = 64
Types = dict[str, "LinkedDefinition"]


class LinkedDefinition(msgspec.Struct):
    """A type, the package that it belongs to, and whether the schema itself (not a reference) defines it."""

    type: Message | Enum
    package: str
    is_local: bool = False


class Linked(msgspec.Struct):
    """`types` holds every type that the schema can reach, by full name without leading dot."""

    file: File
    types: Types


def link(text: str, references: Mapping[str, str]) -> Linked:
    linker = _Linker(references)
    file = linker.load(text, "")[0]
    if not (file.messages or file.enums or file.extends or file.services or file.imports):
        raise MalformedSchema("the schema defines nothing")
    return Linked(file, linker.types)


def read_schema(text: str) -> File:
    """Source text, or the base64 of a FileDescriptorProto, which holds none of the characters text needs."""
    return decode_descriptor(text) or read_file(text)


class _Linker:
    def __init__(self, references: Mapping[str, str]) -> None:
        self.references = references
        self.types: Types = {}
        self.exports: dict[str, set[str]] = {}
        self.open: list[str] = []
        self.missing: list[str] = []

    def load(self, text: str, path: str) -> tuple[File, set[str]]:
        """Link one file and everything below it; returns the names that importing it makes visible."""
        file = read_schema(text)
        check_file(file)
        own: set[str] = set()
        for message in file.messages:
            self._define_message(message, file.package, file.package, own, is_local=not path)
        for enum in file.enums:
            self._define(enum, file.package, file.package, own, is_local=not path)
        visible, exported = set(own), set(own)
        if len({item.name for item in file.imports}) != len(file.imports):
            raise MalformedSchema("a file is imported twice")
        for item in file.imports:
            names = self._import(item.name)
            visible |= names
            if item.modifier == "public":
                exported |= names
        _Names(visible, self.types, self.missing).resolve(file)
        return file, exported

    def _import(self, path: str) -> set[str]:
        if path in self.exports:
            return self.exports[path]
        known = known_types(path)
        if known:
            package, types = known
            self.types |= {name: LinkedDefinition(kind, package) for name, kind in types.items()}
            self.exports[path] = set(types)
            return self.exports[path]
        if path in self.open:
            raise MalformedSchema(f'"{path}" imports itself through {" and ".join(self.open)}')
        if path not in self.references:
            self.missing.append(path)
            return set()
        if len(self.open) >= MAX_IMPORT_DEPTH:
            raise BudgetExceeded("import depth", MAX_IMPORT_DEPTH)
        self.open.append(path)
        try:
            self.exports[path] = self.load(self.references[path], path)[1]
        except MalformedSchema as error:
            raise MalformedSchema(f'in "{path}": {error}') from None
        self.open.pop()
        return self.exports[path]

    def _define_message(self, message: Message, scope: str, package: str, own: set[str], *, is_local: bool) -> None:
        full = self._define(message, scope, package, own, is_local=is_local)
        for inner in message.messages:
            self._define_message(inner, full, package, own, is_local=is_local)
        for enum in message.enums:
            self._define(enum, full, package, own, is_local=is_local)

    def _define(self, kind: Message | Enum, scope: str, package: str, own: set[str], *, is_local: bool) -> str:
        full = f"{scope}.{kind.name}" if scope else kind.name
        if full in self.types:
            raise MalformedSchema(f'"{full}" is defined twice')
        self.types[full] = LinkedDefinition(kind, package, is_local)
        own.add(full)
        return full


class _Names:
    """Turns the type names of one file into absolute ones; the innermost scope that knows a name wins."""

    def __init__(self, visible: set[str], types: Types, missing: list[str]) -> None:
        self.visible = visible
        self.types = types
        self.missing = missing

    def resolve(self, file: File) -> None:
        for message in file.messages:
            self._message(message, file.package)
        self._extends(file.extends, file.package)
        for service in file.services:
            for method in service.methods:
                method.input = self._absolute(method.input, file.package, is_message=True)
                method.output = self._absolute(method.output, file.package, is_message=True)

    def _message(self, message: Message, scope: str) -> None:
        full = f"{scope}.{message.name}" if scope else message.name
        for field in message.fields:
            self._field(field, full)
        self._extends(message.extends, full)
        for inner in message.messages:
            self._message(inner, full)

    def _extends(self, extends: list[Extend], scope: str) -> None:
        for extend in extends:
            extend.extendee = self._absolute(extend.extendee, scope, is_message=True)
            for field in extend.fields:
                self._field(field, scope)

    def _field(self, field: Field, scope: str) -> None:
        if field.type not in SCALARS:
            field.type = self._absolute(field.type, scope)
        if field.is_group:
            place, _, name = field.type[1:].rpartition(".")
            if place != scope or field.name != name.lower():
                raise MalformedSchema(f'the group "{field.name}" is not defined where its field is')

    def _absolute(self, name: str, scope: str, *, is_message: bool = False) -> str:
        if name.startswith("."):
            candidates = [name[1:]]
        else:
            parts = scope.split(".") if scope else []
            candidates = [".".join([*parts[:size], name]) for size in range(len(parts), -1, -1)]
        for candidate in candidates:
            if candidate in self.visible and (not is_message or isinstance(self.types[candidate].type, Message)):
                return f".{candidate}"
        kind = "message" if is_message else "type"
        message = f'"{name}" is not a {kind} that "{scope or "the file"}" can see'
        if self.missing:
            message += f"; not among the references: {', '.join(self.missing)}"
        raise MalformedSchema(message)
