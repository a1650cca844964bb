"""Who this process is: enough to tell it from every other one, also after its pid was used again."""

import os
import socket
from pathlib import Path

from msgspec import Struct


class ProcessIdentity(Struct, frozen=True):
    host: str
    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def current(cls) -> "ProcessIdentity":
        stat = Path("/proc/self/stat").read_text()
        start_time = int(stat.rpartition(")")[2].split()[19])
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(host=socket.gethostname(), pid=os.getpid(), start_time=start_time, boot_id=boot_id)
