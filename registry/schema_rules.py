"""Decisions about schemas: what a command may do to the catalogue, given a verdict on its text.

Rule 1: nothing here changes the catalogue; a decision is a reply and the events that would make it true.
Rule 2: a decision that needs a verdict says so (`question`), and takes one only at the revision it was asked at.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from registry import commands, events, replies
from registry.errors import (
    CompatibilityNotSet,
    InvalidRequest,
    InvalidSchema,
    ModeNotSet,
    OperationNotPermitted,
    ReferenceExists,
    SchemaHashMismatch,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
    SchemaTooComplex,
    SchemaTooLarge,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from registry.records import Channel, Level, SchemaConfig, SchemaVersion
from registry.schema_catalog import DEFAULT_LEVEL, DEFAULT_MODE, GLOBAL, SchemaCatalog, guid_of, identity
from registry.state import Channels
from registry.verdicts import Against, Question, Verdict, judge, text_of

Decision = tuple[replies.Reply, list[events.AnySchemaEvent]]


class SchemaRules:
    def __init__(self, catalog: SchemaCatalog, channels: Channels) -> None:
        self._catalog = catalog
        self._channels = channels

    # -- questions -----------------------------------------------------------------------------------------

    def question(self, command: commands.SchemaText) -> Question | None:
        """What must be known of the text, or None when it is known already."""
        text = text_of(command.schema)
        if self._registered_text(command, text) is not None:
            return None
        catalog, subject = self._catalog, command.subject
        level, against = self._comparison(command)
        return Question(
            schema_type=command.schema_type,
            text=text,
            references=catalog.texts(catalog.pin(command.references)),
            normalize=command.normalize or catalog.normalizes(subject),
            level=level,
            against=tuple(self._against(version) for version in against),
            revision=catalog.verdict_revision(subject),
        )

    def consumer_question(self, expected_hash: str, channel: Channel) -> Question | None:
        """Whether a reader of one known schema can read what is written with another."""
        written = channel.schema_hash
        if written is None or not (self._catalog.knows_hash(expected_hash) and self._catalog.knows_hash(written)):
            return None
        reader, writer = self._catalog.by_hash(expected_hash), self._catalog.by_hash(written)
        return Question(
            schema_type=reader.schema_type,
            text=reader.schema,
            references=self._catalog.texts(reader.references),
            level="BACKWARD",
            against=(self._against(writer),),
        )

    def _registered_text(self, command: commands.SchemaText, text: str) -> SchemaVersion | None:
        """The version that was registered with this very text. Nothing has to be parsed to know it again."""
        if not isinstance(command, commands.RegisterSchema | commands.LookUpSchema) or command.references:
            return None
        if isinstance(command, commands.RegisterSchema) and (command.metadata or command.rule_set):
            return None
        subject = self._catalog.peek(command.subject)
        number = subject.by_text.get((command.schema_type, text))
        return None if number is None else subject.versions[number]

    def _comparison(self, command: commands.SchemaText) -> tuple[Level, list[SchemaVersion]]:
        if isinstance(command, commands.LookUpSchema):
            return "NONE", []
        level = self._catalog.level(command.subject)
        if isinstance(command, commands.CheckSchema):
            level = command.level or level
            if command.version is not None:
                return level, [self._catalog.version(command.subject, command.version)]
        is_import = isinstance(command, commands.RegisterSchema) and self._catalog.mode(command.subject) == "IMPORT"
        if level == "NONE" or is_import:
            return "NONE", []
        versions = self._catalog.peek(command.subject).visible()
        return level, versions[::-1] if level.endswith("_TRANSITIVE") else versions[-1:]

    def _against(self, version: SchemaVersion) -> Against:
        return Against(
            version=version.version,
            schema_type=version.schema_type,
            text=version.schema,
            references=self._catalog.texts(version.references),
        )

    def _verdict(self, command: commands.SchemaText, verdict: Verdict | None) -> Verdict:
        if verdict is None:
            question = self.question(command)
            assert question is not None
            verdict = judge(question)
        assert verdict.revision == self._catalog.verdict_revision(command.subject)
        if verdict.refusal is not None:
            if verdict.is_budget:
                kind = SchemaTooLarge if verdict.is_large else SchemaTooComplex
                raise kind(f"the schema {verdict.refusal}", subject=command.subject)
            raise InvalidSchema(
                f"Invalid schema: {verdict.refusal}",
                subject=command.subject,
                schema_type=command.schema_type,
                path=verdict.path,
            )
        return verdict

    # -- decisions -----------------------------------------------------------------------------------------

    def decide(self, command: commands.Command, verdict: Verdict | None) -> Decision:
        return _DECIDE[type(command)](self, command, verdict)

    def plan(self, command: commands.RegisterSchema, verdict: Verdict | None) -> tuple[SchemaVersion, bool]:
        """The version that this registration has or would get, and whether it is new."""
        text = text_of(command.schema)
        known = self._registered_text(command, text)
        if known is not None:
            _check_claim(command, known.schema_hash)
            return known, False
        verdict = self._verdict(command, verdict)
        _check_claim(command, verdict.schema_hash)
        catalog = self._catalog
        references = catalog.pin(command.references)
        key = identity(command.schema_type, verdict.schema_hash, references, command.metadata, command.rule_set)
        subject = catalog.peek(command.subject)
        for number in subject.by_identity.get(key, ()):
            if not subject.versions[number].is_deleted:
                return subject.versions[number], False
        self._check_mode(command.subject)
        if verdict.differences:
            raise self._incompatible(command, verdict)
        planned = SchemaVersion(
            subject=command.subject,
            version=max(subject.versions, default=0) + 1,
            schema_id=catalog.id_of(key),
            schema_type=command.schema_type,
            schema_hash=verdict.schema_hash,
            schema=verdict.text,
            guid=guid_of(key),
            references=references,
            metadata=command.metadata,
            rule_set=command.rule_set,
        )
        return planned, True

    def register(self, command: commands.RegisterSchema, verdict: Verdict | None) -> Decision:
        version, is_new = self.plan(command, verdict)
        happened: list[events.AnySchemaEvent] = [events.SchemaRegistered(schema=version)] if is_new else []
        reply = replies.SchemaRegistered(
            subject=version.subject,
            version=version.version,
            schema_id=version.schema_id,
            schema_hash=version.schema_hash,
            guid=version.guid,
            revision=self._catalog.revision(version.subject),
        )
        return reply, happened

    def look_up(self, command: commands.LookUpSchema, verdict: Verdict | None) -> Decision:
        deleted: commands.Deleted = "with" if command.deleted else "without"
        subject = self._catalog.subject(command.subject, deleted)
        found = self._registered_text(command, text_of(command.schema))
        if found is None:
            verdict = self._verdict(command, verdict)
            wanted = (command.schema_type, verdict.schema_hash, self._catalog.pin(command.references))
            for version in reversed(subject.visible(deleted)):
                if (version.schema_type, version.schema_hash, version.references) == wanted:
                    found = version
        if found is None:
            raise SchemaNotFound(f"subject {command.subject!r} does not have this schema", subject=command.subject)
        return self._found(found), []

    def check(self, command: commands.CheckSchema, verdict: Verdict | None) -> Decision:
        verdict = self._verdict(command, verdict)
        reply = replies.SchemaChecked(
            is_compatible=not verdict.differences,
            level=self._comparison(command)[0],
            differences=verdict.differences,
            touched=self._touched(command.subject),
            revision=self._catalog.revision(command.subject),
        )
        return reply, []

    def request(self, command: commands.RequestSchema, _: Verdict | None) -> Decision:
        catalog = self._catalog
        if command.schema_id is not None:
            found = catalog.by_id(command.schema_id, f"id {command.schema_id}")
        elif command.guid is not None:
            found = catalog.by_guid(command.guid)
        elif command.schema_hash is not None:
            found = catalog.by_hash(command.schema_hash)
        elif command.subject is not None:
            found = catalog.version(command.subject, command.version, "with" if command.deleted else "without")
        else:
            raise InvalidRequest("SCHEMA_REQUEST needs schema_id, guid, schema_hash or subject", field="subject")
        reply = self._found(found)
        if command.resolve:
            reply.reference_texts = dict(catalog.texts(found.references))
        if command.referrers:
            reply.referrers = sorted({v.schema_id for v in catalog.referrers(found.subject, found.version)})
        return reply, []

    def list_(self, command: commands.ListSchemas, _: Verdict | None) -> Decision:
        catalog = self._catalog
        if command.subject is None:
            names, following = catalog.page(
                prefix=command.prefix, deleted=command.deleted, after=command.after, limit=command.limit
            )
            reply = replies.SchemaList(subject=None, subjects=names, versions=[], next=following, revision=0)
            return reply, []
        versions = [
            replies.SchemaVersionSummary(
                version=version.version,
                schema_id=version.schema_id,
                schema_type=version.schema_type,
                schema_hash=version.schema_hash,
                is_deleted=version.is_deleted,
            )
            for version in catalog.subject(command.subject, command.deleted).visible(command.deleted)
        ]
        reply = replies.SchemaList(
            subject=command.subject,
            subjects=[command.subject],
            versions=versions,
            next=None,
            revision=catalog.revision(command.subject),
        )
        return reply, []

    def export(self, command: commands.ExportSchemas, _: Verdict | None) -> Decision:
        names, following = self._catalog.page(
            prefix=command.prefix, deleted=command.deleted, after=command.after, limit=command.limit
        )
        schemas = [v for name in names for v in self._catalog.subject(name, command.deleted).visible(command.deleted)]
        return replies.SchemaExport(schemas=schemas, next=following, revision=0), []

    def delete(self, command: commands.DeleteSchema, _: Verdict | None) -> Decision:
        self._check_mode(command.subject)
        versions = self._to_delete(command)
        for version in versions:
            self._check_unused(version, command.force)
        happened: list[events.AnySchemaEvent] = [
            events.SchemaDeleted(subject=v.subject, version=v.version, permanent=command.permanent) for v in versions
        ]
        reply = replies.SchemaDeleted(
            subject=command.subject,
            versions=[version.version for version in versions],
            revision=self._catalog.revision(command.subject),
        )
        return reply, happened

    def request_config(self, command: commands.RequestSchemaConfig, _: Verdict | None) -> Decision:
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
        if command.default_to_global and config.compatibility is None:
            config = msgspec.structs.replace(config, compatibility=overall.compatibility)
        return replies.SchemaConfigFound(subject=command.subject, config=config, revision=0), []

    def configure(self, command: commands.ConfigureSchemas, _: Verdict | None) -> Decision:
        name = command.subject or GLOBAL
        present = self._catalog.configs.get(name)
        if command.config is None:
            if present is None and command.subject is not None:
                raise SubjectNotFound(f"subject {name!r} has no config of its own", subject=name)
            happened = [events.SchemaConfigured(subject=name, config=None)] if present else []
            before = present or SchemaConfig(compatibility=DEFAULT_LEVEL)
            return replies.SchemaConfigFound(subject=command.subject, config=before, revision=0), [*happened]
        given = {k: v for k, v in msgspec.structs.asdict(command.config).items() if v is not None}
        merged = msgspec.structs.replace(present or SchemaConfig(), **given)
        happened = [events.SchemaConfigured(subject=name, config=merged)] if merged != present else []
        return replies.SchemaConfigFound(subject=command.subject, config=merged, revision=0), [*happened]

    def request_mode(self, command: commands.RequestSchemaMode, _: Verdict | None) -> Decision:
        modes = self._catalog.modes
        if command.subject is not None and command.subject not in modes and not command.default_to_global:
            raise ModeNotSet(f"subject {command.subject!r} has no mode of its own", subject=command.subject)
        mode = modes.get(command.subject or GLOBAL) or modes.get(GLOBAL, DEFAULT_MODE)
        return replies.SchemaModeFound(subject=command.subject, mode=mode, revision=0), []

    def set_mode(self, command: commands.SetSchemaMode, _: Verdict | None) -> Decision:
        name = command.subject or GLOBAL
        present = self._catalog.modes.get(name)
        if command.mode is None and present is None and command.subject is not None:
            raise SubjectNotFound(f"subject {name!r} has no mode of its own", subject=name)
        if command.mode == "IMPORT" and not command.force and self._has_versions(command.subject):
            raise OperationNotPermitted("mode IMPORT needs an empty subject or registry, or force", subject=name)
        happened = [events.SchemaModeChanged(subject=name, mode=command.mode)] if command.mode != present else []
        mode = command.mode or present or DEFAULT_MODE
        return replies.SchemaModeFound(subject=command.subject, mode=mode, revision=0), [*happened]

    # -- checks --------------------------------------------------------------------------------------------

    def _check_mode(self, subject: str) -> None:
        mode = self._catalog.mode(subject)
        if mode.startswith("READONLY"):
            raise OperationNotPermitted(f"subject {subject!r} is in read-only mode", subject=subject, mode=mode)

    def _to_delete(self, command: commands.DeleteSchema) -> list[SchemaVersion]:
        catalog, name = self._catalog, command.subject
        every = catalog.subject(name, "with").visible("with")
        live = [version for version in every if not version.is_deleted]
        if command.version is None:
            if not live and not command.permanent:
                raise SubjectSoftDeleted(f"subject {name!r} is softly deleted already", subject=name)
            if live and command.permanent:
                raise SubjectNotSoftDeleted(
                    f"subject {name!r} is not softly deleted: do that before deleting it permanently", subject=name
                )
            return every if command.permanent else live
        version = catalog.version(name, command.version, "with")
        if version.is_deleted and not command.permanent:
            raise VersionSoftDeleted(
                f"version {version.version} of subject {name!r} is softly deleted already",
                subject=name,
                version=version.version,
            )
        if command.permanent and not version.is_deleted:
            raise VersionNotSoftDeleted(
                f"version {version.version} of subject {name!r} is not softly deleted: do that before deleting it"
                " permanently",
                subject=name,
                version=version.version,
            )
        return [version]

    def _check_unused(self, version: SchemaVersion, force: bool) -> None:
        referrers = self._catalog.referrers(version.subject, version.version)
        if referrers:
            raise ReferenceExists(
                f"version {version.version} of subject {version.subject!r} is referred to",
                referrers=[{"subject": v.subject, "version": v.version} for v in referrers],
            )
        channel = self._channels.get(version.subject)
        uses = channel is not None and channel.producers and channel.schema_hash == version.schema_hash
        if uses and not force:
            raise SchemaInUse(
                f"channel {version.subject!r} is live and uses version {version.version}: force deletes it anyway",
                touched=self._touched(version.subject),
            )

    def _has_versions(self, subject: str | None) -> bool:
        if subject is not None:
            return bool(self._catalog.peek(subject).versions)
        return len(self._catalog) > 0

    def _incompatible(self, command: commands.RegisterSchema, verdict: Verdict) -> SchemaIncompatible:
        first = verdict.differences[0]
        return SchemaIncompatible(
            f"Schema being registered is incompatible with an earlier schema for subject {command.subject!r}:"
            f" version {first.version}: {first.differences[0].message}",
            subject=command.subject,
            level=self._catalog.level(command.subject),
            differences=verdict.differences,
            touched=self._touched(command.subject),
        )

    def _touched(self, subject: str) -> list[replies.TouchedMember]:
        """The live members of the channel that bears the subject's name."""
        channel = self._channels.get(subject)
        if channel is None:
            return []
        producers = [("producer", p.producer_id, p.host, p.pid, p.schema_hash) for p in channel.producers.values()]
        consumers = [
            ("consumer", c.consumer_id, c.host, c.pid, c.expected_schema_hash) for c in channel.consumers.values()
        ]
        return [
            replies.TouchedMember(role=role, member_id=member_id, host=host, pid=pid, schema_hash=schema_hash)
            for role, member_id, host, pid, schema_hash in (*producers, *consumers)
        ]

    def _found(self, version: SchemaVersion) -> replies.SchemaFound:
        return replies.SchemaFound(
            schema=version, places=self._catalog.places(version.schema_id), max_id=self._catalog.last_id
        )


def _check_claim(command: commands.RegisterSchema, schema_hash: str) -> None:
    if command.schema_hash is not None and command.schema_hash != schema_hash:
        raise SchemaHashMismatch(
            f"the schema hashes to {schema_hash}, not to the claimed {command.schema_hash!r}",
            claimed=command.schema_hash,
            actual=schema_hash,
        )


_DECIDE: dict[type[commands.Command], Callable[[SchemaRules, Any, Verdict | None], Decision]] = {
    commands.RegisterSchema: SchemaRules.register,
    commands.LookUpSchema: SchemaRules.look_up,
    commands.CheckSchema: SchemaRules.check,
    commands.RequestSchema: SchemaRules.request,
    commands.ListSchemas: SchemaRules.list_,
    commands.ExportSchemas: SchemaRules.export,
    commands.DeleteSchema: SchemaRules.delete,
    commands.RequestSchemaConfig: SchemaRules.request_config,
    commands.ConfigureSchemas: SchemaRules.configure,
    commands.RequestSchemaMode: SchemaRules.request_mode,
    commands.SetSchemaMode: SchemaRules.set_mode,
}
SCHEMA_COMMANDS = frozenset(_DECIDE)
