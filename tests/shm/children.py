"""Real child processes for tests: forked, killed, stopped, waited for, always with a deadline."""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable


def fork(body: Callable[[], object]) -> int:
    """Run `body` in a child and return its pid; the child exits with 0, or 1 after an exception."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        body()
        status = 0
    except BaseException:  # noqa: BLE001  printed, and the exit status tells
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def die_with_parent() -> None:
    """No child outlives a test run, however that ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def wait(pid: int, seconds: float = 20.0) -> int:
    """The exit code (negative: the signal). A child that outlives the deadline is killed: the test fails."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"child {pid} was still running after {seconds} s")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait(pid) == -signal.SIGKILL


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.002)


def parked(body: Callable[[], object]) -> int:
    """A child that runs `body`, keeps its result and waits to be killed; returns when `body` is done."""
    ready, tell = os.pipe()

    def run() -> None:
        kept = body()
        os.write(tell, b"!")
        while True:
            signal.pause()
        del kept

    pid = fork(run)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"!", "the child failed before it was ready"
    finally:
        os.close(ready)
    return pid
