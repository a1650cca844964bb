"""The results as pictures, one a group: how far each row is from its target, with the figures beside it."""

from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.harness import Row
from benchmarks.report import Results, by_group, heading, median_of, ratio, spread_of, target
from benchmarks.verdicts import Verdict

COLOURS = {Verdict.MET: "#2a7f3f", Verdict.MISSED: "#c0392b", Verdict.UNDECIDED: "#c08a00"}
FARTHEST = 8.0
"""Times better or worse than the target; what is farther is drawn at the edge, as an arrow."""
ROW_INCHES, WIDTH_INCHES = 0.235, 15.0


def draw(results: Results, directory: Path) -> list[Path]:
    """Draw `GROUP.png` for every group that has a row with a target, and return them."""
    matplotlib.use("Agg")
    drawn = []
    for group, rows in by_group(results.rows).items():
        judged = [row for row in rows if row.bound is not None and row.found is not None]
        path = directory / f"{group.lower().replace(' ', '-')}.png"
        path.unlink(missing_ok=True)
        if judged:
            _draw(group, judged, results, path)
            drawn.append(path)
    return drawn


def _draw(group: str, rows: list[Row], results: Results, path: Path) -> None:
    """A line of text for each comparison, and below it one line for each row: names, dot, figures."""
    from matplotlib import pyplot

    lines: list[Row | str] = []
    for row in rows:
        if heading(row) not in lines:
            lines.append(heading(row))
        lines.append(row)
    height = ROW_INCHES * len(lines) + 1.3
    drawing, axes = pyplot.subplots(figsize=(WIDTH_INCHES, height))
    drawing.subplots_adjust(left=0.36, right=0.66, top=1 - 0.75 / height, bottom=0.5 / height)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1 / FARTHEST / 1.25, FARTHEST * 1.25)
    axes.set_ylim(len(lines) - 0.4, -0.8)
    axes.axvspan(1 / FARTHEST / 1.25, 1.0, color="#c0392b", alpha=0.04, linewidth=0)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks([])
    ticks = [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8]
    axes.set_xticks(ticks, ["8x worse", "4x", "2x", "target", "2x", "4x", "8x better"], fontsize=8)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    for y, line in enumerate(lines):
        if isinstance(line, str):
            _write(axes, -1.17, y, line, weight="bold")
        else:
            _draw_row(axes, y, line)
    for x, text in ((1.03, "ratio"), (1.15, "spread"), (1.39, "target"), (1.55, "medians, ours / theirs")):
        _write(axes, x, -0.9, text, color="#666666")
    made = f"{results.started_at:%Y-%m-%d}, {results.machine.processor}, {results.machine.cpus} cores"
    title = f"{group[0].upper()}{group[1:]}: how far from the target (green met, red missed, yellow undecided)"
    drawing.text(0.01, 1 - 0.22 / height, title, fontsize=12, weight="bold", va="center")
    details = (
        f"{made}, commit {results.commit or 'unknown'}, rings: {results.rings}{', --quick' if results.quick else ''}"
    )
    drawing.text(0.01, 1 - 0.46 / height, details, fontsize=8, color="#666666", va="center")
    drawing.savefig(path, dpi=100)
    pyplot.close(drawing)
    _shrink(path)


def _shrink(path: Path) -> None:
    """256 colours suffice, and a picture of the documentation is kept with every version of it."""
    from PIL import Image

    with Image.open(path) as picture:
        # Median cut, the default, mixes up the few dots of a rare colour.
        small = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE)
    small.save(path, optimize=True)


def _draw_row(axes: Any, y: int, row: Row) -> None:
    assert row.found is not None
    colour = COLOURS[Verdict(row.verdict)]
    low, median, high = (_margin(row, value) for value in (row.found.low, row.found.median, row.found.high))
    bounded = [min(max(value, 1 / FARTHEST), FARTHEST) for value in (low, median, high)]
    axes.plot([bounded[0], bounded[2]], [y, y], color=colour, linewidth=4, alpha=0.35, solid_capstyle="round")
    marker = ">" if median > FARTHEST else "<" if median < 1 / FARTHEST else "o"
    axes.plot([bounded[1]], [y], marker, color=colour, markersize=6)
    _write(axes, -1.15, y, f"{row.contender}  /  {row.against}" if row.against else row.contender)
    _write(axes, 1.03, y, ratio(row) or median_of(row, row.contender), color=colour, weight="bold")
    _write(axes, 1.15, y, spread_of(row))
    _write(axes, 1.39, y, target(row))
    if row.against:
        _write(axes, 1.55, y, f"{median_of(row, row.contender)} / {median_of(row, row.against)}")


def _write(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """`x` in widths of the axes, `y` in rows."""
    axes.text(x, y, text, transform=axes.get_yaxis_transform(), fontsize=8, va="center", **style)


def _margin(row: Row, value: float) -> float:
    assert row.bound is not None
    return row.bound / value if row.is_upper else value / row.bound
