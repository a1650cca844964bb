"""Decisions about consumers, and whether a reader of one schema can read a channel.

Rule 1: the same owner saying the same again gets the same answer, and no event.
Rule 2: a consumer is replaced by another process only when it is stalled; the owner is the lease.
Rule 3: a member of a group makes its channel if need be: the rings of a channel that ended outlive it for a while, and
what the group has not read of them is shared out to whoever comes.
"""

from registry import commands, events, names, replies
from registry.channels.groups import assignment
from registry.channels.leases import Member, consumer_lease
from registry.channels.members import Members
from registry.channels.registration_checks import check_consumer, check_owner, check_schema, says_the_same
from registry.errors import ChannelNotReady
from registry.event_log import EventLog
from registry.formats.differences import Difference
from registry.records import Channel, Consumer
from registry.schemas.checks import CheckResult, run_check
from registry.schemas.rules import SchemaRules


class ConsumerDecisions:
    def __init__(self, log: EventLog, members: Members, schemas: SchemaRules, *, lease_seconds: float) -> None:
        self._log = log
        self._members = members
        self._schemas = schemas
        self._lease_seconds = lease_seconds

    def register(self, command: commands.RegisterConsumer, now: float, result: CheckResult | None) -> replies.Reply:
        if command.group is not None and not command.required:
            name = names.check_channel(names.logical(command.channel))
            consumer = _consumer(command, name)  # refuses a wrong name before anything is made
            self._members.check_evicted(Member("consumer", name, consumer.consumer_id), consumer.lease, now)
            self._log.create_if_missing(name, now, priority=command.priority)
        channel = self._log.channel(command.channel)
        consumer = _consumer(command, channel.name)
        if command.required and channel.status() != "active":
            raise ChannelNotReady(
                f"channel {channel.name!r} has no active producer",
                channel=channel.name,
                status=channel.status(),
            )
        if consumer.expected_schema_hash is not None:
            differences = self.obstacles(channel, consumer.expected_schema_hash, result)
            if differences:
                check_schema(channel, consumer.expected_schema_hash, "the consumer expects", differences)
        member = Member("consumer", channel.name, consumer.consumer_id)
        self._members.check_evicted(member, consumer.lease, now)
        replaced = check_consumer(channel, consumer, self._log.leases)

        present = channel.consumers.get(consumer.consumer_id)
        if present is None or not says_the_same(present, consumer):
            for member in replaced:
                self._members.unregister(member, "replaced", now)
            self._add(channel, consumer, now)
            present = consumer
        self._members.renew(present.lease, Member("consumer", channel.name, present.consumer_id), now)
        found = self._log.discovered(channel)
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
            lease_seconds=self._lease_seconds,
            revision=present.revision,
        )

    def adopt(self, command: commands.RegisterConsumer, now: float) -> None:
        """Take over a consumer that was registered at `now`, when it was checked: what it expected may have changed."""
        name = names.check_channel(command.channel)
        consumer = _consumer(command, name)
        self._log.create_if_missing(name, now, priority=command.priority)
        self._add(self._log.channels[name], consumer, now)
        self._members.renew(consumer.lease, Member("consumer", name, consumer.consumer_id), now)

    def unregister(self, command: commands.UnregisterConsumer, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        member = Member("consumer", channel.name, command.consumer_id)
        lease = command.lease or consumer_lease(channel.name, command.consumer_id)
        check_owner(member, channel.consumers.get(command.consumer_id), lease)
        self._members.remove(member, "released", now)
        return replies.ConsumerUnregistered(
            channel=channel.name, consumer_id=command.consumer_id, revision=self._log.revision
        )

    def list_consumers(self, command: commands.ListConsumers, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        return replies.ConsumerList(
            channel=channel.name, consumers=[*channel.consumers.values()], revision=channel.revision
        )

    def obstacles(
        self, channel: Channel, expected_hash: str, result: CheckResult | None
    ) -> list[replies.VersionDifferences]:
        """Return why a reader of this schema cannot read what is written with the channel's; empty where it can."""
        written = channel.schema_hash
        has_schema = channel.producers or channel.table is not None or channel.binds_schema
        if written is None or written == expected_hash or not has_schema:
            return []
        check = self._schemas.needed_for_reader(expected_hash, channel)
        if check is None:
            unknown = written if self._log.schemas.knows_hash(expected_hash) else expected_hash
            why = (
                f"schema {unknown!r} is not registered, so only an equal hash can be read: register it to compare them"
            )
            return [_obstacle("SCHEMA_NOT_REGISTERED", why)]
        if result is None or result.check != check:
            result = run_check(check)
        if result.refusal is not None:
            return [_obstacle("SCHEMA_NOT_COMPARED", result.refusal)]
        return result.differences

    def _add(self, channel: Channel, consumer: Consumer, now: float) -> None:
        consumer.registered_at = now
        consumer.revision = self._log.revision + 1
        self._log.emit(events.ConsumerRegistered(channel=channel.name, consumer=consumer), now)


def _obstacle(kind: str, message: str) -> replies.VersionDifferences:
    """Return an obstacle that is in no version of a subject."""
    return replies.VersionDifferences(version=0, differences=[Difference(kind, "", message)])


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
