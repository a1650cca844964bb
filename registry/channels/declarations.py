"""Decisions about channels as such: declaring, destroying, discovering and listing them."""

from msgspec.structs import replace

from registry import commands, events, names, replies
from registry.channels.consumers import ConsumerDecisions
from registry.channels.leases import Member
from registry.channels.members import lease_of
from registry.channels.registration_checks import check_declaration
from registry.channels.state import discovered, summary
from registry.channels.tables import check_destroyable
from registry.errors import InvalidRequest
from registry.event_log import EventLog
from registry.records import Channel, SchemaVersion
from registry.schemas.checks import CheckResult
from registry.schemas.embedded import EmbeddedSchemas


class ChannelDecisions:
    def __init__(self, log: EventLog, consumers: ConsumerDecisions, schemas: EmbeddedSchemas) -> None:
        self._log = log
        self._consumers = consumers
        self._schemas = schemas

    def discover(self, command: commands.Discover, now: float, result: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        offset = command.blocks_offset
        found = discovered(channel, blocks_offset=offset) if offset else self._log.discovered(channel)
        if command.expected_schema_hash is None:
            return found
        differences = self._consumers.obstacles(channel, command.expected_schema_hash, result)
        return replace(found, compatible=not differences, differences=differences)

    def create(self, command: commands.CreateChannel, now: float, result: CheckResult | None) -> replies.Reply:
        name = names.check_channel(command.channel)
        if command.schema is None and command.schema_hash is None:
            for unbound in ("schema_version", "schema_type"):
                if getattr(command, unbound) is not None:
                    said = f"{unbound} says nothing without a schema: give schema or schema_hash too"
                    raise InvalidRequest(said, field=unbound)
        version = self._schemas.plan(command, result)
        present = self._log.channels.get(name)
        record = _declaration(command, version[0] if version else None)
        if present is not None:
            check_declaration(present, record)
        if present is None or not present.declared:
            self._schemas.emit(version, now)
            record.created_at = present.created_at if present else now
            record.revision = self._log.revision + 1
            self._log.emit(events.ChannelDeclared(channel=name, record=record), now)
        declared = self._log.channels[name]
        return replies.ChannelCreated(channel=name, schema_id=declared.schema_id, revision=declared.revision)

    def destroy(self, command: commands.DestroyChannel, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        check_destroyable(channel, command.host, data=command.data)
        self._log.emit(events.ChannelDestroyed(channel=channel.name), now)
        for member in _members(channel):
            self._log.leases.detach(lease_of(channel, member), member, now=now)
        return replies.ChannelDestroyed(channel=channel.name, revision=self._log.revision)

    def list_channels(self, command: commands.ListChannels, now: float, _: CheckResult | None) -> replies.Reply:
        log = self._log
        page, following = log.names.page(prefix=command.prefix, after=command.after, limit=command.limit)
        return replies.ChannelList(
            channels=[summary(log.channels[name]) for name in page], next=following, revision=log.revision
        )

    def describe(self, command: commands.DescribeChannel, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        return replies.ChannelDescription(channel=channel, status=channel.status(), revision=channel.revision)

    def snapshot(self, command: commands.RequestSnapshot, now: float, _: CheckResult | None) -> replies.Reply:
        log = self._log
        if command.channel is not None:
            name = names.logical(command.channel)
            page, following = [name] if name in log.channels else [], None
        else:
            page, following = log.names.page(after=command.after, limit=command.limit)
        return replies.SnapshotPage(
            channels=[log.channels[name] for name in page], next=following, revision=log.revision
        )


def _members(channel: Channel) -> list[Member]:
    return [
        *(Member("producer", channel.name, producer_id) for producer_id in channel.producers),
        *(Member("consumer", channel.name, consumer_id) for consumer_id in channel.consumers),
    ]


def _declaration(command: commands.CreateChannel, version: SchemaVersion | None) -> Channel:
    """Return the record that a declaration asks for: what it leaves open is left to the producers."""
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
