"""How a hub names itself: as the owner of what it registers, and in the ids of members that were given none."""

import itertools
import sys
from pathlib import Path
from typing import Any

from messagehub.runtime.child_process import own_module
from messagehub.shm.identity import ProcessIdentity
from registry import names


class ClientIdentity:
    def __init__(self, number: int, roles: "itertools.count[int]") -> None:
        """The hub is the `number`th of this process. Its `roles` count on when it connects anew: no id comes twice."""
        process = ProcessIdentity.current()
        self.host = process.host
        self.connection_name = f"{process.pid:x}.{number:x}"
        self.lease = f"{process.host}:{process.boot_id[:8]}:{process.pid}:{process.start_time}:{number}"
        self.owner: dict[str, Any] = {
            "lease": self.lease,
            "host": process.host,
            "pid": process.pid,
            "start_time": process.start_time,
            "boot_id": process.boot_id,
        }
        self._prefix = f"{process.host[:20]}-{process.pid}-{number}"
        self._roles = roles

    def role(self, kind: str) -> str:
        """Return a new id for a member of this kind."""
        return names.to_role(f"{kind}-{self._prefix}-{next(self._roles)}")


def program() -> str | None:
    """Return what this process runs, as a person would name it: `billing.py`, or the package of `python -m`.

    One of the hub's own is named by its package: `messagehub.admin`.
    """
    own = own_module(sys.orig_argv)
    if own is not None:
        return own.removesuffix(".__main__")
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if path is None or path.name == "-c":
        return None
    return (path.parent.name if path.name == "__main__.py" else path.name)[:200]
