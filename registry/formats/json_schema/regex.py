"""Reading ECMA 262 regular expressions, the dialect that JSON Schema names, into languages.

`language(pattern)` gives the strings in which the pattern is found, as a term of `automaton`. It raises
`BadPattern` where no dialect would take the text, and `Irregular` where the text may be valid but is not read
as a regular language here (backreferences, lookbehind, word boundaries, constructs of one dialect only).
"""

from functools import lru_cache
from itertools import takewhile
from typing import Any

from .automaton import EMPTY, EPSILON, EVERYTHING, Term, chars, concat, either, loop, never, within

MAX_DEPTH = 50
MAX_REPEAT = 100_000
MAX_OPTIONAL = 100  # a derivative descends through all parts that may be empty
TOP = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = tuple(
    (code, code) if isinstance(code, int) else code
    for code in (
        (9, 13),
        32,
        0xA0,
        0x1680,
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        0x202F,
        0x205F,
        0x3000,
        0xFEFF,
    )
)
_LINE_END: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


class BadPattern(ValueError):
    """Not a regular expression."""


class Irregular(ValueError):
    """Not read as a regular language; nothing is claimed about it."""


def complement(ranges: Ranges) -> Ranges:
    """The code points outside these ranges."""
    result, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, low - 1))
        start = max(start, high + 1)
    return (*result, (start, TOP)) if start <= TOP else tuple(result)


# A parsed expression: ("set", ranges) ("seq", parts) ("alt", options) ("repeat", part, low, high)
# ("start",) ("end",) ("ahead", part, wanted)
Tree = tuple[Any, ...]


