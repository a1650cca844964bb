"""Group commit: many batches, one transaction, in a thread of its own.

Rule 1: batches are written in the order they were submitted, and `written` only ever grows.
Rule 2: after a failed write, whatever made it fail, nothing more is written until `resume`. What the store holds is
loaded here (`reloaded`), as soon as it can be, and the caller goes on from that.
Rule 3: the caller never waits here; an eventfd tells it that `written` or `failure` changed.
Rule 4: messages that retained topics no longer need are removed between two transactions, a little at a time.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from messagehub.errors import StoreError
from messagehub.runtime.supervision import Supervisor
from messagehub.store import Saved, Store
from registry.events import AnyEvent

PROBE_SECONDS = 0.5
TRIM_SECONDS = 0.1
IDLE_TRIM_SECONDS = 5.0
log = logging.getLogger("messagehub.store")


class GroupCommit:
    def __init__(self, store: Store, *, written: int, supervisor: Supervisor | None = None) -> None:
        self.store = store
        self.written = written
        self.failure: StoreError | None = None
        self.is_writable_again = False
        self.reloaded: Saved | None = None
        """What the store holds after a failure, until `resume`; None while the store cannot be read."""
        self.transactions = 0
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._batches: deque[tuple[list[Any], int, bool]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._trim_at = 0.0
        self._thread = (supervisor or Supervisor()).start("messagehub-store", self._run)

    def submit(self, happened: Sequence[AnyEvent]) -> None:
        """Queue events for `write_submitted`.

        `written` reaches the revision of the last one when they are as safe as they ask to be.
        """
        rows = [row for event in happened for row in self.store.rows(event)]
        durable = any(event.durable for event in happened)
        self._batches.append((rows, happened[-1].revision, durable))

    def write_submitted(self) -> None:
        """Have the submitted events written.

        Call it once for many submissions, since waking a thread costs more than they do.
        """
        if self._batches:
            with self._changed:
                self._changed.notify_all()

    def resume(self, *, written: int) -> None:
        """Go on after a failure, from what the store holds."""
        with self._changed:
            self._batches.clear()
            self.written, self.failure, self.reloaded = written, None, None
            self._changed.notify_all()

    def follow(self, written: int) -> None:
        """Note what another hub has written to the store that both use."""
        with self._changed:
            self.written = max(self.written, written)

    def flush(self, revision: int, *, timeout: float) -> bool:
        """Wait until a revision is written or the store failed. Return False at the timeout."""
        self.write_submitted()
        with self._changed:
            return self._changed.wait_for(lambda: self.written >= revision or self.failure is not None, timeout)

    def close(self, *, timeout: float) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self.store.close()
            os.close(self.wake_fd)

    def acknowledge_wake(self) -> None:
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return  # woken by the poll of another fd

    def _run(self) -> None:
        while self._await_work():
            if self.failure is not None:
                self._probe()
                continue
            taken = [self._batches.popleft() for _ in range(len(self._batches))]
            if taken:  # or else resumed while the next probe was awaited, or woken to trim
                self._write(taken)
            self._trim()

    def _write(self, taken: list[tuple[list[Any], int, bool]]) -> None:
        rows = [row for batch_rows, _, _ in taken for row in batch_rows]
        revision, durable = taken[-1][1], any(durable for _, _, durable in taken)
        try:
            self.store.write(rows, revision=revision, durable=durable)
        except (StoreError, OSError) as error:
            failure = error if isinstance(error, StoreError) else StoreError(f"the store failed: {error}")
            self._fail(max(self.written, failure.written), failure)
        except Exception as defect:  # what was taken is not written, so nothing may be written after it
            log.exception("internal error while writing to the store")
            self._fail(self.written, StoreError(f"the store failed: {defect!r}"))
        else:
            self.transactions += 1
            self._trim_at = min(self._trim_at, time.monotonic() + TRIM_SECONDS)
            self._tell(revision, None)

    def _await_work(self) -> bool:
        with self._changed:
            if self.failure is not None:
                self._changed.wait_for(lambda: self._stopping or self.failure is None, PROBE_SECONDS)
                return not self._stopping
            seconds = max(self._trim_at - time.monotonic(), 0.0)
            self._changed.wait_for(lambda: self._batches or self._stopping, seconds)
            return bool(self._batches) or not self._stopping

    def _trim(self) -> None:
        now = time.monotonic()
        if now < self._trim_at or self.failure is not None:
            return
        has_more = False
        try:
            has_more = self.store.trim(now=time.time())
        except (StoreError, OSError) as error:
            log.warning("messages that retained topics no longer need could not be removed: %s", error)  # tried again
        self._trim_at = now + (TRIM_SECONDS if has_more else IDLE_TRIM_SECONDS)

    def _fail(self, written: int, failure: StoreError) -> None:
        """Tell of a failure, with what the store holds. One that does not answer is left to the probes."""
        self.reloaded = None
        if failure.has_answered:
            try:
                self.reloaded = self.store.load()
            except (StoreError, OSError) as error:
                log.warning("the store cannot be read either, and is tried again: %s", error)
        self._tell(written, failure)

    def _probe(self) -> None:
        try:
            self.store.probe()
            if self.reloaded is None:
                self.reloaded = self.store.load()
        except (StoreError, OSError):
            return  # still failing; the next probe comes in PROBE_SECONDS
        self.is_writable_again = True
        os.eventfd_write(self.wake_fd, 1)

    def _tell(self, written: int, failure: StoreError | None) -> None:
        with self._changed:
            self.written, self.failure = written, failure
            self.is_writable_again = False
            self._changed.notify_all()
        os.eventfd_write(self.wake_fd, 1)
