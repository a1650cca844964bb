"""The registry: commands in, replies and events out; no sockets, files, clocks or randomness.

Rule 1: a refused command changes nothing: every check comes before the first event.
Rule 2: state changes by events only (state.py), so what the store and the watchers get is all there is.
Rule 3: the same owner saying the same again gets the same answer, and no event.
Rule 4: a producer or consumer is replaced by another process only when it is stalled; the owner is the lease.
Rule 5: producers of one channel agree on schema, access and policy; a sole producer may change them
unless the channel's declaration binds them.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from registry import commands, events, names, replies
from registry.errors import (
    ChannelAlreadyExists,
    ChannelNotFound,
    ChannelNotReady,
    ConsumerAlreadyRegistered,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    ProducerAlreadyRegistered,
    SchemaMismatch,
)
from registry.leases import Lease, Leases, Member, Terms
from registry.records import Channel, Consumer, Priority, Producer, SchemaType, SchemaVersion
from registry.schema_catalog import SchemaCatalog
from registry.state import Channels, SortedNames, discovered, summary


class Outcome(NamedTuple):
    reply: replies.Reply
    events: list[events.AnyEvent]


class Registry:
    def __init__(self, *, terms: Terms | None = None, shm_prefix: str = "pylabhub_") -> None:
        self.terms = terms or Terms()
        self.revision = 0
        self.channels = Channels()
        self.schemas = SchemaCatalog()
        self.leases = Leases(self.terms)
        self.priorities: dict[str, Priority] = {}
        self._shm_prefix = shm_prefix
        self._names = SortedNames()
        self._discovered: dict[str, replies.Discovered] = {}
        self._emitted: list[events.AnyEvent] = []

    def restore(
        self, channels: Iterable[Channel], schemas: Iterable[SchemaVersion], *, revision: int, now: float
    ) -> None:
        """Take over what a store kept. Every lease gets a full new term."""
        for version in schemas:
            self.schemas.add(version, revision=revision)
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
        self.revision = revision

    def apply(self, command: commands.Command, *, now: float) -> Outcome:
        """Decide one command. Raises a Refusal, having changed nothing, or returns the reply and what happened."""
        reply = _HANDLERS[type(command)](self, command, now)
        if not self._emitted:
            return Outcome(reply, [])
        emitted, self._emitted = self._emitted, []
        return Outcome(reply, emitted)

    def expire(self, *, now: float) -> list[events.AnyEvent]:
        """Stall and end what has been silent for too long."""
        for lease, term in self.leases.due(now=now):
            for member in list(lease.members):
                if term == "stalled":
                    self._emit(_STALLED[member.kind](member), now)
                else:
                    self._remove(member, "expired", now)
        emitted, self._emitted = self._emitted, []
        return emitted

    def next_deadline(self) -> float | None:
        return self.leases.next_deadline()

    # -- producers and consumers ---------------------------------------------------------------------------

    def register_producer(self, command: commands.RegisterProducer, now: float) -> replies.Reply:
        name = names.check_channel(command.channel)
        channel = self.channels.get(name)
        producer = self._candidate(command, name)
        version = self._embedded_schema(name, command.schema, command.schema_type, command.schema_hash)
        if version is not None:
            producer.schema, producer.schema_id = "verified", version[0].schema_id
            producer.schema_type = version[0].schema_type
        replaced = self._check_producer(channel, producer) if channel else []

        present = channel.producers.get(producer.producer_id) if channel else None
        if present is None or not _says_the_same(present, producer):
            if version is not None and version[1]:
                self._emit_schema(version[0], now)
            if channel is None:
                channel = Channel(name=name, priority=command.priority, created_at=now)
                self._emit(events.ChannelCreated(channel=name, record=channel), now)
            for member in replaced:
                self._unregister(member, "replaced", now)
            producer.registered_at = now
            producer.revision = self.revision + 1
            self._emit(events.ProducerRegistered(channel=name, producer=producer), now)
            present = producer
        self._renew(present.lease, Member("producer", name, present.producer_id), now)
        return replies.ProducerRegistered(
            channel=name,
            producer_id=present.producer_id,
            shm_name=present.shm_name,
            schema_id=present.schema_id,
            lease=present.lease,
            lease_seconds=self.terms.lease_seconds,
            revision=present.revision,
        )

    def register_consumer(self, command: commands.RegisterConsumer, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        consumer = Consumer(
            consumer_id=names.check_role("consumer", command.consumer_id),
            lease=command.lease or f"{channel.name}/{command.consumer_id}",
            expected_schema_hash=command.expected_schema_hash,
            group=names.check_role("group", command.group) if command.group is not None else None,
            host=command.host,
            pid=command.pid,
            start_time=command.start_time,
            boot_id=command.boot_id,
            metadata=command.metadata,
        )
        if command.required and channel.status() != "active":
            raise ChannelNotReady(
                f"channel {channel.name!r} has no active producer",
                channel=channel.name,
                status=channel.status(),
            )
        if consumer.expected_schema_hash is not None and (channel.producers or channel.binds_schema):
            self._check_schema(channel, consumer.expected_schema_hash, "the consumer expects")
        present = channel.consumers.get(consumer.consumer_id)
        if present is None or not _says_the_same(present, consumer):
            if present is not None and present.lease != consumer.lease:
                if self.leases.is_alive(present.lease):
                    raise ConsumerAlreadyRegistered(
                        f"channel {channel.name!r} has a living consumer {consumer.consumer_id!r}",
                        channel=channel.name,
                        consumer_id=consumer.consumer_id,
                        pid=present.pid,
                        host=present.host,
                    )
                self._unregister(Member("consumer", channel.name, consumer.consumer_id), "replaced", now)
            consumer.registered_at = now
            consumer.revision = self.revision + 1
            self._emit(events.ConsumerRegistered(channel=channel.name, consumer=consumer), now)
            present = consumer
        self._renew(present.lease, Member("consumer", channel.name, present.consumer_id), now)
        found = self._found(channel)
        return replies.ConsumerRegistered(
            channel=channel.name,
            consumer_id=present.consumer_id,
            status=found.status,
            shm_name=found.shm_name,
            schema_hash=found.schema_hash,
            schema_version=found.schema_version,
            blocks=found.blocks,
            assignment=None,
            lease=present.lease,
            lease_seconds=self.terms.lease_seconds,
            revision=present.revision,
        )

    def unregister_producer(self, command: commands.UnregisterProducer, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        producer_id = command.producer_id or _default_owner(channel.name)
        member = Member("producer", channel.name, producer_id)
        self._check_owner(member, channel.producers.get(producer_id), command.lease or producer_id)
        self._remove(member, "released", now)
        return replies.ProducerUnregistered(channel=channel.name, producer_id=producer_id, revision=self.revision)

    def unregister_consumer(self, command: commands.UnregisterConsumer, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        member = Member("consumer", channel.name, command.consumer_id)
        lease = command.lease or f"{channel.name}/{command.consumer_id}"
        self._check_owner(member, channel.consumers.get(command.consumer_id), lease)
        self._remove(member, "released", now)
        return replies.ConsumerUnregistered(
            channel=channel.name, consumer_id=command.consumer_id, revision=self.revision
        )

    def heartbeat(self, command: commands.Heartbeat, now: float) -> replies.Reply:
        lease = self.leases.get(command.lease)
        if lease is None:
            return replies.HeartbeatAck(known=False, notices=[])
        self._revive(lease, now)
        return replies.HeartbeatAck(known=bool(lease.members), notices=lease.take_notices())

    # -- channels ------------------------------------------------------------------------------------------

    def discover(self, command: commands.Discover, now: float) -> replies.Reply:
        found = self._discovered.get(command.channel)
        if found is not None and not command.blocks_offset:
            return found
        channel = self._channel(command.channel)
        if command.blocks_offset:
            return discovered(channel, blocks_offset=command.blocks_offset)
        return self._found(channel)

    def create_channel(self, command: commands.CreateChannel, now: float) -> replies.Reply:
        name = names.check_channel(command.channel)
        version = self._embedded_schema(name, command.schema, command.schema_type, command.schema_hash)
        planned = version[0] if version else None
        present = self.channels.get(name)
        record = Channel(
            name=name,
            declared=True,
            binds_schema=command.schema_hash is not None or planned is not None,
            binds_access=command.access is not None,
            schema_hash=planned.schema_hash if planned else command.schema_hash,
            schema_version=command.schema_version,
            schema_type=planned.schema_type if planned else command.schema_type,
            schema_id=planned.schema_id if planned else None,
            schema="verified" if planned else "unverified",
            access=command.access,
            priority=command.priority,
            config=command.config,
            metadata=command.metadata,
            created_at=now,
        )
        if present is not None:
            self._check_declaration(present, record)
        if present is None or not present.declared:
            if version is not None and version[1]:
                self._emit_schema(version[0], now)
            if present is not None:
                _adopt_members(record, present)
            self._emit(events.ChannelDeclared(channel=name, record=record), now)
        return replies.ChannelCreated(
            channel=name, schema_id=self.channels[name].schema_id, revision=self.channels[name].revision
        )

    def destroy_channel(self, command: commands.DestroyChannel, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        self._emit(events.ChannelDestroyed(channel=channel.name), now)
        for member in _members(channel):
            self.leases.detach(_lease(channel, member), member)
        return replies.ChannelDestroyed(channel=channel.name, revision=self.revision)

    def list_channels(self, command: commands.ListChannels, now: float) -> replies.Reply:
        page, following = self._names.page(
            self.channels, prefix=command.prefix, after=command.after, limit=command.limit
        )
        return replies.ChannelList(
            channels=[summary(self.channels[name]) for name in page], next=following, revision=self.revision
        )

    def describe_channel(self, command: commands.DescribeChannel, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        return replies.ChannelDescription(channel=channel, status=channel.status(), revision=channel.revision)

    def list_consumers(self, command: commands.ListConsumers, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        return replies.ConsumerList(
            channel=channel.name, consumers=list(channel.consumers.values()), revision=channel.revision
        )

    def snapshot(self, command: commands.Snapshot, now: float) -> replies.Reply:
        if command.channel is not None:
            page, following = [command.channel] if command.channel in self.channels else [], None
        else:
            page, following = self._names.page(self.channels, after=command.after, limit=command.limit)
        return replies.SnapshotPage(
            channels=[self.channels[name] for name in page], next=following, revision=self.revision
        )

    # -- schemas -------------------------------------------------------------------------------------------

    def register_schema(self, command: commands.RegisterSchema, now: float) -> replies.Reply:
        version, is_new = self.schemas.plan(command)
        if is_new:
            self._emit_schema(version, now)
        return replies.SchemaRegistered(
            subject=version.subject,
            version=version.version,
            schema_id=version.schema_id,
            schema_hash=version.schema_hash,
            revision=self.schemas.revision(version.subject),
        )

    def request_schema(self, command: commands.RequestSchema, now: float) -> replies.Reply:
        return self.schemas.find(command)

    def list_schemas(self, command: commands.ListSchemas, now: float) -> replies.Reply:
        return self.schemas.list(command, revision=self.revision)

    # -- checks: they raise or return, and change nothing --------------------------------------------------

    def _channel(self, name: str) -> Channel:
        found = self.channels.get(name) or self.channels.get(names.logical(name))
        if found is None:
            logical = names.check_channel(names.logical(name))
            raise ChannelNotFound(f"nobody has registered channel {logical!r}", channel=logical)
        return found

    def _candidate(self, command: commands.RegisterProducer, name: str) -> Producer:
        producer_id = command.producer_id or _default_owner(name)
        if producer_id != _default_owner(name):
            names.check_role("producer", producer_id)
        default_shm = f"/{self._shm_prefix}{name}"
        if command.access == "shared" and producer_id != _default_owner(name):
            default_shm += f"@{producer_id}"
        return Producer(
            producer_id=producer_id,
            lease=command.lease or producer_id,
            shm_name=names.check_shm(command.shm_name or default_shm),
            schema_hash=command.schema_hash,
            schema_version=command.schema_version,
            schema_type=command.schema_type,
            ready=command.ready,
            status="active" if command.ready else "pending",
            access=command.access,
            host=command.host,
            pid=command.pid,
            start_time=command.start_time,
            boot_id=command.boot_id,
            blocks=command.blocks,
            config=command.config,
            metadata=command.metadata,
        )

    def _check_producer(self, channel: Channel, producer: Producer) -> list[Member]:
        """Whom this producer replaces; refused when somebody living or a binding declaration is in the way."""
        replaced = []
        others = []
        for present in channel.producers.values():
            is_same = present.producer_id == producer.producer_id
            if is_same and present.lease == producer.lease:
                continue
            excludes = is_same or "exclusive" in (present.access, producer.access)
            if not self.leases.is_alive(present.lease) and excludes:
                replaced.append(Member("producer", channel.name, present.producer_id))
            elif excludes and (is_same or present.access == producer.access):
                raise ProducerAlreadyRegistered(
                    f"channel {channel.name!r} has a living producer {present.producer_id!r}",
                    channel=channel.name,
                    producer_id=present.producer_id,
                    pid=present.pid,
                    host=present.host,
                )
            else:
                others.append(present)
        for other in others:
            _check_policy(channel, "access", other.access, producer.access)
            _check_policy(channel, "policy", other.config.get("policy"), producer.config.get("policy"))
        if channel.binds_access:
            _check_policy(channel, "access", channel.access, producer.access)
        if others or channel.binds_schema:
            self._check_schema(channel, producer.schema_hash, "the producer brings")
        return replaced

    def _check_schema(self, channel: Channel, schema_hash: str, claim: str) -> None:
        if schema_hash != channel.schema_hash:
            raise SchemaMismatch(
                f"channel {channel.name!r} has schema {channel.schema_hash!r}, {claim} {schema_hash!r}",
                channel=channel.name,
                expected=channel.schema_hash,
                actual=schema_hash,
                schema_version=channel.schema_version,
            )

    def _check_declaration(self, present: Channel, record: Channel) -> None:
        if present.declared:
            if not _declares_the_same(present, record):
                raise ChannelAlreadyExists(
                    f"channel {present.name!r} is declared already, and differently", channel=present.name
                )
            return
        for producer in present.producers.values():
            if record.binds_schema and producer.schema_hash != record.schema_hash:
                self._check_schema(present, record.schema_hash or "", "the declaration says")
            if record.binds_access:
                _check_policy(present, "access", producer.access, record.access)

    def _check_owner(self, member: Member, present: Producer | Consumer | None, lease: str) -> None:
        if present is None:
            raise NotRegistered(
                f"{member.kind} {member.member_id!r} is not registered on channel {member.channel!r}",
                channel=member.channel,
                member_id=member.member_id,
            )
        if present.lease != lease:
            raise NotOwner(
                f"{member.kind} {member.member_id!r} of channel {member.channel!r} belongs to another process",
                channel=member.channel,
                member_id=member.member_id,
            )

    def _embedded_schema(
        self, subject: str, schema: commands.Schema | None, schema_type: SchemaType | None, claim: str | None
    ) -> tuple[SchemaVersion, bool] | None:
        """The catalogue's version of a schema that came with a registration, and whether it is new there."""
        if schema is None:
            return None
        return self.schemas.plan(
            commands.RegisterSchema(
                subject=subject, schema=schema, schema_type=schema_type or "JSON", schema_hash=claim
            )
        )

    # -- changes -------------------------------------------------------------------------------------------

    def _take(self, channel: Channel) -> None:
        self.channels[channel.name] = channel
        self._added(channel)

    def _added(self, channel: Channel) -> None:
        self._names.add(channel.name)
        if channel.priority != "normal":
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

    def _emit_schema(self, version: SchemaVersion, now: float) -> None:
        self.revision += 1
        previous = self.schemas.revision(version.subject)
        event = events.SchemaRegistered(revision=self.revision, previous=previous, at=now, schema=version)
        self.schemas.evolve(event)
        self._emitted.append(event)

    def _notify(self, event: events.AnyChannelEvent, channel: Channel | None) -> None:
        """Leave a notice for every other process that is a member of the channel."""
        if channel is None or len(channel.producers) + len(channel.consumers) < 1:
            return
        actor = _actor(event)
        notice = replies.Notice(
            event=str(type(event).__struct_config__.tag),
            channel=event.channel,
            member=actor,
            reason=getattr(event, "reason", None),
            revision=event.revision,
        )
        told = {p.lease for p in channel.producers.values() if p.producer_id != actor}
        told |= {c.lease for c in channel.consumers.values() if c.consumer_id != actor}
        for lease_id in told:
            lease = self.leases.get(lease_id)
            if lease is not None:
                lease.tell(notice)

    def _unregister(self, member: Member, reason: events.Reason, now: float) -> None:
        channel = self.channels[member.channel]
        self.leases.detach(_lease(channel, member), member)
        if member.kind == "producer":
            self._emit(
                events.ProducerUnregistered(channel=member.channel, producer_id=member.member_id, reason=reason),
                now,
            )
        else:
            self._emit(
                events.ConsumerUnregistered(channel=member.channel, consumer_id=member.member_id, reason=reason),
                now,
            )

    def _remove(self, member: Member, reason: events.Reason, now: float) -> None:
        """Unregister, and let an undeclared channel end with its last member."""
        self._unregister(member, reason, now)
        channel = self.channels[member.channel]
        if not (channel.declared or channel.producers or channel.consumers):
            self._emit(events.ChannelEnded(channel=channel.name), now)

    def _renew(self, lease_id: str, member: Member, now: float) -> None:
        self.leases.attach(lease_id, member, now=now)
        lease = self.leases.get(lease_id)
        if lease is not None:
            self._revive(lease, now)

    def _revive(self, lease: Lease, now: float) -> None:
        lease.renewed_at = now
        if lease.is_stalled:
            lease.is_stalled = False
            for member in lease.members:
                self._emit(_RECOVERED[member.kind](member), now)

    def _found(self, channel: Channel) -> replies.Discovered:
        found = self._discovered.get(channel.name)
        if found is None:
            found = self._discovered[channel.name] = discovered(channel)
        return found


