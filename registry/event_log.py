"""The event log: everything that the store and the watchers know of, and the one way in which it changes.

Rule 1: state changes by events only. Each gets the next revision, waits in the log for the store and the watchers,
and leaves notices for the members of its channel.
Rule 2: a channel that nobody declared ends with its last member, unless there is a table or a conflict to show.
Rule 3: whatever changes who produces or who consumes is followed by the new shares of the channel's consumer groups.
Rule 4: an epoch of a group is `epoch_floor` plus a revision. A registry that starts over, with or without what was
stored, needs a floor above every epoch that may still be in use.
"""

from collections.abc import Iterable

from registry import events, names, replies
from registry.channels.groups import regrouped
from registry.channels.leases import Leases, Member, Terms
from registry.channels.notices import audience, notice
from registry.channels.state import Channels, SortedNames, discovered
from registry.errors import ChannelNotFound
from registry.records import Channel, Priority
from registry.schemas.catalog import SchemaCatalog
from registry.topics.positions import Positions
from registry.topics.retained import TopicCatalog


class EventLog:
    def __init__(self, terms: Terms) -> None:
        self.revision = 0
        self.epoch_floor = 0
        self.channels = Channels()
        self.schemas = SchemaCatalog()
        self.topics = TopicCatalog()
        self.positions = Positions(self.topics)
        self.leases = Leases(terms)
        self.priorities: dict[str, Priority] = {}
        """Of the channels whose priority is not normal."""
        self.names = SortedNames(self.channels)
        self.pending: list[events.AnyEvent] = []
        """What happened and was not taken yet."""
        self._discovered: dict[str, replies.Discovered] = {}

    def restore(self, channels: Iterable[Channel], *, revision: int, now: float) -> None:
        """Take over what was stored. Every lease gets a full new term, and groups without shares get them."""
        self.revision = revision
        for channel in channels:
            self.channels[channel.name] = channel
            self._added(channel)
            for producer in channel.producers.values():
                producer.status = "active" if producer.ready else "pending"
            for consumer in channel.consumers.values():
                consumer.status = "active"
            self._begin_leases(channel, now)
            groups = channel.groups | regrouped(channel, epoch=self._next_epoch())
            channel.groups = {name: group for name, group in groups.items() if group.members}

    def restore_copy(self, channels: Iterable[Channel], *, revision: int) -> None:
        """Take over the records of another registry as they are, to follow it from there. No lease begins."""
        self.revision = revision
        for channel in channels:
            self.channels[channel.name] = channel
            self._added(channel)

    def lead(self, *, epoch_floor: int, now: float) -> None:
        """Decide from now on, instead of the registry that this one is a copy of.

        Every lease gets a full new term, so nobody is stalled any more. Shares of groups stay as they are.
        """
        self.epoch_floor = epoch_floor
        for channel in list(self.channels.values()):
            self._begin_leases(channel, now)
            for producer_id in [key for key, found in channel.producers.items() if found.status == "stalled"]:
                self.emit(events.ProducerRecovered(channel=channel.name, producer_id=producer_id), now)
            for consumer_id in [key for key, found in channel.consumers.items() if found.status == "stalled"]:
                self.emit(events.ConsumerRecovered(channel=channel.name, consumer_id=consumer_id), now)

    def take(self) -> list[events.AnyEvent]:
        """Return the events that nobody has taken yet, oldest first."""
        taken, self.pending = self.pending, []
        return taken

    def channel(self, name: str) -> Channel:
        """Return the channel of this name, which may be written with its URI scheme; refuse an unknown one."""
        found = self.channels.get(name) or self.channels.get(names.logical(name))
        if found is None:
            logical = names.check_channel(names.logical(name))
            raise ChannelNotFound(f"nobody has registered channel {logical!r}", channel=logical)
        return found

    def discovered(self, channel: Channel) -> replies.Discovered:
        """Return the answer to a discovery, which is computed once for each state of a channel."""
        found = self._discovered.get(channel.name)
        if found is None:
            found = self._discovered[channel.name] = discovered(channel)
        return found

    def emit(self, event: events.AnyChannelEvent, now: float) -> None:
        before = self.channels.get(event.channel)
        self.revision += 1
        event.revision, event.previous, event.at = self.revision, before.revision if before else 0, now
        after = self._evolve_channel(event, before)
        self.pending.append(event)
        self._notify(event, before or after)
        if after is not None and isinstance(event, _REGROUPING):
            for name, group in regrouped(after, epoch=self._next_epoch()).items():
                self.emit(events.GroupAssigned(channel=after.name, group=name, assigned=group), now)

    def emit_schema(self, event: events.AnySchemaEvent, now: float) -> None:
        self.revision += 1
        event.revision, event.previous, event.at = self.revision, self.schemas.revision(event.subject), now
        self.schemas.evolve(event)
        self.pending.append(event)

    def emit_topic(self, event: events.AnyTopicEvent, now: float) -> None:
        self.revision += 1
        event.revision, event.previous, event.at = self.revision, self.topics.revision(event.name), now
        self.topics.evolve(event)
        self.positions.evolve(event)
        self.pending.append(event)

    def emit_service(self, event: events.ServiceChanged, now: float) -> None:
        """Log a change of a service, in a site; the part that decides it applies it."""
        self.revision += 1
        event.revision, event.at = self.revision, now
        self.pending.append(event)

    def follow(self, event: events.AnyChannelEvent | events.AnySchemaEvent | events.AnyTopicEvent) -> None:
        """Take over an event of another registry, of which this one is a copy.

        It has its revision, and those that follow from it come too. Leases are the other registry's: nobody is told,
        and nobody's term begins.
        """
        self.revision = event.revision
        if isinstance(event, events.AnySchemaEvent):
            self.schemas.evolve(event)
        elif isinstance(event, events.AnyTopicEvent):
            self.topics.evolve(event)
            self.positions.evolve(event)
        else:
            self._evolve_channel(event, self.channels.get(event.channel))

    def create_if_missing(self, name: str, now: float, *, priority: Priority = "normal") -> None:
        if name not in self.channels:
            record = Channel(name=name, priority=priority, created_at=now, revision=self.revision + 1)
            self.emit(events.ChannelCreated(channel=name, record=record), now)

    def end_if_empty(self, name: str, now: float) -> None:
        if self.channels[name].is_empty():
            self.emit(events.ChannelEnded(channel=name), now)

    def _begin_leases(self, channel: Channel, now: float) -> None:
        for producer in channel.producers.values():
            member = Member("producer", channel.name, producer.producer_id)
            self.leases.attach(producer.lease, member, now=now, is_restored=True)
        for consumer in channel.consumers.values():
            member = Member("consumer", channel.name, consumer.consumer_id)
            self.leases.attach(consumer.lease, member, now=now, is_restored=True)

    def _evolve_channel(self, event: events.AnyChannelEvent, before: Channel | None) -> Channel | None:
        """Change the channel, which was `before`, and return what it is then."""
        self.channels.evolve(event)
        self._discovered.pop(event.channel, None)
        after = self.channels.get(event.channel)
        if after is None:
            self.priorities.pop(event.channel, None)
        elif before is not after:
            self._added(after)
        return after

    def _added(self, channel: Channel) -> None:
        self.names.add(channel.name)
        if channel.priority == "normal":
            self.priorities.pop(channel.name, None)
        else:
            self.priorities[channel.name] = channel.priority

    def _next_epoch(self) -> int:
        return self.epoch_floor + self.revision + 1

    def _notify(self, event: events.AnyChannelEvent, channel: Channel | None) -> None:
        told = audience(event, channel) if channel else ()
        if told:
            said = notice(event)
            for lease_id in told:
                self.leases.tell(lease_id, said, now=event.at)


_REGROUPING = (events.ProducerRegistered, events.ConsumerRegistered, events.ConsumerUnregistered)
