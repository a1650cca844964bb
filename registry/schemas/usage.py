"""What every decision about schemas asks: what refers to a version, who uses it, and whether a subject may change."""

from collections.abc import Callable
from typing import Any

from registry import commands, events, replies
from registry.channels.state import Channels
from registry.errors import OperationNotPermitted, ReferenceExists
from registry.records import SchemaVersion
from registry.schemas.catalog import SchemaCatalog
from registry.schemas.checks import CheckResult

Decision = tuple[replies.Reply, list[events.AnySchemaEvent]]
"""A reply, and the events that make it true."""
Decisions = dict[type[commands.Command], Callable[[Any, CheckResult | None], Decision]]


def check_not_referred_to(catalog: SchemaCatalog, versions: list[SchemaVersion], deleted: commands.Deleted) -> None:
    """Refuse to delete versions that others refer to; those that go along with them do not count.

    A permanent deletion counts the referrers that are softly deleted too: their ids are still served.
    """
    going = {(version.subject, version.version) for version in versions}
    for version in versions:
        referrers = catalog.referrers(version.subject, version.version, deleted)
        staying = [v for v in referrers if (v.subject, v.version) not in going]
        if staying:
            first = staying[0]
            said = "softly deleted: delete that permanently first" if first.is_deleted else "delete that first"
            target = f"{{subject={version.subject},version={version.version}}}"
            raise ReferenceExists(
                f"One or more references exist to the schema {target}:"
                f" version {first.version} of subject {first.subject!r} refers to it ({said})",
                referrers=[{"subject": v.subject, "version": v.version} for v in staying],
            )


def check_writable(catalog: SchemaCatalog, subject: str) -> None:
    mode = catalog.mode(subject)
    if mode.startswith("READONLY"):
        what = f"subject {subject!r}" if subject else "the registry"
        raise OperationNotPermitted(f"{what} is in read-only mode", subject=subject, mode=mode)


def touched_members(channels: Channels, subject: str) -> list[replies.TouchedMember]:
    """Return the live members of the channel that bears the subject's name, and its table."""
    channel = channels.get(subject)
    if channel is None:
        return []
    producers = [("producer", p.producer_id, p.host, p.pid, p.schema_hash) for p in channel.producers.values()]
    consumers = [("consumer", c.consumer_id, c.host, c.pid, c.expected_schema_hash) for c in channel.consumers.values()]
    table = channel.table
    tables = [("table", f"generation {table.generation}", table.host, table.pid, table.schema_hash)] if table else []
    return [
        replies.TouchedMember(role=role, member_id=member_id, host=host, pid=pid, schema_hash=schema_hash)
        for role, member_id, host, pid, schema_hash in (*producers, *consumers, *tables)
    ]


def permanent_deletion(version: SchemaVersion) -> events.SchemaDeleted:
    return events.SchemaDeleted(subject=version.subject, version=version.version, permanent=True)
