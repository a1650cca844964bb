"""Where a reader of a ring begins: the number of the item before the first one that it reads."""

import time

from .errors import PositionUnknown
from .layout import EPOCH, HEAD, LINE_WORDS, Geometry, Header
from .locks import FIRST_SLOT, exclusively_locked
from .mapped_file import Segment
from .read_results import LastItems, Start

_FINISH_SECONDS = 0.05


def start_after(segment: Segment, header: Header, start: Start) -> int:
    """Return the number that a reader is to begin after. Raises PositionUnknown for a position of another ring."""
    head = segment.words[HEAD]
    if start == "latest":
        return head
    if start == "first":
        return 0
    if start == "oldest":
        return _before_oldest(segment, header.geometry)
    if isinstance(start, LastItems):
        end = start_after(segment, header, start.position)
        return min(max(end - start.wanted, _before_oldest(segment, header.geometry)), end)
    if start.block_id != header.block_id:
        raise PositionUnknown(segment.path, f"it is block {header.block_id}, not {start.block_id}")
    if start.epoch > segment.words[EPOCH] or start.sequence > head:
        raise PositionUnknown(segment.path, f"epoch {start.epoch}, sequence {start.sequence} is ahead of it")
    return start.sequence


def live_items(words: memoryview, first_line: int, slot_count: int, lowest: int) -> list[tuple[int, int]]:
    """Return (sequence, slot) of what is in the ring now, from `lowest` on, in order."""
    stop = first_line + slot_count * LINE_WORDS
    sequences = words[first_line:stop:LINE_WORDS].tolist()
    return sorted((sequence, slot) for slot, sequence in enumerate(sequences) if sequence >= lowest)


def _before_oldest(segment: Segment, geometry: Geometry) -> int:
    """Oldest is where the unbroken run up to the newest begins; an older item that someone still holds is
    not worth a gap, and what the writer took before it could know of this reader is gone.

    Items after `head` are left out: one that is published while the slots are looked at may be seen without the
    one before it, which would look like the beginning of the run.
    """
    taken = _taken_slots(segment.descriptor.fd, geometry.slot_count)
    head = segment.words[HEAD]
    found = live_items(segment.words, geometry.line(0), geometry.slot_count, 1)
    sequences = [sequence for sequence, slot in found if sequence <= head and slot not in taken] or [head + 1]
    oldest = sequences.pop()
    while sequences and sequences[-1] == oldest - 1:
        oldest = sequences.pop()
    return oldest - 1


def _taken_slots(fd: int, slot_count: int) -> set[int]:
    """Slots that the writer has locked, after giving it a moment to finish."""
    deadline = time.monotonic() + _FINISH_SECONDS
    while True:
        taken = exclusively_locked(fd, FIRST_SLOT, slot_count)
        if not taken or time.monotonic() >= deadline:
            return {byte - FIRST_SLOT for byte in taken}
        time.sleep(0.001)
