"""Who a process is, so that a reused pid is never mistaken for the process that had it before."""

import os
import socket
from functools import cache
from typing import Any, NamedTuple


class ProcessIdentity(NamedTuple):
    """A process. The pid alone is reused; with start time, boot and host it names one process only."""

    pid: int
    start_time: int  # clock ticks after boot, field 22 of /proc/<pid>/stat
    boot_id: str
    host: str

    @classmethod
    def current(cls) -> "ProcessIdentity":
        found = cls.of(os.getpid())
        if found is None:
            raise RuntimeError("/proc does not show this process")
        return found

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the live process `pid`, or None. A zombie is dead: the kernel has already dropped its locks."""
        stat = _stat(pid)
        if stat is None or stat[0] in ("Z", "X"):
            return None
        return cls(pid, int(stat[19]), boot_id(), host())

    @classmethod
    def from_json(cls, value: Any) -> "ProcessIdentity":
        """Raises KeyError, TypeError, ValueError or OverflowError for anything `to_json` does not make."""
        pid, start_time = int(value["pid"]), int(value["start_time"])
        if not (0 < pid < 1 << 31 and 0 <= start_time < 1 << 63):
            raise ValueError(f"no process has pid {pid} and start time {start_time}")
        return cls(pid, start_time, str(value["boot_id"]), str(value["host"]))

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    def is_here(self) -> bool:
        return self.host == host()

    def is_alive(self) -> bool | None:
        """Return whether the process lives; None for a process of another host, of which nothing is known here."""
        if not self.is_here():
            return None
        return self.boot_id == boot_id() and ProcessIdentity.of(self.pid) == self


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal or a debugger; False if nothing is known of it."""
    stat = _stat(pid)
    return stat is not None and stat[0] in ("T", "t")


def jvm_ancestor(pid: int | None = None) -> ProcessIdentity | None:
    """Return the nearest ancestor (or this process) that runs a JVM, which outlives the workers of a Spark job."""
    current = os.getpid() if pid is None else pid
    while current > 1:
        if _is_jvm(current):
            return ProcessIdentity.of(current)
        stat = _stat(current)
        if stat is None:
            return None
        current = int(stat[1])
    return None


@cache
def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def host() -> str:
    """Return the name of this host: where several share one, as containers may, MESSAGEHUB_HOST tells them apart."""
    return os.environ.get("MESSAGEHUB_HOST") or socket.gethostname()


def _is_jvm(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("java")
    except OSError:
        return False


def _stat(pid: int) -> list[str] | None:
    """Return the fields from `state` on. The command name before them may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
