"""Decisions about levels and modes: of one subject, or of all."""

import msgspec

from registry import commands, events, replies
from registry.channels.state import Channels
from registry.errors import (
    CompatibilityNotSet,
    InvalidRequest,
    ModeNotSet,
    OperationNotPermitted,
    ReferenceExists,
    SubjectNotFound,
)
from registry.records import SchemaConfig, SchemaVersion
from registry.schemas.catalog import DEFAULT_LEVEL, DEFAULT_MODE, GLOBAL, SchemaCatalog
from registry.schemas.checks import CheckResult
from registry.schemas.rule_sets import check_rule_set

Decision = tuple[replies.Reply, list[events.AnySchemaEvent]]


class SchemaSettings:
    def __init__(self, catalog: SchemaCatalog, channels: Channels) -> None:
        self._catalog = catalog
        self._channels = channels

    def request_config(self, command: commands.RequestSchemaConfig, _: CheckResult | None) -> Decision:
        catalog = self._catalog
        overall = catalog.configs.get(GLOBAL) or SchemaConfig()
        if overall.compatibility is None:
            overall = msgspec.structs.replace(overall, compatibility=DEFAULT_LEVEL)
        own = catalog.configs.get(command.subject) if command.subject is not None else overall
        if own is None and not command.default_to_global:
            raise CompatibilityNotSet(
                f"subject {command.subject!r} has no compatibility level of its own", subject=command.subject
            )
        config = own or overall
        if command.default_to_global:
            said = {field: value for field, value in msgspec.structs.asdict(config).items() if value is not None}
            config = msgspec.structs.replace(overall, **said)
        return replies.SchemaConfigFound(subject=command.subject, config=config, revision=0), []

    def configure(self, command: commands.ConfigureSchemas, _: CheckResult | None) -> Decision:
        name = command.subject or GLOBAL
        if command.config is not None:
            _check_config(command.config)
        present = self._catalog.configs.get(name)
        if command.config is None and present is None and command.subject is not None:
            raise SubjectNotFound(f"subject {name!r} has no config of its own", subject=name)
        if command.config is None:
            after, said = None, present or SchemaConfig(compatibility=DEFAULT_LEVEL)
        else:
            given = {k: v for k, v in msgspec.structs.asdict(command.config).items() if v is not None}
            given |= dict.fromkeys(command.unset)
            after = said = msgspec.structs.replace(present or SchemaConfig(), **given)
        happened: list[events.AnySchemaEvent] = []
        touched: list[replies.TouchedMember] = []
        if after != present:
            self._check_writable(name)
            happened = [events.SchemaConfigured(subject=name, config=after)]
            touched = self._touched(name)
        reply = replies.SchemaConfigFound(subject=command.subject, config=said, touched=touched, revision=0)
        return reply, happened

    def request_mode(self, command: commands.RequestSchemaMode, _: CheckResult | None) -> Decision:
        modes = self._catalog.modes
        if command.subject is not None and command.subject not in modes and not command.default_to_global:
            raise ModeNotSet(f"subject {command.subject!r} has no mode of its own", subject=command.subject)
        mode = modes.get(command.subject or GLOBAL) or modes.get(GLOBAL, DEFAULT_MODE)
        return replies.SchemaModeFound(subject=command.subject, mode=mode, revision=0), []

    def set_mode(self, command: commands.SetSchemaMode, _: CheckResult | None) -> Decision:
        name = command.subject or GLOBAL
        present = self._catalog.modes.get(name)
        if command.mode is None and present is None and command.subject is not None:
            raise SubjectNotFound(f"subject {name!r} has no mode of its own", subject=name)
        happened: list[events.AnySchemaEvent] = []
        if command.mode == "IMPORT" and self._catalog.mode(name) != "IMPORT" and not command.force:
            happened += self._cleared(command.subject)
        if command.mode != present:
            happened.append(events.SchemaModeChanged(subject=name, mode=command.mode))
        mode = command.mode or present or DEFAULT_MODE
        return replies.SchemaModeFound(subject=command.subject, mode=mode, revision=0), happened

    def _cleared(self, subject: str | None) -> list[events.SchemaDeleted]:
        """What is imported chooses its ids and numbers: no version may be there, and softly deleted ones make room."""
        versions = self._catalog.every() if subject is None else self._catalog.peek(subject).visible("with")
        if not all(version.is_deleted for version in versions):
            raise OperationNotPermitted(
                "mode IMPORT needs an empty subject or registry, or force: found existing subjects",
                subject=subject or GLOBAL,
            )
        self._check_not_referred_to(versions, "with")
        return [removal(version) for version in versions]

    def _check_not_referred_to(self, versions: list[SchemaVersion], deleted: commands.Deleted) -> None:
        """Refuse to delete versions that others refer to; those that go along with them do not count.

        A permanent deletion counts the referrers that are softly deleted too: their ids are still served.
        """
        going = {(version.subject, version.version) for version in versions}
        for version in versions:
            referrers = self._catalog.referrers(version.subject, version.version, deleted)
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

    def _check_writable(self, subject: str) -> None:
        mode = self._catalog.mode(subject)
        if mode.startswith("READONLY"):
            what = f"subject {subject!r}" if subject else "the registry"
            raise OperationNotPermitted(f"{what} is in read-only mode", subject=subject, mode=mode)

    def _touched(self, subject: str) -> list[replies.TouchedMember]:
        """The live members of the channel that bears the subject's name, and its table."""
        channel = self._channels.get(subject)
        if channel is None:
            return []
        producers = [("producer", p.producer_id, p.host, p.pid, p.schema_hash) for p in channel.producers.values()]
        consumers = [
            ("consumer", c.consumer_id, c.host, c.pid, c.expected_schema_hash) for c in channel.consumers.values()
        ]
        table = channel.table
        tables = (
            [("table", f"generation {table.generation}", table.host, table.pid, table.schema_hash)] if table else []
        )
        return [
            replies.TouchedMember(role=role, member_id=member_id, host=host, pid=pid, schema_hash=schema_hash)
            for role, member_id, host, pid, schema_hash in (*producers, *consumers, *tables)
        ]


def _check_config(config: SchemaConfig) -> None:
    for field in ("alias", "compatibility_group"):
        if getattr(config, field) is not None:
            raise InvalidRequest(f"{field} is not supported, so it would have no effect: leave it out", field=field)
    check_rule_set(config.default_rule_set)
    check_rule_set(config.override_rule_set)


def removal(version: SchemaVersion) -> events.SchemaDeleted:
    """For good."""
    return events.SchemaDeleted(subject=version.subject, version=version.version, permanent=True)
