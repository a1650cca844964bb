"""Subjects, versions, ids and hashes of schemas.

Rule 1: an id names one content (type and canonical text) for ever, across subjects.
Rule 2: versions of a subject count from 1 without gaps, and registering the same content again gives the same version.
"""

from msgspec import Struct, field

from registry.canonical import canonical
from registry.commands import ListSchemas, RegisterSchema, RequestSchema, Schema
from registry.errors import InvalidRequest, SchemaHashMismatch, SchemaNotFound
from registry.events import SchemaRegistered
from registry.records import SchemaType, SchemaVersion
from registry.replies import SchemaFound, SchemaList, SchemaVersionSummary
from registry.state import SortedNames

Content = tuple[SchemaType, str]


class Subject(Struct):
    versions: list[SchemaVersion] = field(default_factory=list)
    by_content: dict[Content, SchemaVersion] = field(default_factory=dict)
    revision: int = 0


class SchemaCatalog:
    def __init__(self) -> None:
        self._subjects: dict[str, Subject] = {}
        self._names = SortedNames(self._subjects)
        self._by_id: dict[int, SchemaVersion] = {}
        self._ids: dict[Content, int] = {}
        self._by_hash: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def evolve(self, event: SchemaRegistered) -> None:
        self.add(event.schema, revision=event.revision)

    def add(self, version: SchemaVersion, *, revision: int) -> None:
        subject = self._subjects.get(version.subject)
        if subject is None:
            subject = self._subjects[version.subject] = Subject()
            self._names.add(version.subject)
        content = (version.schema_type, version.schema_hash)
        subject.versions.append(version)
        subject.by_content[content] = version
        subject.revision = max(subject.revision, revision)
        self._by_id.setdefault(version.schema_id, version)
        self._ids.setdefault(content, version.schema_id)
        self._by_hash.setdefault(version.schema_hash, version.schema_id)

    def revision(self, subject: str) -> int:
        found = self._subjects.get(subject)
        return found.revision if found else 0

    def plan(self, command: RegisterSchema) -> tuple[SchemaVersion, bool]:
        """The version that this registration has or would get, and whether it is new."""
        text, digest = claimed(command.schema_type, command.schema, command.schema_hash)
        content = (command.schema_type, digest)
        subject = self._subjects.get(command.subject) or Subject()
        if content in subject.by_content:
            return subject.by_content[content], False
        planned = SchemaVersion(
            subject=command.subject,
            version=len(subject.versions) + 1,
            schema_id=self._ids.get(content, len(self._by_id) + 1),
            schema_type=command.schema_type,
            schema_hash=digest,
            schema=text,
        )
        return planned, True

    def find(self, command: RequestSchema) -> SchemaFound:
        if command.schema_id is not None:
            return _found(self._content(command.schema_id, f"schema id {command.schema_id}"), named=False)
        if command.schema_hash is not None:
            schema_id = self._by_hash.get(command.schema_hash, 0)
            return _found(self._content(schema_id, f"schema hash {command.schema_hash!r}"), named=False)
        if command.subject is None:
            raise InvalidRequest("SCHEMA_REQUEST needs schema_id, schema_hash or subject", field="subject")
        subject = self._subject(command.subject)
        number = len(subject.versions) if command.version is None else command.version
        if not 1 <= number <= len(subject.versions):
            raise SchemaNotFound(
                f"subject {command.subject!r} has no version {number}",
                subject=command.subject,
                version=number,
                newest=len(subject.versions),
            )
        return _found(subject.versions[number - 1], named=True)

    def list(self, command: ListSchemas, *, revision: int) -> SchemaList:
        if command.subject is None:
            names, following = self._names.page(after=command.after, limit=command.limit)
            return SchemaList(subject=None, subjects=names, versions=[], next=following, revision=revision)
        subject = self._subject(command.subject)
        versions = [
            SchemaVersionSummary(
                version=version.version,
                schema_id=version.schema_id,
                schema_type=version.schema_type,
                schema_hash=version.schema_hash,
            )
            for version in subject.versions
        ]
        return SchemaList(
            subject=command.subject,
            subjects=[command.subject],
            versions=versions,
            next=None,
            revision=revision,
        )

    def _subject(self, name: str) -> Subject:
        found = self._subjects.get(name)
        if found is None:
            raise SchemaNotFound(f"no schema is registered under subject {name!r}", subject=name)
        return found

    def _content(self, schema_id: int, asked: str) -> SchemaVersion:
        found = self._by_id.get(schema_id)
        if found is None:
            raise SchemaNotFound(f"no schema has {asked}", asked=asked)
        return found


def claimed(schema_type: SchemaType, schema: Schema, claim: str | None) -> tuple[str, str]:
    """Canonical text and hash; refused when somebody claims another hash for it."""
    text, digest = canonical(schema_type, schema)
    if claim is not None and claim != digest:
        raise SchemaHashMismatch(
            f"the schema hashes to {digest}, not to the claimed {claim!r}", claimed=claim, actual=digest
        )
    return text, digest


def _found(version: SchemaVersion, *, named: bool) -> SchemaFound:
    return SchemaFound(
        subject=version.subject if named else None,
        version=version.version if named else None,
        schema_id=version.schema_id,
        schema_type=version.schema_type,
        schema_hash=version.schema_hash,
        schema=version.schema,
    )
