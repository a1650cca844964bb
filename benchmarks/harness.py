"""Comparisons: named contenders, interleaved repetitions, rows with a verdict.

Rule 1: every repetition runs each contender once, and the order rotates: none is always first after a pause.
Rule 2: nothing is hidden: what cannot be measured gives a row that says why, a missed target says MISSED.
Rule 3: a comparison is run once for each of its placements, and every row says which it was.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.groups import group_of
from benchmarks.placement import CORES, Placement, placed
from benchmarks.sampler import Sampler
from benchmarks.verdicts import Claim, Spread, Verdict, spread

Measure = Callable[[], float]
Started = TypeVar("Started")
T = TypeVar("T")
SLICES = 5
FEWEST = 5
PROFILED_REPETITIONS = 3
MOST_SECONDS, MOST_SECONDS_ALONE = 20.0, 60.0


class CannotMeasure(Exception):
    """A measurement went wrong in a way that makes its figure worthless; the row says so."""


class PeerMissing(CannotMeasure):
    """Something to compare with is not installed here."""


class _Repeated(Exception):
    """The two contenders that are measured alone were measured: what else the comparison does is not wanted."""


@dataclass(frozen=True)
class NotMeasured:
    reason: str


@dataclass(frozen=True)
class Row:
    """One line of the result: what was claimed, what was found, what to think of it."""

    comparison: str
    contender: str
    against: str | None
    unit: str
    name: str = ""
    group: str = ""
    placement: str = Placement.FREE
    bound: float | None = None
    is_upper: bool = True
    found: Spread | None = None
    verdict: str = Verdict.BESIDE
    leans_to_a_miss: bool = False
    reason: str = ""
    figures: dict[str, list[float]] = field(default_factory=dict)
    figures_unit: str = ""
    is_derived: bool = False
    was_repeated: bool = False

    @property
    def key(self) -> tuple[str, str, str, str | None]:
        return self.name, self.placement, self.contender, self.against


@dataclass(frozen=True)
class Comparison:
    topic: str
    title: str
    run: Callable[[Bench], None]
    is_headline: bool = False
    placements: tuple[Placement, ...] = (Placement.FREE,)

    @property
    def slug(self) -> str:
        return self.run.__name__.replace("_", "-")

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.slug}"

    @property
    def group(self) -> str:
        return group_of(self.topic)


_comparisons: list[Comparison] = []


def comparison(
    title: str, *, headline: bool = False, placements: Sequence[Placement] = (Placement.FREE,)
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Register a comparison. `--quick` runs the headlines; each placement is a run of its own."""

    def register(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        topic = function.__module__.rpartition(".")[2]
        _comparisons.append(Comparison(topic, title, function, headline, tuple(placements)))
        return function

    return register


def all_comparisons() -> list[Comparison]:
    topics = importlib.import_module("benchmarks.topics")
    for module in sorted(found.name for found in pkgutil.iter_modules(topics.__path__)):
        importlib.import_module(f"benchmarks.topics.{module}")
    return list(_comparisons)


class Bench:
    """What a comparison is given: how long to measure, where to put files, and where its rows go."""

    def __init__(self, directory: Path, *, quick: bool, repetitions: int, on_step: Callable[[str], None]) -> None:
        self.directory = directory
        self.quick = quick
        self.repetitions = repetitions
        self.rows: list[Row] = []
        self.profile: Path | None = None
        self._about = Row("", "all", None, "")
        self._pair: frozenset[str] | None = None
        self._on_step = on_step

    @property
    def seconds(self) -> float:
        """How long one contender measures in one repetition."""
        return 0.1 if self.quick else 0.3

    @property
    def slice_seconds(self) -> float:
        """The same for round trips, which need no time to set up.

        Many short turns share the machine's mood better than few long ones: a steadier ratio in equal time.
        """
        return self.seconds / SLICES

    @property
    def slices(self) -> int:
        return self.repetitions * SLICES

    @property
    def placement(self) -> Placement:
        return Placement(self._about.placement)

    def scaled(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def run(self, chosen: Comparison) -> list[Row]:
        """Run one comparison and return its rows; a measurement that failed is a row too."""
        before = len(self.rows)
        for placement in chosen.placements:
            self._run_placed(chosen, placement)
        return self.rows[before:]

    def run_alone(self, chosen: Comparison, row: Row) -> Row:
        """Measure the two contenders of a row once more, longer and without the others; return the row of that.

        What was found along the way of other measurements needs all of them.
        """
        rows, pair = self.rows, None if row.is_derived else frozenset({row.contender, row.against or row.contender})
        self.rows, self._pair = [], pair
        try:
            with suppress(_Repeated):
                self._run_placed(chosen, Placement(row.placement))
            found = next((each for each in self.rows if each.key == row.key and each.found), row)
        finally:
            self.rows, self._pair = rows, None
        return replace(found, was_repeated=True)

    def _run_placed(self, chosen: Comparison, placement: Placement) -> None:
        self._about = about = replace(left_out(chosen, ""), placement=placement)
        if placement.cores_needed > len(CORES):
            self.absent("all", f"it needs {placement.cores_needed} cores")
            return
        try:
            with placed(placement):
                chosen.run(self)
        except CannotMeasure as reason:
            verdict = about.verdict if isinstance(reason, PeerMissing) else "FAILED"
            self.rows.append(replace(about, verdict=verdict, reason=str(reason)))
        except _Repeated:
            raise
        except Exception as defect:  # noqa: BLE001  the other comparisons of a long run are worth having
            traceback.print_exc()
            self.rows.append(replace(about, verdict="FAILED", reason=f"{type(defect).__name__}: {defect}"))

    def run_profiled(self, chosen: Comparison, report: Path) -> None:
        """Run it once more with broker and client under the sampling profiler; those figures count for nothing."""
        kept, repetitions = len(self.rows), self.repetitions
        self.profile, self.repetitions = report, PROFILED_REPETITIONS
        sampler = Sampler()
        sampler.start()
        try:
            self.run(chosen)
        finally:
            sampler.stop()
            sampler.write(report.with_name(f"{report.stem}-client.txt"))
            del self.rows[kept:]
            self.profile, self.repetitions = None, repetitions

    def step(self, text: str) -> None:
        """Tell the person who waits what is being done now."""
        self._on_step(text)

    def compare(
        self,
        contenders: Mapping[str, Measure | NotMeasured],
        *,
        unit: str,
        claims: Sequence[Claim],
        repetitions: int | None = None,
    ) -> None:
        """Measure all contenders and judge the claims; an undecided one gets up to twice the repetitions.

        On a machine so busy that this takes too long, five repetitions must do.
        """
        if self._pair is not None:
            contenders = {name: measure for name, measure in contenders.items() if name in self._pair}
            claims = [claim for claim in claims if {claim.contender, claim.against or claim.contender} == self._pair]
            if not claims:
                return
        present = {name: measure for name, measure in contenders.items() if not isinstance(measure, NotMeasured)}
        figures: dict[str, list[float]] = {name: [] for name in present}
        least = repetitions or self.repetitions
        deadline = time.monotonic() + (MOST_SECONDS if self._pair is None else MOST_SECONDS_ALONE)
        most = least if self.quick or self.profile else least * 2
        for repetition in range(most if self._pair is None else most * 3):
            if repetition >= least and not self._is_undecided(claims, figures):
                break
            if repetition >= FEWEST and time.monotonic() > deadline:
                break
            order = list(present)
            start = repetition % len(order) if order else 0
            for name in order[start:] + order[:start]:
                self.step(f"{name}, repetition {repetition + 1}")
                figures[name].append(present[name]())
        for claim in claims:
            self.rows.append(self._judge(claim, figures, contenders, unit))
        if self._pair is not None:
            raise _Repeated

    def judge(self, figures: dict[str, list[float]], *, unit: str, claims: Sequence[Claim]) -> None:
        """Rows for what was found along the way, without measuring it anew."""
        self.rows += [replace(self._judge(claim, figures, {}, unit), is_derived=True) for claim in claims]

    def absent(self, what: str, reason: str) -> None:
        self.rows.append(replace(self._about, contender=what, reason=reason))

    @staticmethod
    def _is_undecided(claims: Sequence[Claim], figures: dict[str, list[float]]) -> bool:
        measured = [claim for claim in claims if {claim.contender, claim.against or claim.contender} <= figures.keys()]
        return any(claim.verdict(spread(claim.values(figures))) is Verdict.UNDECIDED for claim in measured)

    def _judge(
        self,
        claim: Claim,
        figures: dict[str, list[float]],
        contenders: Mapping[str, Measure | NotMeasured],
        unit: str,
    ) -> Row:
        row = replace(self._about, contender=claim.contender, against=claim.against)
        for name in (claim.contender, claim.against):
            if name is not None and isinstance(missing := contenders.get(name), NotMeasured):
                return replace(row, reason=missing.reason)
        found = spread(claim.values(figures))
        return replace(
            row,
            unit=unit if claim.against is None else "x",
            bound=claim.bound,
            is_upper=claim.is_upper,
            found=found,
            verdict=claim.verdict(found),
            leans_to_a_miss=claim.leans_to_a_miss(found),
            figures={name: figures[name] for name in (claim.contender, claim.against) if name is not None},
            figures_unit=unit,
        )


def left_out(chosen: Comparison, reason: str) -> Row:
    """A row that says why a comparison was not made."""
    return Row(chosen.title, "all", None, "", chosen.name, chosen.group, verdict="not measured", reason=reason)


def enter_or_say_why(stack: ExitStack, peer: AbstractContextManager[Started]) -> Started | NotMeasured:
    """Start a peer for as long as the stack lasts, or learn why the comparison must go on without it."""
    try:
        return stack.enter_context(peer)
    except PeerMissing as missing:
        return NotMeasured(str(missing))


def if_present(peer: T | NotMeasured, contender: Callable[[T], Measure]) -> Measure | NotMeasured:
    return peer if isinstance(peer, NotMeasured) else contender(peer)


def until(seconds: float) -> Iterator[None]:
    """Go round for so many seconds; one operation too long ends it, none too many starts."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        yield
