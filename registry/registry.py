"""The registry: commands in, replies and events out; no sockets, files, clocks or randomness.

Rule 1: a refused command changes nothing: every check comes before the first event.
Rule 2: state changes by events only (state.py), so what the store and the watchers get is all there is.
Rule 3: the same owner saying the same again gets the same answer, and no event.
Rule 4: a producer or consumer is replaced by another process only when it is stalled; the owner is the lease.
Rule 5: producers of one channel agree on schema, access and policy; a sole producer may change them
unless the channel's declaration binds them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from registry import commands, events, names, replies
from registry.channels.groups import assignment
from registry.channels.host_events import HostEvents
from registry.channels.leases import Member, Terms, consumer_lease, default_owner
from registry.channels.registration_checks import (
    check_consumer,
    check_declaration,
    check_owner,
    check_producer,
    check_schema,
    says_the_same,
)
from registry.channels.state import discovered, summary
from registry.channels.tables import changes, check_bound_schema, check_destroyable, check_droppable, table_of
from registry.errors import ChannelNotFound, ChannelNotReady, InvalidRequest
from registry.event_log import lease_of
from registry.formats.differences import Difference
from registry.records import Channel, Consumer, Producer, SchemaVersion
from registry.schemas.checks import CheckResult, SchemaCheck, judge
from registry.schemas.rules import SCHEMA_COMMANDS, SchemaRules
from registry.topics.positions import POSITION_COMMANDS
from registry.topics.retained import TOPIC_COMMANDS
from registry.topics.subscribers import SUBSCRIBER_COMMANDS


class Outcome(NamedTuple):
    reply: replies.Reply
    events: list[events.AnyEvent]


class Registry(HostEvents):
    def __init__(self, *, terms: Terms | None = None, shm_prefix: str = "pylabhub_") -> None:
        super().__init__(terms=terms, shm_prefix=shm_prefix)
        self.schema_rules = SchemaRules(self.schemas, self.channels)

    def question(self, command: commands.Command) -> SchemaCheck | None:
        """What must be judged about schemas before this command can be decided; None for most commands."""
        if isinstance(command, commands.SchemaText):
            return self.schema_rules.question(command)
        if isinstance(command, commands.RegisterProducer | commands.CreateChannel | commands.TableSchema):
            embedded = _embedded_schema(command)
            return self.schema_rules.question(embedded) if embedded else None
        if isinstance(command, _EXPECTING) and command.expected_schema_hash is not None:
            channel = self.channels.get(names.logical(command.channel))
            if channel is not None and channel.schema_hash != command.expected_schema_hash:
                return self.schema_rules.consumer_question(command.expected_schema_hash, channel)
        return None

    def apply(self, command: commands.Command, *, now: float, verdict: CheckResult | None = None) -> Outcome:
        """Decide one command. Raises a Refusal, having changed nothing, or returns the reply and what happened.

        Without a verdict on its `question`, as that is now, the schema is judged here.
        """
        kind = type(command)
        if kind in SCHEMA_COMMANDS:
            reply, happened = self.schema_rules.decide(command, verdict)
            for event in happened:
                self._emit_schema(event, now)
            if isinstance(reply, _REVISED) and (happened or not reply.revision):
                reply.revision = self.revision
        elif kind in TOPIC_COMMANDS:
            reply, kept = self.topics.decide(command, revision=self.revision, now=now)
            if kept is not None:
                self._emit_topic(kept, now)
        elif kind in POSITION_COMMANDS:
            reply = self._decide_position(command, now)
        elif kind in SUBSCRIBER_COMMANDS or isinstance(command, commands.ServiceCommand):
            reply = self._decide_unstored(command, now)
        elif kind in _JUDGED:
            reply = _JUDGED[kind](self, command, now, verdict)
        else:
            reply = _HANDLERS[kind](self, command, now)
        if not self._emitted:
            return Outcome(reply, [])
        emitted, self._emitted = self._emitted, []
        return Outcome(reply, emitted)

    def _decide_unstored(self, command: commands.Command, now: float) -> replies.Reply:
        """Of services and subscribers; a registration is a sign of life of its process."""
        if isinstance(command, commands.ServiceCommand):
            reply = self.services.decide(command, now)
            if isinstance(command, commands.RegisterWorker):
                self._renew(command.lease, Member("worker", command.address, command.worker_id), now)
                if isinstance(reply, replies.WorkerRegistered):  # which its recovery may have moved on
                    reply.revision = self.services.revision_of(command.address)
            return reply
        reply = self.subscribers.decide(command, now)
        if isinstance(command, commands.RegisterSubscriber):
            self._renew(command.lease, Member("subscriber", "", command.member_id), now)
        return reply

    def _decide_position(self, command: commands.Command, now: float) -> replies.Reply:
        if isinstance(command, commands.FetchMessages | commands.ReturnMessages):
            self.subscribers.check(command.member_id, command.lease)
        reply, happened = self.positions.decide(command, revision=self.revision, now=now)
        if happened is not None:
            self._emit_topic(happened, now)
        if isinstance(reply, replies.PositionDescription):
            topic, name = reply.summary.position.topic, reply.summary.position.name
            unacked = self.positions.unacked_by(topic, name)
            reply.members = [
                replies.SubscriberSummary(
                    member_id=one.member_id,
                    status=one.status,
                    host=one.host,
                    pid=one.pid,
                    registered_at=one.registered_at,
                    unacked=unacked.get(one.member_id, 0),
                )
                for one in self.subscribers.of("position", name, [topic])
            ]
        return reply

    # -- producers and consumers ---------------------------------------------------------------------------

    def register_producer(
        self, command: commands.RegisterProducer, now: float, verdict: CheckResult | None = None
    ) -> replies.Reply:
        name = names.check_channel(command.channel)
        channel = self.channels.get(name)
        producer = self._candidate(command, name)
        version = self._plan_schema(command, verdict)
        if version is not None:
            producer.schema, producer.schema_id = "verified", version[0].schema_id
            producer.schema_type, producer.schema_version = version[0].schema_type, str(version[0].version)
        replaced = check_producer(channel, producer, self.leases) if channel else []

        present = channel.producers.get(producer.producer_id) if channel else None
        if present is None or not says_the_same(present, producer):
            if version is not None and version[1]:
                self._emit_registration(version[0], now)
            if channel is None:
                record = Channel(name=name, priority=command.priority, created_at=now, revision=self.revision + 1)
                self._emit(events.ChannelCreated(channel=name, record=record), now)
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

    def register_consumer(
        self, command: commands.RegisterConsumer, now: float, verdict: CheckResult | None = None
    ) -> replies.Reply:
        channel = self._channel(command.channel)
        consumer = _consumer(command, channel.name)
        if command.required and channel.status() != "active":
            raise ChannelNotReady(
                f"channel {channel.name!r} has no active producer",
                channel=channel.name,
                status=channel.status(),
            )
        if consumer.expected_schema_hash is not None:
            differences = self._obstacles(channel, consumer.expected_schema_hash, verdict)
            if differences:
                check_schema(channel, consumer.expected_schema_hash, "the consumer expects", differences)
        replaced = check_consumer(channel, consumer, self.leases)

        present = channel.consumers.get(consumer.consumer_id)
        if present is None or not says_the_same(present, consumer):
            for member in replaced:
                self._unregister(member, "replaced", now)
            self._add_consumer(channel, consumer, now)
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
            assignment=_assignment(channel, present),
            lease=present.lease,
            lease_seconds=self.terms.lease_seconds,
            revision=present.revision,
        )

    def adopt_consumer(self, command: commands.RegisterConsumer, *, now: float) -> None:
        """Take over a consumer that was registered at `now`, when it was checked: what it expected may have changed."""
        name = names.check_channel(command.channel)
        consumer = _consumer(command, name)
        if name not in self.channels:
            record = Channel(name=name, priority=command.priority, created_at=now, revision=self.revision + 1)
            self._emit(events.ChannelCreated(channel=name, record=record), now)
        self._add_consumer(self.channels[name], consumer, now)
        self._renew(consumer.lease, Member("consumer", name, consumer.consumer_id), now)
        self._take_emitted()

    def _add_consumer(self, channel: Channel, consumer: Consumer, now: float) -> None:
        consumer.registered_at = now
        consumer.revision = self.revision + 1
        self._emit(events.ConsumerRegistered(channel=channel.name, consumer=consumer), now)

    def unregister_producer(self, command: commands.UnregisterProducer, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        producer_id = command.producer_id or default_owner(channel.name)
        member = Member("producer", channel.name, producer_id)
        check_owner(member, channel.producers.get(producer_id), command.lease or producer_id)
        self._remove(member, "released", now)
        return replies.ProducerUnregistered(channel=channel.name, producer_id=producer_id, revision=self.revision)

    def unregister_consumer(self, command: commands.UnregisterConsumer, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        member = Member("consumer", channel.name, command.consumer_id)
        lease = command.lease or consumer_lease(channel.name, command.consumer_id)
        check_owner(member, channel.consumers.get(command.consumer_id), lease)
        self._remove(member, "released", now)
        return replies.ConsumerUnregistered(
            channel=channel.name, consumer_id=command.consumer_id, revision=self.revision
        )

    def heartbeat(self, command: commands.Heartbeat, now: float) -> replies.Reply:
        lease = self.leases.get(command.lease)
        if lease is None:
            return replies.HeartbeatAck(known=False, notices=self.leases.take_unheard(command.lease))
        self._revive(lease, now)
        return replies.HeartbeatAck(known=True, notices=lease.take_notices())

    # -- channels ------------------------------------------------------------------------------------------

    def discover(self, command: commands.Discover, now: float, verdict: CheckResult | None = None) -> replies.Reply:
        found = self._discovered.get(command.channel)
        if found is not None and not command.blocks_offset and command.expected_schema_hash is None:
            return found
        channel = self._channel(command.channel)
        offset = command.blocks_offset
        found = discovered(channel, blocks_offset=offset) if offset else self._found(channel)
        if command.expected_schema_hash is None:
            return found
        differences = self._obstacles(channel, command.expected_schema_hash, verdict)
        return replace(found, compatible=not differences, differences=differences)

    def create_channel(
        self, command: commands.CreateChannel, now: float, verdict: CheckResult | None = None
    ) -> replies.Reply:
        name = names.check_channel(command.channel)
        if command.schema is None and command.schema_hash is None:
            for unbound in ("schema_version", "schema_type"):
                if getattr(command, unbound) is not None:
                    said = f"{unbound} says nothing without a schema: give schema or schema_hash too"
                    raise InvalidRequest(said, field=unbound)
        version = self._plan_schema(command, verdict)
        present = self.channels.get(name)
        record = _declaration(command, version[0] if version else None)
        if present is not None:
            check_declaration(present, record)
        if present is None or not present.declared:
            if version is not None and version[1]:
                self._emit_registration(version[0], now)
            record.created_at = present.created_at if present else now
            record.revision = self.revision + 1
            self._emit(events.ChannelDeclared(channel=name, record=record), now)
        return replies.ChannelCreated(
            channel=name, schema_id=self.channels[name].schema_id, revision=self.channels[name].revision
        )

    def destroy_channel(self, command: commands.DestroyChannel, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        check_destroyable(channel, command.host, data=command.data)
        self._emit(events.ChannelDestroyed(channel=channel.name), now)
        for member in _members(channel):
            self.leases.detach(lease_of(channel, member), member, now=now)
        return replies.ChannelDestroyed(channel=channel.name, revision=self.revision)

    # -- tables --------------------------------------------------------------------------------------------

    def check_table(
        self, command: commands.CheckTable, now: float, verdict: CheckResult | None = None
    ) -> replies.Reply:
        version = self._plan_table(command, verdict)
        known = version[0] if version is not None and not version[1] else None
        return replies.TableChecked(
            channel=command.channel,
            schema_id=known.schema_id if known else None,
            schema_version=str(known.version) if known else None,
            revision=self.revision,
        )

    def register_table(
        self, command: commands.RegisterTable, now: float, verdict: CheckResult | None = None
    ) -> replies.Reply:
        name = command.channel
        version = self._plan_table(command, verdict)
        names.check_shm(command.shm_name)
        table = table_of(command, version[0] if version else None, now=now)
        channel = self.channels.get(name)
        if changes(channel.table if channel else None, table):
            if version is not None and version[1]:
                self._emit_registration(version[0], now)
            self._emit_seen(events.TableCommitted(channel=name, table=table), now)
        present = self.channels[name]
        assert present.table is not None
        return replies.TableRegistered(channel=name, table=present.table, revision=present.revision)

    def drop_table(self, command: commands.DropTable, now: float) -> replies.Reply:
        channel = self._channel(command.channel)
        table = check_droppable(channel, command.host)
        self._emit_seen(events.TableCommitted(channel=channel.name, table=None), now)
        return replies.TableDropped(channel=channel.name, table=table, revision=self.revision)

    def list_tables(self, command: commands.ListTables, now: float) -> replies.Reply:
        page, following = self._names.page(prefix=command.prefix, after=command.after, limit=command.limit)
        found = [
            replies.TableSummary(channel=name, table=table)
            for name in page
            if (table := self.channels[name].table) is not None
        ]
        return replies.TableList(tables=found, next=following, revision=self.revision)

    def _plan_table(
        self, command: commands.CheckTable | commands.RegisterTable, verdict: CheckResult | None
    ) -> tuple[SchemaVersion, bool] | None:
        channel = self.channels.get(names.check_channel(command.channel))
        version = self._plan_schema(command, verdict)
        check_bound_schema(channel, version[0].schema_hash if version else command.schema_hash)
        return version

    def list_channels(self, command: commands.ListChannels, now: float) -> replies.Reply:
        page, following = self._names.page(prefix=command.prefix, after=command.after, limit=command.limit)
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
            name = names.logical(command.channel)
            page, following = [name] if name in self.channels else [], None
        else:
            page, following = self._names.page(after=command.after, limit=command.limit)
        return replies.SnapshotPage(
            channels=[self.channels[name] for name in page], next=following, revision=self.revision
        )

    # -- checks: they raise or return, and change nothing --------------------------------------------------

    def _channel(self, name: str) -> Channel:
        found = self.channels.get(name) or self.channels.get(names.logical(name))
        if found is None:
            logical = names.check_channel(names.logical(name))
            raise ChannelNotFound(f"nobody has registered channel {logical!r}", channel=logical)
        return found

    def _candidate(self, command: commands.RegisterProducer, name: str) -> Producer:
        producer_id = command.producer_id or default_owner(name)
        if producer_id != default_owner(name):
            names.check_role("producer", producer_id)
        default_shm = f"/{self._shm_prefix}{name}"
        if command.access == "shared" and producer_id != default_owner(name):
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

    def _plan_schema(
        self,
        command: commands.RegisterProducer | commands.CreateChannel | commands.TableSchema,
        verdict: CheckResult | None,
    ) -> tuple[SchemaVersion, bool] | None:
        """The catalogue's version of a schema that came with a registration, and whether it is new there."""
        embedded = _embedded_schema(command)
        return self.schema_rules.plan(embedded, verdict) if embedded else None

    def _emit_registration(self, version: SchemaVersion, now: float) -> None:
        for event in self.schema_rules.registration(version):
            self._emit_schema(event, now)

    def _obstacles(
        self, channel: Channel, expected_hash: str, verdict: CheckResult | None
    ) -> list[replies.VersionDifferences]:
        """Why a reader of this schema cannot read what is written with the channel's; empty where it can."""
        written = channel.schema_hash
        has_schema = channel.producers or channel.table is not None or channel.binds_schema
        if written is None or written == expected_hash or not has_schema:
            return []
        question = self.schema_rules.consumer_question(expected_hash, channel)
        if question is None:
            unknown = written if self.schemas.knows_hash(expected_hash) else expected_hash
            why = (
                f"schema {unknown!r} is not registered, so only an equal hash can be read: register it to compare them"
            )
            return [_obstacle("SCHEMA_NOT_REGISTERED", why)]
        if verdict is None or verdict.question != question:
            verdict = judge(question)
        if verdict.refusal is not None:
            return [_obstacle("SCHEMA_NOT_COMPARED", verdict.refusal)]
        return verdict.differences


