"""What the kernel says of the hub's two processes: processor time, memory, descriptors."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def measured(pid: int) -> dict[str, float]:
    """Return the usual `process_*` metrics by name; none for a process that has ended or is another user's."""
    try:
        place = Path(f"/proc/{pid}")
        # The name of the program comes second, in parentheses, and may hold anything.
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        limit = next(line for line in (place / "limits").read_text().splitlines() if line.startswith("Max open files"))
        most = limit.split()[3]
        return {
            "process_cpu_seconds_total": (int(fields[11]) + int(fields[12])) / _TICKS,
            "process_resident_memory_bytes": int(fields[21]) * _PAGE,
            "process_virtual_memory_bytes": int(fields[20]),
            "process_start_time_seconds": _booted_at() + int(fields[19]) / _TICKS,
            "process_open_fds": len(os.listdir(place / "fd")),
            "process_max_fds": float("inf") if most == "unlimited" else int(most),
            "process_threads": int(fields[17]),
        }
    except OSError:
        return {}


def _booted_at() -> int:
    """Seconds since the epoch."""
    lines = Path("/proc/stat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("btime ")).split()[1])
