"""Rows of `hub_rows` as contenders: each in a process of its own, of this tree or another."""

import itertools
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks import hub_rows
from benchmarks.brokers import remove_domain
from benchmarks.harness import CannotMeasure, Measure
from benchmarks.placement import other_core
from benchmarks.processes import ROOT, spawn

START_SECONDS = 90.0
_numbers = itertools.count(1)


@contextmanager
def fresh_place(directory: Path) -> Iterator[Path]:
    """A directory whose name is also the domain, so that nothing of the user's hub is touched."""
    name = f"bench-{os.getpid()}-{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="shm-", dir=directory) as parent:
        place = Path(parent) / name
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            remove_domain(name)


@dataclass(frozen=True)
class HubRow:
    """A running row. `implementation` says which rings it has."""

    name: str
    implementation: str
    process: "subprocess.Popen[bytes]"

    def measure(self, seconds: float) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n".encode())
        self.process.stdin.flush()
        return float(_answer(self.process, self.name, seconds + START_SECONDS))

    def gigabytes_a_second(self, size: int, seconds: float) -> Measure:
        return lambda: size / self.measure(seconds) / 1000

    def microseconds(self, seconds: float) -> Measure:
        return lambda: self.measure(seconds)


@contextmanager
def hub_row(
    directory: Path,
    row: str,
    *,
    tree: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    at: Path | None = None,
    core: int | None = None,
) -> Iterator[HubRow]:
    """Measure `messagehub` of that tree, in the placement of this comparison.

    `at` is a place that is there already, with a hub; `core` is for the row's other side, if not that of the servers.
    """
    core = other_core() if core is None else core
    with fresh_place(directory) if at is None else nullcontext(at) as place:
        command = [sys.executable, "-P", hub_rows.__file__, row, str(place), "-" if core is None else str(core)]
        process = spawn(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            environment={"PYTHONPATH": str(tree), "MESSAGEHUB_DOMAIN": place.name, **(environment or {})},
            is_client=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _, implementation, imported = _answer(process, row, START_SECONDS).split(maxsplit=2)
            if Path(imported) != tree.resolve():
                raise CannotMeasure(f"{imported} was measured instead of {tree}")
            yield HubRow(row, implementation, process)
        finally:
            process.stdin.close()
            try:
                process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _answer(process: "subprocess.Popen[bytes]", row: str, seconds: float) -> str:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        raise CannotMeasure(f"row {row} does not answer")
    if not (line := process.stdout.readline()):
        raise CannotMeasure(f"row {row} ended; its error is above")
    return line.decode().strip()
