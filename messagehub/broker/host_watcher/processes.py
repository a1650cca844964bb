"""The processes of this host that have members: watched until they end, which ends their members.

Rule 1: a process ends once: its pidfd tells, at once. While it does not, the leases of that process do not run out.
Rule 2: a process is watched no longer than it has members, and its lease held no longer than it is watched.
"""

import logging
import select
from itertools import islice

from messagehub.shm.identity import ProcessIdentity, boot_id, host
from messagehub.shm.rings.wake_up import ProcessWatch
from registry import events
from registry.channels.leases import Member
from registry.records import Consumer, Producer, Subscriber, Worker
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")

MEMBERS_PER_LOOK = 500
_Process = tuple[int, int]
"""Its pid and start time."""


class MemberProcesses:
    def __init__(self, epoll: select.epoll) -> None:
        """Watched processes are registered with `epoll`; whoever polls it calls `ended`."""
        self._epoll = epoll
        self._watches: dict[_Process, ProcessWatch] = {}
        self._by_fd: dict[int, _Process] = {}
        self._members: dict[_Process, dict[Member, str]] = {}
        self._process_of: dict[Member, _Process] = {}
        self._members_of: dict[str, set[Member]] = {}
        self._dead: dict[Member, str] = {}

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def has_dead(self) -> bool:
        return bool(self._dead)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()

    def follow(self, registry: Registry, member: Member, record: Producer | Consumer | Worker | Subscriber) -> bool:
        """Return False if the process is of this host and is gone."""
        if record.pid is None or record.start_time is None:
            return True
        if record.host != host() or record.boot_id != boot_id():
            return record.host != host()  # before the last boot: nobody survived that
        self._dead.pop(member, None)  # it is another process's now
        key = (record.pid, record.start_time)
        watch = self._watches.get(key)
        if watch is None:
            watch = ProcessWatch(record.pid, record.start_time)
            if watch.fileno() < 0:
                return ProcessIdentity.of(record.pid) is not None  # in another namespace: its lease has to do
            self._watches[key] = watch
            self._by_fd[watch.fileno()] = key
            self._epoll.register(watch.fileno(), select.EPOLLIN)
        self._members.setdefault(key, {})[member] = record.lease
        self._process_of[member] = key
        self._members_of.setdefault(member.channel, set()).add(member)
        registry.leases.hold(record.lease, is_held=True)
        return True

    def forget(self, registry: Registry, member: Member) -> str | None:
        """Return the lease of a member that is gone, if its process is of this host."""
        key = self._unlink(member)
        members = self._members.get(key) if key is not None else None
        if key is None or members is None:
            return None
        lease = members.pop(member, None)
        if not members:
            self._drop(key)
            if lease is not None:
                registry.leases.hold(lease, is_held=False)
        return lease

    def forget_members(self, registry: Registry, channel: str) -> None:
        """A channel that is destroyed ends without an event for each member."""
        for member in list(self._members_of.get(channel, ())):
            self.forget(registry, member)

    def ended(self, registry: Registry, fd: int) -> None:
        """A descriptor that was registered with the epoll is readable."""
        key = self._by_fd.get(fd)
        if key is None:
            return
        members = self._drop(key)
        for lease in members.values():
            registry.leases.hold(lease, is_held=False)
        log.info("process %d has ended: %d registrations end with it", key[0], len(members))
        self._dead |= members

    def note_dead(self, member: Member, lease: str) -> None:
        """Have `remove_dead` end a member whose process was gone before it could be watched."""
        self._dead[member] = lease

    def remove_dead(self, registry: Registry, now: float) -> list[events.AnyEvent]:
        """Unregister members of processes that have ended, so many at a time: one process may have had very many."""
        due = list(islice(self._dead, MEMBERS_PER_LOOK))
        dead = [member for member in due if _lease_of(registry, member) == self._dead.pop(member)]
        return registry.host_events.died(dead, now=now) if dead else []

    # -- inside --------------------------------------------------------------------------------------------

    def _drop(self, key: _Process) -> dict[Member, str]:
        watch = self._watches.pop(key)
        del self._by_fd[watch.fileno()]
        self._epoll.unregister(watch.fileno())
        watch.close()
        members = self._members.pop(key, {})
        for member in members:
            self._unlink(member)
        return members

    def _unlink(self, member: Member) -> _Process | None:
        """Return the process that was watched for a member, which it is no longer."""
        others = self._members_of.get(member.channel, set())
        others.discard(member)
        if not others:
            self._members_of.pop(member.channel, None)
        return self._process_of.pop(member, None)


def _lease_of(registry: Registry, member: Member) -> str | None:
    """The lease that a member is registered under now."""
    record: Producer | Consumer | Worker | Subscriber | None
    if member.kind == "worker":
        record = registry.services.get(member.member_id)
    elif member.kind == "subscriber":
        record = registry.subscribers.get(member.member_id)
    else:
        channel = registry.channels.get(member.channel)
        members = channel.producers if channel and member.kind == "producer" else channel.consumers if channel else {}
        record = members.get(member.member_id)
    return record.lease if record is not None else None
