"""`make bench`: run the comparisons, print the table, write build/bench/results.json and results.png."""

import argparse
import fnmatch
import signal
import sys
import time
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.harness import Bench, Comparison, Row, all_comparisons
from benchmarks.picture import draw
from benchmarks.processes import ROOT
from benchmarks.report import print_table, verdict, write_json
from benchmarks.verdicts import Verdict

DIRECTORY = ROOT / "build" / "bench"
REPETITIONS, QUICK_REPETITIONS = 11, 5


def main() -> int:
    arguments = _arguments()
    chosen = [each for each in all_comparisons() if _matches(each, arguments.only)]
    if arguments.list or not chosen:
        for each in chosen:
            print(f"{each.topic}/{each.slug}: {each.title}")
        return 0 if chosen else _refuse(f"nothing matches --only {arguments.only}")
    # Whoever stops us must not leave servers behind: as an exception, SIGTERM unwinds every `with`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started_at = datetime.now(UTC)
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    results: list[Row] = []
    try:
        _run(chosen, results, quick=arguments.quick, profile=arguments.profile)
    finally:  # what was measured before an interruption counts too
        write_json(results, DIRECTORY / "results.json", quick=arguments.quick, started_at=started_at)
        draw(results, DIRECTORY / "results.png")
        _print(results)
    return 1 if any(row.verdict == "FAILED" for row in results) else 0


def _run(chosen: list[Comparison], results: list[Row], *, quick: bool, profile: bool) -> None:
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

    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    bench = Bench(DIRECTORY, quick=quick, repetitions=repetitions, on_step=show)
    with progress:
        for each in chosen:
            current = each.title
            show("starting")
            started = time.monotonic()
            rows = bench.run(each)
            results += rows
            if profile or (not quick and any(_needs_explaining(row) for row in rows)):
                report = DIRECTORY / f"profile-{each.slug}.txt"
                report.unlink(missing_ok=True)
                show("once more under the profiler")
                bench.run_profiled(each, report)
                if report.exists():
                    progress.console.print(f"profile of {each.slug}: {report.relative_to(ROOT)}")
            progress.advance(task)
            seconds = time.monotonic() - started
            verdicts = ", ".join(verdict(row) for row in rows if row.verdict != Verdict.BESIDE)
            progress.console.print(f"{seconds:5.1f} s  {each.topic}/{each.slug}: {verdicts}", soft_wrap=True)


def _needs_explaining(row: Row) -> bool:
    return row.verdict == Verdict.MISSED or row.leans_to_a_miss


def _print(rows: list[Row]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    print_table(rows, console)
    counts = {name: sum(row.verdict == name for row in rows) for name in [*Verdict, "not measured", "FAILED"]}
    console.print(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    console.print(f"written: {(DIRECTORY / 'results.json').relative_to(ROOT)} and results.png beside it")
    if any(_needs_explaining(row) for row in rows):
        console.print("profiles of the broker for what was missed: build/bench/profile-*.txt")


def _matches(each: Comparison, pattern: str) -> bool:
    name = f"{each.topic}/{each.slug}"
    return fnmatch.fnmatch(name, pattern) or pattern.lower() in f"{name} {each.title}".lower()


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="comparisons whose name has this text or matches it"
    )
    parser.add_argument("--quick", action="store_true", help="short measurements: under a minute, for a first look")
    parser.add_argument("--list", action="store_true", help="name the comparisons and end")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="profile the broker in every comparison, not only where a target was missed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
