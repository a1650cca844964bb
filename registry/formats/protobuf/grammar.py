"""The grammar of .proto files (proto2, proto3, editions 2023 and 2024): text in, `File` out.

Only what a file must look like is decided here; what its names and numbers mean is decided by linking.
A hand-written descent is fifteen times as fast as `proto-schema-parser`, with which the tests compare it, and
also takes comments anywhere, hexadecimal field numbers, split strings and unquoted reserved names.
"""

from registry.formats.protobuf.model import (
    MAX_ENUM_NUMBER,
    MAX_FIELD_NUMBER,
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
    ServiceType,
)
from registry.formats.protobuf.option_grammar import OptionGrammar

LABELS = ("optional", "required", "repeated")
EDITIONS = ("2023", "2024")


def read_file(text: str) -> File:
    return FileGrammar(text).file()


class FileGrammar(OptionGrammar):
    def file(self) -> File:
        file = File()
        if self.take("syntax"):
            self.expect("=")
            file.syntax = self.text_string()
            if file.syntax not in ("proto2", "proto3"):
                raise self.fail(f'unknown syntax "{file.syntax}"')
            self.expect(";")
        elif self.take("edition"):
            self.expect("=")
            file.syntax, file.edition = "editions", self.text_string()
            if file.edition not in EDITIONS:
                raise self.fail(f'unknown edition "{file.edition}"')
            self.expect(";")
        while self.token.kind != "end":
            self.statement(file)
        return file

    def statement(self, file: File) -> None:
        if self.take(";"):
            return
        if self.take("import"):
            modifier = self.name() if self.at("public", "weak", "option") else ""
            file.imports.append(Import(self.text_string(), modifier))
            self.expect(";")
        elif self.take("package"):
            if file.package:
                raise self.fail("a file has one package")
            file.package = self.dotted()
            self.expect(";")
        elif self.take("option"):
            file.options.append(self.option_statement())
        elif self.take("service"):
            file.services.append(self.service())
        elif not self.definition(file):
            raise self.fail(f"unexpected {self.token.text!r}")

    def definition(self, scope: File | Message) -> bool:
        """What may stand in a file and in a message alike."""
        if self.at("export", "local") and (self.followed_by("message") or self.followed_by("enum")):
            self.index += 1
        if self.take("message"):
            message = Message(self.name())
            self.message_body(message)
            scope.messages.append(message)
        elif self.take("enum"):
            scope.enums.append(self.enum())
        elif self.take("extend"):
            extend = Extend(self.type_name())
            self.expect("{")
            while not self.take("}"):
                if not self.take(";"):
                    extend.fields.append(self.field(scope))
            scope.extends.append(extend)
        else:
            return False
        return True

    # Messages

    def message_body(self, message: Message) -> None:
        self.enter()
        self.expect("{")
        while not self.take("}"):
            self.member(message)
        self.depth -= 1

    def member(self, message: Message) -> None:
        if self.take(";"):
            return
        if self.take("option"):
            message.options.append(self.option_statement())
        elif self.at("oneof"):
            self.oneof(message)
        elif self.take("extensions"):
            ranges = self.ranges(MAX_FIELD_NUMBER)
            options = self.compact_options()
            message.extension_ranges += [ExtensionRange(start, end, options) for start, end in ranges]
            self.expect(";")
        elif self.take("reserved"):
            self.reserved(message, MAX_FIELD_NUMBER)
        elif not self.definition(message):
            message.fields.append(self.field(message))

    def field(self, scope: File | Message, oneof: str = "") -> Field:
        label = ""
        if self.at(*LABELS):
            if oneof:
                raise self.fail("a field of a oneof has no label")
            label = self.name()
        if self.at("map") and self.followed_by("<"):
            if label or oneof:
                raise self.fail("a map field has no label and stands in no oneof")
            return self.map_field()
        if self.at("group") and not self.followed_by("."):
            return self.group(scope, label, oneof)
        kind = self.type_name()
        name = self.name()
        self.expect("=")
        field = Field(name, self.integer(), kind, label, oneof=oneof, options=self.compact_options())
        self.expect(";")
        return field

    def map_field(self) -> Field:
        self.expect("map")
        self.expect("<")
        key = self.name()
        self.expect(",")
        value = self.type_name()
        self.expect(">")
        name = self.name()
        self.expect("=")
        field = Field(name, self.integer(), value, key=key, options=self.compact_options())
        self.expect(";")
        return field

    def group(self, scope: File | Message, label: str, oneof: str) -> Field:
        """A group is a field and a message at once; the field's name is the message's in lower case."""
        self.expect("group")
        name = self.name()
        if not name[0].isupper():
            raise self.fail("the name of a group begins with a capital letter")
        self.expect("=")
        number = self.integer()
        field = Field(name.lower(), number, name, label, oneof=oneof, is_group=True, options=self.compact_options())
        message = Message(name)
        self.message_body(message)
        scope.messages.append(message)
        return field

    def oneof(self, message: Message) -> None:
        self.expect("oneof")
        oneof = Oneof(self.name())
        self.expect("{")
        while not self.take("}"):
            if self.take("option"):
                oneof.options.append(self.option_statement())
            elif not self.take(";"):
                message.fields.append(self.field(message, oneof.name))
        message.oneofs.append(oneof)

    def ranges(self, largest: int) -> list[tuple[int, int]]:
        found = []
        while True:
            start = end = self.signed()
            if self.take("to"):
                end = largest if self.take("max") else self.signed()
            if end < start:
                raise self.fail(f"the range {start} to {end} is empty")
            found.append((start, end))
            if not self.take(","):
                return found

    def reserved(self, scope: Message | Enum, largest: int) -> None:
        if self.token.kind in ("string", "word"):
            while True:
                scope.reserved_names.append(self.text_string() if self.token.kind == "string" else self.name())
                if not self.take(","):
                    break
        else:
            scope.reserved += self.ranges(largest)
        self.expect(";")

    # Enums and services

    def enum(self) -> Enum:
        enum = Enum(self.name())
        self.expect("{")
        while not self.take("}"):
            if self.take("option"):
                enum.options.append(self.option_statement())
            elif self.at("reserved") and not self.followed_by("="):
                self.expect("reserved")
                self.reserved(enum, MAX_ENUM_NUMBER)
            elif not self.take(";"):
                name = self.name()
                self.expect("=")
                enum.values.append(EnumValue(name, self.signed(), self.compact_options()))
                self.expect(";")
        return enum

    def service(self) -> ServiceType:
        service = ServiceType(self.name())
        self.expect("{")
        while not self.take("}"):
            if self.take("option"):
                service.options.append(self.option_statement())
            elif not self.take(";"):
                self.expect("rpc")
                service.methods.append(self.method())
        return service

    def method(self) -> Method:
        name = self.name()
        client_streaming, given = self.method_type()
        self.expect("returns")
        server_streaming, answered = self.method_type()
        method = Method(name, given, answered, client_streaming, server_streaming)
        if self.take("{"):
            while not self.take("}"):
                if not self.take(";"):
                    self.expect("option")
                    method.options.append(self.option_statement())
        else:
            self.expect(";")
        return method

    def method_type(self) -> tuple[bool, str]:
        self.expect("(")
        is_stream = self.at("stream") and not self.followed_by(")")
        if is_stream:
            self.expect("stream")
        name = self.type_name()
        self.expect(")")
        return is_stream, name
