"""What everybody in a storm saw, as lines of JSON: one file per process, whole lines even when it is killed."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Writer:
    def __init__(self, path: Path, role: str) -> None:
        self._role = role
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, what: str, **details: Any) -> None:
        """In one write: it is there in full or not at all, and the kernel keeps it when the process is killed."""
        line = {"at": time.time(), "role": self._role, "pid": os.getpid(), "what": what, **details}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


class History:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._started = 0

    def next_file(self, role: str) -> Path:
        self._started += 1
        return self.directory / f"{self._started:04d}-{role}.jsonl"

    def lines(self, role: str, what: str | None = None, *, since: float = 0.0) -> Iterator[dict[str, Any]]:
        """In the order in which the processes of a role ran; of those that wrote something after `since`."""
        for path in sorted(self.directory.glob(f"*-{role}.jsonl")):
            if path.stat().st_mtime < since:
                continue
            for text in path.read_text().splitlines():
                line = json.loads(text)
                if what is None or line["what"] == what:
                    yield line

    def last(self, role: str, what: str) -> dict[str, Any] | None:
        """The newest line of its kind, by whichever process of the role."""
        for path in sorted(self.directory.glob(f"*-{role}.jsonl"), reverse=True):
            for text in reversed(path.read_text().splitlines()):
                line: dict[str, Any] = json.loads(text)
                if line["what"] == what:
                    return line
        return None

    def end_of(self, name: str) -> str:
        path = self.directory / f"{name}.jsonl"
        return path.read_text()[-500:] if path.exists() else "nothing"

    def of_each(self, role: str, what: str) -> list[list[dict[str, Any]]]:
        """The same, process by process."""
        found: dict[int, list[dict[str, Any]]] = {}
        for line in self.lines(role, what):
            found.setdefault(line["pid"], []).append(line)
        return list(found.values())
