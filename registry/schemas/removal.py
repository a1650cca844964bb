"""Decisions about deleting a subject or one version of it, first softly and then permanently.

Refused in this order: what is not there or hidden already, read-only, referred to, not hidden before, in use.
"""

from registry import commands, events, replies
from registry.channels.state import Channels
from registry.errors import (
    SchemaInUse,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from registry.records import SchemaVersion
from registry.schemas.catalog import SchemaCatalog
from registry.schemas.checks import CheckResult
from registry.schemas.usage import Decision, Decisions, check_not_referred_to, check_writable, touched_members


class SchemaRemoval:
    def __init__(self, catalog: SchemaCatalog, channels: Channels) -> None:
        self._catalog = catalog
        self._channels = channels
        self.decisions: Decisions = {commands.DeleteSchema: self._delete}

    def _delete(self, command: commands.DeleteSchema, _: CheckResult | None) -> Decision:
        name = command.subject
        versions = self._to_delete(command)
        check_writable(self._catalog, name)
        check_not_referred_to(self._catalog, versions, "with" if command.permanent else "without")
        if command.permanent:
            self._check_hidden(command, versions)
        touched = self._users(versions)
        if touched and not command.force:
            raise SchemaInUse(
                f"channel {name!r} is live and uses version {', '.join(str(v.version) for v in versions)}:"
                " force deletes it anyway",
                touched=touched,
            )
        reply = replies.SchemaDeleted(
            subject=name,
            versions=[version.version for version in versions],
            touched=touched,
            revision=self._catalog.revision(name),
        )
        return reply, self._deletion(command, versions)

    def _to_delete(self, command: commands.DeleteSchema) -> list[SchemaVersion]:
        name = command.subject
        subject = self._catalog.subject(name, "with")
        if command.version is None:
            live = subject.visible()
            if not live and not command.permanent:
                raise SubjectSoftDeleted(f"subject {name!r} is softly deleted already", subject=name)
            return subject.visible("with") if command.permanent else live
        version = self._catalog.version(name, command.version, "with")
        if version.is_deleted and not command.permanent:
            raise VersionSoftDeleted(
                f"version {version.version} of subject {name!r} is softly deleted already",
                subject=name,
                version=version.version,
            )
        return [version]

    def _check_hidden(self, command: commands.DeleteSchema, versions: list[SchemaVersion]) -> None:
        name = command.subject
        live = [version.version for version in versions if not version.is_deleted]
        if live and command.version is None:
            raise SubjectNotSoftDeleted(
                f"subject {name!r} is not softly deleted: do that before deleting it permanently", subject=name
            )
        if live:
            raise VersionNotSoftDeleted(
                f"version {live[0]} of subject {name!r} is not softly deleted: do that before deleting it permanently",
                subject=name,
                version=live[0],
            )

    def _users(self, versions: list[SchemaVersion]) -> list[replies.TouchedMember]:
        """Return the live members of the channel that work with one of these versions."""
        hashes = {version.schema_hash for version in versions}
        return [
            member for member in touched_members(self._channels, versions[0].subject) if member.schema_hash in hashes
        ]

    def _deletion(self, command: commands.DeleteSchema, versions: list[SchemaVersion]) -> list[events.AnySchemaEvent]:
        """With the last version of a subject its settings go too."""
        name, catalog = command.subject, self._catalog
        happened: list[events.AnySchemaEvent] = [
            events.SchemaDeleted(subject=name, version=v.version, permanent=command.permanent) for v in versions
        ]
        if command.permanent and len(versions) == len(catalog.peek(name).versions):
            if name in catalog.configs:
                happened.append(events.SchemaConfigured(subject=name, config=None))
            if name in catalog.modes:
                happened.append(events.SchemaModeChanged(subject=name, mode=None))
        return happened
