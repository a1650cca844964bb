"""The audit log: every refusal and every change, one JSON object a line, with who, what and the correlation id.

Rule 1: nothing is written here that would let anybody in: no token, no secret key, no payload, no schema text.
Rule 2: a full disk stops nobody: what could not be written is counted.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

log = logging.getLogger("messagehub.audit")

ROTATED_FILES = 5
REFUSALS_PER_SECOND = 100.0
"""So many of one peer, or of one address that was kept out, are written down."""
_encode = msgspec.json.Encoder().encode


class AuditLog:
    """The audit log of one process, for all its threads. The HTTP process has a file of its own."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.lost = 0
        self._path = path
        self._max_bytes = max_bytes
        self._fd = -1
        self._size = 0
        self._writing = threading.Lock()
        self._open()

    def write(self, event: str, who: str, **what: Any) -> None:
        """Write one entry. Times are in seconds since the epoch. Fields that are None are left out."""
        entry = {"at": round(time.time(), 6), "event": event, "who": who}
        line = _encode(entry | {name: value for name, value in what.items() if value is not None}) + b"\n"
        with self._writing:
            try:
                if self._fd < 0:  # a rotation failed
                    self._open()
                if self._size + len(line) > self._max_bytes and self._size:
                    self._rotate()
                self._size += os.write(self._fd, line)
            except OSError as error:
                if not self.lost:
                    log.error("%s cannot be written: %s; what is lost is counted", self._path, error)
                self.lost += 1

    def reopen(self, *, max_bytes: int) -> None:
        """Go on in the file that has the name now: somebody may have moved the old one away."""
        with self._writing:
            self._max_bytes = max_bytes
            self._end()  # the next line opens it

    def close(self) -> None:
        with self._writing:
            self._end()

    def _end(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        """`audit.log` becomes `audit.log.1` and so on; the oldest goes."""
        self._end()
        for number in range(ROTATED_FILES - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
