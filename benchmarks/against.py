"""`--against DIR`: the rows of the hub and its rings, of this tree and of another checkout, in turns.

Both are measured by the code of this tree, in the same minute and on the same cores. A row is called better or worse
only if its whole spread is, and worse only after it was measured once more, for longer.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.harness import CannotMeasure
from benchmarks.hub_processes import HubRow, hub_row
from benchmarks.placement import CORES, WAKING, Placement, placed
from benchmarks.processes import ROOT
from benchmarks.report import figure
from benchmarks.verdicts import Spread, spread

SMALLEST = 0.03
"""A smaller difference is none: two runs of one commit differ by as much."""
WIDEST = 0.3
REPETITIONS, QUICK_REPETITIONS = 45, 15
SECONDS = 0.05
ROWS = {
    "trip": ("1 KiB to a sleeping process and back, hub", WAKING),
    "ring-trip": ("1 KiB to a sleeping process and back, ring", WAKING),
    "write": ("write of 1 KiB that nobody reads", (Placement.SAME_CORE,)),
    "read-nothing": ("read that finds nothing", (Placement.SAME_CORE,)),
    "stream-1k": ("item of a stream of 1 KiB, lossless", (Placement.TWO_CORES,)),
    "stream-64k": ("item of a stream of 64 KiB, lossless", (Placement.TWO_CORES,)),
    "stream-1m": ("item of a stream of 1 MiB, lossless", (Placement.TWO_CORES,)),
    "stream-16m": ("item of a stream of 16 MiB, lossless", (Placement.TWO_CORES,)),
    "discover-cold": ("hub.discover on the same host, cold", WAKING),
    "discover-watched": ("hub.discover, watched", (Placement.TWO_CORES,)),
    "get-by-id": ("GET of a schema by its id", (Placement.TWO_CORES,)),
    "publish": ("message of 100 bytes, published and received", (Placement.TWO_CORES,)),
    "attach": ("hub.consumer and its end, without a broker", (Placement.SAME_CORE,)),
}


class Difference(msgspec.Struct):
    """Costs in µs, and the median and spread of this tree's cost over the other's, repetition by repetition."""

    row: str
    title: str
    placement: str
    here: list[float] = []
    there: list[float] = []
    ratio: Spread | None = None
    verdict: str = ""


def compare_checkouts(other: Path, directory: Path, *, quick: bool, only: str = "") -> int:
    """Print a line for each row; 1 if any is worse or failed."""
    tree = other.resolve()
    if not (tree / "messagehub" / "__init__.py").exists():
        print(f"{other} is no checkout of MessageHub", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    console.print(f"µs a call, {ROOT} against {tree}; the ratio is this tree's cost over the other's")
    found = []
    for row, (title, placements) in ROWS.items():
        for placement in placements:
            if only.lower() not in f"{row} {title} {placement}".lower() or placement.cores_needed > len(CORES):
                continue
            difference = Difference(row, title, placement)
            try:
                with placed(placement):
                    _compare(difference, tree, directory, quick=quick)
            except CannotMeasure as reason:
                difference.verdict = f"FAILED: {reason}"
            found.append(difference)
            console.print(_line(difference), soft_wrap=True)
            (directory / "against.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    if not found:
        print(f"nothing matches --only {only}", file=sys.stderr)
        return 2
    console.print("written: build/bench/against.json")
    return 1 if any(each.verdict.startswith(("worse", "FAILED")) for each in found) else 0


def _compare(difference: Difference, tree: Path, directory: Path, *, quick: bool) -> None:
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    with ExitStack() as stack:
        here = stack.enter_context(hub_row(directory, difference.row))
        there = stack.enter_context(hub_row(directory, difference.row, tree=tree))
        for each in (here, there):
            each.measure(SECONDS)  # the first one warms up
        _repeat(difference, here, there, repetitions)
        if difference.verdict != "no difference":
            _repeat(difference, here, there, 2 * repetitions)
        if here.implementation != there.implementation:
            difference.verdict += f" (rings: {here.implementation} against {there.implementation})"


def _repeat(difference: Difference, here: HubRow, there: HubRow, repetitions: int) -> None:
    """Measure in short turns, each of the two first every other time, and judge all that was measured so far."""
    for repetition in range(repetitions):
        sides = [(here, difference.here), (there, difference.there)]
        for side, figures in sides if repetition % 2 else reversed(sides):
            figures.append(side.measure(SECONDS))
    found = spread([ours / theirs for ours, theirs in zip(difference.here, difference.there, strict=True)])
    difference.ratio, difference.verdict = found, judged(found)


def judged(found: Spread) -> str:
    if found.low > 1 + SMALLEST:
        return "worse"
    if found.high < 1 - SMALLEST:
        return "better"
    return "no difference" if found.high - found.low <= WIDEST else "undecided"


def _line(found: Difference) -> str:
    name = f"{found.title} · {found.placement}"
    if found.ratio is None:
        return f"{name:<64} {found.verdict}"
    medians = " / ".join(f"{figure(spread(each).median, 'µs'):>8}" for each in (found.here, found.there))
    between = f"{found.ratio.low:.2f} to {found.ratio.high:.2f}x"
    return f"{name:<64} {medians}  {found.ratio.median:.2f}x  {between:>13}  {found.verdict}"
