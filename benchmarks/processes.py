"""Servers that live exactly as long as their comparison.

Rule: whatever starts here ends here, by its pid; and if this process is killed, the kernel ends it (setpriv of
util-linux asks for that), so that no server outlives a benchmark. A `preexec_fn` could ask too, but makes Python
fork for real, and gRPC's fork handlers then abort the child.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from benchmarks.harness import CannotMeasure
from benchmarks.placement import on_the_other_side

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 30.0
_SETPRIV = shutil.which("setpriv")


def free_port() -> int:
    """A port whose successor is free too: a hub on TCP publishes its events there."""
    while True:
        with socket.socket() as probe, socket.socket() as successor:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            try:
                successor.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def spawn(
    command: Sequence[str | Path],
    *,
    stdout: IO[bytes] | int,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    is_client: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a process of the other side or, as a client, of this one."""
    dying_with_us = [_SETPRIV, "--pdeathsig", "KILL"] if _SETPRIV else []
    with nullcontext() if is_client else on_the_other_side():
        return subprocess.Popen(
            [*dying_with_us, *command],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )


@contextmanager
def running(
    command: Sequence[str], *, is_ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The command, from the moment it answers until the block ends; its output is shown when it fails."""
    with tempfile.TemporaryFile() as output:
        process = spawn(command, stdout=output, stderr=subprocess.STDOUT, environment=environment)
        try:
            _wait_until(is_ready, process, Path(command[0]).name, output.fileno())
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, output: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            said = " ".join(os.pread(output, 65536, 0).decode(errors="replace").split())
            state = "did not answer" if process.returncode is None else f"ended with {process.returncode}"
            raise CannotMeasure(f"{name} {state}: {said[-400:]}")
        time.sleep(0.005)


def accepts(port: int) -> Callable[[], bool]:
    """Whether something listens on that port of the loopback interface."""

    def probe() -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", port)) == 0

    return probe


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used, by the kernel's clock of that process (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise CannotMeasure(f"process {pid} has no resident memory")
