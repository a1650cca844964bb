"""Answers to "is there a value with all these properties?"."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """`impossible` is a proof; without it a value may exist, and `value` is one when `found`."""

    impossible: bool = False
    found: bool = False
    value: Any = None


IMPOSSIBLE = Outcome(impossible=True)
UNKNOWN = Outcome()


def found(value: Any) -> Outcome:
    return Outcome(found=True, value=value)


def best(first: Outcome, second: Outcome) -> Outcome:
    """Of two alternatives: a value beats not knowing, which beats a proof that one of them has none."""
    if first.found or second.impossible:
        return first
    return second
