"""Decisions about registering, looking up and checking a schema, given the result of a check of its text.

Rule 1: nothing here changes the catalogue; a decision is a reply and the events that would make it true.
Rule 2: a command that needs a check says which (`needed_check`). A result counts only if it is that of the check
which the command needs now.
"""

from typing import Any

import msgspec

from registry import commands, events, replies
from registry.channels.state import Channels
from registry.errors import (
    IdMismatch,
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
from registry.records import Channel, Level, Reference, SchemaConfig, SchemaVersion
from registry.schemas.catalog import (
    DEFAULT_LEVEL,
    LATEST,
    MAX_ID,
    NO_CONFIG,
    SchemaCatalog,
    Subject,
    guid_of,
    identity,
    identity_of,
)
from registry.schemas.checks import Against, Attached, CheckResult, SchemaCheck, run_check, text_of
from registry.schemas.metadata import effective_metadata, effective_rules
from registry.schemas.queries import found_reply
from registry.schemas.rule_sets import check_rule_set
from registry.schemas.usage import Decision, Decisions, check_writable, permanent_deletion, touched_members


class SchemaRules:
    def __init__(self, catalog: SchemaCatalog, channels: Channels) -> None:
        self._catalog = catalog
        self._channels = channels
        self.decisions: Decisions = {
            commands.RegisterSchema: self._register,
            commands.LookUpSchema: self._look_up,
            commands.CheckSchema: self._check,
        }

    # -- checks that a command needs -----------------------------------------------------------------------

    def needed_check(self, command: commands.SchemaText) -> SchemaCheck | None:
        """Return the check that the text needs, or None when the text is registered already."""
        text = text_of(command.schema)
        config = self._catalog.config(command.subject)
        return (
            None if self._registered_text(command, text, config) is not None else self._check_of(command, text, config)
        )

    def _check_of(self, command: commands.SchemaText, text: str, config: SchemaConfig) -> SchemaCheck:
        level, against = self._comparison(command, config)
        return SchemaCheck(
            schema_type=command.schema_type,
            text=text,
            references=self._catalog.texts(self._pinned(command)),
            normalize=command.normalize or bool(config.normalize),
            level=level,
            against=tuple(self._against(version) for version in against),
            attached=self._attached(command.subject) if isinstance(command, commands.CheckSchema) else (),
        )

    def _pinned(self, command: commands.SchemaText) -> list[Reference]:
        """A new schema may not refer to what is softly deleted; one that is looked up may have been there before."""
        return self._catalog.pin(
            command.references, "with" if isinstance(command, commands.LookUpSchema) else "without"
        )

    def _attached(self, subject: str) -> tuple[Attached, ...]:
        """The registered schemas that live members of the subject's channel work with, each once a role."""
        used = {(member.role, member.schema_hash or ""): None for member in touched_members(self._channels, subject)}
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

    def needed_for_reader(self, expected_hash: str, channel: Channel) -> SchemaCheck | None:
        """Return the check whether a reader of one registered schema can read what is written with another."""
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

    def _registered_text(self, command: commands.SchemaText, text: str, config: SchemaConfig) -> SchemaVersion | None:
        """The version that was registered with this very text. Nothing has to be parsed to know it again."""
        if not isinstance(command, commands.RegisterSchema | commands.LookUpSchema) or command.references:
            return None
        if command.metadata or command.rule_set:
            return None
        if isinstance(command, commands.RegisterSchema) and _has_defaults(config):
            return None
        subject = self._catalog.peek(command.subject)
        number = subject.by_text.get((command.schema_type, text))
        return None if number is None else subject.versions[number]

    def _comparison(self, command: commands.SchemaText, config: SchemaConfig) -> tuple[Level, list[SchemaVersion]]:
        if isinstance(command, commands.LookUpSchema):
            return "NONE", []
        level = config.compatibility or DEFAULT_LEVEL
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

    def _checked(
        self, command: commands.SchemaText, text: str, config: SchemaConfig, result: CheckResult | None
    ) -> CheckResult:
        """Return the result of the check that the command needs now, and run the check if `result` is another's."""
        check = self._check_of(command, text, config)
        if result is None or result.check != check:
            result = run_check(check)
        if result.refusal is not None:
            if result.is_budget:
                kind = SchemaTooLarge if result.is_large else SchemaTooComplex
                raise kind(f"the schema {result.refusal}", subject=command.subject)
            raise InvalidSchema(
                f"Invalid schema: {result.refusal}",
                subject=command.subject,
                schema_type=command.schema_type,
                path=result.path,
            )
        return result

    # -- decisions -----------------------------------------------------------------------------------------

    def plan(self, command: commands.RegisterSchema, result: CheckResult | None) -> tuple[SchemaVersion, bool]:
        """The version that this registration has or would get, and whether it is new."""
        check_rule_set(command.rule_set)
        catalog, text = self._catalog, text_of(command.schema)
        config = catalog.config(command.subject)
        known = self._registered_text(command, text, config)
        if known is not None:
            _check_claim(command, known.schema_hash)
            _check_id(command, known)
            return known, False
        result = self._checked(command, text, config, result)
        _check_claim(command, result.schema_hash)
        references = self._pinned(command)
        subject = catalog.peek(command.subject)
        for metadata, rule_set in self._extras(command, subject, config):
            key = identity(command.schema_type, result.schema_hash, references, metadata, rule_set)
            for number in subject.by_identity.get(key, ()):
                if not subject.versions[number].is_deleted:
                    _check_id(command, subject.versions[number])
                    return subject.versions[number], False
        self._check_import(command)
        if result.differences:
            raise self._incompatible(command, result)
        planned = SchemaVersion(
            subject=command.subject,
            version=self._number(command, subject),
            schema_id=self._id(command, key),
            schema_type=command.schema_type,
            schema_hash=result.schema_hash,
            schema=result.text,
            guid=guid_of(key),
            references=references,
            metadata=metadata,
            rule_set=rule_set,
        )
        return planned, True

    def _extras(
        self, command: commands.RegisterSchema, subject: Subject, config: SchemaConfig
    ) -> list[tuple[Any, Any]]:
        """Metadata and rules that it may be known with already; the last are those that it gets if it is new.

        What is imported is complete as it is.
        """
        given = (command.metadata, command.rule_set)
        if self._catalog.mode(command.subject) == "IMPORT":
            return [given]
        newest = next(reversed(subject.visible()), None)
        effective = (
            effective_metadata(config, command.metadata, newest),
            effective_rules(config, command.rule_set, newest),
        )
        return [effective] if _has_defaults(config) or effective == given else [given, effective]

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

    def _register(self, command: commands.RegisterSchema, result: CheckResult | None) -> Decision:
        version, is_new = self.plan(command, result)
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
                permanent_deletion(old)
                for old in self._catalog.peek(version.subject).visible("only")
                if old.schema_id == version.schema_id
                and old.version < version.version
                and not self._catalog.referrers(old.subject, old.version, "with")
            ),
        ]

    def _look_up(self, command: commands.LookUpSchema, result: CheckResult | None) -> Decision:
        deleted: commands.Deleted = "with" if command.deleted else "without"
        subject = self._catalog.subject(command.subject, deleted)
        text, config = text_of(command.schema), self._catalog.config(command.subject)
        found = self._registered_text(command, text, config)
        if found is None:
            result = self._checked(command, text, config, result)
            found = self._matching(command, result.schema_hash, subject.visible(deleted))
        if found is None:
            raise SchemaNotFound(f"subject {command.subject!r} does not have this schema", subject=command.subject)
        return found_reply(self._catalog, found), []

    def _matching(
        self, command: commands.LookUpSchema, schema_hash: str, versions: list[SchemaVersion]
    ) -> SchemaVersion | None:
        """Return the newest version with this content.

        Metadata and rules must be the same if any are given. If none are, a version without any is preferred.
        """
        wanted = (command.schema_type, schema_hash, self._pinned(command))
        found = [v for v in reversed(versions) if (v.schema_type, v.schema_hash, v.references) == wanted]
        exact = [v for v in found if (v.metadata, v.rule_set) == (command.metadata, command.rule_set)]
        if command.metadata or command.rule_set:
            found = exact
        return next(iter(exact or found), None)

    def _check(self, command: commands.CheckSchema, result: CheckResult | None) -> Decision:
        config = self._catalog.config(command.subject)
        result = self._checked(command, text_of(command.schema), config, result)
        reply = replies.SchemaChecked(
            is_compatible=not result.differences,
            level=self._comparison(command, config)[0],
            differences=result.differences,
            touched=[
                msgspec.structs.replace(one, would_break=result.broken.get(f"{one.role} {one.schema_hash}"))
                for one in touched_members(self._channels, command.subject)
            ],
            revision=self._catalog.revision(command.subject),
        )
        return reply, []

    # -- checks --------------------------------------------------------------------------------------------

    def _check_import(self, command: commands.RegisterSchema) -> None:
        """In mode IMPORT every new version comes with its id, and nowhere else."""
        name = command.subject
        check_writable(self._catalog, name)
        mode = self._catalog.mode(name)
        if (command.schema_id is None) == (mode == "IMPORT"):
            said = "read-write" if mode == "IMPORT" else "import"
            raise OperationNotPermitted(f"subject {name!r} is not in {said} mode", subject=name, mode=mode)

    def _incompatible(self, command: commands.RegisterSchema, result: CheckResult) -> SchemaIncompatible:
        first = result.differences[0]
        return SchemaIncompatible(
            f"Schema being registered is incompatible with an earlier schema for subject {command.subject!r}:"
            f" version {first.version}: {first.differences[0].message}",
            subject=command.subject,
            level=self._catalog.level(command.subject),
            differences=result.differences,
            touched=touched_members(self._channels, command.subject),
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


def _has_defaults(config: SchemaConfig) -> bool:
    return config is not NO_CONFIG and any(getattr(config, field) is not None for field in _DEFAULTS)


_DEFAULTS = ("default_metadata", "override_metadata", "default_rule_set", "override_rule_set")
