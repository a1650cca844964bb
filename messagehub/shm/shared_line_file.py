"""A small file of lines that the processes of a domain share.

Rule 1: it is read and changed under a lock on itself, and never removed or replaced.
Rule 2: a line has at most `line_bytes`, and the file as many bytes as `most` such lines. When it is full, the older
half of its lines is removed.
Rule 3: a process that is killed while it changes the file may leave a line that is cut off, or lines twice. So readers
look at each line for themselves, and the newest counts.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from messagehub.shm.errors import EntryDamaged
from messagehub.shm.locks import OWNER, Descriptor, exclusive, lock_within
from messagehub.shm.mapped_file import open_lock, read_file, refusal

LOCK_SECONDS = 0.5
_OWNED = exclusive(OWNER)


@dataclass(frozen=True)
class SharedLineFile:
    path: str
    most: int
    line_bytes: int

    def lines(self, *, lock_seconds: float = LOCK_SECONDS) -> list[str]:
        """Return the lines, the oldest first; none where the file does not exist or is too large to be ours.

        Busy is raised when another process holds the lock for longer than `lock_seconds`.
        """
        if not os.path.exists(self.path):
            return []
        with self._locked(lock_seconds) as descriptor:
            try:
                return self._read(descriptor, refuse_too_large=True)
            except EntryDamaged:
                return []

    def append(self, line: str) -> None:
        """Add a line. A line that is too long is left out."""
        added = f"{line}\n".encode()
        if len(added) > self.line_bytes:
            return
        with self._locked(LOCK_SECONDS) as descriptor:
            size = os.fstat(descriptor.fd).st_size
            if size + len(added) > self.most * self.line_bytes:
                kept = self._read(descriptor)[-self.most // 2 :]
                _write(descriptor, [*kept, line])
            else:
                is_cut_off = size > 0 and os.pread(descriptor.fd, 1, size - 1) != b"\n"
                os.pwrite(descriptor.fd, b"\n" + added if is_cut_off else added, size)

    def remove(self, is_unwanted: Callable[[str], bool], *, lock_seconds: float = LOCK_SECONDS) -> None:
        """Remove lines. Do nothing if the file does not exist."""
        if not os.path.exists(self.path):
            return
        with self._locked(lock_seconds) as descriptor:
            lines = self._read(descriptor)
            kept = [line for line in lines if not is_unwanted(line)]
            if len(kept) < len(lines):
                _write(descriptor, kept)

    @contextlib.contextmanager
    def _locked(self, seconds: float) -> Iterator[Descriptor]:
        """Raise DataBlockError for what the file system refuses, such as writing when it is full."""
        descriptor = open_lock(self.path)
        try:
            lock_within(descriptor, _OWNED, self.path, seconds)
            yield descriptor
        except OSError as error:
            raise refusal(error, self.path) from None
        finally:
            descriptor.close()

    def _read(self, descriptor: Descriptor, *, refuse_too_large: bool = False) -> list[str]:
        limit = self.most * self.line_bytes
        content = read_file(descriptor, self.path, limit) if refuse_too_large else os.pread(descriptor.fd, limit, 0)
        return [line.decode(errors="replace") for line in content.split(b"\n")[:-1] if line]


def _write(descriptor: Descriptor, lines: list[str]) -> None:
    """Write first and truncate afterwards, so that a process killed in between loses no line."""
    content = "".join(f"{line}\n" for line in lines).encode()
    os.pwrite(descriptor.fd, content, 0)
    os.ftruncate(descriptor.fd, len(content))
