"""Decisions about schemas: what a command may do to the catalogue, given a verdict on its text.

Rule 1: nothing here changes the catalogue; a decision is a reply and the events that would make it true.
Rule 2: a decision that needs a verdict says so (`question`), and takes only one that answers what would be asked now.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from registry import commands, events, replies
from registry.errors import (
    IdMismatch,
    InvalidRequest,
    InvalidSchema,
    OperationNotPermitted,
    SchemaHashMismatch,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaTooComplex,
    SchemaTooLarge,
    SubjectNotFound,
    VersionNotFound,
)
from registry.records import Channel, Level, Reference, SchemaVersion
from registry.schemas.catalog import LATEST, MAX_ID, Subject, guid_of, identity, identity_of
from registry.schemas.checks import Against, Attached, CheckResult, SchemaCheck, judge, text_of
from registry.schemas.metadata import effective_metadata, effective_rules
from registry.schemas.removal import SchemaRemoval
from registry.schemas.rule_sets import check_rule_set
from registry.schemas.settings import Decision, removal


class SchemaRules(SchemaRemoval):
    # -- questions -----------------------------------------------------------------------------------------

    def question(self, command: commands.SchemaText) -> SchemaCheck | None:
        """What must be known of the text, or None when it is known already."""
        text = text_of(command.schema)
        if self._registered_text(command, text) is not None:
            return None
        catalog, subject = self._catalog, command.subject
        level, against = self._comparison(command)
        return SchemaCheck(
            schema_type=command.schema_type,
            text=text,
            references=catalog.texts(self._pinned(command)),
            normalize=command.normalize or catalog.normalizes(subject),
            level=level,
            against=tuple(self._against(version) for version in against),
            attached=self._attached(subject) if isinstance(command, commands.CheckSchema) else (),
        )

    def _pinned(self, command: commands.SchemaText) -> list[Reference]:
        """A new schema may not refer to what is softly deleted; one that is looked up may have been there before."""
        return self._catalog.pin(
            command.references, "with" if isinstance(command, commands.LookUpSchema) else "without"
        )

    def _attached(self, subject: str) -> tuple[Attached, ...]:
        """The registered schemas that live members of the subject's channel work with, each once a role."""
        used = {(member.role, member.schema_hash or ""): None for member in self._touched(subject)}
        known = [(role, self._catalog.by_hash(digest)) for role, digest in used if self._catalog.knows_hash(digest)]
        return tuple(
            Attached(
                role=role,
                schema_hash=version.schema_hash,
                schema_type=version.schema_type,
                text=version.schema,
                references=self._catalog.texts(version.references),
            )
            for role, version in known
        )

    def consumer_question(self, expected_hash: str, channel: Channel) -> SchemaCheck | None:
        """Whether a reader of one known schema can read what is written with another."""
        written = channel.schema_hash
        if written is None or not (self._catalog.knows_hash(expected_hash) and self._catalog.knows_hash(written)):
            return None
        reader, writer = self._catalog.by_hash(expected_hash), self._catalog.by_hash(written)
        return SchemaCheck(
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
        if command.metadata or command.rule_set:
            return None
        if isinstance(command, commands.RegisterSchema) and self._has_defaults(command.subject):
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
                found = self._named(command.subject, command.version)
                return level, found if level != "NONE" else []
        is_import = isinstance(command, commands.RegisterSchema) and self._catalog.mode(command.subject) == "IMPORT"
        if level == "NONE" or is_import:
            return "NONE", []
        versions = self._catalog.peek(command.subject).visible()
        return level, versions[::-1] if level.endswith("_TRANSITIVE") else versions[-1:]

    def _named(self, subject: str, version: int) -> list[SchemaVersion]:
        """One version to compare with. The newest of a subject without any is none: everything goes with it."""
        try:
            return [self._catalog.version(subject, version)]
        except SubjectNotFound:
            if version == LATEST:
                return []
            said = f"subject {subject!r} has no version {version}"
            raise VersionNotFound(said, subject=subject, version=version) from None

    def _against(self, version: SchemaVersion) -> Against:
        return Against(
            version=version.version,
            schema_type=version.schema_type,
            text=version.schema,
            references=self._catalog.texts(version.references),
        )

    def _verdict(self, command: commands.SchemaText, verdict: CheckResult | None) -> CheckResult:
        question = self.question(command)
        assert question is not None
        if verdict is None or verdict.question != question:
            verdict = judge(question)
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

    def decide(self, command: commands.Command, verdict: CheckResult | None) -> Decision:
        return _DECIDE[type(command)](self, command, verdict)

    def plan(self, command: commands.RegisterSchema, verdict: CheckResult | None) -> tuple[SchemaVersion, bool]:
        """The version that this registration has or would get, and whether it is new."""
        check_rule_set(command.rule_set)
        text = text_of(command.schema)
        known = self._registered_text(command, text)
        if known is not None:
            _check_claim(command, known.schema_hash)
            _check_id(command, known)
            return known, False
        verdict = self._verdict(command, verdict)
        _check_claim(command, verdict.schema_hash)
        catalog = self._catalog
        references = self._pinned(command)
        subject = catalog.peek(command.subject)
        for metadata, rule_set in self._extras(command, subject):
            key = identity(command.schema_type, verdict.schema_hash, references, metadata, rule_set)
            for number in subject.by_identity.get(key, ()):
                if not subject.versions[number].is_deleted:
                    _check_id(command, subject.versions[number])
                    return subject.versions[number], False
        self._check_import(command)
        if verdict.differences:
            raise self._incompatible(command, verdict)
        planned = SchemaVersion(
            subject=command.subject,
            version=self._number(command, subject),
            schema_id=self._id(command, key),
            schema_type=command.schema_type,
            schema_hash=verdict.schema_hash,
            schema=verdict.text,
            guid=guid_of(key),
            references=references,
            metadata=metadata,
            rule_set=rule_set,
        )
        return planned, True

    def _extras(self, command: commands.RegisterSchema, subject: Subject) -> list[tuple[Any, Any]]:
        """Metadata and rules that it may be known with already; the last are those that it gets if it is new.

        What is imported is complete as it is.
        """
        name = command.subject
        given = (command.metadata, command.rule_set)
        if self._catalog.mode(name) == "IMPORT":
            return [given]
        newest = next(reversed(subject.visible()), None)

        def setting(field: str) -> Any:
            return self._catalog.setting(name, field)

        effective = (
            effective_metadata(setting, command.metadata, newest),
            effective_rules(setting, command.rule_set, newest),
        )
        return [effective] if self._has_defaults(name) else [given, effective]

    def _has_defaults(self, subject: str) -> bool:
        return any(self._catalog.setting(subject, field) is not None for field in _DEFAULTS)

    def _number(self, command: commands.RegisterSchema, subject: Subject) -> int:
        following = next(reversed(subject.versions), 0) + 1
        wanted = command.version or following
        if command.schema_id is None and wanted != following:
            raise InvalidSchema(
                f"Invalid schema: version {wanted} is not one more than the newest, {following - 1}",
                subject=command.subject,
                version=wanted,
            )
        if wanted in subject.versions:
            said = f"subject {command.subject!r} has another schema as version {wanted}, which is not overwritten"
            raise OperationNotPermitted(said, subject=command.subject, version=wanted)
        return wanted

    def _id(self, command: commands.RegisterSchema, key: str) -> int:
        wanted = command.schema_id
        if wanted is None:
            given = self._catalog.id_of(key)
            if given > MAX_ID:
                raise OperationNotPermitted(f"no id is left: the newest is {MAX_ID}")
            return given
        try:
            present = self._catalog.by_id(wanted, "")
        except SchemaNotFound:
            return wanted
        if identity_of(present) != key:
            said = f"id {wanted} is that of another schema, which is not overwritten"
            raise OperationNotPermitted(said, schema_id=wanted, subject=present.subject, version=present.version)
        return wanted

    def register(self, command: commands.RegisterSchema, verdict: CheckResult | None) -> Decision:
        version, is_new = self.plan(command, verdict)
        happened: list[events.AnySchemaEvent] = self.registration(version) if is_new else []
        reply = replies.SchemaRegistered(
            subject=version.subject,
            version=version.version,
            schema_id=version.schema_id,
            schema_hash=version.schema_hash,
            guid=version.guid,
            revision=self._catalog.revision(version.subject),
        )
        return reply, happened

    def registration(self, version: SchemaVersion) -> list[events.AnySchemaEvent]:
        """It takes the place of softly deleted versions with the same content, unless others refer to those."""
        return [
            events.SchemaRegistered(schema=version),
            *(
                removal(old)
                for old in self._catalog.peek(version.subject).visible("only")
                if old.schema_id == version.schema_id
                and old.version < version.version
                and not self._catalog.referrers(old.subject, old.version, "with")
            ),
        ]

    def look_up(self, command: commands.LookUpSchema, verdict: CheckResult | None) -> Decision:
        deleted: commands.Deleted = "with" if command.deleted else "without"
        subject = self._catalog.subject(command.subject, deleted)
        found = self._registered_text(command, text_of(command.schema))
        if found is None:
            verdict = self._verdict(command, verdict)
            found = self._matching(command, verdict.schema_hash, subject.visible(deleted))
        if found is None:
            raise SchemaNotFound(f"subject {command.subject!r} does not have this schema", subject=command.subject)
        return self._found(found), []

    def _matching(
        self, command: commands.LookUpSchema, schema_hash: str, versions: list[SchemaVersion]
    ) -> SchemaVersion | None:
        """The newest with this content. Metadata and rules must be the same if any are given; none are best if not."""
        wanted = (command.schema_type, schema_hash, self._pinned(command))
        found = [v for v in reversed(versions) if (v.schema_type, v.schema_hash, v.references) == wanted]
        exact = [v for v in found if (v.metadata, v.rule_set) == (command.metadata, command.rule_set)]
        if command.metadata or command.rule_set:
            found = exact
        return next(iter(exact or found), None)

    def check(self, command: commands.CheckSchema, verdict: CheckResult | None) -> Decision:
        verdict = self._verdict(command, verdict)
        reply = replies.SchemaChecked(
            is_compatible=not verdict.differences,
            level=self._comparison(command)[0],
            differences=verdict.differences,
            touched=[
                msgspec.structs.replace(one, would_break=verdict.broken.get(f"{one.role} {one.schema_hash}"))
                for one in self._touched(command.subject)
            ],
            revision=self._catalog.revision(command.subject),
        )
        return reply, []

    def request(self, command: commands.RequestSchema, _: CheckResult | None) -> Decision:
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
            among: commands.Deleted = "with" if command.deleted_referrers else "without"
            reply.referrers = sorted({v.schema_id for v in catalog.referrers(found.subject, found.version, among)})
        return reply, []

    def list_(self, command: commands.ListSchemas, _: CheckResult | None) -> Decision:
        catalog = self._catalog
        if command.subject is None:
            names, following = catalog.page(
                prefix=command.prefix,
                wanted=_IS_LISTED[command.deleted],
                after=command.after,
                limit=command.limit,
            )
            reply = replies.SchemaList(subject=None, subjects=names, versions=[], next=following, revision=0)
            return reply, []
        subject = catalog.subject(command.subject, "without" if command.deleted == "without" else "with")
        versions = [
            replies.SchemaVersionSummary(
                version=version.version,
                schema_id=version.schema_id,
                schema_type=version.schema_type,
                schema_hash=version.schema_hash,
                is_deleted=version.is_deleted,
            )
            for version in subject.visible(command.deleted)
        ]
        reply = replies.SchemaList(
            subject=command.subject,
            subjects=[command.subject],
            versions=versions,
            next=None,
            revision=catalog.revision(command.subject),
        )
        return reply, []

    def export(self, command: commands.ExportSchemas, _: CheckResult | None) -> Decision:
        names, following = self._catalog.page(
            prefix=command.prefix,
            wanted=lambda subject: bool(subject.visible(command.deleted)),
            after=command.after,
            limit=command.limit,
        )
        schemas = [v for name in names for v in self._catalog.subject(name, command.deleted).visible(command.deleted)]
        return replies.SchemaExport(schemas=schemas, next=following, revision=0), []

    # -- checks --------------------------------------------------------------------------------------------

    def _check_import(self, command: commands.RegisterSchema) -> None:
        """In mode IMPORT every new version comes with its id, and nowhere else."""
        name = command.subject
        self._check_writable(name)
        mode = self._catalog.mode(name)
        if (command.schema_id is None) == (mode == "IMPORT"):
            said = "read-write" if mode == "IMPORT" else "import"
            raise OperationNotPermitted(f"subject {name!r} is not in {said} mode", subject=name, mode=mode)

    def _incompatible(self, command: commands.RegisterSchema, verdict: CheckResult) -> SchemaIncompatible:
        first = verdict.differences[0]
        return SchemaIncompatible(
            f"Schema being registered is incompatible with an earlier schema for subject {command.subject!r}:"
            f" version {first.version}: {first.differences[0].message}",
            subject=command.subject,
            level=self._catalog.level(command.subject),
            differences=verdict.differences,
            touched=self._touched(command.subject),
        )

    def _found(self, version: SchemaVersion) -> replies.SchemaFound:
        return replies.SchemaFound(
            schema=version, places=self._catalog.places(version.schema_id), max_id=self._catalog.last_id
        )


def _check_id(command: commands.RegisterSchema, present: SchemaVersion) -> None:
    if command.schema_id not in (None, present.schema_id):
        raise IdMismatch(
            f"the schema has id {present.schema_id}, not {command.schema_id}",
            subject=present.subject,
            version=present.version,
            schema_id=present.schema_id,
        )


def _check_claim(command: commands.RegisterSchema, schema_hash: str) -> None:
    if command.schema_hash is not None and command.schema_hash != schema_hash:
        raise SchemaHashMismatch(
            f"the schema hashes to {schema_hash}, not to the claimed {command.schema_hash!r}",
            claimed=command.schema_hash,
            actual=schema_hash,
        )


_DEFAULTS = ("default_metadata", "override_metadata", "default_rule_set", "override_rule_set")
_IS_LISTED: dict[commands.Deleted, Callable[[Subject], bool]] = {
    "without": lambda subject: bool(subject.visible()),
    "with": lambda subject: bool(subject.versions),
    "only": lambda subject: not subject.visible(),
}
_DECIDE: dict[type[commands.Command], Callable[[SchemaRules, Any, CheckResult | None], Decision]] = {
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
