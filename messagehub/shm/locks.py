"""Kernel locks that end with their owner: OFD locks.

Rule 1: a lock belongs to an open file description. It ends when the last descriptor of that description
closes, so at death at the latest; it survives SIGSTOP; nobody else can end it.
Rule 2: a forked child shares the description, so every `Descriptor` is closed in the child before its first
line of Python runs, and does nothing there afterwards. Opening and forking wait for each other.
Rule 3: a mapping keeps the description open that it was made through, and its locks; it is therefore made through one
of its own (`mapped_file.map_file`), never through one that holds locks.
Rule 4: to find out whether a lock is held, probe it (`is_locked`); taking it would disturb its owner.
"""

import errno
import fcntl
import functools
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, ParamSpec, SupportsIndex, TypeVar

from messagehub.shm.errors import Busy, NotLinux, TooManyOpenFiles

# Bytes far beyond any file: locks need no bytes to exist.
OWNER: Final = 1 << 40  # exclusive: the writer of a block, the owner of an entry or a reader file
ATTACHED: Final = OWNER + 1  # shared: a reader is attached

_RETRY_SECONDS: Final = 0.002
_OFD_SETLK: Final = getattr(fcntl, "F_OFD_SETLK", 0)  # absent elsewhere: `require_linux` says so


def require_linux() -> None:
    if sys.platform != "linux" or not hasattr(fcntl, "F_OFD_SETLK"):
        raise NotLinux(sys.platform)


def _request(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def shared(byte: int, length: int = 1) -> bytes:
    return _request(fcntl.F_RDLCK, byte, length)


def exclusive(byte: int, length: int = 1) -> bytes:
    return _request(fcntl.F_WRLCK, byte, length)


def try_lock(fd: int, request: bytes) -> bool:
    """Take the lock that `shared` or `exclusive` describes, or return False at once."""
    try:
        fcntl.fcntl(fd, _OFD_SETLK, request)
    except BlockingIOError:
        return False
    return True


def is_locked(fd: int, request: bytes) -> bool:
    """Return whether another description holds a lock that conflicts with `request`."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request)
    return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)


def exclusively_locked(fd: int, start: int, length: int) -> set[int]:
    """Return the bytes of a range that other descriptions hold exclusively.

    The kernel tells one lock of a range, which need not be the first one: what is on both sides of it is asked for too.
    """
    found: set[int] = set()
    ranges = [(start, start + length)]
    while ranges:
        start, end = ranges.pop()
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, shared(start, end - start))
        kind, _, first, size = struct.unpack_from("hhqq", answer)
        if kind == fcntl.F_UNLCK:
            continue
        first, stop = max(start, first), min(end, first + size) if size else end
        found.update(range(first, stop))
        ranges += [(low, high) for low, high in ((start, first), (stop, end)) if low < high]
    return found


def lock_within(descriptor: "Descriptor", request: bytes, path: str, timeout_seconds: float) -> None:
    """Wait for a lock. The kernel's own waiting has no timeout, so this asks again every few milliseconds."""
    deadline = time.monotonic() + timeout_seconds
    while not try_lock(descriptor.fd, request):
        if time.monotonic() >= deadline:
            raise Busy(path, timeout_seconds)
        time.sleep(_RETRY_SECONDS)


# --- descriptors -----------------------------------------------------------------------------------------

_P = ParamSpec("_P")
_T = TypeVar("_T")
_gate = threading.RLock()
_opened: "weakref.WeakSet[Descriptor]" = weakref.WeakSet()


class _OpenFilesLimited:
    """Not a generator: from Python 3.12 on an error that passes through one refers to itself, by the generator's frame,
    and would keep all callers' variables, and what they have open, until the next garbage collection."""

    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        number = getattr(error, "errno", None)  # ZeroMQ's errors have one too, and are no OSError
        if number in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles(number) from None

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """As a decorator, without a `with` around each call: discovery is called too often for that."""

        @functools.wraps(function)
        def limited(*given: _P.args, **named: _P.kwargs) -> _T:
            try:
                return function(*given, **named)
            except Exception as error:
                self.__exit__(None, error, None)
                raise

        return limited


def open_files_limited() -> _OpenFilesLimited:
    """Raise TooManyOpenFiles where the kernel refuses a descriptor, also to list a directory. Usable as a decorator."""
    return _OpenFilesLimited()


def check_spare_files(count: int) -> None:
    """Raise TooManyOpenFiles unless so many descriptors can be opened now.

    Asked before sockets of ZeroMQ are made: libzmq ends the process where it gets no descriptor for its own threads.
    """
    opened: list[int] = []
    try:
        with open_files_limited():
            for _ in range(count):
                opened.append(os.eventfd(0, os.EFD_CLOEXEC))
    finally:
        for fd in opened:
            os.close(fd)


class Descriptor:
    """An open file that is closed in a forked child; `fd` is -1 once it is closed."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, opener: Callable[[], int]) -> None:
        self.fd = -1
        with _gate:
            self.fd = opener()
            _opened.add(self)

    @classmethod
    def open(cls, path: str, flags: int, mode: int = 0o600, dir_fd: int | None = None) -> "Descriptor":
        with open_files_limited():
            return cls(lambda: os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd))

    @classmethod
    def eventfd(cls) -> "Descriptor":
        with open_files_limited():
            return cls(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Refuse to be copied: the copy would close a descriptor number that may belong to another file by then."""
        raise TypeError("an open file cannot be copied or pickled")

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _after_fork_in_child() -> None:
    for descriptor in list(_opened):
        descriptor.close()
    _gate.release()


os.register_at_fork(before=_gate.acquire, after_in_parent=_gate.release, after_in_child=_after_fork_in_child)
