"""`messagehub schemas export` and `import`: a whole registry as JSON lines.

Rule 1: what is imported comes after what it refers to and after the versions before it.
Rule 2: a subject that is new takes its history as it was, with the ids and numbers that it had, in mode IMPORT. Where
        another schema has the id it gets a new one, and the next number; references follow.
Rule 3: importing again changes nothing. A subject that was there before keeps its own rules and counts on: what they
        refuse is reported.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from messagehub.cli.failures import REFUSED
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import complain, echo, echo_json, shown
from messagehub.cli.progress import progress
from messagehub.cli.session import connected
from messagehub.errors import (
    CompatibilityNotSet,
    HubError,
    ModeNotSet,
    OperationNotPermitted,
    SchemaNotFound,
    SubjectNotFound,
)
from registry import commands, replies
from registry.records import Mode, Reference, SchemaConfig, SchemaVersion

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

Place = tuple[str, int]
Made = replies.SchemaRegistered | SchemaVersion


class SchemaLine(msgspec.Struct, tag_field="line", tag="schema"):
    schema: SchemaVersion


class SettingsLine(msgspec.Struct, tag_field="line", tag="settings", omit_defaults=True):
    """Of a subject, or with none of the whole registry."""

    subject: str | None = None
    config: SchemaConfig | None = None
    mode: Mode | None = None


Line = SchemaLine | SettingsLine


def export(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where to write, which must not exist yet, or - for stdout.")
    ] = "-",
    *,
    prefix: Annotated[str, typer.Option(help="Only subjects that start with this.")] = "",
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Write all schemas that are not deleted, and all settings, as JSON lines."""
    counts = {"schemas": 0, "subjects": 0}
    with ExitStack() as stack:
        hub = stack.enter_context(connected(endpoint, dir, timeout))
        out = sys.stdout if file == "-" else stack.enter_context(_opened(file, "x"))
        advance = stack.enter_context(progress("exporting", None))
        if not prefix:
            _write(out, _settings(hub, None))
        for subject, versions in _subjects(hub, prefix):
            for version in versions:
                _write(out, SchemaLine(version))
            settings = _settings(hub, subject)
            if settings.config is not None or settings.mode is not None:
                _write(out, settings)
            counts["subjects"] += 1
            counts["schemas"] += len(versions)
            advance(len(versions))
    if as_json and file != "-":
        echo_json(counts)
    complain(f"exported {counts['schemas']} schemas of {counts['subjects']} subjects")


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `schemas export` wrote, or - for stdin.")],
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Register what an export holds, in the order that references need; 1 when something is refused."""
    lines = _read(file)
    schemas = _ordered([line.schema for line in lines if isinstance(line, SchemaLine)])
    settings = [line for line in lines if isinstance(line, SettingsLine)]
    with (
        connected(endpoint, dir, timeout) as hub,
        progress("importing", len(schemas) + len(settings)) as advance,
        Importing(hub) as importing,
    ):
        for schema in schemas:
            importing.register(schema)
            advance(1)
        importing.restore()
        for line in settings:
            importing.configure(line)
            advance(1)
    if as_json:
        echo_json(
            {
                "imported": importing.imported,
                "skipped": [{"subject": subject, "version": number} for subject, number in importing.skipped],
                "refused": importing.refused,
            }
        )
    else:
        for subject, number in importing.skipped:
            echo(f"skipped: {shown(subject)} version {number} is there already")
        for one in importing.imported:
            if one["id"] != one["was"]:
                echo(f"{shown(one['subject'])} version {one['version']} has id {one['id']}: {one['was']} is taken")
        echo(f"imported {len(importing.imported)}, skipped {len(importing.skipped)}, refused {len(importing.refused)}")
    for one in importing.refused:
        complain(f"refused: {shown(one['subject'])} version {one['version']}: {shown(one['message'])}")
    if importing.refused:
        raise typer.Exit(REFUSED)


class Importing:
    """One import; leaving the block gives back the settings that it changed, however it ends."""

    def __init__(self, hub: "MessageHub") -> None:
        self.imported: list[dict[str, Any]] = []
        self.skipped: list[Place] = []
        self.refused: list[dict[str, Any]] = []
        self._hub = hub
        self._before: dict[str, set[int]] = {}
        self._places: dict[Place, int] = {}
        self._settings: dict[str, SettingsLine] = {}
        self._open: set[str] = set()

    def __enter__(self) -> "Importing":
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def register(self, schema: SchemaVersion) -> None:
        subject = schema.subject
        command = commands.RegisterSchema(
            subject=subject,
            schema=schema.schema,
            schema_type=schema.schema_type,
            references=[self._mapped(reference) for reference in schema.references],
            metadata=schema.metadata,
            rule_set=schema.rule_set,
        )
        if subject not in self._before:
            self._before[subject] = self._versions(subject)
        try:
            made = self._added(command) if self._before[subject] else self._taken_over(command, schema)
        except HubError as error:
            if error.retryable:
                raise
            self._refuse(subject, schema.version, error)
            return
        self._places[subject, schema.version] = made.version
        if made.version in self._before[subject]:
            self.skipped.append((subject, made.version))
        else:
            place = {"subject": subject, "version": made.version}
            self.imported.append({**place, "id": made.schema_id, "was": schema.schema_id})

    def configure(self, line: SettingsLine) -> None:
        try:
            if line.config is not None:
                self._hub.ask(commands.ConfigureSchemas(subject=line.subject, config=line.config))
            if line.mode is not None:
                self._hub.ask(commands.SetSchemaMode(subject=line.subject, mode=line.mode, force=True))
        except HubError as error:
            if error.retryable:
                raise
            self._refuse(line.subject or "all subjects", 0, error)

    def restore(self) -> None:
        for subject, before in self._settings.items():
            self._hub.ask(commands.SetSchemaMode(subject=subject, mode="READWRITE"))
            self._configure(subject, before.config)
            self._hub.ask(commands.SetSchemaMode(subject=subject, mode=before.mode))
        self._settings.clear()
        self._open.clear()

    def _taken_over(self, command: commands.RegisterSchema, schema: SchemaVersion) -> replies.SchemaRegistered:
        """With its id and number; or, when another schema has that id, with those that come next."""
        subject = schema.subject
        if subject not in self._settings:
            self._settings[subject] = _settings(self._hub, subject)
        wanted = msgspec.structs.replace(command, schema_id=schema.schema_id, version=schema.version)
        if subject not in self._open:
            self._hub.ask(commands.SetSchemaMode(subject=subject, mode="IMPORT", force=True))
            self._open.add(subject)
        try:
            return self._ask(wanted)
        except OperationNotPermitted:
            self._open.remove(subject)
            self._hub.ask(commands.SetSchemaMode(subject=subject, mode="READWRITE"))
            self._configure(subject, SchemaConfig(compatibility="NONE"))
            return self._ask(command)

    def _added(self, command: commands.RegisterSchema) -> Made:
        """To a subject that was there. What it has is known by just this content, whatever its config would add."""
        names = ("subject", "schema", "schema_type", "references", "metadata", "rule_set")
        lookup = commands.LookUpSchema(**{name: getattr(command, name) for name in names})
        try:
            found = self._hub.ask(lookup)
        except SchemaNotFound:
            return self._ask(command)
        assert isinstance(found, replies.SchemaFound)
        has_the_same = (found.schema.metadata, found.schema.rule_set) == (command.metadata, command.rule_set)
        return found.schema if has_the_same else self._ask(command)

    def _configure(self, subject: str, config: SchemaConfig | None) -> None:
        """This and nothing else."""
        if _settings(self._hub, subject).config is not None:
            self._hub.ask(commands.ConfigureSchemas(subject=subject))
        if config is not None:
            self._hub.ask(commands.ConfigureSchemas(subject=subject, config=config))

    def _ask(self, command: commands.RegisterSchema) -> replies.SchemaRegistered:
        made = self._hub.ask(command)
        assert isinstance(made, replies.SchemaRegistered)
        return made

    def _mapped(self, reference: Reference) -> Reference:
        version = self._places.get((reference.subject, reference.version), reference.version)
        return msgspec.structs.replace(reference, version=version)

    def _versions(self, subject: str) -> set[int]:
        """Softly deleted ones too: a subject that has any is not new."""
        try:
            found = self._hub.ask(commands.ListSchemas(subject=subject, deleted="with"))
        except SubjectNotFound:
            return set()
        assert isinstance(found, replies.SchemaList)
        return {version.version for version in found.versions}

    def _refuse(self, subject: str, version: int, error: HubError) -> None:
        said = {"subject": subject, "version": version, "code": error.code, "message": error.message}
        self.refused.append(said)


def _subjects(hub: "MessageHub", prefix: str) -> Iterator[tuple[str, list[SchemaVersion]]]:
    after: str | None = ""
    while after is not None:
        page = hub.ask(commands.ExportSchemas(prefix=prefix, after=after))
        assert isinstance(page, replies.SchemaExport)
        found: dict[str, list[SchemaVersion]] = {}
        for version in page.schemas:
            found.setdefault(version.subject, []).append(version)
        yield from found.items()
        after = page.next


def _settings(hub: "MessageHub", subject: str | None) -> SettingsLine:
    """Only what is set."""
    line = SettingsLine(subject)
    try:
        config = hub.ask(commands.RequestSchemaConfig(subject=subject))
        assert isinstance(config, replies.SchemaConfigFound)
        line.config = config.config
    except CompatibilityNotSet:
        line.config = None
    try:
        mode = hub.ask(commands.RequestSchemaMode(subject=subject))
        assert isinstance(mode, replies.SchemaModeFound)
        line.mode = mode.mode
    except ModeNotSet:
        line.mode = None
    return line


def _ordered(schemas: list[SchemaVersion]) -> list[SchemaVersion]:
    by_place = {(schema.subject, schema.version): schema for schema in schemas}
    sorter: TopologicalSorter[Place] = TopologicalSorter()
    previous: dict[str, Place] = {}
    for place in sorted(by_place):
        needed = [(reference.subject, reference.version) for reference in by_place[place].references]
        sorter.add(place, *(other for other in needed if other in by_place))
        if place[0] in previous:
            sorter.add(place, previous[place[0]])
        previous[place[0]] = place
    try:
        return [by_place[place] for place in sorter.static_order()]
    except CycleError as error:
        around = ", ".join(f"{subject} version {version}" for subject, version in error.args[1])
        raise typer.BadParameter(f"its schemas refer to each other in a circle: {around}", param_hint="FILE") from None


def _read(file: str) -> list[Line]:
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    with ExitStack() as stack:
        source = sys.stdin if file == "-" else stack.enter_context(_opened(file, "r"))
        number = 0
        try:
            for text in source:
                number += 1
                if text.strip():
                    lines.append(decoder.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise typer.BadParameter(f"line {number} of {file} is not of an export: {error}") from None
    return lines


def _opened(file: str, mode: str) -> IO[str]:
    try:
        return Path(file).open(mode, encoding="utf-8")
    except FileExistsError:
        raise typer.BadParameter(f"{file} exists already: choose another name.", param_hint="FILE") from None
    except OSError as error:
        raise typer.BadParameter(f"cannot open {file}: {error.strerror}", param_hint="FILE") from None


def _write(out: IO[str], line: Line) -> None:
    out.write(msgspec.json.encode(line).decode() + "\n")
