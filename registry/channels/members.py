"""Members: who is registered under which lease, from the first sign of life to the end.

Rule 1: a producer or consumer exists in its channel's record and in its lease, or in neither.
Rule 2: workers and subscribers are members of a lease too: their own parts are told when they stall, recover or end.
No store knows of subscribers, nor of workers, but in a site.
Rule 3: a sign of life of one member is one of its whole process.
Rule 4: a member that was evicted is refused under the same name and lease for one term, so that a process that has not
heard of it yet does not bring it back. It may come as another member, and anybody else may take its name.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from registry import commands, events, replies
from registry.channels.leases import Lease, Member
from registry.channels.notices import notice
from registry.errors import Evicted, InvalidRequest, NotRegistered
from registry.event_log import EventLog
from registry.records import Channel, Consumer, Producer
from registry.schemas.checks import CheckResult
from registry.services.workers import ServiceDecisions
from registry.topics.subscribers import Subscribers

MAX_EVICTED = 10_000


class Members:
    def __init__(self, log: EventLog, *, lease_seconds: float, logs_services: bool) -> None:
        emit = log.emit_service if logs_services else None
        self.services = ServiceDecisions(log.leases, lease_seconds=lease_seconds, emit=emit)
        self.subscribers = Subscribers(log.leases, lease_seconds=lease_seconds, release=log.positions.release)
        self._log = log
        self._lease_seconds = lease_seconds
        self._evicted: dict[tuple[Member, str], float] = {}
        """Until when somebody is refused, the first to be forgotten first."""

    def take_over_unstored(self, before: "Members", *, now: float) -> None:
        """Take over what the store knows nothing of: the subscribers, and the workers of a hub on its own."""
        if self.services.is_logged:
            self.services.take_over_unlogged(before.services)
        else:
            before.services.move(self._log.leases, now=now)
            self.services = before.services
        before.subscribers.move(self._log.leases, self._log.positions.release, now=now)
        self.subscribers = before.subscribers
        self._evicted = before._evicted

    def renew(self, lease_id: str, member: Member, now: float) -> None:
        """Attach a member that has registered to its lease."""
        self.revive(self._log.leases.attach(lease_id, member, now=now), now)

    def revive(self, lease: Lease, now: float) -> None:
        """Renew a lease, and emit events that its stalled members are back."""
        if self._log.leases.renew(lease, now=now):
            for member in lease.members:
                unstored = self._unstored(member)
                if unstored is not None:
                    unstored.mark(member.member_id, "active", now)
                else:
                    self._log.emit(_RECOVERED[member.kind](member), now)

    def unregister(self, member: Member, reason: events.Reason, now: float) -> None:
        lease_id = lease_of(self._log.channels[member.channel], member)
        self._log.leases.detach(lease_id, member, now=now)
        event: events.AnyChannelEvent
        if member.kind == "producer":
            event = events.ProducerUnregistered(channel=member.channel, producer_id=member.member_id, reason=reason)
        else:
            event = events.ConsumerUnregistered(channel=member.channel, consumer_id=member.member_id, reason=reason)
        self._log.emit(event, now)
        if reason in ("replaced", "evicted"):
            self._log.leases.tell(lease_id, notice(event), now=now)

    def remove(self, member: Member, reason: events.Reason, now: float) -> None:
        """Unregister, and let an undeclared channel end with its last member."""
        self.unregister(member, reason, now)
        self._log.end_if_empty(member.channel, now)

    def evict(self, command: commands.EvictMember, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        found: list[Producer | Consumer] = []
        if command.role != "consumer" and command.member_id in channel.producers:
            found.append(channel.producers[command.member_id])
        if command.role != "producer" and command.member_id in channel.consumers:
            found.append(channel.consumers[command.member_id])
        if not found:
            raise NotRegistered(
                f"{command.role or 'member'} {command.member_id!r} is not registered on channel {channel.name!r}",
                channel=channel.name,
                member_id=command.member_id,
            )
        if len(found) > 1:
            said = (
                f"{command.member_id!r} is a producer and a consumer of channel {channel.name!r}: say which with role"
            )
            raise InvalidRequest(said, field="role")
        record = found[0]
        role: Literal["producer", "consumer"] = "producer" if isinstance(record, Producer) else "consumer"
        member = Member(role, channel.name, command.member_id)
        self._evicted.pop((member, record.lease), None)
        self._evicted[member, record.lease] = now + self._lease_seconds
        if len(self._evicted) > MAX_EVICTED:
            del self._evicted[next(iter(self._evicted))]
        self.remove(member, "evicted", now)
        return replies.MemberEvicted(
            channel=channel.name,
            member_id=command.member_id,
            role=role,
            host=record.host,
            pid=record.pid,
            revision=self._log.revision,
        )

    def check_evicted(self, member: Member, lease_id: str, now: float) -> None:
        """Refuse a member that was evicted less than a term ago."""
        while self._evicted and (until := next(iter(self._evicted.values()))) <= now:
            del self._evicted[next(iter(self._evicted))]
        if not self._evicted or (until := self._evicted.get((member, lease_id), 0.0)) <= now:
            return
        raise Evicted(
            f"{member.kind} {member.member_id!r} of channel {member.channel!r} was evicted by an operator, and is"
            f" refused for {until - now:.0f} s more",
            channel=member.channel,
            member_id=member.member_id,
            seconds=round(until - now, 3),
        )

    def end(self, member: Member, reason: events.Reason, now: float) -> None:
        """Remove a member of any kind; one that is not registered any more is passed over."""
        unstored = self._unstored(member)
        if unstored is not None:
            unstored.ended(member.member_id, now)
            return
        channel = self._log.channels.get(member.channel)
        if channel is not None and member.member_id in _of_kind(channel, member):
            self.remove(member, reason, now)

    def expire(self, now: float) -> None:
        """Stall and end what has been silent for too long."""
        for lease, term in self._log.leases.due(now=now):
            for member in list(lease.members):
                if term == "stalled":
                    self._stall(member, now)
                elif term == "ended" or member.kind in ("consumer", "worker"):
                    self.end(member, "expired", now)

    def end_leases(self, lease_ids: Iterable[str], now: float) -> None:
        """End what is registered under these leases as if they had run out."""
        for lease in filter(None, map(self._log.leases.get, lease_ids)):
            for member in list(lease.members):
                self.end(member, "expired", now)

    def _stall(self, member: Member, now: float) -> None:
        unstored = self._unstored(member)
        if unstored is not None:
            unstored.mark(member.member_id, "stalled", now)
        else:
            self._log.emit(_STALLED[member.kind](member), now)

    def _unstored(self, member: Member) -> ServiceDecisions | Subscribers | None:
        """Return the part that has a member that no store knows."""
        if member.kind == "worker":
            return self.services
        return self.subscribers if member.kind == "subscriber" else None


def members_of(channel: Channel) -> list[tuple[Member, Producer | Consumer]]:
    producers = [(Member("producer", channel.name, key), record) for key, record in channel.producers.items()]
    consumers = [(Member("consumer", channel.name, key), record) for key, record in channel.consumers.items()]
    return [*producers, *consumers]


def lease_of(channel: Channel, member: Member) -> str:
    if member.kind == "producer":
        return channel.producers[member.member_id].lease
    return channel.consumers[member.member_id].lease


def _of_kind(channel: Channel, member: Member) -> Iterable[str]:
    return channel.producers if member.kind == "producer" else channel.consumers


_STALLED: dict[str, Callable[[Member], events.AnyChannelEvent]] = {
    "producer": lambda m: events.ProducerStalled(channel=m.channel, producer_id=m.member_id),
    "consumer": lambda m: events.ConsumerStalled(channel=m.channel, consumer_id=m.member_id),
}
_RECOVERED: dict[str, Callable[[Member], events.AnyChannelEvent]] = {
    "producer": lambda m: events.ProducerRecovered(channel=m.channel, producer_id=m.member_id),
    "consumer": lambda m: events.ConsumerRecovered(channel=m.channel, consumer_id=m.member_id),
}
