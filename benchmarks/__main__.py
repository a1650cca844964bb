"""`make bench`: run the comparisons, print a table a group, write build/bench/results.json and a picture a group."""

import argparse
import fnmatch
import logging
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.against import compare_checkouts
from benchmarks.documentation import PAGE, write_docs
from benchmarks.harness import Bench, Comparison, Row, all_comparisons, left_out
from benchmarks.picture import draw
from benchmarks.processes import ROOT
from benchmarks.report import is_open, print_tables, read_json, results, verdict, write_json
from benchmarks.verdicts import Verdict

DIRECTORY = ROOT / "build" / "bench"
RESULTS = DIRECTORY / "results.json"
REPETITIONS, QUICK_REPETITIONS = 11, 5
QUICK_SECONDS = 150.0
"""After so long a run of the headlines begins nothing more: it ends within three minutes, on a busy machine too."""


def main() -> int:
    arguments = _arguments()
    if arguments.write_docs:
        write_docs(read_json(arguments.write_docs))
        print(f"written: {PAGE.relative_to(ROOT)}")
        return 0
    logging.getLogger("messagehub").setLevel(logging.ERROR)  # most rows have no broker, and say so
    # Whoever stops us must not leave servers behind: as an exception, SIGTERM unwinds every `with`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started us in the background
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.against:
            return compare_checkouts(arguments.against, DIRECTORY, quick=arguments.quick, only=arguments.only or "")
        return _compare(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _compare(arguments: argparse.Namespace) -> int:
    chosen = [each for each in all_comparisons() if _is_chosen(each, arguments)]
    if arguments.list or not chosen:
        for each in chosen:
            print(f"{each.group:10} {each.name}: {each.title}")
        return 0 if chosen else _refuse(f"nothing matches --only {arguments.only}")
    started_at = datetime.now(UTC)
    rows: list[Row] = []

    def keep() -> None:
        write_json(results(rows, quick=arguments.quick, started_at=started_at), RESULTS)

    try:
        deadline = time.monotonic() + QUICK_SECONDS if arguments.quick and arguments.only is None else math.inf
        _run(chosen, rows, keep, quick=arguments.quick, profile=arguments.profile, deadline=deadline)
    finally:  # what was measured before an interruption counts too
        keep()
        pictures = draw(read_json(RESULTS), DIRECTORY)
        _print(rows, pictures)
    return 1 if any(row.verdict == "FAILED" for row in rows) else 0


def _run(
    chosen: list[Comparison], rows: list[Row], keep: Callable[[], None], *, quick: bool, profile: bool, deadline: float
) -> None:
    console = Console(stderr=True)
    # No refresh thread: it would wake up in the middle of what is being measured.
    progress = Progress(
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        auto_refresh=False,
        transient=True,
    )
    task = progress.add_task("", total=len(chosen))
    current = ""

    def show(step: str) -> None:
        progress.update(task, description=f"{current}: {step}"[: max(console.width - 45, 20)], refresh=True)

    def tell(since: float, name: str, told: list[Row]) -> None:
        verdicts = ", ".join(verdict(row) or row.verdict for row in told if row.verdict != Verdict.BESIDE)
        seconds = time.monotonic() - since
        progress.console.print(f"{seconds:5.1f} s  {name}: {verdicts or 'no target'}", soft_wrap=True, highlight=False)

    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    bench = Bench(DIRECTORY, quick=quick, repetitions=repetitions, on_step=show)
    with progress:
        for each in chosen:
            if time.monotonic() > deadline:
                rows.append(left_out(each, "the time of a quick run was over before it"))
                continue
            current = each.title
            show("starting")
            started = time.monotonic()
            found = bench.run(each)
            rows += found
            keep()
            # Rings are measured in processes of their own, which no profiler sees.
            if profile or (not quick and each.group != "rings" and any(_needs_explaining(row) for row in found)):
                report = DIRECTORY / f"profile-{each.slug}.txt"
                report.unlink(missing_ok=True)
                show("once more under the profiler")
                bench.run_profiled(each, report)
                if report.exists():
                    progress.console.print(f"profile of {each.slug}: {report.relative_to(ROOT)}")
            progress.advance(task)
            tell(started, each.name, found)
        undecided = [number for number, row in enumerate(rows) if is_open(row)]
        progress.update(task, total=len(chosen) + len(undecided))
        by_name = {each.name: each for each in chosen}
        for number in undecided:
            if time.monotonic() > deadline:
                break
            row, started = rows[number], time.monotonic()
            current = f"once more, alone: {row.contender}"
            rows[number] = bench.run_alone(by_name[row.name], row)
            keep()
            progress.advance(task)
            tell(
                started,
                f"{row.name}, {row.contender}{f' against {row.against}' if row.against else ''}, alone",
                [rows[number]],
            )


def _needs_explaining(row: Row) -> bool:
    return row.verdict == Verdict.MISSED or row.leans_to_a_miss


def _print(rows: list[Row], pictures: list[Path]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    print_tables(rows, console)
    counts = Counter("not repeated" if is_open(row) else str(row.verdict) for row in rows)
    console.print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    drawn = ", ".join(path.name for path in pictures)
    console.print(f"written: {RESULTS.relative_to(ROOT)}" + (f" and, beside it, {drawn}" if drawn else ""))
    if any(DIRECTORY.glob("profile-*.txt")) and any(_needs_explaining(row) for row in rows):
        console.print("profiles of the broker for what was missed: build/bench/profile-*.txt")


def _is_chosen(each: Comparison, arguments: argparse.Namespace) -> bool:
    if arguments.only is None:
        return each.is_headline or not arguments.quick
    text = f"{each.group}/{each.name} {each.title}".lower()
    return fnmatch.fnmatch(each.name, arguments.only) or arguments.only.lower() in text


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="PATTERN", help="comparisons whose group, name or title has this text, or whose name matches"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the headlines (or what --only names) with short measurements: 3 minutes"
    )
    parser.add_argument("--list", action="store_true", help="name the comparisons and end")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="profile the broker in every comparison, not only where a target was missed",
    )
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=Path,
        help="compare the rings and the hub of this tree with those of another checkout, row by row in turns",
    )
    parser.add_argument(
        "--write-docs",
        metavar="JSON",
        type=Path,
        nargs="?",
        const=RESULTS,
        help=f"write the figures of a run (default: the last one) into {PAGE.relative_to(ROOT)} and end",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
