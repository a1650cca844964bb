"""Decisions about committed tables: the record that a registration makes, and when it counts.

Rule 1: a table belongs to nobody: no lease ends it. It stays until it is superseded, retired or dropped.
Rule 2: whoever registers last is right, except about a generation that its own host has superseded already.
Rule 3: memory is freed by a process on the table's own host, so a table elsewhere is not dropped from here.
"""

from msgspec.structs import replace

from registry import commands, events, names, replies
from registry.channels.host_events import emit_seen
from registry.errors import ChannelHasTable, SchemaMismatch, TableNotFound, TableOnOtherHost
from registry.event_log import EventLog
from registry.records import Channel, SchemaVersion, Table
from registry.schemas.checks import CheckResult
from registry.schemas.embedded import EmbeddedSchemas, Planned


class TableDecisions:
    def __init__(self, log: EventLog, schemas: EmbeddedSchemas) -> None:
        self._log = log
        self._schemas = schemas

    def check(self, command: commands.CheckTable, now: float, result: CheckResult | None) -> replies.Reply:
        version = self._plan(command, result)
        known = version[0] if version is not None and not version[1] else None
        return replies.TableChecked(
            channel=command.channel,
            schema_id=known.schema_id if known else None,
            schema_version=str(known.version) if known else None,
            revision=self._log.revision,
        )

    def register(self, command: commands.RegisterTable, now: float, result: CheckResult | None) -> replies.Reply:
        name = command.channel
        version = self._plan(command, result)
        names.check_shm(command.shm_name)
        table = table_of(command, version[0] if version else None, now=now)
        channel = self._log.channels.get(name)
        if changes(channel.table if channel else None, table):
            self._schemas.emit(version, now)
            emit_seen(self._log, events.TableCommitted(channel=name, table=table), now)
        present = self._log.channels[name]
        assert present.table is not None
        return replies.TableRegistered(channel=name, table=present.table, revision=present.revision)

    def drop(self, command: commands.DropTable, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        table = check_droppable(channel, command.host)
        emit_seen(self._log, events.TableCommitted(channel=channel.name, table=None), now)
        return replies.TableDropped(channel=channel.name, table=table, revision=self._log.revision)

    def list_tables(self, command: commands.ListTables, now: float, _: CheckResult | None) -> replies.Reply:
        log = self._log
        page, following = log.names.page(prefix=command.prefix, after=command.after, limit=command.limit)
        found = [
            replies.TableSummary(channel=name, table=table)
            for name in page
            if (table := log.channels[name].table) is not None
        ]
        return replies.TableList(tables=found, next=following, revision=log.revision)

    def _plan(self, command: commands.TableSchema, result: CheckResult | None) -> Planned | None:
        channel = self._log.channels.get(names.check_channel(command.channel))
        version = self._schemas.plan(command, result)
        check_bound_schema(channel, version[0].schema_hash if version else command.schema_hash)
        return version


def table_of(command: commands.RegisterTable, version: SchemaVersion | None, *, now: float) -> Table:
    return Table(
        generation=command.generation,
        shm_name=command.shm_name,
        schema_hash=version.schema_hash if version else command.schema_hash or "",
        schema_version=str(version.version) if version else command.schema_version,
        schema_type=version.schema_type if version else command.schema_type,
        schema_id=version.schema_id if version else None,
        schema="verified" if version else "unverified",
        rows=command.rows,
        size_bytes=command.size_bytes,
        parts=command.parts,
        hosts=command.hosts,
        host=command.host,
        boot_id=command.boot_id,
        user=command.user,
        application=command.application,
        pid=command.pid,
        metadata=command.metadata,
        committed_at=command.committed_at,
        registered_at=now,
    )


def changes(present: Table | None, table: Table) -> bool:
    """Return whether a registration of `table` says something new."""
    if present is None:
        return True
    is_older = (
        (table.host, table.boot_id) == (present.host, present.boot_id)
        and table.generation < present.generation
        and table.committed_at <= present.committed_at
    )
    return not is_older and replace(table, registered_at=present.registered_at) != present


def check_bound_schema(channel: Channel | None, schema_hash: str | None) -> None:
    """Check a table against a declaration that binds a schema, which binds tables too."""
    if channel is not None and channel.binds_schema and schema_hash != channel.schema_hash:
        raise SchemaMismatch(
            f"channel {channel.name!r} is declared with schema {channel.schema_hash!r}, the table has {schema_hash!r}",
            channel=channel.name,
            expected=channel.schema_hash,
            actual=schema_hash,
            schema_version=channel.schema_version,
        )


def check_droppable(channel: Channel, host: str | None) -> Table:
    """Return the table, if the caller can remove it from memory or asks only for the end of its record."""
    table = channel.table
    if table is None:
        raise TableNotFound(f"channel {channel.name!r} has no table", channel=channel.name)
    if host is not None and table.host is not None and table.host != host:
        raise TableOnOtherHost(
            f"the table of channel {channel.name!r} is in the memory of host {table.host!r}, this is {host!r}: run"
            f" `messagehub tables drop {channel.name}` there, or have only its record removed if that host is gone"
            " (forget)",
            channel=channel.name,
            host=table.host,
        )
    return table


def check_destroyable(channel: Channel, host: str | None, *, data: bool) -> None:
    if channel.table is None:
        return
    if not data:
        raise ChannelHasTable(
            f"channel {channel.name!r} has a table (generation {channel.table.generation}, {channel.table.rows} rows):"
            " destroy it with its data (data=True, --data), or drop the table first",
            channel=channel.name,
            generation=channel.table.generation,
            host=channel.table.host,
        )
    check_droppable(channel, host)
