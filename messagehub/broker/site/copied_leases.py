"""Which leases have producers, consumers or workers, by a copy of the registry: the terms of leases are the leader's.

Rule: a lease is here exactly while one of them is registered under it.
"""

from collections.abc import Iterable

from registry import events
from registry.channels.leases import Member
from registry.channels.members import members_of
from registry.records import Channel, Worker


class CopiedLeases:
    def __init__(
        self, channels: Iterable[Channel], workers: Iterable[Worker], before: "CopiedLeases | None" = None
    ) -> None:
        """`before` is what was known until now: leases that are not here any more have ended."""
        self._lease_of: dict[str, dict[Member, str]] = {}
        self._members: dict[str, int] = {}
        self._workers: dict[str, Member] = {}
        """By their ids."""
        self._ended: list[str] = []
        for channel in channels:
            for member, record in members_of(channel):
                self._put(member, record.lease)
        for worker in workers:
            self._put_worker(worker)
        if before is not None:
            self._ended = [lease for lease in before._members if lease not in self._members]

    def __contains__(self, lease: str) -> bool:
        return lease in self._members

    def __len__(self) -> int:
        return len(self._members)

    def has(self, lease: str, member: Member) -> bool:
        """Return whether a member is registered under a lease."""
        return self._lease_of.get(member.channel, {}).get(member) == lease

    def take_ended(self) -> list[str]:
        """Return the leases that have ended since the last call."""
        ended, self._ended = self._ended, []
        return [lease for lease in ended if lease not in self._members]

    def follow(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.ProducerRegistered):
            self._put(Member("producer", event.channel, event.producer.producer_id), event.producer.lease)
        elif isinstance(event, events.ConsumerRegistered):
            self._put(Member("consumer", event.channel, event.consumer.consumer_id), event.consumer.lease)
        elif isinstance(event, events.ProducerUnregistered):
            self._remove(Member("producer", event.channel, event.producer_id))
        elif isinstance(event, events.ConsumerUnregistered):
            self._remove(Member("consumer", event.channel, event.consumer_id))
        elif isinstance(event, events.ChannelDestroyed):
            for member in [each for each in self._lease_of.get(event.channel, ()) if each.kind != "worker"]:
                self._remove(member)
        elif isinstance(event, events.ServiceChanged) and event.address.startswith("id:"):
            if (gone := self._workers.pop(event.address.removeprefix("id:"), None)) is not None:
                self._remove(gone)
            for worker in event.service.workers if event.service is not None else ():
                self._put_worker(worker)

    def _put_worker(self, worker: Worker) -> None:
        member = self._workers[worker.worker_id] = Member("worker", worker.address, worker.worker_id)
        self._put(member, worker.lease)

    def _put(self, member: Member, lease: str) -> None:
        self._remove(member)
        self._lease_of.setdefault(member.channel, {})[member] = lease
        self._members[lease] = self._members.get(lease, 0) + 1

    def _remove(self, member: Member) -> None:
        of_channel = self._lease_of.get(member.channel, {})
        lease = of_channel.pop(member, None)
        if lease is None:
            return
        if not of_channel:
            del self._lease_of[member.channel]
        self._members[lease] -= 1
        if not self._members[lease]:
            del self._members[lease]
            self._ended.append(lease)
