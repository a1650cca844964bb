"""A worker's mailbox: bounded, by priority, with a policy for what does not fit.

Rule 1: a message is in the mailbox, in a handler, or answered for; the counts add up:
received == handled + dropped + refused + expired + what is queued.
Rule 2: at most `concurrency` messages are in handlers.
Rule 3: a request that was cancelled, or whose deadline has passed, is never given to a handler: nobody waits for it.
The deadline of what is only sent is for the way into the mailbox.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Literal, get_args

from messagehub.errors import ConfigurationError
from messagehub.services.frames import PRIORITIES, SEND
from messagehub.services.server_connections import ServerConnection
from registry.records import MailboxState, Priority

Overflow = Literal["block", "drop", "error"]
OfferResult = Literal["taken", "closed", "expired", "blocked", "drop", "error"]
"""What becomes of a message; a blocked one waits for room."""
BY_PRIORITY: Mapping[Priority, Overflow] = {"high": "block", "normal": "error", "low": "drop"}


class Job:
    """A message on its way to a handler."""

    __slots__ = ("block", "body_at", "caller", "deadline", "form", "frame", "headers_at", "kind", "number", "priority")

    def __init__(
        self,
        caller: ServerConnection,
        form: int,
        priority: int,
        kind: int,
        number: int,
        deadline: float,
        frame: bytes,
        headers_at: int,
        body_at: int,
        block: Any = None,
    ) -> None:
        """`block` is the table in shared memory that the frame refers to."""
        self.block = block
        self.caller = caller
        self.form = form
        self.priority = priority
        self.kind = kind
        self.number = number
        self.deadline = deadline
        self.frame = frame
        self.headers_at = headers_at
        self.body_at = body_at


def policies(overflow: Overflow | Mapping[Priority, Overflow] | None) -> list[Overflow]:
    """Return what to do at a full mailbox, for each priority."""
    if isinstance(overflow, str):
        overflow = dict.fromkeys(PRIORITIES, overflow)
    by_priority = {**BY_PRIORITY, **(overflow or {})}
    if by_priority.keys() != set(PRIORITIES) or not set(by_priority.values()) <= set(get_args(Overflow)):
        raise ConfigurationError(
            f"overflow is block, drop or error, or one of these by priority (high, normal, low), not {overflow!r}"
        )
    return [by_priority[name] for name in PRIORITIES]


class Mailbox:
    def __init__(
        self,
        size: int,
        concurrency: int,
        overflow: Overflow | Mapping[Priority, Overflow] | None,
        on_expired: Callable[[Job], None],
    ) -> None:
        if size < 1 or concurrency < 1:
            raise ConfigurationError("a mailbox holds at least one message, and concurrency is at least one")
        self._policies = policies(overflow)
        self.concurrency = concurrency
        self.is_closed = False
        self.busy = 0
        self.handled = self.dropped = self.refused = self.expired = 0
        self._size = size
        self._queues: tuple[deque[Job], ...] = tuple(deque() for _ in PRIORITIES)
        self._queued = 0
        self._blocked: deque[Job] = deque()
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._on_expired = on_expired

    @property
    def load(self) -> int:
        """How many messages are in handlers and queued."""
        return self.busy + self._queued

    def state(self) -> MailboxState:
        return MailboxState(
            queued=self._queued,
            capacity=self._size,
            blocked=len(self._blocked),
            busy=self.busy,
            handled=self.handled,
            dropped=self.dropped,
            refused=self.refused,
            expired=self.expired,
        )

    def offer(self, job: Job) -> OfferResult:
        """Put a message into the mailbox.

        A blocked one waits here until `unblocked` returns it, perhaps at once to another thread.
        """
        with self._lock:
            policy = self._policies[job.priority]
            is_behind = policy == "block" and bool(self._blocked)  # nothing overtakes what waits for room
            if not self.is_closed and (self._queued >= self._size or is_behind) and job.deadline > monotonic():
                if policy == "block":
                    self._blocked.append(job)
                    return "blocked"
                self.dropped += policy == "drop"
                self.refused += policy == "error"
                return policy
            return self._admit(job)

    def _admit(self, job: Job) -> OfferResult:
        """Queue a message. Call it with the lock, when there is room."""
        if self.is_closed:
            self.refused += 1
            return "closed"
        if job.deadline <= monotonic():
            self.expired += 1
            return "expired"
        self._queues[job.priority].append(job)
        self._queued += 1
        return "taken"

    def take(self, *, is_done: bool = False) -> Job | None:
        """Return the next message for a handler, by priority; None if there is none or all handlers are busy.

        `is_done` says that the one that was taken before is handled.
        """
        expired: list[Job] | None = None
        taken: Job | None = None
        with self._lock:
            self.busy -= is_done
            while self._queued and self.busy < self.concurrency:
                job = (self._queues[0] or self._queues[1] or self._queues[2]).popleft()
                self._queued -= 1
                if job.form == SEND or (job.deadline > monotonic() and not job.caller.has_cancelled(job.number)):
                    self.busy += 1
                    self.handled += 1
                    taken = job
                    break
                self.expired += 1
                expired = [*(expired or ()), job]
            if self.is_closed:
                self._drained.notify_all()
        for each in expired or ():
            self._on_expired(each)
        return taken

    def has_work(self) -> bool:
        return self._queued > 0 and self.busy < self.concurrency

    def unblocked(self) -> tuple[Job, OfferResult] | None:
        """Return the next message that waited for room, if there is room now, and what became of it."""
        if not self._blocked:
            return None
        with self._lock:
            if not self._blocked or (self._queued >= self._size and not self.is_closed):
                return None
            job = self._blocked.popleft()
            return job, self._admit(job)

    def close(self) -> None:
        """Take no more messages. Those that are queued are still handled."""
        with self._lock:
            self.is_closed = True

    def drain(self, timeout: float, still_busy: int = 0) -> list[Job]:
        """Wait until all but `still_busy` messages are handled.

        Take out and return those that are left at the timeout.
        """
        with self._lock:
            self._drained.wait_for(lambda: self.busy <= still_busy and not self._queued, timeout)
            left = [job for queue in self._queues for job in queue]
            for queue in self._queues:
                queue.clear()
            self._queued = 0
        return left
