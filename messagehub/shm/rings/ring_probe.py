"""A ring as somebody outside sees it, again and again: how far its writer is, and each of its readers.

Rule 1: looking changes nothing and holds nobody up. Nothing is mapped (another process could shorten the file), no lock
is taken and no file is made: everything is read from files that the writer and the readers store into anyway.
Rule 2: the directory of the readers is listed again only when the token in its index has changed; a reader that died
without saying so is known by its free lock.
Rule 3: sizes are estimates: the writer stores no sum of them, and this adds none. They are the mean of the items that
are in the ring now.
"""

import contextlib
import heapq
import os
import sys
from dataclasses import dataclass
from typing import Final

from messagehub.shm.errors import AccessRefused, DamagedBlock, NothingThere
from messagehub.shm.layout import (
    CLAIM,
    EPOCH,
    HEAD,
    HEADER_BYTES,
    HINT,
    LENGTH,
    LINE_BYTES,
    LINE_WORDS,
    SEQUENCE,
    SKIPPED,
    STATE,
    WRITER_PID,
    WRITER_TICKET,
    Header,
    State,
    successors,
)
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked
from messagehub.shm.mapped_file import header_of, open_trusted
from messagehub.shm.rings.groups import group_files
from messagehub.shm.rings.holders import Holder
from messagehub.shm.rings.reader_files import (
    INDEX,
    group_holder,
    is_reader_file,
    reader_directory,
)
from messagehub.shm.rings.reader_probe import LiveReader, ReaderProbe, held_slots, probe_reader

_OWNED: Final = exclusive(OWNER)
_MOST_LINES: Final = 1024  # of the table of slots, to look at sizes
_OLDEST: Final = 16  # items, of which the writer may overwrite some while they are looked at


@dataclass(frozen=True, slots=True)
class RingSeen:
    """A ring at one moment. `producer_id` is that of the newest producer, `written_ns` the time of the newest item."""

    head: int
    epoch: int
    has_ended: bool
    has_writer: bool
    writer_pid: int
    is_waiting: bool
    skipped: int
    producer_id: str
    mean_item_bytes: float
    written_ns: int
    readers: list[LiveReader]
    groups: list[Holder]
    held: int  # slots that readers hold


class RingProbe:
    """Keeps the files of one ring open; for one thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open_trusted(path, os.O_RDONLY)
        try:
            self.header: Header = header_of(self._file, path)
        except BaseException:
            self._file.close()
            raise
        self._readers_path = reader_directory(path, self.header)
        self._index: Descriptor | None = None
        self._token: bytes | None = None
        self._readers: dict[str, ReaderProbe] = {}
        self._group_names: list[str] = []
        self._sized_at = -1
        self._mean_item_bytes = 0.0
        self._sequences: list[int] = []

    def look(self) -> RingSeen | None:
        """Return how it is now; None if it was removed, and should be closed."""
        if not os.fstat(self._file.fd).st_nlink:
            return None
        data = memoryview(os.pread(self._file.fd, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0"))
        words = data.cast("Q")
        head = words[HEAD]
        if head != self._sized_at:
            self._measure(head)
        readers, groups = self._look_at_readers(head)
        names = successors(words, data)
        return RingSeen(
            head=head,
            epoch=words[EPOCH],
            has_ended=words[STATE] == State.ENDED,
            has_writer=is_locked(self._file.fd, _OWNED),
            writer_pid=words[WRITER_PID],
            is_waiting=words[WRITER_TICKET] != 0,
            skipped=words[SKIPPED],
            producer_id=names[-1][1] if names else self.header.producer_id,
            mean_item_bytes=self._mean_item_bytes,
            written_ns=self.time_of(head) or 0,
            readers=readers,
            groups=groups,
            held=held_slots(readers, self.header.geometry.slot_count),
        )

    def time_of(self, sequence: int) -> int | None:
        """Return when an item was written, in nanoseconds since 1970; None if it is not in the ring any more."""
        geometry = self.header.geometry
        slot = self._word(geometry.line(sequence % geometry.slot_count) + HINT) if sequence > 0 else geometry.slot_count
        if slot >= geometry.slot_count or self._word(geometry.line(slot) + SEQUENCE) != sequence:
            return None
        return self._word(geometry.times + slot) or None

    def oldest_after(self, sequence: int) -> list[int]:
        """Return some items behind this one, the oldest first, that were in the ring at the last look.

        More than one, since the writer may have overwritten the oldest meanwhile.
        """
        return heapq.nsmallest(_OLDEST, (found for found in self._sequences if found > sequence))

    def close(self) -> None:
        self._forget_readers()
        self._file.close()

    def __enter__(self) -> "RingProbe":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _word(self, index: int) -> int:
        return int.from_bytes(os.pread(self._file.fd, 8, index * 8), sys.byteorder)

    def _measure(self, head: int) -> None:
        """Look at the sizes of what is in the ring."""
        geometry = self.header.geometry
        count = min(geometry.slot_count, _MOST_LINES)
        table = os.pread(self._file.fd, count * LINE_BYTES, geometry.table_offset).ljust(count * LINE_BYTES, b"\0")
        words = memoryview(table).cast("Q")
        sequences = words[SEQUENCE::LINE_WORDS].tolist()
        lengths = words[LENGTH::LINE_WORDS].tolist()
        if not all(0 < sequence < CLAIM for sequence in sequences):
            is_live = [0 < sequence < CLAIM for sequence in sequences]
            sequences = [each for each, live in zip(sequences, is_live, strict=True) if live]
            lengths = [each for each, live in zip(lengths, is_live, strict=True) if live]
        self._mean_item_bytes = sum(lengths) / len(lengths) if lengths else 0.0
        self._sequences, self._sized_at = sequences, head

    def _look_at_readers(self, head: int) -> tuple[list[LiveReader], list[Holder]]:
        if not self.header.readers_path:
            return [], []
        try:
            self._list_readers()
        except (NothingThere, FileNotFoundError, AccessRefused, DamagedBlock):
            self._forget_readers()  # with the directory; a new writer makes it again
        groups = []
        for name in self._group_names:
            with contextlib.suppress(NothingThere):  # a new epoch has taken its place
                groups.append(group_holder(self._readers_path, name, head))
        seen = [probe.look(head) for probe in self._readers.values()]
        return [reader for reader in seen if reader is not None], groups

    def _list_readers(self) -> None:
        if self._index is None:
            self._index = open_trusted(os.path.join(self._readers_path, INDEX), os.O_RDONLY)
        token = os.pread(self._index.fd, 8, 0)
        if token == self._token:
            return
        names = os.listdir(self._readers_path)
        found = set(filter(is_reader_file, names))
        for name in self._readers.keys() - found:
            self._readers.pop(name).close()
        for name in sorted(found - self._readers.keys()):
            probe = probe_reader(self._readers_path, name, self.header.geometry.slot_count)
            if probe is not None:
                self._readers[name] = probe
        self._group_names = sorted(group_files(names))
        self._token = token

    def _forget_readers(self) -> None:
        for probe in self._readers.values():
            probe.close()
        if self._index is not None:
            self._index.close()
        self._readers, self._group_names, self._index, self._token = {}, [], None, None
