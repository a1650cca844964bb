"""`messagehub schemas export` and `import`: a whole registry as JSON lines."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.failures import NO_BROKER, REFUSED, report
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import complain, echo, echo_json
from messagehub.cli.progress import progress
from messagehub.cli.request_tasks import RequestTasks, Steps
from messagehub.cli.schema_import import SchemaImport
from messagehub.cli.schema_lines import (
    SchemaLine,
    SettingsLine,
    opened,
    read_lines,
    settings_of,
    write_line,
)
from messagehub.cli.session import connected, interrupt
from messagehub.display.values import counted, shown
from messagehub.errors import BrokerUnavailable
from registry import commands, replies
from registry.records import SchemaVersion

if TYPE_CHECKING:
    from messagehub.hub import MessageHub


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
        out = sys.stdout if file == "-" else stack.enter_context(opened(file, "x"))
        advance = stack.enter_context(progress("exporting", None))
        if not prefix:
            write_line(out, _settings(hub, [None])[None])
        for page in _pages(hub, prefix):
            settings = _settings(hub, list(page))
            for subject, versions in page.items():
                for version in versions:
                    write_line(out, SchemaLine(version))
                if settings[subject].config is not None or settings[subject].mode is not None:
                    write_line(out, settings[subject])
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
    """Register what an export holds, in the order that references need; 1 when something is refused or left."""
    lines = read_lines(file)
    schemas = [line.schema for line in lines if isinstance(line, SchemaLine)]
    settings = [line for line in lines if isinstance(line, SettingsLine)]
    with connected(endpoint, dir, timeout) as hub, progress("importing", len(schemas) + len(settings)) as advance:
        importing = SchemaImport(hub, schemas, settings)
        with interrupt() as interrupted:
            importing.run(advance, lambda: interrupted.has_come)
    if as_json:
        echo_json(_told(importing))
    else:
        for subject, number in importing.skipped:
            echo(f"skipped: {shown(subject)} version {number} is there already")
        for one in importing.imported:
            if one["id"] != one["was"]:
                echo(f"{shown(one['subject'])} version {one['version']} has id {one['id']}: {one['was']} is taken")
        echo(f"imported {len(importing.imported)}, skipped {len(importing.skipped)}, refused {len(importing.refused)}")
    for one in importing.refused:
        complain(f"refused: {shown(one['subject'])} version {one['version']}: {shown(one['message'])}")
    for subject in importing.unrestored:
        complain(
            f"{shown(subject)} may still be in mode IMPORT or at level NONE: set them with `messagehub schemas config`"
        )
    if importing.left:
        complain(f"left: {counted(importing.left, 'line')}. Import the file again: what is there already is skipped")
    if importing.failure is not None:
        report(importing.failure, as_json=False)
        raise typer.Exit(NO_BROKER if isinstance(importing.failure, BrokerUnavailable) else REFUSED)
    if importing.refused or importing.left:
        raise typer.Exit(REFUSED)


def _told(importing: SchemaImport) -> dict[str, Any]:
    told: dict[str, Any] = {
        "imported": importing.imported,
        "skipped": [{"subject": subject, "version": number} for subject, number in importing.skipped],
        "refused": importing.refused,
        "left": importing.left,
        "unrestored": importing.unrestored,
    }
    if importing.failure is not None:
        told["error"] = {"code": importing.failure.code, "message": importing.failure.message}
    return told


def _pages(hub: "MessageHub", prefix: str) -> Iterator[dict[str, list[SchemaVersion]]]:
    """Yield the versions of some subjects at a time."""
    after: str | None = ""
    while after is not None:
        page = hub.ask(commands.ExportSchemas(prefix=prefix, after=after))
        assert isinstance(page, replies.SchemaExport)
        found: dict[str, list[SchemaVersion]] = {}
        for version in page.schemas:
            found.setdefault(version.subject, []).append(version)
        yield found
        after = page.next


def _settings(hub: "MessageHub", subjects: list[str] | list[None]) -> dict[str | None, SettingsLine]:
    """Return what is set for each of the subjects; None is for all of them."""
    found: dict[str | None, SettingsLine] = {}

    def find(subject: str | None) -> Steps[None]:
        found[subject] = yield from settings_of(subject)

    tasks = RequestTasks(hub)
    for subject in subjects:
        tasks.add(find(subject))
    tasks.run()
    if tasks.failure is not None:
        raise tasks.failure
    return found
