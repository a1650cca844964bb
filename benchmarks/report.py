"""The results: a table a group for people, JSON for scripts."""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from benchmarks.groups import GROUPS
from benchmarks.harness import Row
from benchmarks.placement import CORES, Placement
from benchmarks.verdicts import Verdict, spread

STYLES = {Verdict.MET: "green", Verdict.MISSED: "bold red", Verdict.UNDECIDED: "yellow", "FAILED": "bold red"}
EXPLANATION = (
    "A ratio is the median of the ratios of all repetitions; beside it is the spread that holds it with 90% "
    "confidence. Where the target lies inside the spread, the two were measured once more, alone."
)


@dataclass(frozen=True)
class Machine:
    cpus: int
    processor: str
    load_average: tuple[float, float, float]
    python: str
    platform: str


@dataclass(frozen=True)
class Results:
    """One run. `rings` says which implementation of the rings was measured, `commit` of which tree."""

    started_at: datetime
    ended_at: datetime
    quick: bool
    command: str
    commit: str
    rings: str
    machine: Machine
    rows: list[Row]


def results(rows: list[Row], *, quick: bool, started_at: datetime) -> Results:
    machine = Machine(len(CORES), _processor(), os.getloadavg(), sys.version.split()[0], platform.platform())
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    return Results(started_at, datetime.now(UTC), quick, command, _commit(), _rings(), machine, rows)


def write_json(results: Results, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)))


def read_json(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def by_group(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each group that has any, in the order of the groups."""
    names = [*GROUPS, *{row.group for row in rows if row.group not in GROUPS}]
    return {name: found for name in names if (found := [row for row in rows if row.group == name])}


def figure(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}x"
    if unit == "/s" and value >= 10_000:
        return f"{value / 1000:,.0f}k /s"
    if unit == "µs" and value >= 10_000:
        value, unit = value / 1000, "ms"
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def median_of(row: Row, name: str | None) -> str:
    """The absolute figure of one side of a row; nothing where it has none."""
    return figure(spread(row.figures[name]).median, row.figures_unit) if name in row.figures else ""


def ratio(row: Row) -> str:
    return figure(row.found.median, row.unit) if row.found and row.against else ""


def spread_of(row: Row) -> str:
    if row.found is None:
        return ""
    low, high = figure(row.found.low, row.unit), figure(row.found.high, row.unit)
    return f"{low.removesuffix(f' {row.unit}').removesuffix('x')} to {high}"


def target(row: Row) -> str:
    return "" if row.bound is None else f"{'≤' if row.is_upper else '≥'} {figure(row.bound, row.unit)}"


def verdict(row: Row) -> str:
    if row.verdict != Verdict.UNDECIDED:
        return "" if row.verdict == Verdict.BESIDE else str(row.verdict)
    leaning = f"median {'misses' if row.leans_to_a_miss else 'meets'}"
    return f"{'not repeated' if is_open(row) else 'undecided'} ({leaning})"


def is_open(row: Row) -> bool:
    """Whether the target lies in the spread, and the two were not measured alone yet."""
    return row.verdict == Verdict.UNDECIDED and not row.was_repeated


def heading(row: Row) -> str:
    return row.comparison if row.placement == Placement.FREE else f"{row.comparison} · {row.placement}"


def print_tables(rows: list[Row], console: Console) -> None:
    for group, members in by_group(rows).items():
        console.print()
        for line in group_table(group, members, console.width):
            console.print(line, no_wrap=True, overflow="ellipsis", highlight=False)
    console.print()
    console.print(EXPLANATION)


def group_table(group: str, rows: list[Row], width: int) -> list[Text]:
    """One line a row, under a line that says what is compared."""
    cells = [
        (row.contender, median_of(row, row.contender), row.against or "", median_of(row, row.against)) for row in rows
    ]
    figures = max(max((len(cell) for each in cells for cell in (each[1], each[3])), default=0), 6)
    between = max(max((len(spread_of(row)) for row in rows), default=0), 6)
    targets = max(max((len(target(row)) for row in rows), default=0), 6)
    rest = width - 2 * figures - between - targets - 8 - 20 - 12
    ours = min(max(max((len(each[0]) for each in cells), default=0), 9), max(rest // 2, 16))
    theirs = min(max(max((len(each[2]) for each in cells), default=0), 7), max(rest - ours, 16))

    def line(contender: str, own: str, against: str, other: str, found: str, within: str, bound: str) -> str:
        return (
            f"  {_cut(contender, ours):<{ours}} {own:>{figures}}  {_cut(against, theirs):<{theirs}} "
            f"{other:>{figures}}  {found:>7}  {within:>{between}}  {bound:>{targets}}  "
        )

    lines = [
        Text(f"{group[0].upper()}{group[1:]}", "bold underline"),
        Text(line("", "median", "against", "median", "ratio", "spread", "target") + "verdict", "dim"),
    ]
    previous = ""
    for row, cell in zip(rows, cells, strict=True):
        if heading(row) != previous:
            previous = heading(row)
            lines.append(Text(_cut(previous, width), "bold"))
        if row.found is None:
            told = f"  {_cut(row.contender, ours)}{f' against {row.against}' if row.against else ''}: "
            lines.append(Text.assemble(told, (f"{row.verdict}: {row.reason}", STYLES.get(row.verdict, "dim"))))
            continue
        text = line(*cell, ratio(row), spread_of(row), target(row))
        lines.append(Text.assemble(text, (verdict(row), STYLES.get(row.verdict, "dim"))))
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """Return the commit of this tree, with a plus sign where files have changed since; nothing outside of git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=30
        )
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return f"{commit}+" if commit and git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _rings() -> str:
    """Which implementation of the rings this process takes."""
    if find_spec("messagehub.shm.core") is None:
        return "python (layout 2)"
    from messagehub.shm import core  # type: ignore[attr-defined]

    return str(core.IMPLEMENTATION)
