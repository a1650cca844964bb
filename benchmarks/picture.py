"""The results as a picture: how far each row is from its target, on one scale for all of them."""

from pathlib import Path

import matplotlib

from benchmarks.harness import Row
from benchmarks.report import figure, target
from benchmarks.verdicts import Verdict

COLOURS = {Verdict.MET: "#2a7f3f", Verdict.MISSED: "#c0392b", Verdict.NOISY: "#d4a017"}


def draw(rows: list[Row], path: Path) -> None:
    """One dot a row: right of the line is better than the target, on a scale of factors."""
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    judged = [row for row in reversed(rows) if row.bound is not None and row.found is not None]
    if not judged:
        return
    drawing, axes = pyplot.subplots(figsize=(13, 1.4 + 0.42 * len(judged)), layout="constrained")
    for height, row in enumerate(judged):
        assert row.found is not None
        low, median, high = (_margin(row, value) for value in (row.found.low, row.found.median, row.found.high))
        colour = COLOURS[Verdict(row.verdict)]
        axes.plot([low, high], [height, height], color=colour, linewidth=3, alpha=0.4, solid_capstyle="round")
        axes.plot([median], [height], "o", color=colour)
        note = f" {figure(row.found.median, row.unit)} (target {target(row)})"
        axes.annotate(
            note, (max(low, high), height), va="center", fontsize=8, xytext=(4, 0), textcoords="offset points"
        )
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.25)
    axes.set_yticks(range(len(judged)), [_label(row) for row in judged], fontsize=7)
    axes.set_xlabel("times better than the target (left of the line: worse); the bar is the spread")
    axes.set_title("MessageHub against its targets: green met, red missed, yellow too noisy to tell")
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)


def _margin(row: Row, value: float) -> float:
    assert row.bound is not None
    return row.bound / value if row.is_upper else value / row.bound


def _label(row: Row) -> str:
    measured = f"{row.contender} / {row.against}" if row.against else row.contender
    return f"{row.comparison}\n{measured}"
