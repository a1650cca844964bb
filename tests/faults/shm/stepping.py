"""Run a child one machine instruction at a time (ptrace), as far as they are instructions of the ring's core in C.

x86-64 only: it looks at registers, and sets breakpoints by their instruction.
"""

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest

from messagehub.shm import core
from tests.shm.children import fork

_TRACEME, _PEEKTEXT, _PEEKUSER, _POKETEXT, _POKEUSER, _CONT, _SINGLESTEP = 0, 1, 3, 4, 6, 7, 9
_RSP: Final = 19 * 8
_RIP: Final = 16 * 8
_ALL: Final = (1 << 64) - 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def require_stepping() -> None:
    """Skip the test where the core cannot be stepped through."""
    if core.IMPLEMENTATION != "c":
        pytest.skip(f"the extension is not used here: {core.REASON}")
    if platform.machine() != "x86_64":
        pytest.skip(f"stepping is written for x86-64, and this is {platform.machine()}")
    pid = fork(lambda: os._exit(0 if _libc.ptrace(_TRACEME, 0, None, None) == 0 else 9))
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9:
        pytest.skip("this system does not let a process be traced")


def code_of_core() -> range:
    """Where the instructions of the extension are, here and in forked children."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "/_ring." in line and line.split()[1][2] == "x":
                first, last = line.split()[0].split("-")
                return range(int(first, 16), int(last, 16))
    raise AssertionError("the extension is not loaded")


def entry_of_method(method: Any) -> int:
    """The address of a C method: CPython's objects say it, and nothing else does."""
    definition = ctypes.c_void_p.from_address(id(method) + 2 * 8).value  # m_ml, after the reference count and the type
    address = ctypes.c_void_p.from_address((definition or 0) + 8).value  # ml_meth, after the name
    assert address in code_of_core()
    return address or 0


def entry_of_finalizer(kind: type) -> int:
    address = ctypes.c_void_p.from_address(id(kind) + 6 * 8).value  # tp_dealloc, after the head, the name and two sizes
    assert address in code_of_core()
    return address or 0


def stop_here() -> None:
    """In the child: let the parent take over."""
    assert _libc.ptrace(_TRACEME, 0, None, None) == 0
    os.kill(os.getpid(), signal.SIGSTOP)


class Stepped:
    """A child that has called `stop_here`."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.pid = fork(body)
        self._code = code_of_core()
        assert self._stopped() == signal.SIGSTOP

    def killed_after(self, count: int, entry: int) -> bool:
        """Kill it after `count` instructions of the core, from `entry` on. False if there were fewer until that
        returned; the child has gone on to its end then."""
        assert self._continued_to(entry)
        place = entry
        for _ in range(count):
            self._do(_SINGLESTEP)
            assert self._stopped() == signal.SIGTRAP
            place = self._word(_RIP)
            if place not in self._code:
                back = self._peek(self._word(_RSP))
                if back not in self._code:  # it has returned, or ends with a jump to what returns for it
                    self._do(_CONT)
                    assert self._stopped() == -1
                    return False
                assert self._continued_to(back)
        os.kill(self.pid, signal.SIGKILL)
        assert self._stopped() == -signal.SIGKILL
        return True

    def _continued_to(self, address: int) -> bool:
        kept = self._peek(address)
        self._do(_POKETEXT, address, (kept & ~0xFF) | 0xCC)  # int3
        self._do(_CONT)
        if self._stopped() != signal.SIGTRAP:
            return False
        self._do(_POKETEXT, address, kept)
        self._do(_POKEUSER, _RIP, address)
        return True

    def _do(self, request: int, address: int = 0, data: int = 0) -> None:
        assert _libc.ptrace(request, self.pid, address, data) == 0, os.strerror(ctypes.get_errno())

    def _peek(self, address: int) -> int:
        return int(_libc.ptrace(_PEEKTEXT, self.pid, address, None)) & _ALL

    def _word(self, register: int) -> int:
        return int(_libc.ptrace(_PEEKUSER, self.pid, register, None)) & _ALL

    def _stopped(self) -> int:
        """The signal that stopped it; -1: it has ended well; otherwise the negative signal that ended it."""
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        code = os.waitstatus_to_exitcode(status)
        assert code <= 0, f"the child failed ({code})"
        return code or -1
