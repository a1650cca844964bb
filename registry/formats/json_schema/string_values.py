"""Finding a string that satisfies lengths, patterns and sets.

Formats are predicates that nobody here interprets: validators differ in whether they assert them, so only a format
against its own opposite is a contradiction (and that is seen before).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count, product

import jsonschema_rs

from .automaton import Term, TooManyStates, find_word, literal, matches, never, within
from .nodes import Node
from .outcomes import IMPOSSIBLE, UNKNOWN, Outcome, found
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
def _matcher(pattern: str) -> Term | jsonschema_rs.Validator | None:
    """A term; for patterns that are no regular language an engine that bounds its backtracking; or nothing."""
    try:
        return language(pattern)
    except Irregular:
        pass
    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern})
    except jsonschema_rs.ValidationError:
        return None


@lru_cache(maxsize=65536)
def is_match(pattern: str, text: str) -> bool | None:
    """Whether the pattern is found in the text, or None when that cannot be told."""
    matcher = _matcher(pattern)
    if isinstance(matcher, Term):
        return matches(matcher, text)
    if matcher is None:
        return None
    errors = list(matcher.iter_errors(text))
    if any(error.kind.name != "pattern" for error in errors):
        return None
    return not errors


def string_satisfies(node: Node, text: str) -> bool | None:
    """Whether the string satisfies the formula (made special to strings), or None when that cannot be told."""
    args = node.args
    match node.kind:
        case "true":
            return True
        case "false":
            return False
        case "and" | "or":
            answers = {string_satisfies(part, text) for part in args[0]}
            decisive = node.kind == "or"
            return decisive if decisive in answers else None if None in answers else not decisive
        case "string_in":
            return text in args[0]
        case "string_not_in":
            return text not in args[0]
        case "min_length":
            return len(text) >= args[0]
        case "max_length":
            return len(text) <= args[0]
        case "pattern":
            return is_match(args[0], text)
        case "not_pattern":
            answer = is_match(args[0], text)
            return None if answer is None else not answer
        case _:
            return None


def find_string(atoms: frozenset[Node], spend: Callable[[], None]) -> Outcome:
    """A string for all atoms; exact as long as every pattern is a regular language of bearable size."""
    allowed: frozenset[str] | None = None
    excluded: set[str] = set()
    shortest, longest = 0, None
    terms: list[Term] = []
    samples: list[str] = []
    others: list[Node] = []
    for atom in atoms:
        match atom.kind:
            case "string_in":
                allowed = atom.args[0] if allowed is None else allowed & atom.args[0]
            case "string_not_in":
                excluded |= atom.args[0]
            case "min_length":
                shortest = max(shortest, atom.args[0])
            case "max_length":
                longest = atom.args[0] if longest is None else min(longest, atom.args[0])
            case "format":
                samples += [_SAMPLES[atom.args[0]]] if atom.args[0] in _SAMPLES else []
            case "pattern" | "not_pattern":
                matcher = _matcher(atom.args[0])
                if isinstance(matcher, Term):
                    terms.append(matcher if atom.kind == "pattern" else never(matcher))
                else:
                    others.append(atom)
    if allowed is not None:
        return _choose(sorted(allowed - excluded), atoms)
    if longest is not None and shortest > longest:
        return IMPOSSIBLE
    checked = [atom for atom in atoms if atom.kind not in ("format", "not_format")]
    for sample in samples:
        if all(string_satisfies(atom, sample) for atom in checked):
            return found(sample)
    if not terms and not others:
        return _of_length(shortest, longest, excluded)
    if shortest > MAX_LENGTH:
        return UNKNOWN
    within_reach = [text for text in excluded if all(matches(term, text) for term in terms)]
    term = within((*terms, *(never(literal(text)) for text in within_reach)))
    try:
        word = find_word(term, shortest, longest, spend)
    except TooManyStates:
        return UNKNOWN
    if word is None:
        return IMPOSSIBLE
    if all(string_satisfies(atom, word) for atom in others):
        return found(word)
    return UNKNOWN


def _choose(candidates: list[str], atoms: frozenset[Node]) -> Outcome:
    checked = [atom for atom in atoms if atom.kind not in ("format", "not_format")]
    unsure = False
    for text in candidates:
        answers = [string_satisfies(atom, text) for atom in checked]
        if all(answers):
            return found(text)
        unsure = unsure or False not in answers
    return UNKNOWN if unsure else IMPOSSIBLE


def _of_length(shortest: int, longest: int | None, excluded: set[str]) -> Outcome:
    """Only the empty string can be the last one of its length: there are a million others of length one."""
    if longest == 0:
        return IMPOSSIBLE if "" in excluded else found("")
    if shortest > MAX_LENGTH:
        return UNKNOWN
    for text in _readable(max(shortest, 1), longest):
        if text not in excluded:
            return found(text)
    return UNKNOWN


def _readable(shortest: int, longest: int | None) -> Iterator[str]:
    lengths: Iterable[int] = count(shortest) if longest is None else range(shortest, longest + 1)
    for length in lengths:
        tail = min(length, 3)
        for letters in product("abcdefghijklmnopqrstuvwxyz", repeat=tail):
            yield "a" * (length - tail) + "".join(letters)