_HANDLERS: dict[type[commands.Command], Callable[[Registry, Any, float], replies.Reply]] = {
    commands.UnregisterProducer: Registry.unregister_producer,
    commands.UnregisterConsumer: Registry.unregister_consumer,
    commands.Heartbeat: Registry.heartbeat,
    commands.DestroyChannel: Registry.destroy_channel,
    commands.DropTable: Registry.drop_table,
    commands.ListTables: Registry.list_tables,
    commands.ListChannels: Registry.list_channels,
    commands.DescribeChannel: Registry.describe_channel,
    commands.ListConsumers: Registry.list_consumers,
    commands.Snapshot: Registry.snapshot,
}

_JUDGED: dict[type[commands.Command], Callable[[Registry, Any, float, CheckResult | None], replies.Reply]] = {
    commands.RegisterProducer: Registry.register_producer,
    commands.RegisterConsumer: Registry.register_consumer,
    commands.CreateChannel: Registry.create_channel,
    commands.CheckTable: Registry.check_table,
    commands.RegisterTable: Registry.register_table,
    commands.Discover: Registry.discover,
}
_EXPECTING = (commands.RegisterConsumer, commands.Discover)
# Their revision is that of the subject, or of the registry where that changed or the answer is about all subjects.
_REVISED = (
    replies.SchemaRegistered
    | replies.SchemaDeleted
    | replies.SchemaConfigFound
    | replies.SchemaModeFound
    | replies.SchemaList
    | replies.SchemaExport
)


