"""Patterns as regular languages, against Python's engine where both speak the same dialect."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from registry.formats.json_schema.automaton import find_word, matches, never, within
from registry.formats.json_schema.regex import BadPattern, Irregular, language
from tests.levels import examples

ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", "\\w", "^", "$", "(?=a)", "(?!b)"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("".join, st.lists(inner, min_size=1, max_size=3)),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "*?"])),
    ),
    max_leaves=6,
)


def is_found(pattern: str, text: str) -> bool:
    """By Python's engine, whose `$` also stands before a newline at the end; that of JSON Schema does not."""
    return re.search(pattern.replace("$", r"\Z"), text) is not None


@settings(max_examples=examples(100))
@given(PATTERNS, st.lists(st.text("abc\n", max_size=5), max_size=8))
def test_a_language_holds_the_strings_in_which_the_pattern_is_found(pattern: str, texts: list[str]) -> None:
    try:
        term = language(pattern)
    except Irregular:
        return
    for text in texts:
        assert matches(term, text) == is_found(pattern, text), text


@settings(max_examples=examples(50))
@example("a", ".$", 0)  # its word ends with a newline
@given(PATTERNS, PATTERNS, st.integers(0, 3))
def test_a_word_found_is_in_one_language_and_outside_the_other(one: str, two: str, shortest: int) -> None:
    try:
        term = within((language(one), never(language(two))))
    except Irregular:
        return
    word = find_word(term, shortest, shortest + 2, lambda _: None)
    if word is not None:
        assert shortest <= len(word) <= shortest + 2
        assert is_found(one, word)
        assert not is_found(two, word)


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        ("\\d", "7", True),
        ("\\d", "\u0663", False),
        ("^\\s$", "\u3000", True),
        (".", "\n", False),
        ("\\u0041\\x42\\t", "AB\t", True),
        ("\\u{1F600}", "\U0001f600", True),
        ("[\\b]", "\b", True),
        ("\\/\\-\\.", "/-.", True),
        ("a{", "a{", True),
        ("{1}", "{1}", True),
        ("x{,2}", "x{,2}", True),
        ("(?<year>\\d{4})", "2020", True),
        ("[]a]", "a", None),
        ("\\p{L}", "a", None),
        ("(?i)a", "A", None),
        ("\\bword\\b", "word", None),
        ("(a)\\1", "aa", None),
        ("a++", "a", None),
    ],
)
def test_the_dialect_is_that_of_ecma_262(pattern: str, text: str, is_found: bool | None) -> None:
    if is_found is None:
        with pytest.raises(Irregular):
            language(pattern)
    else:
        assert matches(language(pattern), text) == is_found


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "(?:a", "[", "[a", "[z-a]", "*", "+a", "a**", "a{2,1}", "\\", "\\xZZ", "a{9999999}"],
)
def test_what_no_dialect_takes_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        language(pattern)
