"""The results: a table for people, JSON for scripts."""

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Row
from benchmarks.verdicts import Verdict, spread

STYLES = {Verdict.MET: "green", Verdict.MISSED: "bold red", Verdict.NOISY: "yellow", "FAILED": "bold red"}


def figure(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}x"
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def target(row: Row) -> str:
    return "" if row.bound is None else f"{'≤' if row.is_upper else '≥'} {figure(row.bound, row.unit)}"


def verdict(row: Row) -> str:
    if row.verdict == Verdict.NOISY:
        return f"{row.verdict} (median {'misses' if row.leans_to_a_miss else 'meets'})"
    return str(row.verdict)


def contender_medians(row: Row) -> str:
    return " / ".join(figure(spread(values).median, row.figures_unit) for values in row.figures.values())


def print_table(rows: list[Row], console: Console) -> None:
    table = Table(title="MessageHub benchmarks", title_justify="left", expand=False)
    for heading in ("comparison", "contender", "against"):
        table.add_column(heading, overflow="fold")
    for heading in ("median", "spread", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_column("figures", justify="right", overflow="fold")
    previous = ""
    for row in rows:
        if row.comparison != previous and previous:
            table.add_section()
        shown = "" if row.comparison == previous else row.comparison
        previous = row.comparison
        style = STYLES.get(row.verdict, "dim")
        if row.found is None:
            table.add_row(
                shown,
                row.contender,
                row.against or "",
                "",
                "",
                "",
                f"[{style}]{row.verdict}[/]: {row.reason}",
            )
            continue
        between = f"{figure(row.found.low, row.unit)} to {figure(row.found.high, row.unit)}"
        table.add_row(
            shown,
            row.contender,
            row.against or "",
            figure(row.found.median, row.unit),
            between,
            target(row),
            f"[{style}]{verdict(row)}[/]" + (f" {row.reason}" if row.reason else ""),
            contender_medians(row) if row.against else "",
        )
    console.print(table)
    console.print(
        "Ratios are taken repetition by repetition. The spread holds their median with 90% confidence; "
        "a target inside it cannot be told met or missed."
    )


def write_json(rows: list[Row], path: Path, *, quick: bool, started_at: datetime) -> None:
    document = {
        "started_at": started_at.isoformat(),
        "ended_at": datetime.now(UTC).isoformat(),
        "quick": quick,
        "machine": {
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg(),
            "python": sys.version.split()[0],
            "platform": platform.platform(),
        },
        "rows": rows,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
