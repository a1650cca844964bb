"""What repeated measurements allow us to say, and when they allow nothing.

Rule 1: contenders are compared repetition by repetition, never best against best: neighbours in time share
        the machine's mood, so their ratio is steadier than either figure.
Rule 2: the spread is the interval that holds the median with at least 90% confidence (order statistics, no
        assumption about the shape of the noise). A target inside it cannot be told met or missed: the two
        contenders are measured once more, alone and for longer, before a row is called undecided.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

CONFIDENCE = 0.90


class Verdict(StrEnum):
    MET = "met"
    MISSED = "MISSED"
    UNDECIDED = "undecided"
    BESIDE = "no target"


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The median and its confidence interval; with five or fewer values that is their whole range."""
    ordered = sorted(values)
    n = len(ordered)
    outside, cut = 0.0, 0
    while cut < (n - 1) // 2:
        outside += 2 * math.comb(n, cut) / 2**n
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    # `cut` values may be left out on each side; at least the outermost pair always bounds the interval.
    index = max(cut - 1, 0)
    return Spread(statistics.median(ordered), ordered[index], ordered[n - 1 - index])


@dataclass(frozen=True)
class Claim:
    """`contender` divided by `against` (or alone, in its own unit) is on the right side of `bound`."""

    contender: str
    against: str | None
    bound: float | None
    is_upper: bool = True

    def verdict(self, found: Spread) -> Verdict:
        if self.bound is None:
            return Verdict.BESIDE
        if found.low <= self.bound <= found.high and found.low != found.high:
            return Verdict.UNDECIDED
        is_met = found.median <= self.bound if self.is_upper else found.median >= self.bound
        return Verdict.MET if is_met else Verdict.MISSED

    def leans_to_a_miss(self, found: Spread) -> bool:
        if self.bound is None:
            return False
        return found.median > self.bound if self.is_upper else found.median < self.bound

    def values(self, figures: dict[str, list[float]]) -> list[float]:
        mine = figures[self.contender]
        if self.against is None:
            return mine
        return [ours / theirs for ours, theirs in zip(mine, figures[self.against], strict=True)]


def at_most(bound: float, contender: str, against: str | None = None) -> Claim:
    return Claim(contender, against, bound, is_upper=True)


def at_least(bound: float, contender: str, against: str | None = None) -> Claim:
    return Claim(contender, against, bound, is_upper=False)


def beside(contender: str, against: str | None = None) -> Claim:
    """Printed for comparison, promised by nobody."""
    return Claim(contender, against, None)


def percentile(durations: Sequence[float], fraction: float) -> float:
    ordered = sorted(durations)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]
