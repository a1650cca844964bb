"""Processes that kill themselves right after their n-th change of shared state, driven from the test side."""

import os
import signal
from collections.abc import Callable
from typing import Any

from messagehub.shm.core import python_ring
from messagehub.shm.mapped_file import Segment
from tests.shm.children import fork, wait


class Fuse:
    """Burns down by one with every store; the last one is SIGKILL."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.burnt = 0

    def burn(self) -> None:
        self.burnt += 1
        if self.burnt == self.length:
            os.kill(os.getpid(), signal.SIGKILL)


class CountedStores:
    """A memoryview whose stores burn a fuse. A slice is stored half, then whole: one may die in a payload."""

    def __init__(self, view: memoryview, fuse: Fuse) -> None:
        self._view = view
        self._fuse = fuse

    def __getitem__(self, key: Any) -> Any:
        return self._view[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            start, stop, _ = key.indices(len(self._view))
            half = (stop - start) // 2
            self._view[start : start + half] = bytes(value)[:half]
            self._fuse.burn()
        self._view[key] = value
        self._fuse.burn()


def counting_segment(fuse: Fuse) -> type[Segment]:
    class CountingSegment(Segment):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.words = CountedStores(self.words, fuse)  # type: ignore[assignment]
            self.data = CountedStores(self.data, fuse)  # type: ignore[assignment]

    return CountingSegment


def counting_writer(fuse: Fuse) -> type[python_ring.Writer]:
    class CountingWriter(python_ring.Writer):
        def __init__(self, **places: Any) -> None:
            super().__init__(**places)
            # private: the core's own memory is where it stores, and nothing public is called for a store
            self._words = CountedStores(self._words, fuse)  # type: ignore[assignment]
            # private: the same, for payloads
            self._data = CountedStores(self._data, fuse)  # type: ignore[assignment]

    return CountingWriter


def counting_reader(fuse: Fuse) -> type[python_ring.Reader]:
    class CountingReader(python_ring.Reader):
        def __init__(self, **places: Any) -> None:
            super().__init__(**places)
            # private: the core's own memory is where it stores, and nothing public is called for a store
            self._file = CountedStores(self._file, fuse)  # type: ignore[assignment]
            # private: the same, for pins
            self._pins = CountedStores(self._pins, fuse)  # type: ignore[assignment]

    return CountingReader


CHANGES = (
    "link",
    "unlink",
    "rename",
    "mkdir",
    "rmdir",
    "mkfifo",
    "write",
    "pwrite",
    "ftruncate",
    "posix_fallocate",
    "fchmod",
)


def count_system_calls(fuse: Fuse) -> None:
    """In a child only: every call that changes a file or a directory burns the fuse after it is done."""
    for name in CHANGES:
        setattr(os, name, _counted(getattr(os, name), fuse))
    plain_open = os.open

    def counted_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
        fd = plain_open(path, flags, *args, **options)
        if flags & os.O_CREAT:
            fuse.burn()
        return fd

    os.open = counted_open


def _counted(function: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        fuse.burn()
        return result

    return call


def died_after(body: Callable[[Fuse], object], length: int) -> bool:
    """Run `body` in a child with a fuse; False once the fuse is longer than everything `body` does."""
    status = wait(fork(lambda: body(Fuse(length))))
    assert status in (0, -signal.SIGKILL), f"the child failed ({status})"
    return status != 0
