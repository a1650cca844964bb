"""Finding a string that satisfies lengths, patterns and sets.

Formats are predicates that nobody here interprets: validators differ in whether they assert them, so only a
format against its own opposite is a contradiction (and that is seen before).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count, product
from typing import Any

import jsonschema_rs

from .automaton import Term, TooMuchWork, find_word, literal, matches, never, within
from .nodes import Node
from .outcomes import IMPOSSIBLE, UNKNOWN, ProofOutcome, found
from .regex import Irregular, language

MAX_LENGTH = 2_000
_SAMPLES = {
    "date-time": "2020-01-01T00:00:00Z",
    "date": "2020-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "idn-email": "a@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "http://example.com/",
    "iri": "http://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "relative-json-pointer": "0",
}


@lru_cache(maxsize=4096)
def _term(pattern: str) -> Term | None:
    try:
        return language(pattern)
    except Irregular:
        return None


@lru_cache(maxsize=1024)
def _engine(pattern: str) -> jsonschema_rs.Validator | None:
    """An engine with bounded backtracking, for patterns that are no regular language or too large a one."""
    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern})
    except jsonschema_rs.ValidationError:
        return None


@lru_cache(maxsize=65536)
def is_match(pattern: str, text: str) -> bool | None:
    """Whether the pattern is found in the text, or None when that cannot be told."""
    term = _term(pattern)
    if term is not None:
        try:
            return matches(term, text)
        except TooMuchWork:
            pass  # the engine below may still tell
    engine = _engine(pattern)
    if engine is None:
        return None
    errors = list(engine.iter_errors(text))
    if any(error.kind.name != "pattern" for error in errors):
        return None
    return not errors


def string_satisfies(node: Node, text: str) -> bool | None:
    """Whether the string satisfies the formula, made special to strings; None when that cannot be told."""
    args = node.args
    match node.kind:
        case "true":
            return True
        case "false":
            return False
        case "and" | "or":
            answers = [string_satisfies(part, text) for part in args[0]]
            decisive = node.kind == "or"
            return decisive if decisive in answers else None if None in answers else not decisive
        case "exactly_one" | "not_exactly_one":
            answers = [string_satisfies(part, text) for part in args[0]]
            return None if None in answers else (answers.count(True) == 1) == (node.kind == "exactly_one")
        case "string_in":
            return bool(text in args[0])
        case "string_not_in":
            return bool(text not in args[0])
        case "min_length":
            return bool(len(text) >= args[0])
        case "max_length":
            return bool(len(text) <= args[0])
        case "pattern":
            return is_match(args[0], text)
        case "not_pattern":
            answer = is_match(args[0], text)
            return None if answer is None else not answer
        case _:
            return None


class StringDemands:
    """What the atoms ask for together."""

    def __init__(self, atoms: Iterable[Node]) -> None:
        self.allowed: frozenset[str] | None = None
        self.excluded: set[str] = set()
        self.shortest = 0
        self.longest: int | None = None
        self.terms: list[Term] = []
        self.samples: list[str] = []
        self.irregular: list[Node] = []
        for atom in atoms:
            self._add(atom, atom.args)

    def _add(self, atom: Node, args: tuple[Any, ...]) -> None:
        match atom.kind:
            case "string_in":
                self.allowed = args[0] if self.allowed is None else self.allowed & args[0]
            case "string_not_in":
                self.excluded |= args[0]
            case "min_length":
                self.shortest = max(self.shortest, args[0])
            case "max_length":
                self.longest = args[0] if self.longest is None else min(self.longest, args[0])
            case "format":
                self.samples += [_SAMPLES[args[0]]] if args[0] in _SAMPLES else []
            case "pattern" | "not_pattern":
                term = _term(args[0])
                if term is None:
                    self.irregular.append(atom)
                else:
                    self.terms.append(term if atom.kind == "pattern" else never(term))


def find_string(atoms: frozenset[Node], spend: Callable[[int], None]) -> ProofOutcome:
    """A string for all atoms; exact as long as every pattern is a regular language of bearable size."""
    demands = StringDemands(atoms)
    if demands.allowed is not None:
        return _choose(sorted(demands.allowed - demands.excluded), atoms)
    if demands.longest is not None and demands.shortest > demands.longest:
        return IMPOSSIBLE
    sample = _choose(demands.samples, atoms)
    if sample.found:
        return sample
    if not demands.terms and not demands.irregular:
        return _of_length(demands)
    return _by_automaton(demands, spend)


def _by_automaton(demands: StringDemands, spend: Callable[[int], None]) -> ProofOutcome:
    try:
        excluded = [text for text in demands.excluded if all(matches(term, text) for term in demands.terms)]
        term = within((*demands.terms, *(never(literal(text)) for text in excluded)))
        word = find_word(term, min(demands.shortest, MAX_LENGTH), demands.longest, spend)
    except TooMuchWork:
        return UNKNOWN
    if word is None:
        return IMPOSSIBLE
    if len(word) >= demands.shortest and all(string_satisfies(atom, word) for atom in demands.irregular):
        return found(word)
    return UNKNOWN


def _choose(candidates: list[str], atoms: frozenset[Node]) -> ProofOutcome:
    checked = [atom for atom in atoms if atom.kind not in ("format", "not_format")]
    unsure = False
    for text in candidates:
        answers = [string_satisfies(atom, text) for atom in checked]
        if all(answers):
            return found(text)
        unsure = unsure or False not in answers
    return UNKNOWN if unsure else IMPOSSIBLE


def _of_length(demands: StringDemands) -> ProofOutcome:
    """Only the empty string can be the last one of its length: there are a million others of length one."""
    if demands.longest == 0:
        return IMPOSSIBLE if "" in demands.excluded else found("")
    if demands.shortest > MAX_LENGTH:
        return UNKNOWN
    for text in _readable(max(demands.shortest, 1), demands.longest):
        if text not in demands.excluded:
            return found(text)
    return UNKNOWN


def _readable(shortest: int, longest: int | None) -> Iterator[str]:
    lengths: Iterable[int] = count(shortest) if longest is None else range(shortest, longest + 1)
    for length in lengths:
        tail = min(length, 3)
        for letters in product("abcdefghijklmnopqrstuvwxyz", repeat=tail):
            yield "a" * (length - tail) + "".join(letters)
