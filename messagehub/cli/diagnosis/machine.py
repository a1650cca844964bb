"""The machine: operating system, shared memory, Java."""

import errno
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from messagehub.cli.diagnosis import Finding
from messagehub.display.values import size

SHARED_MEMORY = Path("/dev/shm")
LEAST_SIZE_BYTES = 256 << 20
LEAST_FREE_BYTES = 64 << 20
_ENLARGE = "mount -o remount,size=1G /dev/shm (in a container: start it with --shm-size=1g)"


def check_system(system: str | None = None) -> Iterator[Finding]:
    system = system or platform.system()
    if system != "Linux":
        yield Finding(
            "system",
            "error",
            f"this is {system}, and MessageHub needs Linux (OFD locks, eventfd, /dev/shm)",
            "run it on Linux, or in a Linux container or virtual machine",
        )
    else:
        yield Finding("system", "ok", f"Linux {platform.release()}, Python {platform.python_version()}")


def check_shared_memory(path: Path = SHARED_MEMORY) -> Iterator[Finding]:
    if not path.is_dir():
        yield Finding(
            "shm", "error", f"{path} does not exist, so no data can be handed over", f"mount -t tmpfs tmpfs {path}"
        )
        return
    why = _cannot_write(path)
    if why is not None:
        yield Finding("shm", "error", f"{path} cannot be written: {why}", _how_to_write(path, why))
        return
    space = os.statvfs(path)
    whole, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    told = f"{path} has {size(whole)}, {size(free)} of it free"
    if whole and whole < LEAST_SIZE_BYTES:
        yield Finding("shm", "warning", f"{told}: too small for real data", _ENLARGE)
    elif whole and free < LEAST_FREE_BYTES:
        yield Finding("shm", "warning", f"{told}: nearly full", f"see what is in it with ls -lS {path}, or {_ENLARGE}")
    else:
        yield Finding("shm", "ok", told)


def check_rings() -> Iterator[Finding]:
    """Whether rings run in C. Imported here, as most commands need no rings."""
    from messagehub.shm import core

    if core.IMPLEMENTATION == "c":
        yield Finding("rings", "ok", "rings run in C")
    else:
        advice = "install a C compiler and the headers of Python (gcc, python3-dev), then install messagehub again"
        yield Finding("rings", "info", f"rings run in Python, which is slower: {core.REASON}", advice)


def check_java() -> Iterator[Finding]:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found:
        yield Finding("java", "ok", f"Java is at {found}")
    else:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "there is no java on the PATH"
        yield Finding(
            "java", "info", f"{where}; only Spark needs it", "apt install openjdk-17-jre-headless, if you use Spark"
        )


def _cannot_write(path: Path) -> str | None:
    """Why not, tried with a file that has no name and so leaves nothing behind."""
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, 4096)
        finally:
            os.close(fd)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?") + f" ({error.strerror})"
    return None


def _how_to_write(path: Path, why: str) -> str:
    if why.startswith("ENOSPC"):
        return f"remove what is left in it (ls -lS {path}), or {_ENLARGE}"
    if why.startswith("EROFS"):
        return f"mount -o remount,rw {path}"
    return f"chmod 1777 {path}"
