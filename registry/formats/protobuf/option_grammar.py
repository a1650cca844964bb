"""Options of a .proto file; each value is written anew in one way, so that equal options are equal text."""

from registry.formats.protobuf.cursor import Cursor
from registry.formats.protobuf.model import Option
from registry.formats.protobuf.tokens import quote


class OptionGrammar(Cursor):
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
                custom = str(self.integer()) if self.token.kind == "int" else self.type_name().removeprefix(".")
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
