"""The kernel's events of directories: files that were renamed into them, removed, or closed.

The kernel reports the last close of a file that was open for writing, at the latest when its owner dies. So a watch on
a channel's directory reports producers that begin and end. Where the kernel has no watches left, `watch` returns False
and the caller looks at intervals.
"""

import ctypes
import os
import struct
from typing import Final, NamedTuple

from messagehub.shm.locks import Descriptor

CLOSE_WRITE: Final = 0x8
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000  # the watched directory is gone, and the watch with it
_ONLYDIR: Final = 0x01000000
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK
_EVENT: Final = struct.Struct("iIII")
_READS: Final = 16
_libc = ctypes.CDLL(None, use_errno=True)


class Happened(NamedTuple):
    path: str  # of the watched directory
    name: str
    mask: int


class Inotify:
    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._descriptor: Descriptor | None = None
        try:
            self._descriptor = Descriptor(_init)
        except OSError:
            return  # no instance left for this user

    def fileno(self) -> int:
        return -1 if self._descriptor is None else self._descriptor.fd

    def watch(self, path: str, mask: int) -> bool:
        """Watch a directory; False if it does not exist or the kernel has no watches left."""
        if self.fileno() < 0:
            return False
        number = _libc.inotify_add_watch(self.fileno(), os.fsencode(path), ctypes.c_uint32(mask | _ONLYDIR))
        if number < 0:
            return False
        before = self._numbers.get(path)
        if before is not None and before != number:  # the watch of a removed directory of this name
            self._remove(before)
        self._paths[number], self._numbers[path] = path, number
        return True

    def unwatch(self, path: str) -> None:
        """Stop watching a directory. For one that was removed this is needed too: while some process has a file of it
        open, the kernel keeps the watch and reports nothing."""
        number = self._numbers.pop(path, None)
        if number is not None:
            self._remove(number)

    def _remove(self, number: int) -> None:
        self._paths.pop(number, None)
        _libc.inotify_rm_watch(self.fileno(), number)

    def read(self) -> list[Happened]:
        """Return what happened since the last call, a bounded number of events at a time.

        An overflow has no path: the caller has to look everywhere. IGNORED is the last event of a removed directory.
        """
        happened: list[Happened] = []
        for _ in range(_READS):
            try:
                data = os.read(self.fileno(), 65536)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length
                path = self._paths.get(number, "")
                if mask & IGNORED:
                    self._paths.pop(number, None)
                    if not path or self._numbers.pop(path, None) is None:
                        continue  # it was not watched any more
                happened.append(Happened(path, name, mask))
        return happened

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()


def _init() -> int:
    fd: int = _libc.inotify_init1(_FLAGS)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    return fd
