"""Debian packages that the peers come from: installed when missing and possible, never left running.

A Debian package starts its service on installation; `policy-rc.d` is Debian's own way to forbid that.
It is put in place only for the installation and only where the system has none.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import PeerMissing

POLICY = Path("/usr/sbin/policy-rc.d")
LOCK = Path("/run/messagehub-packages.lock")
INSTALL_SECONDS = 300
_SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_tried: set[str] = set()


def program(name: str, package: str) -> str:
    """The program's path, installing its package if need be."""
    if (found := shutil.which(name, path=_SEARCH_PATH)) is None:
        install(package)
        found = shutil.which(name, path=_SEARCH_PATH)
    if found is None:
        raise PeerMissing(f"{name} is not installed (apt-get install {package})")
    return found


def header(name: str, package: str) -> None:
    """Make sure that a C header is there, installing its package if need be."""
    path = Path("/usr/include", name)
    if not path.exists():
        install(package)
    if not path.exists():
        raise PeerMissing(f"{name} is not installed (apt-get install {package})")


def install(package: str) -> None:
    """Try once a run; whether it worked shows in whether the program is there afterwards."""
    if package in _tried or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    _tried.add(package)
    with _alone():
        if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
            _apt_get("update")
        with _no_service_starts():
            _apt_get("install", "--no-install-recommends", package)


def _apt_get(*arguments: str) -> None:
    try:
        subprocess.run(
            ["apt-get", "-y", "-q", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # the package is then simply missing, and its row says so


@contextmanager
def _alone() -> Iterator[None]:
    """Two processes that install at once would remove each other's `policy-rc.d`."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _no_service_starts() -> Iterator[None]:
    if POLICY.exists():
        # Whoever put it there decides; a policy that allows starting leaves a service, so it must forbid.
        if subprocess.run([POLICY, "probe", "start"], check=False, capture_output=True).returncode == 101:
            yield
            return
        raise PeerMissing(f"{POLICY} allows services to start: install the package yourself")
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
