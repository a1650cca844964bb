"""A small file of lines that the processes of a domain share.

Rule 1: it is read and changed under a lock on itself, and never removed or replaced.
Rule 2: it has at most `most` lines of at most `line_bytes`; when it is full, the older half goes.
Rule 3: a process that is killed while it changes the file may leave a line that is cut off, or lines twice. So readers
look at each line for themselves, and the newest counts.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from .errors import DataBlockError
from .locks import OWNER, Descriptor, exclusive, lock_within
from .mapped_file import open_lock, read_file

LOCK_SECONDS = 0.5
_OWNED = exclusive(OWNER)


@dataclass(frozen=True)
class LineFile:
    path: str
    most: int
    line_bytes: int

    def lines(self) -> list[str]:
        """Return the lines, the oldest first; none where the file is not there or is of no use."""
        if not os.path.exists(self.path):
            return []
        try:
            descriptor = self._locked()
            try:
                return self._read(descriptor)
            finally:
                descriptor.close()
        except DataBlockError:
            return []

    def append(self, line: str) -> None:
        """Add a line. One that is too long is left out: whoever looks for it finds nothing."""
        added = f"{line}\n".encode()
        if len(added) > self.line_bytes:
            return
        descriptor = self._locked()
        try:
            size = os.fstat(descriptor.fd).st_size
            if size + len(added) > self.most * self.line_bytes:
                kept = self._read(descriptor, is_whole=False)[-self.most // 2 :]
                _write(descriptor, [*kept, line])
            else:
                is_cut_off = size > 0 and os.pread(descriptor.fd, 1, size - 1) != b"\n"
                os.pwrite(descriptor.fd, b"\n" + added if is_cut_off else added, size)
        finally:
            descriptor.close()

    def remove(self, is_unwanted: Callable[[str], bool]) -> None:
        """Remove lines. Where the file is not there, nothing is."""
        if not os.path.exists(self.path):
            return
        descriptor = self._locked()
        try:
            lines = self._read(descriptor, is_whole=False)
            kept = [line for line in lines if not is_unwanted(line)]
            if len(kept) < len(lines):
                _write(descriptor, kept)
        finally:
            descriptor.close()

    def _locked(self) -> Descriptor:
        descriptor = open_lock(self.path)
        try:
            lock_within(descriptor, _OWNED, self.path, LOCK_SECONDS)
        except BaseException:
            descriptor.close()
            raise
        return descriptor

    def _read(self, descriptor: Descriptor, *, is_whole: bool = True) -> list[str]:
        """Raise EntryDamaged where the file is too large, unless it is about to be written anew."""
        limit = self.most * self.line_bytes
        content = read_file(descriptor, self.path, limit) if is_whole else os.pread(descriptor.fd, limit, 0)
        return [line.decode(errors="replace") for line in content.split(b"\n")[:-1] if line]


def _write(descriptor: Descriptor, lines: list[str]) -> None:
    """Before the file is made shorter: a process that is killed in between loses no line."""
    content = "".join(f"{line}\n" for line in lines).encode()
    os.pwrite(descriptor.fd, content, 0)
    os.ftruncate(descriptor.fd, len(content))
