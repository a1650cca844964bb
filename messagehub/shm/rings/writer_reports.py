"""What a writer tells people when readers, or loans of its own, are in its way: who they are, and what to do."""

import logging
import time
from typing import Final

from messagehub.shm import core
from messagehub.shm.errors import RingFull
from messagehub.shm.layout import Header, WhenFull
from messagehub.shm.rings.holders import told
from messagehub.shm.rings.reader_files import ReaderFiles

# How often a writer that skips items says so.
_TELL_AGAIN_SECONDS: Final = 10.0

log = logging.getLogger("messagehub")


class WriterReports:
    """The writer calls it with its mutex, or while it waits for room."""

    def __init__(self, header: Header, path: str, readers: ReaderFiles, core: core.Writer) -> None:
        self._channel = header.channel
        self._slot_count = header.geometry.slot_count
        self._honours_readers = header.when_full != WhenFull.OVERWRITE
        self._path = path
        self._readers = readers
        self._core = core
        self._tell_at = 0.0

    def full(self, waited: float) -> RingFull:
        """Return the error of a write that has waited so many seconds for room."""
        return RingFull(
            self._path, self._slot_count, waited, self._held_back_by(), overwrites=not self._honours_readers
        )

    def tell_of_wait(self, waited: float) -> None:
        log.warning(
            "the producer of channel %r has waited %.0f s for room: %s", self._channel, waited, self._held_back_by()
        )

    def tell_of_skip(self, first: int, count: int, skipped: int) -> None:
        """Log that `count` items from `first` on were skipped, of `skipped` so far; at most every ten seconds."""
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + _TELL_AGAIN_SECONDS
        log.warning(
            "channel %r: item %d was skipped, because readers hold %s %d slots (%s). The producer goes on; it has"
            " skipped %d items so far. Let the readers keep fewer values, or give the producer more capacity",
            self._channel,
            first,
            "all" if count == 1 else "too many of the",
            self._slot_count,
            self._holders(),
            skipped,
        )

    def _held_back_by(self) -> str:
        lent = self._core.lent
        if lent == self._slot_count or (lent and not self._honours_readers):
            return f"loans of this producer that were not committed hold {lent} of them"
        return self._holders()

    def _holders(self) -> str:
        return told(self._readers.holders(self._core.head), self._channel)
