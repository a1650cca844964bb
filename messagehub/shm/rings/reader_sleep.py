"""How a reader of a ring sleeps until its writer wakes it, ends the stream or dies.

Rule: before sleeping, store a ticket (and a fence), probe the writer's lock, and look for an item once more. The writer
does it the other way round: it publishes, and then looks for tickets. So one of the two sees the other.
"""

import logging
from collections.abc import Sequence
from typing import Any

from messagehub.shm import core
from messagehub.shm.errors import HandleClosed, StreamEnded, WriterGone
from messagehub.shm.layout import EPOCH, STATE, WRITER_PID, WRITER_START, Header, State
from messagehub.shm.locks import OWNER, Descriptor, exclusive, is_locked
from messagehub.shm.rings.wake_up import PROBE_SECONDS, NoWakeUp, ProcessWatch, WakeUp, sleep_async

log = logging.getLogger("messagehub")

_WRITER = exclusive(OWNER)


class ReaderSleep:
    """It refers to no reader, so that dropping a reader frees it at once."""

    def __init__(
        self,
        ring: core.Reader,
        words: Any,
        descriptor: Descriptor,
        wake_up: WakeUp | NoWakeUp,
        *,
        header: Header,
        path: str,
        wait_for_writer: bool,
        spin_us: int,
    ) -> None:
        """`wait_for_writer`: sleep over its restarts. `spin_us`: how long to wait without sleeping, where that pays."""
        self._ring = ring
        self._words = words
        self._descriptor = descriptor
        self._wake_up = wake_up
        self._header = header
        self._path = path
        self._wait_for_writer = wait_for_writer
        self._spin_us = spin_us
        self._watch: ProcessWatch | None = None
        self._waits_on: tuple[int, ...] | None = None  # the block, and what `wake_fds` has
        self._watch_fired = self._was_alive = self._had_ended = False
        self._told_epoch = 0

    # -- before a sleep ------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Say that this reader sleeps. Look for an item after this, then call `check_writer`, or `cancel`."""
        self._wake_up.forget()
        self._ring.next_ticket()
        self._was_alive = is_locked(self._descriptor.fd, _WRITER)
        self._had_ended = self._words[STATE] == State.ENDED

    def cancel(self) -> None:
        """Say that this reader does not sleep."""
        self._ring.set_ticket(0)

    def check_writer(self) -> None:
        """Raise StreamEnded or WriterGone if nothing can come any more. Watch the writer's process otherwise."""
        if self._had_ended:
            raise StreamEnded(self._path)
        is_alive = self._was_alive
        if not is_alive and not self._wait_for_writer and not self.is_writer_alive():
            raise WriterGone(self._path)  # if another has come meanwhile, it wakes this reader
        self._watch_writer(is_alive)
        if not is_alive and self._told_epoch != self._words[EPOCH]:
            self._told_epoch = self._words[EPOCH]
            log.warning(
                "channel %r: its producer, pid %d, has ended without closing its stream; what it had written is read,"
                " and its reader waits for the next producer",
                self._header.channel,
                self._words[WRITER_PID],
            )

    def is_writer_alive(self) -> bool:
        if self._descriptor.fd < 0:
            raise HandleClosed("reader")
        return is_locked(self._descriptor.fd, _WRITER)

    def _watch_writer(self, is_alive: bool) -> None:
        pid, start_time = self._words[WRITER_PID], self._words[WRITER_START]
        watch = self._watch
        if not is_alive:
            self._watch = None  # a new writer wakes all readers
        elif watch is None or (watch.pid, watch.start_time) != (pid, start_time):
            self._watch = ProcessWatch(pid, start_time)
        elif self._watch_fired:
            watch.close()  # the process is gone, its lock is not (yet): probe it from now on
        self._watch_fired = False
        woken, watched = self._wake_up.fileno(), -1 if self._watch is None else self._watch.fileno()
        is_told = woken >= 0 and watched >= 0  # else it looks now and then
        self._waits_on = (self._descriptor.fd, woken, watched) if is_told else None

    # -- asleep --------------------------------------------------------------------------------------------

    def sleep(self, seconds: float | None) -> None:
        """Sleep until the reader is woken, the writer died, or the time is up."""
        self._watch_fired = self._wake_up.sleep(seconds, self._watch)

    async def sleep_async(self, seconds: float | None) -> None:
        """Do as `sleep` does, in the running event loop."""
        self._watch_fired = await sleep_async(self._wake_up, seconds, self._watch)

    def wait(self, seconds: float | None, also: Sequence[int] = ()) -> bool:
        """Wait for an item, first without sleeping where that paid lately, and return whether one came.

        If not, look: one of the descriptors `also` is ready, the writer ended or died, or the time is up.
        """
        if self._waits_on is None:
            return self._spin_us > 0 and self._ring.spin(self._spin_us)
        return self._ring.wait(self._spin_us, seconds, *self._waits_on, *also)

    # -- asleep together with others (see `waiting.Sleeper`) -----------------------------------------------

    def wake_fds(self) -> list[int]:
        """Return the descriptor that wakes this reader, and that of the writer's process while it can be watched."""
        watched = -1 if self._watch is None else self._watch.fileno()
        return [fd for fd in (self._wake_up.fileno(), watched) if fd >= 0]

    def woken(self, fd: int) -> None:
        """Take note that one of `wake_fds` was ready."""
        if fd == self._wake_up.fileno():
            self._wake_up.was_woken = True  # else it would stay readable, and no sleep would last
        else:
            self._watch_fired = True

    def look_seconds(self) -> float | None:
        """Return how long to sleep on `wake_fds` at most: the writer may not know this reader, or not be watched."""
        is_unwatched = self._watch is not None and self._watch.fileno() < 0
        return self._wake_up.look_seconds or (PROBE_SECONDS if is_unwatched else None)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
