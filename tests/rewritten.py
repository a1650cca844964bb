"""The tests' files as pytest imports them, compiled before processes of pytest-xdist begin.

pytest writes assertions anew when it imports a test's file, and keeps the result beside the file. In a fresh clone that
takes 25 s of a processor, and each of four processes would do all of it, since they import the same files at the same
time. So files without a result are shared out among as many processes as there are processors.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

WORTHWHILE = 20
"""With fewer files, each process of pytest-xdist has compiled them before another one would have started."""
MINUTES = 10


def stale(places: Iterable[Path]) -> list[Path]:
    """Return the tests' files at or below these places that pytest has not compiled since they were written."""
    found = {file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place])}
    return sorted(file for file in found if not _is_compiled(file))


def _is_compiled(file: Path) -> bool:
    # The name that pytest gives it. If that changes, files are compiled here in vain, and tested all the same.
    name = f"{file.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    try:
        return (file.parent / "__pycache__" / name).stat().st_mtime >= file.stat().st_mtime
    except FileNotFoundError:
        return not file.exists()


def compile_once(places: Iterable[Path]) -> None:
    """A file that cannot be imported is told by whoever runs its tests."""
    if sys.dont_write_bytecode or len(files := stale(places)) < WORTHWHILE:
        return
    processors = len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    running = [
        subprocess.Popen(
            [*command, *map(str, files[at::processors])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for at in range(processors)
    ]
    deadline = time.monotonic() + 60 * MINUTES
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):  # whoever runs the tests compiles what is missing
            for process in running:
                process.wait(max(deadline - time.monotonic(), 0.0))
    finally:
        for process in running:
            process.kill()
            process.wait()
