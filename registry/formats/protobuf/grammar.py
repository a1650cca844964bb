"""The grammar of .proto files (proto2, proto3, editions 2023 and 2024): text in, `File` out.

Only what a file must look like is decided here; what its names and numbers mean is decided by linking.
A hand-written descent is fifteen times as fast as `proto-schema-parser`, with which the tests compare it, and
also takes comments anywhere, hexadecimal field numbers, split strings and unquoted reserved names.
"""

from registry.formats.differences import BudgetExceeded, InvalidSchema
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
    Option,
    Service,
)
from registry.formats.protobuf.tokens import Token, place, quote, tokenize, unquote

MAX_NESTING = 64
LABELS = ("optional", "required", "repeated")
EDITIONS = ("2023", "2024")


def read_file(text: str) -> File:
    return _Reader(text).file()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.index = 0
        self.depth = 0

    # Words

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def fail(self, message: str) -> InvalidSchema:
        return InvalidSchema(message, place(self.text, self.token.position))

    def at(self, *texts: str) -> bool:
        return self.token.kind in ("word", "symbol") and self.token.text in texts

    def followed_by(self, text: str) -> bool:
        return self.index + 1 < len(self.tokens) and self.tokens[self.index + 1].text == text

    def take(self, text: str) -> bool:
        if self.at(text):
            self.index += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.fail(f"expected {text!r} and found {self.token.text!r}")

    def next_of(self, kind: str, what: str) -> str:
        if self.token.kind != kind:
            raise self.fail(f"expected {what} and found {self.token.text!r}")
        self.index += 1
        return self.tokens[self.index - 1].text

    def name(self) -> str:
        return self.next_of("word", "a name")

    def dotted(self) -> str:
        parts = [self.name()]
        while self.take("."):
            parts.append(self.name())
        return ".".join(parts)

    def type_name(self) -> str:
        return ("." if self.take(".") else "") + self.dotted()

    def string(self) -> str:
        """Adjacent literals are one string."""
        parts = [unquote(self.next_of("string", "a string"))]
        while self.token.kind == "string":
            parts.append(unquote(self.next_of("string", "a string")))
        return "".join(parts)

    def text_string(self) -> str:
        """A string that names something, so it must be text."""
        value = self.string()
        if not value.isprintable():
            raise self.fail(f"{quote(value)} is not printable text")
        return value

    def integer(self) -> int:
        text = self.next_of("int", "a number")
        if len(text) > 24:
            raise self.fail("a number is too large")
        if text[:2].lower() == "0x":
            return int(text, 16)
        if text[0] == "0" and len(text) > 1:
            if not set(text) <= set("01234567"):
                raise self.fail(f"{text} is not an octal number")
            return int(text, 8)
        return int(text)

    def signed(self) -> int:
        return -self.integer() if self.take("-") else self.integer()

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise BudgetExceeded("the nesting of the schema", MAX_NESTING)

    # Files

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
        field = Field(
            name.lower(), number, name, label, oneof=oneof, is_group=True, options=self.compact_options()
        )
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
                scope.reserved_names.append(
                    self.text_string() if self.token.kind == "string" else self.name()
                )
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

    def service(self) -> Service:
        service = Service(self.name())
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

    # Options

    def option_statement(self) -> Option:
        option = self.option()
        self.expect(";")
        return option

    def compact_options(self) -> list[Option]:
        options: list[Option] = []
        if self.take("["):
            while True:
                options.append(self.option())
                if not self.take(","):
                    break
            self.expect("]")
        return options

    def option(self) -> Option:
        name = self.option_name()
        self.expect("=")
        if self.at("{"):
            return Option(name, self.aggregate("{", "}"))
        return Option(name, self.scalar())

    def option_name(self) -> str:
        parts = []
        while True:
            if self.take("("):
                custom = (
                    str(self.integer()) if self.token.kind == "int" else self.type_name().removeprefix(".")
                )
                parts.append(f"({custom})")
                self.expect(")")
            else:
                parts.append(self.name())
            if not self.take("."):
                return ".".join(parts)

    def scalar(self) -> str:
        sign = "-" if self.take("-") else ""
        if not sign:
            self.take("+")
        match self.token.kind:
            case "string" if not sign:
                return quote(self.string())
            case "int":
                return f"{sign}{self.integer()}"
            case "float":
                return f"{sign}{float(self.next_of('float', 'a number'))!r}"
            case "word":
                return sign + self.name()
        raise self.fail(f"expected a value and found {self.token.text!r}")

    def aggregate(self, opening: str, closing: str) -> str:
        """A message in text format, written anew: one space between fields, commas and semicolons dropped."""
        self.enter()
        self.expect(opening)
        parts = []
        while not self.take(closing):
            if self.take("["):
                name = f"[{self.extension_name()}]"
                self.expect("]")
            else:
                name = self.name()
            has_colon = self.take(":")
            if not has_colon and not self.at("{", "<", "["):
                raise self.fail(f"expected ':' and found {self.token.text!r}")
            parts.append(f"{name}: {self.value()}")
            if not self.take(","):
                self.take(";")
        self.depth -= 1
        return "{ " + " ".join(parts) + " }" if parts else "{ }"

    def extension_name(self) -> str:
        name = self.dotted()
        return f"{name}/{self.dotted()}" if self.take("/") else name

    def value(self) -> str:
        if self.at("{"):
            return self.aggregate("{", "}")
        if self.at("<"):
            return self.aggregate("<", ">")
        if not self.take("["):
            return self.scalar()
        self.enter()
        items = []
        if not self.take("]"):
            while True:
                items.append(self.value())
                if not self.take(","):
                    break
            self.expect("]")
        self.depth -= 1
        return "[" + ", ".join(items) + "]"
