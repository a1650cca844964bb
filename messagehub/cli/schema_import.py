"""One import of schemas and settings: many requests at once, in an order that the registry takes.

Rule 1: what is imported comes after what it refers to and after the versions before it.
Rule 2: a subject that is new takes its history as it was, with the ids and numbers that it had, in mode IMPORT. Where
another schema has the id it gets a new one, and the next number; references follow.
Rule 3: importing again changes nothing. A subject that was there before keeps its own rules and counts on: what they
refuse is reported.
Rule 4: however an import ends, every schema is told as imported, skipped, refused or left, and every subject has its
own settings again or is named in `unrestored`.
"""

from collections import Counter
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from messagehub.cli.request_tasks import RequestTasks, Steps
from messagehub.cli.schema_lines import SettingsLine, config_of, mode_of
from messagehub.errors import HubError, OperationNotPermitted, SchemaNotFound, SubjectNotFound
from registry import commands, replies
from registry.records import Mode, Reference, SchemaConfig, SchemaVersion

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

SubjectVersion = tuple[str, int]
Made = replies.SchemaRegistered | SchemaVersion


class SchemaImport:
    def __init__(self, hub: "MessageHub", schemas: list[SchemaVersion], settings: list[SettingsLine]) -> None:
        self.imported: list[dict[str, Any]] = []
        self.skipped: list[SubjectVersion] = []
        self.refused: list[dict[str, Any]] = []
        self.unrestored: list[str] = []
        self.failure: HubError | None = None
        """What ended the import before its end: a broker that is gone, or cannot write."""
        self._tasks = RequestTasks(hub)
        self._schemas = {(schema.subject, schema.version): schema for schema in schemas}
        self._settings = settings
        self._order = _ordered(self._schemas)
        self._subjects = {
            name: _Subject(name, versions) for name, versions in Counter(name for name, _ in self._schemas).items()
        }
        self._new_versions: dict[SubjectVersion, int] = {}
        self._answered = 0

    @property
    def left(self) -> int:
        """How many schemas and settings were not imported, skipped or refused."""
        return len(self._schemas) + len(self._settings) - self._answered

    def run(self, advance: Callable[[float], None], is_stopped: Callable[[], bool]) -> None:
        """Import until all is done, the broker fails or `is_stopped` says so. What was begun is completed first."""
        self._advance = advance
        while self._order.is_active() and not self._is_ending(is_stopped):
            for version in self._order.get_ready():
                self._tasks.add(self._import(self._schemas[version]))
            self._tasks.turn()
        self._finish()
        by_subject = [line for line in self._settings if line.subject is not None]
        of_all = [line for line in self._settings if line.subject is None]
        for lines in (by_subject, of_all):  # at last what holds for all: it may forbid the others
            for line in lines:
                self._tasks.add(self._configure(line))
            while self._tasks.is_busy and not self._is_ending(is_stopped):
                self._tasks.turn()
            self._finish()
        self._sort()

    def _is_ending(self, is_stopped: Callable[[], bool]) -> bool:
        return is_stopped() or self._tasks.failure is not None

    def _finish(self) -> None:
        """Complete what was begun, then give back the settings that are still changed."""
        self._tasks.drop_waiting()
        self._tasks.run()
        self.failure = self.failure or self._tasks.failure
        for subject in self._subjects.values():
            if subject.is_changed:
                self._tasks.add(self._restore(subject))
        self._tasks.run()
        self.unrestored = [subject.name for subject in self._subjects.values() if subject.is_changed]

    def _sort(self) -> None:
        """Answers come in any order; reports do not vary."""
        position = {version: number for number, version in enumerate(sorted(self._schemas))}
        self.imported.sort(key=lambda one: (one["subject"], one["version"]))
        self.skipped.sort()
        self.refused.sort(key=lambda one: position.get((one["subject"], one["version"]), len(position)))

    # -- one schema ----------------------------------------------------------------------------------------

    def _import(self, schema: SchemaVersion) -> Steps[None]:
        subject = self._subjects[schema.subject]
        try:
            made = yield from self._register(subject, schema)
        except HubError as error:
            self._refuse(schema.subject, schema.version, error)
        else:
            self._new_versions[schema.subject, schema.version] = made.version
            if made.version in subject.before:
                self.skipped.append((schema.subject, made.version))
            else:
                about = {"subject": schema.subject, "version": made.version}
                self.imported.append({**about, "id": made.schema_id, "was": schema.schema_id})
        self._answer()
        self._order.done((schema.subject, schema.version))
        subject.left -= 1
        if not subject.left:
            yield from self._restore(subject)

    def _register(self, subject: "_Subject", schema: SchemaVersion) -> Steps[Made]:
        command = commands.RegisterSchema(
            subject=subject.name,
            schema=schema.schema,
            schema_type=schema.schema_type,
            references=[self._mapped(reference) for reference in schema.references],
            metadata=schema.metadata,
            rule_set=schema.rule_set,
        )
        wanted = msgspec.structs.replace(command, schema_id=schema.schema_id, version=schema.version)
        if not subject.is_known:
            subject.before = yield from _versions_of(subject.name)
            subject.is_known = True
        if subject.before:
            return (yield from _added(command, wanted))
        return (yield from self._taken_over(subject, command, wanted))

    def _taken_over(
        self, subject: "_Subject", command: commands.RegisterSchema, wanted: commands.RegisterSchema
    ) -> Steps[Made]:
        """Register a schema with its id and number, or with the next free ones if another schema has that id."""
        if not subject.is_changed:
            subject.mode = yield from mode_of(subject.name)
            subject.is_changed = True
        if not subject.is_importing:
            # Without force it is refused where somebody else has registered a version since we looked.
            yield commands.SetSchemaMode(subject=subject.name, mode="IMPORT", force=subject.is_free)
            subject.is_importing = True
        try:
            return (yield wanted)  # type: ignore[no-any-return]  # its reply
        except OperationNotPermitted:
            subject.is_importing = False
            yield commands.SetSchemaMode(subject=subject.name, mode="READWRITE")
            if not subject.is_free:
                subject.config = yield from config_of(subject.name)
                subject.is_free = True
                yield from _configured(subject.name, SchemaConfig(compatibility="NONE"))
            return (yield command)  # type: ignore[no-any-return]  # its reply

    def _restore(self, subject: "_Subject") -> Steps[None]:
        """Give back the settings that the subject had."""
        if subject.is_changed:
            if subject.is_free:
                yield commands.SetSchemaMode(subject=subject.name, mode="READWRITE")
                yield from _configured(subject.name, subject.config)
            yield commands.SetSchemaMode(subject=subject.name, mode=subject.mode)
            subject.is_changed = subject.is_importing = subject.is_free = False

    def _configure(self, line: SettingsLine) -> Steps[None]:
        try:
            if line.config is not None:
                yield commands.ConfigureSchemas(subject=line.subject, config=line.config)
            if line.mode is not None:
                yield commands.SetSchemaMode(subject=line.subject, mode=line.mode, force=True)
        except HubError as error:
            self._refuse(line.subject or "all subjects", 0, error)
        self._answer()

    def _answer(self) -> None:
        self._answered += 1
        self._advance(1)

    def _refuse(self, subject: str, version: int, error: HubError) -> None:
        """Note a refusal. An error that a later try may not meet is none: it ends the import."""
        if error.retryable:
            raise error
        self.refused.append({"subject": subject, "version": version, "code": error.code, "message": error.message})

    def _mapped(self, reference: Reference) -> Reference:
        version = self._new_versions.get((reference.subject, reference.version), reference.version)
        return msgspec.structs.replace(reference, version=version)


