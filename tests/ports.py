"""TCP ports for servers that must be told their port, or come back to it after they ended."""

import contextlib
import fcntl
import os
import random
import socket
import tempfile

FIRST, LAST = 20_000, 32_000
"""Below the ports that the kernel gives out by itself."""
# Each byte stands for a port: whoever holds its lock has it. The locks of a process end with it.
_ports = os.open(f"{tempfile.gettempdir()}/messagehub-test-ports-{os.geteuid()}", os.O_RDWR | os.O_CREAT, 0o600)
_own: set[int] = set()


def own_ports(count: int) -> list[int]:
    """Neighbours that nobody uses now, and that no other process of tests on this host gets while this one lives."""
    for _ in range(1_000):
        first = random.randrange(FIRST, LAST)
        ports = range(first, first + count)
        if not _own.isdisjoint(ports):
            continue
        with contextlib.suppress(OSError):
            fcntl.lockf(_ports, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
            _own.update(ports)
            for port in ports:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return list(ports)
    raise AssertionError(f"no {count} neighbours from {FIRST} to {LAST} are free")


def own_endpoint() -> str:
    """The address of a broker, whose events take the next port."""
    return f"tcp://127.0.0.1:{own_ports(2)[0]}"
