"""Finding a number that satisfies bounds, divisors and sets."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any

from .nodes import Node
from .outcomes import IMPOSSIBLE, UNKNOWN, ProofOutcome, found

MAX_CANDIDATES = 500


class NumberDemands:
    """What the atoms ask for together."""

    def __init__(self, atoms: Iterable[Node]) -> None:
        self.low: tuple[Fraction, bool] | None = None  # (bound, is excluded)
        self.high: tuple[Fraction, bool] | None = None
        self.step: Fraction | None = None
        self.not_steps: list[Fraction] = []
        self.allowed: frozenset[Fraction] | None = None
        self.excluded: set[Fraction] = set()
        self.not_written_as_integer = False
        for atom in atoms:
            self._add(atom.kind, atom.args)

    def _add(self, kind: str, args: tuple[Any, ...]) -> None:
        match kind:
            case "minimum":
                self.low = (args[0], args[1]) if self.low is None else max(self.low, (args[0], args[1]))
            case "maximum":
                bound = (args[0], args[1])
                if self.high is None or (bound[0], not bound[1]) < (self.high[0], not self.high[1]):
                    self.high = bound
            case "multiple":
                self.step = args[0] if self.step is None else _common_multiple(self.step, args[0])
            case "written_as_integer":
                self._add("multiple", (Fraction(1),))
            case "not_multiple":
                self.not_steps.append(args[0])
            case "not_written_as_integer":
                self.not_written_as_integer = True
            case "number_in":
                self.allowed = args[0] if self.allowed is None else self.allowed & args[0]
            case "number_not_in":
                self.excluded |= args[0]

    def admits(self, value: Fraction) -> bool:
        if self.low and (value < self.low[0] or (value == self.low[0] and self.low[1])):
            return False
        if self.high and (value > self.high[0] or (value == self.high[0] and self.high[1])):
            return False
        if self.step and (value / self.step).denominator != 1:
            return False
        if value in self.excluded or (self.allowed is not None and value not in self.allowed):
            return False
        return all((value / step).denominator != 1 for step in self.not_steps)


def _common_multiple(one: Fraction, two: Fraction) -> Fraction:
    scale = lcm(one.denominator, two.denominator)
    return Fraction(lcm(int(one * scale), int(two * scale)), scale)


def find_number(atoms: Iterable[Node]) -> ProofOutcome:
    """A number for all atoms; impossibility is decided exactly, except over very long ranges of multiples."""
    demands = NumberDemands(atoms)
    if demands.allowed is not None:
        for value in sorted(demands.allowed, key=lambda value: (value.denominator, abs(value))):
            if demands.admits(value):
                return _written(value, demands)
        return IMPOSSIBLE
    low, high = demands.low, demands.high
    if low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return IMPOSSIBLE
    if demands.step is None:
        return _dense(demands)
    return _stepped(demands, demands.step)


def _written(value: Fraction, demands: NumberDemands) -> ProofOutcome:
    if value.denominator == 1 and not demands.not_written_as_integer:
        return found(int(value))
    try:
        return found(float(value))
    except OverflowError:
        return UNKNOWN


def _dense(demands: NumberDemands) -> ProofOutcome:
    """Reals between two distinct bounds cannot be used up by finitely many exclusions and multiples."""
    if demands.low and demands.high and demands.low[0] == demands.high[0]:
        return _written(demands.low[0], demands) if demands.admits(demands.low[0]) else IMPOSSIBLE
    for value in _samples(demands):
        if demands.admits(value):
            return _written(value, demands)
    return UNKNOWN


def _samples(demands: NumberDemands) -> Iterator[Fraction]:
    low = demands.low[0] if demands.low else None
    high = demands.high[0] if demands.high else None
    yield from (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2))
    if low is None and high is None:
        yield from (Fraction(index) for index in range(2, 50))
    for bound, sign in ((low, 1), (high, -1)):
        if bound is not None:
            yield from (Fraction(floor(bound)) + sign * index for index in range(20))
            yield bound
    span = high - low if low is not None and high is not None else Fraction(1)
    start = low if low is not None else (high - span if high is not None else Fraction(0))
    for parts in (2, 4, 8, 10, 16, 32, 64, 100, 1024, 9973):
        for index in range(1, min(parts, 12)):
            yield start + span * Fraction(index, parts)


def _stepped(demands: NumberDemands, step: Fraction) -> ProofOutcome:
    """Multiples k * step, where k must not be a multiple of any period."""
    periods = [(step / other).denominator for other in demands.not_steps]
    if 1 in periods:
        return IMPOSSIBLE
    first = ceil(demands.low[0] / step) if demands.low else None
    last = floor(demands.high[0] / step) if demands.high else None
    for k in _nearest(first, last):
        if demands.admits(k * step):
            return _written(k * step, demands)
    if first is not None and last is not None and last - first < MAX_CANDIDATES:
        return IMPOSSIBLE
    return UNKNOWN


def _nearest(first: int | None, last: int | None) -> Iterator[int]:
    """Every k of the range when there are few, else those nearest to zero or to the bounds."""
    if first is None and last is None:
        yield 0
        for k in range(1, MAX_CANDIDATES):
            yield from (k, -k)
    elif last is None:
        assert first is not None
        yield from range(max(first, 0), max(first, 0) + MAX_CANDIDATES)
    elif first is None:
        yield from range(min(last, 0), min(last, 0) - MAX_CANDIDATES, -1)
    else:
        yield from range(first, min(last, first + MAX_CANDIDATES) + 1)