_HANDLERS: dict[type[commands.Command], Callable[[Registry, Any, float], replies.Reply]] = {
    commands.RegisterProducer: Registry.register_producer,
    commands.UnregisterProducer: Registry.unregister_producer,
    commands.RegisterConsumer: Registry.register_consumer,
    commands.UnregisterConsumer: Registry.unregister_consumer,
    commands.Heartbeat: Registry.heartbeat,
    commands.Discover: Registry.discover,
    commands.CreateChannel: Registry.create_channel,
    commands.DestroyChannel: Registry.destroy_channel,
    commands.ListChannels: Registry.list_channels,
    commands.DescribeChannel: Registry.describe_channel,
    commands.ListConsumers: Registry.list_consumers,
    commands.RegisterSchema: Registry.register_schema,
    commands.RequestSchema: Registry.request_schema,
    commands.ListSchemas: Registry.list_schemas,
    commands.Snapshot: Registry.snapshot,
}

_STALLED: dict[str, Callable[[Member], events.AnyChannelEvent]] = {
    "producer": lambda m: events.ProducerStalled(channel=m.channel, producer_id=m.member_id),
    "consumer": lambda m: events.ConsumerStalled(channel=m.channel, consumer_id=m.member_id),
}
_RECOVERED: dict[str, Callable[[Member], events.AnyChannelEvent]] = {
    "producer": lambda m: events.ProducerRecovered(channel=m.channel, producer_id=m.member_id),
    "consumer": lambda m: events.ConsumerRecovered(channel=m.channel, consumer_id=m.member_id),
}


