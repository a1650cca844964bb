"""Answers to "is there a value with all these properties?"."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """`impossible` is a proof; without it a value may exist, and `value` is one when `found`."""

    impossible: bool = False
    found: bool = False
    value: Any = None


IMPOSSIBLE = ProofOutcome(impossible=True)
UNKNOWN = ProofOutcome()


def found(value: Any) -> ProofOutcome:
    return ProofOutcome(found=True, value=value)


def best(first: ProofOutcome, second: ProofOutcome) -> ProofOutcome:
    """Of two alternatives: a value beats not knowing, which beats a proof that one of them has none."""
    if first.found or second.impossible:
        return first
    return second
