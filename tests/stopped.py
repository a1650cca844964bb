"""`os.kill` with SIGSTOP, and so `Popen.send_signal`, returns when the process has stopped.

The kernel only notes the signal: each thread stops when it runs next. On a busy machine one of them may answer a
request before that.
"""

import os
import signal
import time
from pathlib import Path

MOST_SECONDS = 30.0
_kill = os.kill


def wait_for_stops() -> None:
    """Replace `os.kill` in this process."""
    os.kill = _kill_and_wait


def _kill_and_wait(pid: int, number: int, /) -> None:
    _kill(pid, number)
    if number == signal.SIGSTOP and pid != os.getpid():
        deadline = time.monotonic() + MOST_SECONDS
        while _runs(pid):
            assert time.monotonic() < deadline, f"process {pid} has not stopped"
            time.sleep(0.001)


def _runs(pid: int) -> bool:
    try:
        states = [_state(thread) for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # it, or a thread of it, has ended meanwhile
        return Path(f"/proc/{pid}").exists()
    return not set(states) <= set("TtZX")


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
