"""The words of a .proto file, without comments and white space, each with its place."""

import re

import msgspec

from registry.formats.differences import BudgetExceeded, MalformedSchema

MAX_TEXT_BYTES = 1024 * 1024

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<int>0[xX][0-9a-fA-F]+|[0-9]+)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol>[{}\[\]()<>;,=.:+\-/])""",
    re.VERBOSE | re.DOTALL,
)
ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    position: int


def tokenize(text: str) -> list[Token]:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise MalformedSchema(f"the text is not valid Unicode: {error.reason}") from None
    if size > MAX_TEXT_BYTES:
        raise BudgetExceeded("schema text bytes", MAX_TEXT_BYTES)
    tokens, position = [], 1 if text.startswith("\ufeff") else 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise MalformedSchema(f"unexpected {text[position]!r}", place(text, position))
        if match.lastgroup != "skip":
            tokens.append(Token(str(match.lastgroup), match.group(), position))
        position = match.end()
    tokens.append(Token("end", "the end of the text", len(text)))
    return tokens


def place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - (text.rfind(chr(10), 0, position) + 1) + 1}"


def unquote(literal: str) -> str:
    """The value of a string literal; bytes that are not UTF-8 become lone surrogates, as `quote` expects."""
    parts, last = [], 1
    for match in ESCAPE.finditer(literal, 1, len(literal) - 1):
        parts += [literal[last : match.start()].encode(), _unescape(match)]
        last = match.end()
    parts.append(literal[last:-1].encode())
    return b"".join(parts).decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[str]) -> bytes:
    octal, hexadecimal, short, long, simple = match.groups()
    if simple is not None:
        return SIMPLE.get(simple, simple).encode()
    if octal or hexadecimal:
        return bytes([int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)])
    code = int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise MalformedSchema(f"{match.group()} is not a character")
    return chr(code).encode()


def quote(value: str) -> str:
    """The one literal of a string: printable characters as they are, the bytes of all others by number."""
    return '"' + "".join(_escape(char) for char in value) + '"'


def _escape(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))
