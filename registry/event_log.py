"""The ledger: everything the registry knows, and the few ways in which it changes.

Rule 1: state changes by events only (state.py): each gets the next revision, is kept for the store and the watchers,
and leaves notices for the members of its channel.
Rule 2: a member exists in its channel's record and in its lease, or in neither.
Rule 3: a channel that nobody declared ends with its last member, unless there is a table or a conflict to show.
Rule 4: whatever changes who produces or who consumes is followed by the new shares of its consumer groups.
Rule 5: an epoch of a group is `epoch_floor` plus a revision. A registry that starts over, with or without what was
stored, needs a floor above every epoch that may still be in use.
"""

from collections.abc import Callable, Iterable

from registry import events, replies
from registry.channels.groups import regrouped
from registry.channels.leases import Lease, Leases, Member, Terms
from registry.channels.notices import audience, notice
from registry.channels.state import Channels, SortedNames, discovered
from registry.records import Channel, Priority
from registry.schemas.catalog import SchemaCatalog
from registry.services.workers import Services
from registry.topics.positions import Positions
from registry.topics.retained import TopicCatalog
from registry.topics.subscribers import Subscribers


class EventLog:
    def __init__(self, *, terms: Terms | None = None, shm_prefix: str = "pylabhub_") -> None:
        self.terms = terms or Terms()
        self.revision = 0
        self.epoch_floor = 0
        self.channels = Channels()
        self.schemas = SchemaCatalog()
        self.topics = TopicCatalog()
        self.positions = Positions(self.topics)
        self.leases = Leases(self.terms)
        self.services = Services(self.leases, lease_seconds=self.terms.lease_seconds)
        self.subscribers = Subscribers(
            self.leases, lease_seconds=self.terms.lease_seconds, release=self.positions.release
        )
        self.priorities: dict[str, Priority] = {}
        self._shm_prefix = shm_prefix
        self._names = SortedNames(self.channels)
        self._discovered: dict[str, replies.Discovered] = {}
        self._emitted: list[events.AnyEvent] = []

    def restore(self, channels: Iterable[Channel], *, revision: int, now: float) -> None:
        """Take over what a store kept. Every lease gets a full new term, groups without a deal get one."""
        self.revision = revision
        for channel in channels:
            self._take(channel)
            for producer in channel.producers.values():
                producer.status = "active" if producer.ready else "pending"
                member = Member("producer", channel.name, producer.producer_id)
                self.leases.attach(producer.lease, member, now=now)
            for consumer in channel.consumers.values():
                consumer.status = "active"
                member = Member("consumer", channel.name, consumer.consumer_id)
                self.leases.attach(consumer.lease, member, now=now)
            dealt = channel.groups | regrouped(channel, epoch=self._next_epoch())
            channel.groups = {name: group for name, group in dealt.items() if group.members}

    def keep_unstored(self, before: "EventLog", *, now: float) -> None:
        """After starting over from a store: take over services and subscribers, of which it knows nothing."""
        before.services.move(self.leases, now=now)
        before.subscribers.move(self.leases, self.positions.release, now=now)
        self.services, self.subscribers = before.services, before.subscribers

    def expire(self, *, now: float) -> list[events.AnyEvent]:
        """Stall and end what has been silent for too long."""
        for lease, term in self.leases.due(now=now):
            for member in list(lease.members):
                unstored = self._unstored(member)
                if unstored is not None:
                    if term == "stalled":
                        unstored.mark(member.member_id, "stalled", now)
                    else:
                        unstored.ended(member.member_id, now)
                elif term == "stalled":
                    self._emit(_STALLED[member.kind](member), now)
                else:
                    self._remove(member, "expired", now)
        return self._take_emitted()

    def end_leases(self, lease_ids: Iterable[str], *, now: float) -> list[events.AnyEvent]:
        """End what is registered under these leases as if they had run out: their peer may do nothing any more."""
        for lease in filter(None, map(self.leases.get, lease_ids)):
            for member in list(lease.members):
                unstored = self._unstored(member)
                if unstored is not None:
                    unstored.ended(member.member_id, now)
                else:
                    self._remove(member, "expired", now)
        return self._take_emitted()

    def _unstored(self, member: Member) -> Services | Subscribers | None:
        """Who keeps a member that no store knows."""
        if member.kind == "worker":
            return self.services
        return self.subscribers if member.kind == "subscriber" else None

    def _take_emitted(self) -> list[events.AnyEvent]:
        emitted, self._emitted = self._emitted, []
        return emitted

    def next_deadline(self) -> float | None:
        return self.leases.next_deadline()

    def _take(self, channel: Channel) -> None:
        self.channels[channel.name] = channel
        self._added(channel)

    def _added(self, channel: Channel) -> None:
        self._names.add(channel.name)
        if channel.priority == "normal":
            self.priorities.pop(channel.name, None)
        else:
            self.priorities[channel.name] = channel.priority

    def _emit(self, event: events.AnyChannelEvent, now: float) -> None:
        before = self.channels.get(event.channel)
        self.revision += 1
        event.revision, event.previous, event.at = self.revision, before.revision if before else 0, now
        self.channels.evolve(event)
        self._emitted.append(event)
        self._discovered.pop(event.channel, None)
        after = self.channels.get(event.channel)
        if after is None:
            self.priorities.pop(event.channel, None)
        elif before is not after:
            self._added(after)
        self._notify(event, before or after)
        if after is not None and isinstance(event, _REGROUPING):
            for name, group in regrouped(after, epoch=self._next_epoch()).items():
                self._emit(events.GroupAssigned(channel=after.name, group=name, assigned=group), now)

    def _next_epoch(self) -> int:
        return self.epoch_floor + self.revision + 1

    def _emit_schema(self, event: events.AnySchemaEvent, now: float) -> None:
        self.revision += 1
        event.revision, event.previous, event.at = self.revision, self.schemas.revision(event.subject), now
        self.schemas.evolve(event)
        self._emitted.append(event)

    def _emit_topic(self, event: events.AnyTopicEvent, now: float) -> None:
        self.revision += 1
        event.revision, event.previous, event.at = self.revision, self.topics.revision(event.name), now
        self.topics.evolve(event)
        self.positions.evolve(event)
        self._emitted.append(event)

    def _notify(self, event: events.AnyChannelEvent, channel: Channel | None) -> None:
        told = audience(event, channel) if channel else ()
        if told:
            said = notice(event)
            for lease_id in told:
                self.leases.tell(lease_id, said, now=event.at)

    def _unregister(self, member: Member, reason: events.Reason, now: float) -> None:
        lease_id = lease_of(self.channels[member.channel], member)
        self.leases.detach(lease_id, member, now=now)
        event: events.AnyChannelEvent
        if member.kind == "producer":
            event = events.ProducerUnregistered(channel=member.channel, producer_id=member.member_id, reason=reason)
        else:
            event = events.ConsumerUnregistered(channel=member.channel, consumer_id=member.member_id, reason=reason)
        self._emit(event, now)
        if reason == "replaced":
            self.leases.tell(lease_id, notice(event), now=now)

    def _remove(self, member: Member, reason: events.Reason, now: float) -> None:
        """Unregister, and let an undeclared channel end with its last member."""
        self._unregister(member, reason, now)
        channel = self.channels[member.channel]
        if channel.is_empty():
            self._emit(events.ChannelEnded(channel=channel.name), now)

    def _renew(self, lease_id: str, member: Member, now: float) -> None:
        """A registration is a sign of life of the whole process."""
        self._revive(self.leases.attach(lease_id, member, now=now), now)

    def _revive(self, lease: Lease, now: float) -> None:
        if self.leases.renew(lease, now=now):
            for member in lease.members:
                unstored = self._unstored(member)
                if unstored is not None:
                    unstored.mark(member.member_id, "active", now)
                else:
                    self._emit(_RECOVERED[member.kind](member), now)

    def _found(self, channel: Channel) -> replies.Discovered:
        found = self._discovered.get(channel.name)
        if found is None:
            found = self._discovered[channel.name] = discovered(channel)
        return found


_REGROUPING = (events.ProducerRegistered, events.ConsumerRegistered, events.ConsumerUnregistered)

_STALLED: dict[str, Callable[[Member], events.AnyChannelEvent]] = {
    "producer": lambda m: events.ProducerStalled(channel=m.channel, producer_id=m.member_id),
    "consumer": lambda m: events.ConsumerStalled(channel=m.channel, consumer_id=m.member_id),
}
_RECOVERED: dict[str, Callable[[Member], events.AnyChannelEvent]] = {
    "producer": lambda m: events.ProducerRecovered(channel=m.channel, producer_id=m.member_id),
    "consumer": lambda m: events.ConsumerRecovered(channel=m.channel, consumer_id=m.member_id),
}


def lease_of(channel: Channel, member: Member) -> str:
    if member.kind == "producer":
        return channel.producers[member.member_id].lease
    return channel.consumers[member.member_id].lease
