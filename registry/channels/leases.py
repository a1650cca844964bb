"""Leases: who is alive until when.

Rule 1: a lease exists exactly while it has members. It ends once: with the last of them, or at the term that its last
renewal gave it, and then ends them.
Rule 2: renewing is O(1): it moves `renewed_at` only. Each lease has one queued deadline that counts; when that comes
too early it is queued again, so expiry is O(log n).
Rule 3: silence first stalls a lease, then ends it; a renewed lease is no longer stalled, and since it stalls again
before it would have ended, its deadline is queued anew and the later one is skipped.
Rule 4: a held lease (somebody sees its process alive) is stalled by silence but never ended by it.
Rule 5: a lease that was restored from a store, or that a hub of another host found when it began, is unclaimed until
its process says something. Held and silent for a whole term, it stays so and ends its consumers and workers: only their
registration says that they are still there, and their process may have closed them while no broker ran.
Rule 6: what nobody has heard when a lease ends is kept for one more term, for the next heartbeat under its name.
"""

import heapq
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec import Struct, field

from registry.replies import Notice

MAX_NOTICES = 100
MAX_UNHEARD = 10_000
MAX_DUE = 1000
Term = Literal["stalled", "unclaimed", "ended"]


class Member(NamedTuple):
    """A member of a lease. `channel` is the address of a worker, and empty for a subscriber."""

    kind: Literal["producer", "consumer", "worker", "subscriber"]
    channel: str
    member_id: str


def default_owner(channel: str) -> str:
    """Return the id of a producer that gives none, and its lease if it gives none: the id itself."""
    return f"{channel}/default"


def consumer_lease(channel: str, consumer_id: str) -> str:
    """Return the lease of a consumer that gives none.

    A consumer named `default` must not keep the default producer alive.
    """
    return f"{channel}/consumer/{consumer_id}"


class Terms(Struct, frozen=True, kw_only=True):
    heartbeat_seconds: float = 5.0
    stall_seconds: float = 15.0
    lease_seconds: float = 30.0


class Lease(Struct):
    lease_id: str
    renewed_at: float
    is_stalled: bool = False
    is_held: bool = False
    is_unclaimed: bool = False
    deadline: float = 0.0
    members: dict[Member, None] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)

    def tell(self, notice: Notice) -> None:
        """Store a notice for the next heartbeat.

        If there are too many, the oldest go: events are the reliable way to hear.
        """
        self.notices.append(notice)
        del self.notices[:-MAX_NOTICES]

    def take_notices(self) -> list[Notice]:
        taken, self.notices = self.notices, []
        return taken


class Leases:
    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._leases: dict[str, Lease] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._unheard: dict[str, tuple[float, list[Notice]]] = {}
        self._ended: list[str] = []

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def get(self, lease_id: str) -> Lease | None:
        return self._leases.get(lease_id)

    def has(self, lease_id: str, member: Member) -> bool:
        lease = self._leases.get(lease_id)
        return lease is not None and member in lease.members

    def is_alive(self, lease_id: str) -> bool:
        lease = self._leases.get(lease_id)
        return lease is not None and (lease.is_held or not lease.is_stalled)

    def hold(self, lease_id: str, *, is_held: bool) -> None:
        """Set whether the lease's process is seen to live. If it is not any more, no new term starts."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.is_held = is_held

    def unclaim(self, lease_id: str, *, now: float) -> None:
        """Begin a term in which the lease's process has to say that its consumers and workers are still there."""
        lease = self._leases.get(lease_id)
        if lease is not None and not lease.is_unclaimed:
            lease.is_unclaimed, lease.renewed_at = True, now

    def attach(self, lease_id: str, member: Member, *, now: float, is_restored: bool = False) -> Lease:
        """Add a member, starting the lease if it is new."""
        lease = self._leases.get(lease_id)
        if lease is None:
            notices = self.take_unheard(lease_id)
            lease = self._leases[lease_id] = Lease(lease_id, now, is_unclaimed=is_restored, notices=notices)
            self._queue(lease, now + self._terms.stall_seconds)
        lease.members[member] = None
        return lease

    def renew(self, lease: Lease, *, now: float) -> bool:
        """Start a full new term. Return whether the lease was stalled until now."""
        lease.renewed_at, lease.is_unclaimed = now, False
        was_stalled, lease.is_stalled = lease.is_stalled, False
        if was_stalled:
            self._queue(lease, now + self._terms.stall_seconds)
        return was_stalled

    def detach(self, lease_id: str, member: Member, *, now: float) -> None:
        """Remove a member; the lease ends with its last one."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.members.pop(member, None)
            if not lease.members:
                self._end(lease, now)

    def tell(self, lease_id: str, notice: Notice, *, now: float) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.tell(notice)
        else:
            self._keep(lease_id, [*self.take_unheard(lease_id), notice][-MAX_NOTICES:], now)

    def take_unheard(self, lease_id: str) -> list[Notice]:
        """Return the notices that a lease that has ended was still to hear."""
        return self._unheard.pop(lease_id, (0.0, []))[1]

    def take_ended(self) -> list[str]:
        """Return the leases that have ended since the last call, for parts that store something by lease."""
        ended, self._ended = self._ended, []
        return ended

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, *, now: float) -> list[tuple[Lease, Term]]:
        """Return leases whose silence crossed a term, a bounded number at a time.

        Those that ended are forgotten here.
        """
        crossed: list[tuple[Lease, Term]] = []
        while self._deadlines and self._deadlines[0][0] <= now and len(crossed) < MAX_DUE:
            deadline, lease_id = heapq.heappop(self._deadlines)
            lease = self._leases.get(lease_id)
            if lease is None or lease.deadline != deadline:
                continue
            if lease.renewed_at + self._terms.lease_seconds <= now and not lease.is_held:
                self._end(lease, now)
                crossed.append((lease, "ended"))
                continue
            if lease.renewed_at + self._terms.lease_seconds <= now and lease.is_unclaimed:
                lease.is_unclaimed = False
                crossed.append((lease, "unclaimed"))
            if not lease.is_stalled and lease.renewed_at + self._terms.stall_seconds <= now:
                lease.is_stalled = True
                crossed.append((lease, "stalled"))
            term = self._terms.lease_seconds if lease.is_stalled else self._terms.stall_seconds
            following = lease.renewed_at + term
            if following <= now:  # only a held lease outlives its term
                following = now + self._terms.stall_seconds
            self._queue(lease, following)
        return crossed

    def _end(self, lease: Lease, now: float) -> None:
        del self._leases[lease.lease_id]
        self._ended.append(lease.lease_id)
        if lease.notices:
            self._keep(lease.lease_id, lease.notices, now)

    def _keep(self, lease_id: str, notices: list[Notice], now: float) -> None:
        """Store the notices of a lease that ended. They are in order, so the first are the first to be forgotten."""
        self._unheard[lease_id] = (now + self._terms.lease_seconds, notices)
        while self._unheard:
            oldest = next(iter(self._unheard))
            if self._unheard[oldest][0] > now and len(self._unheard) <= MAX_UNHEARD:
                return
            del self._unheard[oldest]

    def _queue(self, lease: Lease, deadline: float) -> None:
        lease.deadline = deadline
        heapq.heappush(self._deadlines, (deadline, lease.lease_id))
