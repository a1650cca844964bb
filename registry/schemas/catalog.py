"""Subjects, versions, ids, hashes, references, modes and config of schemas.

Rule 1: an id and a GUID name one content (type, canonical text, references, metadata, rules) for ever, across subjects.
Rule 2: a new version's number is one more than the subject's newest, softly deleted ones included: only the number of a
newest version that was permanently deleted can come again.
Rule 3: a softly deleted version is hidden, not gone; a permanently deleted one is gone, and its id is not given again.
What another version refers to, even a softly deleted one, is not deleted permanently: an id that was given can be
read with all that it refers to until it is permanently deleted itself.
Rule 4: an import chooses ids and numbers itself, so that a content may have several ids; the first is the one given to
whoever registers it again.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from registry.channels.state import SortedNames
from registry.commands import Deleted
from registry.errors import InvalidSchema, SchemaNotFound, SchemaTooComplex, SubjectNotFound, VersionNotFound
from registry.events import AnySchemaEvent, SchemaConfigured, SchemaDeleted, SchemaRegistered
from registry.records import Level, Mode, Reference, SchemaConfig, SchemaType, SchemaVersion
from registry.replies import Place
from registry.schemas.checks import References

DEFAULT_LEVEL: Level = "BACKWARD"
DEFAULT_MODE: Mode = "READWRITE"
LATEST = -1
MAX_ID = 2**31 - 1
"""Clients send ids in four bytes."""
GLOBAL = ""
MAX_REFERENCES = 256
"""Of one schema, with those that they refer to in turn: checking takes longer with the square of it."""
NO_CONFIG = SchemaConfig()
_WANTED: dict[Deleted, tuple[bool, ...]] = {"without": (False,), "with": (False, True), "only": (True,)}
T = TypeVar("T")


class Subject(Struct):
    versions: dict[int, SchemaVersion] = field(default_factory=dict)
    by_identity: dict[str, list[int]] = field(default_factory=dict)
    by_text: dict[tuple[SchemaType, str], int] = field(default_factory=dict)

    def visible(self, deleted: Deleted = "without") -> list[SchemaVersion]:
        wanted = _WANTED[deleted]
        return [version for version in self.versions.values() if version.is_deleted in wanted]


class SchemaCatalog:
    def __init__(self) -> None:
        self.last_id = 0
        self.configs: dict[str, SchemaConfig] = {}
        self.modes: dict[str, Mode] = {}
        self._revisions: dict[str, int] = {}
        self._subjects: dict[str, Subject] = {}
        self._names = SortedNames(self._subjects)
        self._places: dict[int, dict[tuple[str, int], None]] = {}
        self._ids: dict[str, int] = {}
        self._by_guid: dict[str, int] = {}
        self._by_hash: dict[str, dict[int, None]] = {}
        self._referrers: dict[tuple[str, int], dict[tuple[str, int], None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    # -- change --------------------------------------------------------------------------------------------

    def evolve(self, event: AnySchemaEvent) -> None:
        self._revisions[event.subject] = event.revision
        if isinstance(event, SchemaRegistered):
            self.add(event.schema)
        elif isinstance(event, SchemaDeleted):
            self._delete(event)
        elif isinstance(event, SchemaConfigured):
            _set(self.configs, event.subject, event.config)
        else:
            _set(self.modes, event.subject, event.mode)

    def restore(
        self,
        schemas: Iterable[SchemaVersion],
        *,
        last_id: int,
        configs: Mapping[str, SchemaConfig],
        modes: Mapping[str, Mode],
        revision: int,
    ) -> None:
        for version in schemas:
            self.add(version)
            self._revisions[version.subject] = revision
        self.last_id = max(self.last_id, last_id)
        self.configs, self.modes = dict(configs), dict(modes)

    def add(self, version: SchemaVersion) -> None:
        subject = self._subjects.get(version.subject)
        if subject is None:
            subject = self._subjects[version.subject] = Subject()
            self._names.add(version.subject)
        place = (version.subject, version.version)
        key = identity_of(version)
        is_last = version.version > next(reversed(subject.versions), 0)
        subject.versions[version.version] = version
        if not is_last:
            subject.versions = dict(sorted(subject.versions.items()))
        subject.by_identity.setdefault(key, []).append(version.version)
        if not version.is_deleted and not (version.references or version.metadata or version.rule_set):
            subject.by_text[version.schema_type, version.schema] = version.version
        self.last_id = max(self.last_id, version.schema_id)
        self._places.setdefault(version.schema_id, {})[place] = None
        self._ids.setdefault(key, version.schema_id)
        self._by_guid.setdefault(version.guid, version.schema_id)
        self._by_hash.setdefault(version.schema_hash, {})[version.schema_id] = None
        for reference in version.references:
            self._referrers.setdefault((reference.subject, reference.version), {})[place] = None

    def _delete(self, event: SchemaDeleted) -> None:
        subject = self._subjects[event.subject]
        version = subject.versions[event.version]
        text = (version.schema_type, version.schema)
        if subject.by_text.get(text) == event.version:
            del subject.by_text[text]
        if not event.permanent:
            subject.versions[event.version] = msgspec.structs.replace(version, is_deleted=True)
            return
        place, key = (event.subject, event.version), identity_of(version)
        del subject.versions[event.version]
        subject.by_identity[key].remove(event.version)
        if not subject.versions:
            del self._subjects[event.subject]
        places = self._places[version.schema_id]
        del places[place]
        if not places:
            del self._places[version.schema_id]
            self._forget_id(version, key)
        for reference in version.references:
            target = (reference.subject, reference.version)
            referrers = self._referrers.get(target, {})
            referrers.pop(place, None)
            if not referrers:
                self._referrers.pop(target, None)

    def _forget_id(self, version: SchemaVersion, key: str) -> None:
        ids = self._by_hash[version.schema_hash]
        del ids[version.schema_id]
        if not ids:
            del self._by_hash[version.schema_hash]
        if self._ids[key] == version.schema_id:
            del self._ids[key], self._by_guid[version.guid]
            for other in ids:
                if identity_of(self.by_id(other, "")) == key:
                    self._ids.setdefault(key, other)
                    self._by_guid.setdefault(version.guid, other)

    # -- look --------------------------------------------------------------------------------------------

    def revision(self, subject: str) -> int:
        """Of the newest event about the subject."""
        return self._revisions.get(subject, 0)

    def page(
        self, *, prefix: str, wanted: Callable[[Subject], bool], after: str, limit: int
    ) -> tuple[list[str], str | None]:
        """Names of subjects of the wanted kind."""
        found: list[str] = []
        following: str | None = after
        while following is not None and len(found) < limit:
            names, following = self._names.page(prefix=prefix, after=following, limit=limit)
            for position, name in enumerate(names):
                if wanted(self._subjects[name]):
                    found.append(name)
                    if len(found) == limit:
                        return found, name if position + 1 < len(names) or following is not None else None
        return found, following

    @property
    def subject_count(self) -> int:
        """How many subjects have a version that is not deleted."""
        return sum(any(not one.is_deleted for one in each.versions.values()) for each in self._subjects.values())

    def every(self) -> list[SchemaVersion]:
        return [version for subject in self._subjects.values() for version in subject.versions.values()]

    def subject(self, name: str, deleted: Deleted = "without") -> Subject:
        """The subject, if it has a version of the wanted kind."""
        found = self._subjects.get(name)
        if found is None or not found.visible(deleted):
            raise SubjectNotFound(f"no schema is registered under subject {name!r}", subject=name)
        return found

    def peek(self, name: str) -> Subject:
        """The subject, or an empty one."""
        return self._subjects.get(name) or Subject()

    def version(self, subject: str, number: int | None, deleted: Deleted = "without") -> SchemaVersion:
        """The newest is the newest that is not deleted, whatever else is looked among."""
        found = self.subject(subject, deleted)
        visible = found.visible(deleted)
        live = visible if deleted == "without" else found.visible()
        if number is None or number == LATEST:
            if live:
                return live[-1]
            number = LATEST
        for version in visible:
            if version.version == number:
                return version
        raise VersionNotFound(
            f"subject {subject!r} has no version {number}",
            subject=subject,
            version=number,
            newest=visible[-1].version,
        )

    def by_id(self, schema_id: int, asked: str) -> SchemaVersion:
        places = self._places.get(schema_id)
        if not places:
            raise SchemaNotFound(f"no schema has {asked}", asked=asked)
        subject, number = min(places)
        return self._subjects[subject].versions[number]

    def by_guid(self, guid: str) -> SchemaVersion:
        return self.by_id(self._by_guid.get(guid, 0), f"GUID {guid!r}")

    def by_hash(self, schema_hash: str) -> SchemaVersion:
        """Of several contents with one hash (other metadata or rules), the oldest."""
        return self.by_id(min(self._by_hash.get(schema_hash, (0,))), f"hash {schema_hash!r}")

    def knows_hash(self, schema_hash: str) -> bool:
        return schema_hash in self._by_hash

    def id_of(self, identity: str) -> int:
        """The content's id, or the one that it would get."""
        return self._ids.get(identity, self.last_id + 1)

    def places(self, schema_id: int) -> list[Place]:
        return [
            Place(subject=subject, version=number, is_deleted=self._subjects[subject].versions[number].is_deleted)
            for subject, number in sorted(self._places.get(schema_id, ()))
        ]

    def referrers(self, subject: str, number: int, deleted: Deleted = "without") -> list[SchemaVersion]:
        """Return the versions of the wanted kind that refer to this one."""
        found = (self._subjects[s].versions[v] for s, v in self._referrers.get((subject, number), ()))
        return [version for version in found if deleted == "with" or version.is_deleted == (deleted == "only")]

    # -- settings ------------------------------------------------------------------------------------------

    def config(self, subject: str) -> SchemaConfig:
        """The config that holds for a subject: its own and, where that says nothing, that of all."""
        own, overall = self.configs.get(subject), self.configs.get(GLOBAL)
        if own is None or overall is None:
            return own or overall or NO_CONFIG
        said = {field: value for field, value in msgspec.structs.asdict(own).items() if value is not None}
        return msgspec.structs.replace(overall, **said)

    def level(self, subject: str) -> Level:
        return self.config(subject).compatibility or DEFAULT_LEVEL

    def mode(self, subject: str) -> Mode:
        overall = self.modes.get(GLOBAL, DEFAULT_MODE)
        return overall if overall == "READONLY_OVERRIDE" else self.modes.get(subject, overall)

    # -- references ----------------------------------------------------------------------------------------

    def pin(self, references: Iterable[Reference], deleted: Deleted = "without") -> list[Reference]:
        """Return references to exact versions, of which `deleted` says whether they may be softly deleted."""
        pinned = []
        for reference in references:
            try:
                version = self.version(reference.subject, reference.version, deleted)
            except SchemaNotFound as missing:
                raise InvalidSchema(
                    f"Invalid schema: reference {reference.name!r}: {missing.message}", reference=reference.name
                ) from None
            pinned.append(msgspec.structs.replace(reference, version=version.version))
        return pinned

    def texts(self, references: Iterable[Reference]) -> References:
        """Return the texts that references mean, and those that they refer to in turn, by name.

        Where a name means two versions, the nearer one counts.
        """
        texts: dict[str, str] = {}
        waiting = list(references)
        for reference in waiting:  # which grows meanwhile
            if reference.name not in texts:
                if len(texts) == MAX_REFERENCES:
                    raise SchemaTooComplex(f"the schema exceeds the budget references = {MAX_REFERENCES}")
                version = self.version(reference.subject, reference.version, "with")
                texts[reference.name] = version.schema
                waiting += version.references
        return tuple(sorted(texts.items()))


def identity_of(version: SchemaVersion) -> str:
    return identity(version.schema_type, version.schema_hash, version.references, version.metadata, version.rule_set)


def identity(
    schema_type: SchemaType, schema_hash: str, references: list[Reference], metadata: object, rule_set: object
) -> str:
    """What makes two schemas one: a digest of all that takes part."""
    if not (references or metadata or rule_set):
        return f"{schema_type}:{schema_hash}"
    extras = msgspec.json.encode([references, metadata, rule_set], order="sorted")
    return f"{schema_type}:{schema_hash}:{hashlib.sha256(extras).hexdigest()}"


def guid_of(key: str) -> str:
    """A GUID in the usual form, derived from the identity."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _set(settings: dict[str, T], subject: str, value: T | None) -> None:
    if value is None:
        settings.pop(subject, None)
    else:
        settings[subject] = value
