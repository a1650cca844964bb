"""Where a reader of a ring begins: the number of the item before the first one that it reads."""

import time

from messagehub.shm.errors import PositionUnknown
from messagehub.shm.layout import CLAIM, EPOCH, HEAD, LINE_WORDS, Geometry, Header
from messagehub.shm.locks import OWNER, exclusive, is_locked
from messagehub.shm.mapped_file import Segment
from messagehub.shm.rings.read_results import LastItems, Start

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


def live_items(
    words: memoryview, first_line: int, slot_count: int, lowest: int, *, claimed: bool = False
) -> list[tuple[int, int]]:
    """Return (sequence, slot) of what is in the ring now, from `lowest` on, in order.

    With `claimed`, also what its writer has claimed and not touched yet.
    """
    stop = first_line + slot_count * LINE_WORDS
    sequences = words[first_line:stop:LINE_WORDS].tolist()
    if claimed:
        sequences = [sequence & ~CLAIM for sequence in sequences]
    return sorted((sequence, slot) for slot, sequence in enumerate(sequences) if lowest <= sequence < CLAIM)


def _before_oldest(segment: Segment, geometry: Geometry) -> int:
    """Return the number before the oldest item, which begins the unbroken run up to the newest one.

    An older item that someone still holds is not worth a gap, and what the writer took before it could know of this
    reader is gone.

    Items after `head` are left out: one that is published while the slots are looked at may be seen without the
    one before it, which would look like the beginning of the run.
    """
    _wait_for_claims(segment, geometry)
    head = segment.words[HEAD]
    is_written = is_locked(segment.descriptor.fd, exclusive(OWNER))  # a dead writer has not touched what it claimed
    found = live_items(segment.words, geometry.line(0), geometry.slot_count, 1, claimed=not is_written)
    sequences = [sequence for sequence, _ in found if sequence <= head] or [head + 1]
    oldest = sequences.pop()
    while sequences and sequences[-1] == oldest - 1:
        oldest = sequences.pop()
    return oldest - 1


def _wait_for_claims(segment: Segment, geometry: Geometry) -> None:
    """Give the writer a moment to take what it has claimed, or to give it back because it has seen this reader."""
    first, stop = geometry.line(0), geometry.line(geometry.slot_count)
    deadline = time.monotonic() + _FINISH_SECONDS
    while any(sequence & CLAIM for sequence in segment.words[first:stop:LINE_WORDS].tolist()):
        if time.monotonic() >= deadline or not is_locked(segment.descriptor.fd, exclusive(OWNER)):
            return
        time.sleep(0.001)
