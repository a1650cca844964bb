"""How a reader of a ring finds an item: where the writer's hint says, else by looking at all slots.

What is not there any more is reported as a `Gap`, never skipped in silence.
"""

from collections.abc import Callable
from typing import Any

from messagehub.shm import core
from messagehub.shm.errors import ChecksumMismatch, HeaderInconsistent
from messagehub.shm.layout import CLAIM, EPOCH, FLAT, HEAD, HINT, LENGTH, SEQUENCE, Header, checksum, successors
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads import Codec
from messagehub.shm.rings.read_results import Gap, Item, Producers
from messagehub.shm.rings.reader_files import MISSED, SHARES
from messagehub.shm.rings.reader_start import live_items

_LATEST_ATTEMPTS = 64


class ReaderItems:
    """It refers to no reader, so that dropping a reader frees it at once."""

    def __init__(
        self,
        ring: core.Reader,
        segment: Segment,
        codec: Codec,
        *,
        header: Header,
        verify: bool,
        is_writer_alive: Callable[[], bool],
        file_words: memoryview,
    ) -> None:
        """With `verify` every payload is compared with its checksum. `file_words` are those of the reader's file."""
        self._file_words = file_words
        self._ring = ring
        self._words, self._data = segment.words, segment.data
        self._codec = codec
        self._path = segment.path
        self._producer_id = header.producer_id
        self._verify = verify
        self._is_writer_alive = is_writer_alive
        geometry = header.geometry
        self._slot_bytes, self._slot_count = geometry.slot_bytes, geometry.slot_count
        self._line = list(geometry.lines())
        self._times = geometry.times
        self._epoch, self._producers = 0, self._known_producers()

    def take(self, want: int) -> Item | Gap | None:
        """Return the item of that number, which was published, or what was lost, and advance over it.

        Return None while the writer has claimed the item, and where the reader is closed.
        """
        words = self._words
        slot = words[self._line[want % self._slot_count] + HINT]
        if slot < self._slot_count and words[self._line[slot]] == want:
            item = self._pinned(want, slot)
            if item is not None:
                return self._advance(item)
        return self._search(want)

    def newest(self) -> Item | None:
        """Return the newest item, wherever the reader stands; None if there is none (yet)."""
        for attempt in range(_LATEST_ATTEMPTS):
            live = self._live(1, claimed=attempt < _LATEST_ATTEMPTS - 1)  # at last what the writer wants does not count
            if not live:
                return None
            sequence, slot = live[-1]
            item = self._pinned(sequence, slot) or self._left_by_the_dead(sequence, slot)
            if item is not None:
                return item
        return None

    def newest_ns(self) -> int:
        """Return when the item that `newest` would give was written; -1 if there is none."""
        live = self._live(1, claimed=True)
        return self._words[self._times + live[-1][1]] if live else -1

    def item(self, buffer: Any, sequence: int | None = None) -> Item:
        """Return what the core has just handed out."""
        found = self._ring
        epoch, producers = self.known_epoch()
        return Item(
            sequence or found.sequence, epoch, buffer, self._codec, found.shape or FLAT, found.written_ns, producers
        )

    def known_epoch(self) -> tuple[int, Producers]:
        """Return the epoch of the ring, which a new producer begins, and its producers so far."""
        epoch = self._words[EPOCH]
        if epoch != self._epoch:
            self._epoch, self._producers = epoch, self._known_producers()
        return epoch, self._producers

    def _search(self, want: int) -> Item | Gap | None:
        """Look at all slots: the item is not where the hint says, is claimed by the writer, or is lost."""
        head = self._words[HEAD]
        if head >= CLAIM:
            raise HeaderInconsistent(self._path, f"it claims {head} items")
        core.fence()  # the slots are looked at after the head: what was published until then is in them, or lost
        live = [pair for pair in self._live(want, claimed=True) if pair[0] <= head]
        if not live:
            return self._lost(want, head)
        sequence, slot = live[0]
        if sequence > want:
            return self._lost(want, sequence - 1)
        item = self._pinned(sequence, slot) or self._left_by_the_dead(sequence, slot)
        return None if item is None else self._advance(item)

    def _left_by_the_dead(self, sequence: int, slot: int) -> Item | None:
        """Return an item that a writer claimed before it died.

        It is pinned first: a writer that comes now sees the pin.
        """
        buffer = self._ring.pin(sequence | CLAIM, slot, True)
        if buffer is None or self._is_writer_alive() or self._words[self._line[slot] + SEQUENCE] != sequence | CLAIM:
            return None
        return self._verified(buffer, sequence)

    def _pinned(self, sequence: int, slot: int) -> Item | None:
        words, line = self._words, self._line[slot]
        buffer = self._ring.pin(sequence, slot, self._verify)
        if buffer is None:
            length = words[line + LENGTH]
            if length > self._slot_bytes and words[line + SEQUENCE] == sequence:
                raise HeaderInconsistent(self._path, f"slot {slot} claims {length} bytes of {self._slot_bytes}")
            return None
        return self._verified(buffer, sequence)

    def _verified(self, buffer: Any, sequence: int) -> Item:
        if self._verify and self._ring.checksum != checksum(buffer, sequence, self._ring.shape or FLAT):
            raise ChecksumMismatch(self._path, f"sequence {sequence}")
        return self.item(buffer, sequence)

    def _advance(self, item: Item) -> Item:
        self._ring.advance(item.sequence)
        return item

    def _lost(self, first: int, last: int) -> Gap:
        self._ring.advance(last)
        self._file_words[MISSED] += (last - first) // max(self._file_words[SHARES], 1) + 1
        return Gap(first, last)

    def _live(self, lowest: int, *, claimed: bool) -> list[tuple[int, int]]:
        return live_items(self._words, self._line[0], self._slot_count, lowest, claimed=claimed)

    def _known_producers(self) -> Producers:
        return ((0, self._producer_id), *successors(self._words, self._data))
