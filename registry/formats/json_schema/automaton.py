"""Regular languages by derivatives: what may follow after each character.

The derivative of a language by a character is the language of the remainders. Terms are interned and
simplified, so the derivatives of a term are finitely many, and a breadth-first walk over them finds a
shortest word or proves that there is none. Intersection and complement cost nothing extra.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

Ranges = tuple[tuple[int, int], ...]
MAX_WORK = 20_000


class TooMuchWork(ValueError):
    """The walk was given up; nothing is claimed about the language."""


class Term:
    """A regular language; `nullable` when the empty string is in it."""

    __slots__ = ("__weakref__", "args", "kind", "nullable")

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind = kind
        self.args = args
        match kind:
            case "chars" | "empty":
                self.nullable = False
            case "concat" | "within":
                self.nullable = all(part.nullable for part in (args if kind == "concat" else args[0]))
            case "either":
                self.nullable = any(part.nullable for part in args[0])
            case "never":
                self.nullable = not args[0].nullable
            case "loop":
                self.nullable = args[1] == 0 or args[0].nullable
            case _:
                self.nullable = True


_interned: WeakValueDictionary[tuple[Any, ...], Term] = WeakValueDictionary()


def _make(kind: str, *args: Any) -> Term:
    key = (kind, *args)
    term = _interned.get(key)
    if term is None:
        term = _interned[key] = Term(kind, args)
    return term


EMPTY = _make("empty")
EPSILON = _make("epsilon")
EVERYTHING = _make("never", EMPTY)


def chars(ranges: Ranges) -> Term:
    return _make("chars", tuple(sorted(ranges))) if ranges else EMPTY


def concat(first: Term, second: Term) -> Term:
    """Nested to the right, so that equal sequences are one term."""
    while first.kind == "concat":
        parts = []
        while first.kind == "concat":
            parts.append(first.args[0])
            first = first.args[1]
        second = concat(first, second)
        for part in reversed(parts[1:]):
            second = _joined(part, second)
        first = parts[0]
    return _joined(first, second)


def _joined(first: Term, second: Term) -> Term:
    if first is EMPTY or second is EMPTY:
        return EMPTY
    if first is EPSILON:
        return second
    if second is EPSILON:
        return first
    if first is EVERYTHING and second is EVERYTHING:
        return EVERYTHING
    return _make("concat", first, second)


def either(terms: Iterable[Term]) -> Term:
    parts = _flat("either", terms)
    parts.discard(EMPTY)
    if EVERYTHING in parts:
        return EVERYTHING
    if EPSILON in parts and any(part.nullable for part in parts if part is not EPSILON):
        parts.discard(EPSILON)
    if not parts:
        return EMPTY
    return parts.pop() if len(parts) == 1 else _make("either", frozenset(parts))


def within(terms: Iterable[Term]) -> Term:
    """The intersection."""
    parts = _flat("within", terms)
    parts.discard(EVERYTHING)
    if EMPTY in parts:
        return EMPTY
    if EPSILON in parts:
        return EPSILON if all(part.nullable for part in parts) else EMPTY
    if not parts:
        return EVERYTHING
    return parts.pop() if len(parts) == 1 else _make("within", frozenset(parts))


def _flat(kind: str, terms: Iterable[Term]) -> set[Term]:
    parts: set[Term] = set()
    for term in terms:
        parts.update(term.args[0] if term.kind == kind else (term,))
    return parts


def never(term: Term) -> Term:
    """The complement."""
    return term.args[0] if term.kind == "never" else _make("never", term)


def loop(term: Term, low: int, high: int) -> Term:
    """Between low and high times, without end when high is -1."""
    if high == 0 or term is EPSILON:
        return EPSILON
    if term is EMPTY:
        return EPSILON if low == 0 else EMPTY
    if low == high == 1:
        return term
    if term.kind == "chars" and term.args[0] == ((0, 0x10FFFF),) and (low, high) == (0, -1):
        return EVERYTHING
    return _make("loop", term, 0 if term.nullable else low, high)


def literal(text: str) -> Term:
    term = EPSILON
    for char in reversed(text):
        term = concat(chars(((ord(char), ord(char)),)), term)
    return term


@lru_cache(maxsize=100_000)
def derivative(term: Term, code: int) -> Term:
    """What may follow after this character."""
    args = term.args
    match term.kind:
        case "chars":
            return EPSILON if any(low <= code <= high for low, high in args[0]) else EMPTY
        case "concat":
            first = concat(derivative(args[0], code), args[1])
            return either((first, derivative(args[1], code))) if args[0].nullable else first
        case "either":
            return either([derivative(part, code) for part in args[0]])
        case "within":
            return within([derivative(part, code) for part in args[0]])
        case "never":
            return never(derivative(args[0], code))
        case "loop":
            body, low, high = args
            return concat(derivative(body, code), loop(body, max(low - 1, 0), high if high < 0 else high - 1))
        case _:
            return EMPTY


def matches(term: Term, text: str) -> bool:
    """Whether the text is in the language."""
    work = 0
    for char in text:
        if term is EMPTY or term is EVERYTHING:
            break
        work += _width(term)
        if work > MAX_WORK:
            raise TooMuchWork
        term = derivative(term, ord(char))
    return term.nullable


def _front(term: Term, found: set[Ranges]) -> None:
    """The character sets that decide the next derivative."""
    match term.kind:
        case "chars":
            found.add(term.args[0])
        case "concat":
            _front(term.args[0], found)
            if term.args[0].nullable:
                _front(term.args[1], found)
        case "either" | "within":
            for part in term.args[0]:
                _front(part, found)
        case "never" | "loop":
            _front(term.args[0], found)


@lru_cache(maxsize=20_000)
def _width(term: Term) -> int:
    """How many parts a derivative has to visit, about."""
    if term.kind in ("either", "within"):
        return sum(map(_width, term.args[0]))
    return _width(term.args[0]) if term.kind in ("concat", "never", "loop") else 1


_NICE = [ord(char) for char in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_- ./:@"]


@lru_cache(maxsize=20_000)
def _representatives(term: Term) -> tuple[int, ...]:
    """One character of each kind that the term tells apart, readable ones where there are any."""
    found: set[Ranges] = set()
    _front(term, found)
    sets = sorted(found)
    edges = {0}
    for ranges in sets:
        for low, high in ranges:
            edges.update((low, high + 1))
    chosen: dict[tuple[bool, ...], int] = {}
    for code in [
        *_NICE,
        *(edge for edge in sorted(edges) if edge <= 0x10FFFF and not 0xD800 <= edge <= 0xDFFF),
    ]:
        signature = tuple(any(low <= code <= high for low, high in ranges) for ranges in sets)
        chosen.setdefault(signature, code)
    return tuple(chosen.values())


def find_word(term: Term, shortest: int, longest: int | None, spend: Callable[[int], None]) -> str | None:
    """A word of the language whose length lies in the bounds, or None when there is none.

    Up to `shortest` each layer holds all states reachable in exactly that many characters; from there on a
    state met before needs no second visit.
    """
    layers: list[dict[Term, tuple[Term | None, int]]] = [{term: (None, 0)}]
    seen: set[Term] = {term}
    work = 0
    while True:
        length = len(layers) - 1
        layer = layers[-1]
        if length >= shortest:
            for state in layer:
                if state.nullable:
                    return _trace(layers, state)
        if not layer or length == longest:
            return None
        following: dict[Term, tuple[Term | None, int]] = {}
        for state in layer:
            work += _width(state) * len(_representatives(state))
            if work > MAX_WORK:
                raise TooMuchWork
            for code in _representatives(state):
                spend(5)
                reached = derivative(state, code)
                if reached is not EMPTY and reached not in following and not (length >= shortest and reached in seen):
                    following[reached] = (state, code)
        seen = (seen if length >= shortest else set()) | set(following)
        layers.append(following)


def _trace(layers: list[dict[Term, tuple[Term | None, int]]], state: Term) -> str:
    codes = []
    for layer in reversed(layers[1:]):
        before, code = layer[state]
        assert before is not None
        codes.append(code)
        state = before
    return "".join(map(chr, reversed(codes)))