def _default_owner(channel: str) -> str:
    return f"{channel}/default"


def _lease(channel: Channel, member: Member) -> str:
    if member.kind == "producer":
        return channel.producers[member.member_id].lease
    return channel.consumers[member.member_id].lease


def _members(channel: Channel) -> list[Member]:
    return [
        *(Member("producer", channel.name, producer_id) for producer_id in channel.producers),
        *(Member("consumer", channel.name, consumer_id) for consumer_id in channel.consumers),
    ]


def _adopt_members(record: Channel, present: Channel) -> None:
    """What the declaration leaves open stays as the producers made it."""
    if not record.binds_schema:
        record.schema_hash, record.schema_version = present.schema_hash, present.schema_version
        record.schema_type, record.schema_id = present.schema_type, present.schema_id
        record.schema = present.schema
    if not record.binds_access:
        record.access = present.access


def _actor(event: events.AnyChannelEvent) -> str | None:
    """The member an event is about."""
    if isinstance(event, events.ProducerRegistered):
        return event.producer.producer_id
    if isinstance(event, events.ConsumerRegistered):
        return event.consumer.consumer_id
    return getattr(event, "producer_id", None) or getattr(event, "consumer_id", None)


def _check_policy(channel: Channel, what: str, expected: object, actual: object) -> None:
    if expected != actual:
        raise PolicyMismatch(
            f"channel {channel.name!r} has {what} {expected!r}, asked for was {actual!r}",
            channel=channel.name,
            what=what,
            expected=expected,
            actual=actual,
        )


_BY_REGISTRY = ("status", "registered_at", "revision")


def _says_the_same(present: Producer | Consumer, candidate: Producer | Consumer) -> bool:
    """Equal but for what the registry itself fills in."""
    kept = {name: getattr(present, name) for name in _BY_REGISTRY}
    return msgspec.structs.replace(candidate, **kept) == present


def _declares_the_same(present: Channel, record: Channel) -> bool:
    def declaration(channel: Channel) -> tuple[object, ...]:
        bound_schema = (channel.schema_hash, channel.schema_version) if channel.binds_schema else None
        bound_access = channel.access if channel.binds_access else None
        return bound_schema, bound_access, channel.priority, channel.config, channel.metadata

    return declaration(present) == declaration(record)
