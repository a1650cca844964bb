"""Loans: slots that users of a writer fill in place."""

import ctypes
import weakref
from collections.abc import Callable
from types import TracebackType

from messagehub.runtime.forgotten import warn
from messagehub.shm.errors import PayloadRefused


class Loan:
    """A claimed slot. Keep no array over `buffer` after the end: it would change what readers see.

    A loan that is neither committed nor aborted gives its slot back when it and the last view of its buffer are gone.
    If readers held all slots, the buffer is ordinary memory, and committing the loan skips the item.
    """

    def __init__(
        self,
        slot: int | None,
        lent: "ctypes.Array[ctypes.c_ubyte]",
        *,
        channel: str,
        item_bytes: int,
        finish: Callable[[int | None, int | None], int | None],
        when_dropped: Callable[[int | None], bool],
    ) -> None:
        """Only whole items of `item_bytes` can be committed.

        `finish` publishes the given number of bytes, or gives the slot back if it gets None. `when_dropped` runs in a
        finalizer and returns whether there was a slot to give back.
        """
        self.buffer = memoryview(lent).cast("B")
        self.sequence: int | None = None
        self._slot = slot
        self._item_bytes = item_bytes
        self._finish = finish
        self._when_dropped = weakref.finalize(lent, _dropped, when_dropped, slot, channel)
        self._when_dropped.atexit = False

    def commit(self, size: int | None = None) -> int | None:
        """Publish the first `size` bytes (all by default) and return the sequence."""
        size = self.buffer.nbytes if size is None else size
        if not 0 <= size <= self.buffer.nbytes:
            raise PayloadRefused(f"size {size} is not from 0 to the {self.buffer.nbytes} bytes that were lent.")
        check_whole_items(size, self._item_bytes)
        return self._end(size)

    def abort(self) -> None:
        self._end(None)

    def _end(self, size: int | None) -> int | None:
        if self._when_dropped.detach() is not None:
            self.sequence = self._finish(self._slot, size)
        return self.sequence

    def __enter__(self) -> "Loan":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


def _dropped(give_back: Callable[[int | None], bool], slot: int | None, channel: str) -> None:
    if give_back(slot):
        warn(f"a loan of channel {channel!r} (commit or abort it, or use `with producer.loan(…) as loan:`)")


def check_whole_items(size: int, item_bytes: int) -> None:
    if size % item_bytes:
        raise PayloadRefused(f"size {size} is not a multiple of {item_bytes}, the bytes of one element of the ring.")
