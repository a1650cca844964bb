"""Reading the tokens of a .proto file one after the other; every complaint says where."""

from registry.formats.differences import BudgetExceeded, MalformedSchema
from registry.formats.protobuf.tokens import Token, place, quote, tokenize, unquote

MAX_NESTING = 64


class Cursor:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.index = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def fail(self, message: str) -> MalformedSchema:
        return MalformedSchema(message, place(self.text, self.token.position))

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
            raise BudgetExceeded("schema nesting", MAX_NESTING)
