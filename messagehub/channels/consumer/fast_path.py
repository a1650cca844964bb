"""The fast path to the next value of a consumer: one call into the ring's core.

It is there while a consumer has one ring, and nothing else is to be looked at: no group, no table, no schema to apply,
no answer of a broker. A ring of another host has it for what came with one message: then more is looked at.

Rule 1: whoever has the turn opens and closes it. `take` is for everybody, without the turn: in C it is one step, so
threads that call it at once get different items. In Python it is not, and `take` gives nothing: so too where the ring
is on another host.
Rule 2: whatever changes for a consumer is told by `disturb`, from any thread. From then on the fast path gives nothing,
until whoever has the turn has looked, and opens it again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from messagehub.channels.items import AnyRing
from messagehub.shm import core
from messagehub.shm.rings.reader import RingReader


def _nothing() -> Any:
    return None


class FastPath:
    def __init__(self) -> None:
        self.take: Callable[[], Any] = _nothing
        """Return the next value. None: it has to be asked for with the turn."""
        self._take: Callable[[], Any] = _nothing  # with the turn
        self._is_atomic = False
        self._reader: AnyRing | None = None
        self._sleeps_at: RingReader | None = None
        self._also: Sequence[int] = ()
        self._is_disturbed = False
        self._is_closed = False

    def disturb(self) -> None:
        """Take note that something changed. Any thread may call this."""
        self._is_disturbed = True
        self.take = _nothing

    def close(self) -> None:
        """Give no value any more, ever."""
        self._is_closed = True
        self.disturb()

    # -- with the turn -------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Keep other threads out, before the interpreter's lock is released or more than this is used."""
        self.take = _nothing

    def resume(self) -> None:
        if self._is_atomic:
            self.take = self._take
        if self._is_disturbed:  # from now on `disturb` is seen by `take`
            self.take = _nothing

    def start(self) -> None:
        """Note that everything is looked at from here on: what disturbs later is news."""
        self._is_disturbed = self._is_closed

    def set(self, reader: "AnyRing | None", also: Sequence[int] | None) -> None:
        """Lead to this ring, which follows; nowhere without one. `also`: what ends a sleep besides; None: do not."""
        self._reader, self._sleeps_at, self._also = reader, None, ()
        self._is_atomic = core.IS_ATOMIC and isinstance(reader, RingReader)
        if isinstance(reader, RingReader) and also is not None:
            self._sleeps_at, self._also = reader, also
        self._take = _nothing if reader is None else reader.take_value

    def next(self) -> Any:
        """Return the next value, also where the core is in Python; the caller has the turn."""
        return None if self._is_disturbed else self._take()

    def wait(self, seconds: float | None) -> Any:
        """Return the next value when it comes. None: look, something else is to be done, or the time is up."""
        if self._is_disturbed or self._sleeps_at is None:
            return None
        return self._take() if self._sleeps_at.wait(seconds, self._also) else None

    def is_quiet(self) -> bool:
        """Return whether everything was read, and nothing else is to be done."""
        return not self._is_disturbed and self._sleeps_at is not None and self._sleeps_at.is_quiet()

    @property
    def sequence(self) -> int:
        """The number of the value that it gave last; 0 if it gave none since it leads to its ring."""
        return 0 if self._reader is None else self._reader.value_sequence
