"""Reader files as others than their writer see them: who reads a ring, and what each of them holds."""

import contextlib
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from messagehub.shm.errors import AccessRefused, DamagedBlock, NothingThere
from messagehub.shm.locks import OWNER, exclusive, is_locked
from messagehub.shm.mapped_file import open_trusted
from messagehub.shm.rings.holders import Holder
from messagehub.shm.rings.reader_files import (
    LOSSLESS,
    PINS_OFFSET,
    announce,
    holder_of,
    is_reader_file,
    names_in,
    reads_for,
)

_OWNED: Final = exclusive(OWNER)


class LiveReader(NamedTuple):
    holder: Holder
    pins: bytes  # one for each slot, 1 if it holds the slot


class ReaderProbe:
    """A reader file as somebody outside sees it. It is read, not mapped: another process could shorten it."""

    def __init__(self, directory: str, name: str, slot_count: int) -> None:
        self._consumer_id = name.rpartition("@")[0] or None
        self._descriptor = open_trusted(os.path.join(directory, name), os.O_RDONLY)
        self._slot_count = slot_count
        self._read_for = reads_for(self._descriptor, slot_count)

    def look(self, head: int) -> LiveReader | None:
        """Return the reader as it is now; None if it is dead."""
        fd, size = self._descriptor.fd, PINS_OFFSET + self._slot_count
        if not is_locked(fd, _OWNED):
            return None
        content = os.pread(fd, size, 0).ljust(size, b"\0")
        return LiveReader(
            holder_of(memoryview(content)[:PINS_OFFSET].cast("Q"), head, self._consumer_id, self._read_for),
            content[PINS_OFFSET:],
        )

    def close(self) -> None:
        self._descriptor.close()


def probe_reader(directory: str, name: str, slot_count: int) -> ReaderProbe | None:
    """Open a reader file to look at it; None if its reader left meanwhile, or it is no file of ours."""
    try:
        return ReaderProbe(directory, name, slot_count)
    except (NothingThere, AccessRefused, DamagedBlock):
        return None


def end_waiting_for(directory: str, consumer_id: str) -> bool:
    """Have a blocking writer wait for no reader of this consumer any more; return whether there was one.

    For a consumer whose process may not run. What it holds stays held, so its values stay whole.
    """
    found = False
    for name in filter(is_reader_file, names_in(directory)):
        if name.rpartition("@")[0] == consumer_id:
            with contextlib.suppress(NothingThere, AccessRefused, DamagedBlock):
                descriptor = open_trusted(os.path.join(directory, name), os.O_RDWR)
                os.pwrite(descriptor.fd, bytes(8), LOSSLESS * 8)
                descriptor.close()
                found = True
    if found:
        with contextlib.suppress(NothingThere):
            announce(directory)
    return found


def live_readers(directory: str, slot_count: int, head: int) -> list[LiveReader]:
    """Return the living readers of a ring."""
    found = []
    for name in filter(is_reader_file, names_in(directory)):
        probe = probe_reader(directory, name, slot_count)
        if probe is not None:
            found.append(probe.look(head))
            probe.close()
    return [reader for reader in found if reader is not None]


def held_slots(readers: Iterable[LiveReader], slot_count: int) -> int:
    """Count the slots that readers hold; several may hold the same."""
    held = 0
    for reader in readers:
        held |= int.from_bytes(reader.pins, "little")
    return held.to_bytes(slot_count, "little").count(1)