class _Reader:
    """Recursive descent; `irregular` is set by what may be valid but is no regular language here."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.irregular = False
        self.optional = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, token: str) -> bool:
        found = self.text.startswith(token, self.at)
        self.at += len(token) if found else 0
        return found

    def next(self) -> str:
        if self.at >= len(self.text):
            raise BadPattern("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise BadPattern(f"groups nest deeper than {MAX_DEPTH}")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else ("alt", tuple(options))

    def sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated(self.one(depth)))
        return ("seq", tuple(parts))

    def one(self, depth: int) -> Tree:
        match self.next():
            case "^":
                return ("start",)
            case "$":
                return ("end",)
            case ".":
                return ("set", complement(_LINE_END))
            case "(":
                return self.group(depth)
            case "[":
                return ("set", self.char_class())
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                raise BadPattern(f"nothing to repeat at {self.at - 1}")
            case char:
                return ("set", ((ord(char), ord(char)),))

    def group(self, depth: int) -> Tree:
        wanted: bool | None = None
        if self.take("?"):
            if self.take("="):
                wanted = True
            elif self.take("!"):
                wanted = False
            elif not self.take(":"):
                named = self.take("<") and self.peek() not in ("=", "!")
                self.irregular = self.irregular or not named
                end = self.text.find(">" if named else ")", self.at)
                if end < 0:
                    raise BadPattern("a group is not closed")
                if not named:  # lookbehind, flags, atomic groups: where it ends does not matter any more
                    raise Irregular
                self.at = end + 1
        inner = self.alternatives(depth + 1)
        if not self.take(")"):
            raise BadPattern("a group is not closed")
        return inner if wanted is None else ("ahead", inner, wanted)

    def repeated(self, part: Tree) -> Tree:
        low, high = 1, 1
        if self.take("*"):
            low, high = 0, -1
        elif self.take("+"):
            low, high = 1, -1
        elif self.take("?"):
            low, high = 0, 1
        elif (bounds := self.bounds()) is not None:
            low, high = bounds
        else:
            return part
        self.take("?")
        if self.peek() == "+":
            raise Irregular  # possessive, not in ECMA
        if max(low, high) > MAX_REPEAT:
            raise BadPattern(f"repeats more than {MAX_REPEAT} times")
        if 0 <= high < low:
            raise BadPattern("the numbers of a repetition are out of order")
        self.optional += low == 0
        self.irregular = self.irregular or self.optional > MAX_OPTIONAL
        return ("repeat", part, low, high)

    def bounds(self) -> tuple[int, int] | None:
        """{n}, {n,} or {n,m}; a brace that is none of these stands for itself."""
        end = self.text.find("}", self.at)
        if self.peek() != "{" or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit() and (not high or (high.isascii() and high.isdigit()))):
            return None
        if max(len(low), len(high)) > 7:
            raise BadPattern(f"repeats more than {MAX_REPEAT} times")
        self.at = end + 1
        return int(low), int(high) if high else -1 if comma else int(low)

    def escape(self) -> Tree:
        char = self.next()
        if char in "bB" or (char.isdigit() and char != "0"):
            self.irregular = True
            return ("seq", ())
        return ("set", self.escaped(char))

    def escaped(self, char: str) -> Ranges:
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else complement(ranges)
        code = _CONTROLS.get(char)
        if char == "0":
            code = 0
        elif char == "c":
            code = ord(self.next()) & 31
        elif char in "xu":
            code = self.hexadecimal(char)
        elif code is None and char.isalnum():
            self.irregular = True
            if char in "pPk" and self.peek() in "{<":
                end = self.text.find("}" if self.peek() == "{" else ">", self.at)
                self.at = end + 1 if end >= 0 else self.at
        code = ord(char) if code is None else code
        return ((code, code),)

    def hexadecimal(self, char: str) -> int:
        digits = self.text[self.at : self.at + (2 if char == "x" else 4)]
        if char == "u" and self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end]
            self.at = end + 1
        else:
            self.at += len(digits)
        try:
            code = int(digits, 16)
        except ValueError:
            raise BadPattern(f"a bad escape \\{char}") from None
        if code > TOP:
            raise BadPattern(f"a bad escape \\{char}")
        return code

    def char_class(self) -> Ranges:
        inverted = self.take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            if self.peek() == "":
                raise BadPattern("a character class is not closed")
            if first and self.peek() == "]":
                self.irregular = True  # empty class in ECMA, a literal bracket elsewhere
            first = False
            if self.text.startswith(("[:", "&&", "--", "~~"), self.at):
                self.irregular = True
            low = self.class_member()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.class_member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                    self.irregular = True
                elif low[0][0] > high[0][0]:
                    raise BadPattern("a character range is out of order")
                else:
                    low = ((low[0][0], high[0][0]),)
            ranges += low
        self.at += 1
        return complement(tuple(ranges)) if inverted else tuple(ranges)

    def class_member(self) -> Ranges:
        char = self.next()
        if char != "\\":
            return ((ord(char), ord(char)),)
        char = self.next()
        return ((8, 8),) if char == "b" else self.escaped(char)


def _is_plain(tree: Tree) -> bool:
    match tree:
        case ("set", _):
            return True
        case ("seq", parts) | ("alt", parts):
            return all(map(_is_plain, parts))
        case ("repeat", part, _, _):
            return _is_plain(part)
    return False


def _plain(tree: Tree) -> Term:
    match tree:
        case ("set", ranges):
            return chars(ranges)
        case ("seq", parts):
            term = EPSILON
            for part in reversed(parts):
                term = concat(_plain(part), term)
            return term
        case ("alt", options):
            return either(map(_plain, options))
        case (_, part, low, high):
            return loop(_plain(part), low, high)
    raise Irregular


def _mentions_start(parts: tuple[Tree, ...]) -> bool:
    return "('start',)" in repr(parts)


def _follow(parts: tuple[Tree, ...], at_start: bool) -> Term:
    """The strings that start with a match of the parts in order, given whether nothing stands before them."""
    if not parts:
        return EVERYTHING
    plain = tuple(takewhile(_is_plain, parts))
    if plain:
        term, rest = _plain(("seq", plain)), parts[len(plain) :]
        if at_start and term.nullable and term is not EPSILON and _mentions_start(rest):
            raise Irregular
        return concat(term, _follow(rest, at_start and term is EPSILON))
    head, rest = parts[0], parts[1:]
    match head:
        case ("start",):
            return _follow(rest, True) if at_start else EMPTY
        case ("end",):
            return within((EPSILON, _follow(rest, at_start)))
        case ("ahead", inner, wanted):
            seen = _follow((inner,), at_start)
            return within((seen if wanted else never(seen), _follow(rest, at_start)))
        case ("seq", inner):
            return _follow((*inner, *rest), at_start)
        case ("alt", options):
            return either(_follow((option, *rest), at_start) for option in options)
        case ("repeat", inner, 0, 1):
            return either((_follow(rest, at_start), _follow((inner, *rest), at_start)))
        case ("repeat", inner, 1, 1):
            return _follow((inner, *rest), at_start)
    raise Irregular


@lru_cache(maxsize=4096)
def language(pattern: str) -> Term:
    """The strings in which the pattern is found."""
    reader = _Reader(pattern)
    tree = reader.alternatives(0)
    if reader.at < len(pattern):
        raise BadPattern(f"an unexpected ) at {reader.at}")
    if reader.irregular:
        raise Irregular
    later = concat(chars(((0, TOP),)), concat(EVERYTHING, _follow((tree,), False)))
    return either((_follow((tree,), True), later))


def check(pattern: str) -> None:
    """Raise `BadPattern` unless some dialect takes the pattern."""
    try:
        language(pattern)
    except Irregular:
        return