class _Subject:
    """A subject of the import: what it had before, and what the import has changed about it."""

    def __init__(self, name: str, left: int) -> None:
        self.name = name
        self.left = left
        self.is_known = False
        self.before: set[int] = set()
        self.is_changed = False
        self.mode: Mode | None = None
        self.is_importing = False
        self.is_free = False
        """Whether its level is NONE, instead of what `config` says."""
        self.config: SchemaConfig | None = None


def _added(command: commands.RegisterSchema, wanted: commands.RegisterSchema) -> Steps[Made]:
    """To a subject that was there. What it has is known by just this content, whatever its config would add."""
    names = ("subject", "schema", "schema_type", "references", "metadata", "rule_set")
    try:
        found = (yield commands.LookUpSchema(**{name: getattr(command, name) for name in names})).schema
        if (found.metadata, found.rule_set) == (command.metadata, command.rule_set):
            return found  # type: ignore[no-any-return]  # of a reply
    except SchemaNotFound:
        pass
    try:
        return (yield command)  # type: ignore[no-any-return]  # its reply
    except OperationNotPermitted as refused:
        if refused.details.get("mode") != "IMPORT":
            raise
    return (yield wanted)  # type: ignore[no-any-return]  # its reply


def _configured(subject: str, config: SchemaConfig | None) -> Steps[None]:
    """This and nothing else."""
    if (yield from config_of(subject)) is not None:
        yield commands.ConfigureSchemas(subject=subject)
    if config is not None:
        yield commands.ConfigureSchemas(subject=subject, config=config)


def _versions_of(subject: str) -> Steps[set[int]]:
    """Softly deleted ones too: a subject that has any is not new."""
    try:
        found = yield commands.ListSchemas(subject=subject, deleted="with")
    except SubjectNotFound:
        return set()
    return {version.version for version in found.versions}


def _ordered(schemas: dict[SubjectVersion, SchemaVersion]) -> TopologicalSorter[SubjectVersion]:
    """Return what says which schemas may be registered by now."""
    sorter: TopologicalSorter[SubjectVersion] = TopologicalSorter()
    previous: dict[str, SubjectVersion] = {}
    for version in sorted(schemas):
        needed = [(reference.subject, reference.version) for reference in schemas[version].references]
        sorter.add(version, *(other for other in needed if other in schemas))
        if version[0] in previous:
            sorter.add(version, previous[version[0]])
        previous[version[0]] = version
    try:
        sorter.prepare()
    except CycleError as error:
        around = ", ".join(f"{subject} version {version}" for subject, version in error.args[1])
        raise typer.BadParameter(f"its schemas refer to each other in a circle: {around}", param_hint="FILE") from None
    return sorter
