"""Python processes that belong to a hub: how they are started, and how they end with it."""

import os
import re
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CALLS = re.compile(r"; from (messagehub[\w.]*) import main; main\(\)$")
_PACKAGES = str(Path(__file__).resolve().parents[2])


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main()` of a module of ours in a new process.

    With -P, and our own folder last on the path: a file of the user's that lies where the hub was started, such as
    grp.py, must never stand in for a module of Python's.
    """
    program = f"import sys; sys.path.append({_PACKAGES!r}); from {module} import main; main()"
    return [sys.executable, "-P", "-c", program, *arguments]


def own_module(command: list[str]) -> str | None:
    """Return the module whose `main` a command of `module_command` calls; None for any other command."""
    found = next(filter(None, (_CALLS.search(part) for part in command)), None)
    return found[1] if found is not None else None


def end_with_parent(parent: int, name: str) -> None:
    """Have the kernel end this process at once when `serve` dies, since the next one wants its address."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before; who adopts its children need not be process 1
        raise SystemExit(f"{name}: its hub is gone")
