"""Decisions about levels and modes: of one subject, or of all."""

import msgspec

from registry import commands, events, replies
from registry.channels.state import Channels
from registry.errors import CompatibilityNotSet, InvalidRequest, ModeNotSet, OperationNotPermitted, SubjectNotFound
from registry.records import SchemaConfig
from registry.schemas.catalog import DEFAULT_LEVEL, DEFAULT_MODE, GLOBAL, SchemaCatalog
from registry.schemas.checks import CheckResult
from registry.schemas.rule_sets import check_rule_set
from registry.schemas.usage import (
    Decision,
    Decisions,
    check_not_referred_to,
    check_writable,
    permanent_deletion,
    touched_members,
)


class SchemaSettings:
    def __init__(self, catalog: SchemaCatalog, channels: Channels) -> None:
        self._catalog = catalog
        self._channels = channels
        self.decisions: Decisions = {
            commands.RequestSchemaConfig: self._request_config,
            commands.ConfigureSchemas: self._configure,
            commands.RequestSchemaMode: self._request_mode,
            commands.SetSchemaMode: self._set_mode,
        }

    def _request_config(self, command: commands.RequestSchemaConfig, _: CheckResult | None) -> Decision:
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

    def _configure(self, command: commands.ConfigureSchemas, _: CheckResult | None) -> Decision:
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
            check_writable(self._catalog, name)
            happened = [events.SchemaConfigured(subject=name, config=after)]
            touched = touched_members(self._channels, name)
        reply = replies.SchemaConfigFound(subject=command.subject, config=said, touched=touched, revision=0)
        return reply, happened

    def _request_mode(self, command: commands.RequestSchemaMode, _: CheckResult | None) -> Decision:
        modes = self._catalog.modes
        if command.subject is not None and command.subject not in modes and not command.default_to_global:
            raise ModeNotSet(f"subject {command.subject!r} has no mode of its own", subject=command.subject)
        mode = modes.get(command.subject or GLOBAL) or modes.get(GLOBAL, DEFAULT_MODE)
        return replies.SchemaModeFound(subject=command.subject, mode=mode, revision=0), []

    def _set_mode(self, command: commands.SetSchemaMode, _: CheckResult | None) -> Decision:
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
        check_not_referred_to(self._catalog, versions, "with")
        return [permanent_deletion(version) for version in versions]


def _check_config(config: SchemaConfig) -> None:
    for field in ("alias", "compatibility_group"):
        if getattr(config, field) is not None:
            raise InvalidRequest(f"{field} is not supported, so it would have no effect: leave it out", field=field)
    check_rule_set(config.default_rule_set)
    check_rule_set(config.override_rule_set)