def _obstacle(kind: str, message: str) -> replies.VersionDifferences:
    """One that lies in no version of a subject."""
    return replies.VersionDifferences(version=0, differences=[Difference(kind, "", message)])


def _embedded_schema(
    command: commands.RegisterProducer | commands.CreateChannel | commands.TableSchema,
) -> commands.RegisterSchema | None:
    """A schema that comes with a registration goes under the subject of the channel's name."""
    if command.schema is None:
        return None
    return commands.RegisterSchema(
        subject=command.channel,
        schema=command.schema,
        schema_type=command.schema_type or "JSON",
        schema_hash=command.schema_hash,
    )


def _consumer(command: commands.RegisterConsumer, channel: str) -> Consumer:
    return Consumer(
        consumer_id=names.check_role("consumer", command.consumer_id),
        lease=command.lease or consumer_lease(channel, command.consumer_id),
        expected_schema_hash=command.expected_schema_hash,
        group=names.check_role("group", command.group) if command.group is not None else None,
        host=command.host,
        pid=command.pid,
        start_time=command.start_time,
        boot_id=command.boot_id,
        metadata=command.metadata,
    )


def _assignment(channel: Channel, consumer: Consumer) -> replies.Assignment | None:
    if consumer.group is None:
        return None
    return assignment(consumer.group, channel.groups[consumer.group], consumer.consumer_id)


def _members(channel: Channel) -> list[Member]:
    return [
        *(Member("producer", channel.name, producer_id) for producer_id in channel.producers),
        *(Member("consumer", channel.name, consumer_id) for consumer_id in channel.consumers),
    ]


def _declaration(command: commands.CreateChannel, version: SchemaVersion | None) -> Channel:
    """The record that a declaration asks for: what it leaves open is left to the producers."""
    record = Channel(
        name=command.channel,
        declared=True,
        binds_schema=command.schema_hash is not None or version is not None,
        binds_access=command.access is not None,
        access=command.access,
        priority=command.priority,
        config=command.config,
        metadata=command.metadata,
    )
    if record.binds_schema:
        record.schema_hash, record.schema_type = command.schema_hash, command.schema_type
        record.schema_version = command.schema_version
    if version is not None:
        record.schema_hash, record.schema_type = version.schema_hash, version.schema_type
        record.schema_id, record.schema = version.schema_id, "verified"
        record.schema_version = str(version.version)
    return record
