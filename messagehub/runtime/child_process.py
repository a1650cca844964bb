"""Python processes that belong to a hub: how they are started."""

import sys
from pathlib import Path

_PACKAGES = str(Path(__file__).resolve().parents[2])


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls `main()` of a module of ours in a new process.

    With -P, and our own folder last on the path: a file of the user's that lies where the hub was started, such as
    grp.py, must never stand in for a module of Python's.
    """
    program = f"import sys; sys.path.append({_PACKAGES!r}); from {module} import main; main()"
    return [sys.executable, "-P", "-c", program, *arguments]
