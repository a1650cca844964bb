"""`messagehub schemas check`, `diff`, `delete` and `config`."""

from difflib import unified_diff
from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.failures import REFUSED
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_fields, echo_json
from messagehub.cli.schema_input import SchemaTypeOption, read_schema, readable
from messagehub.cli.session import connected
from messagehub.display.values import shown
from messagehub.errors import CompatibilityNotSet, ModeNotSet, SubjectNotFound
from registry.records import Level, Mode

if TYPE_CHECKING:
    from messagehub.hub import MessageHub
    from registry.records import SchemaVersion
    from registry.replies import SchemaChecked, TouchedMember

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="What the schema is registered under.")]


def check(
    subject: Subject,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The schema's file, or - for stdin.")],
    *,
    schema_type: SchemaTypeOption = "JSON",
    version: Annotated[int | None, typer.Option(min=1, help="Compare with this version only.")] = None,
    level: Annotated[Level | None, typer.Option(help="Instead of the subject's level.")] = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Say whether a schema could be registered, and who is attached now; 1 when it could not."""
    from registry.commands import CheckSchema

    schema = read_schema(file, schema_type)
    command = CheckSchema(subject=subject, schema=schema, schema_type=schema_type, version=version, level=level)
    with connected(endpoint, dir, timeout) as hub:
        checked = _checked(hub, command)
    if as_json:
        fields = ("is_compatible", "level", "differences", "touched", "revision")
        echo_json({field: getattr(checked, field) for field in fields})
    else:
        echo(f"{'compatible' if checked.is_compatible else 'incompatible'} ({checked.level})")
        for found in checked.differences:
            _echo_differences(found.differences, f"version {found.version}: ")
        _echo_touched(checked.touched)
    if not checked.is_compatible:
        raise typer.Exit(REFUSED)


def diff(
    subject: Subject,
    *,
    old: Annotated[int, typer.Option("--from", min=1, help="The version to start from.")] = 1,
    new: Annotated[int | None, typer.Option("--to", min=1, help="The version to arrive at. Default: newest.")] = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show what changes from one version to another: for readers of old data, and for old readers."""
    from registry.commands import CheckSchema

    with connected(endpoint, dir, timeout) as hub:
        before, after = (hub.schema(subject, version=number).schema for number in (old, new))
        checked = {
            level: _checked(hub, CheckSchema.of(after, version=before.version, level=level))
            for level in ("BACKWARD", "FORWARD")
        }
    found = {
        level.lower(): [difference for entry in one.differences for difference in entry.differences]
        for level, one in checked.items()
    }
    if as_json:
        echo_json({"subject": subject, "from": before.version, "to": after.version, **found})
        return
    echo(f"{shown(subject)}: version {before.version} to {after.version}")
    for level, differences in found.items():
        reader, writer = (after, before) if level == "backward" else (before, after)
        said = f"{len(differences)} difference{'' if len(differences) == 1 else 's'}" if differences else "compatible"
        echo(f"{level}, version {reader.version} reads what version {writer.version} has written: {said}")
        _echo_differences(differences, "  ")
    _echo_changed_lines(before, after)


def delete(
    subject: Subject,
    *,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version. Default: the subject.")] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Delete permanently what was softly deleted before.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Even if a live channel uses it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Hide a subject or one version of it, or with --permanent remove what is hidden."""
    from registry.commands import DeleteSchema
    from registry.replies import SchemaDeleted

    what = f"subject {subject}" if version is None else f"version {version} of subject {subject}"
    if not yes:
        typer.confirm(f"Delete {what}{' permanently' if permanent else ''}?", abort=True, err=True)
    with connected(endpoint, dir, timeout) as hub:
        done = hub.ask(DeleteSchema(subject=subject, version=version, permanent=permanent, force=force))
    assert isinstance(done, SchemaDeleted)
    if as_json:
        fields = ("subject", "versions", "touched", "revision")
        echo_json({field: getattr(done, field) for field in fields})
    else:
        versions = ", ".join(map(str, done.versions))
        echo(f"deleted{' permanently' if permanent else ''}: {shown(done.subject)} version {versions}")
        _echo_touched(done.touched)


def config(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="Default: what holds for all.")] = None,
    *,
    compatibility: Annotated[Level | None, typer.Option(help="The compatibility level for new versions.")] = None,
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Store new schemas in their normal form.")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="Whether schemas may be registered and deleted.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove its settings, so that the defaults hold.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Mode IMPORT even where schemas are registered.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show or change the compatibility level, normalisation and mode, of a subject or of all."""
    from registry import commands, replies
    from registry.records import SchemaConfig

    touched: list[replies.TouchedMember] = []
    if unset and (compatibility, normalize, mode) != (None, None, None):
        raise typer.BadParameter("--unset goes with no other setting.")
    if force and mode != "IMPORT":
        raise typer.BadParameter("--force goes with --mode IMPORT.")
    with connected(endpoint, dir, timeout) as hub:
        if unset:
            _unset(hub, subject)
        if compatibility is not None or normalize is not None:
            wanted = SchemaConfig(compatibility=compatibility, normalize=normalize)
            changed = hub.ask(commands.ConfigureSchemas(subject=subject, config=wanted))
            assert isinstance(changed, replies.SchemaConfigFound)
            touched = changed.touched
        if mode is not None:
            hub.ask(commands.SetSchemaMode(subject=subject, mode=mode, force=force))
        found = _settings(hub, subject)
        inherited = _inherited(hub, subject)
    if as_json:
        echo_json({"subject": subject, **found, "inherited": inherited, "touched": touched})
    else:
        echo_fields({name: f"{value}{_OF_ALL if name in inherited else ''}" for name, value in found.items()})
        _echo_touched(touched)


def _settings(hub: "MessageHub", subject: str | None) -> dict[str, Any]:
    from registry import commands, replies

    config = hub.ask(commands.RequestSchemaConfig(subject=subject, default_to_global=True))
    mode = hub.ask(commands.RequestSchemaMode(subject=subject, default_to_global=True))
    assert isinstance(config, replies.SchemaConfigFound)
    assert isinstance(mode, replies.SchemaModeFound)
    return {
        "compatibility": config.config.compatibility,
        "normalize": bool(config.config.normalize),
        "mode": mode.mode,
    }


_OF_ALL = " (not its own: what holds for all)"


def _inherited(hub: "MessageHub", subject: str | None) -> list[str]:
    """Return the settings that the subject has not of its own, so that those which hold for all are shown."""
    from registry import commands

    if subject is None:
        return []
    inherited: list[str] = []
    try:
        hub.ask(commands.RequestSchemaConfig(subject=subject))
    except (CompatibilityNotSet, SubjectNotFound):
        inherited += ["compatibility", "normalize"]
    try:
        hub.ask(commands.RequestSchemaMode(subject=subject))
    except (ModeNotSet, SubjectNotFound):
        inherited.append("mode")
    return inherited


def _unset(hub: "MessageHub", subject: str | None) -> None:
    """Each of the two, if it is set at all; the mode first, which may be in the way."""
    from registry import commands

    pairs: tuple[tuple[commands.Command, commands.Command], ...] = (
        (commands.RequestSchemaMode(subject=subject), commands.SetSchemaMode(subject=subject)),
        (commands.RequestSchemaConfig(subject=subject), commands.ConfigureSchemas(subject=subject)),
    )
    for request, removal in pairs:
        try:
            hub.ask(request)
        except (CompatibilityNotSet, ModeNotSet):
            continue
        hub.ask(removal)


def _checked(hub: "MessageHub", command: Any) -> "SchemaChecked":
    from registry.replies import SchemaChecked

    reply = hub.ask(command)
    assert isinstance(reply, SchemaChecked)
    return reply


def _echo_differences(differences: list[Any], prefix: str) -> None:
    for one in differences:
        echo(f"{prefix}{one.kind} at {shown(one.path or '/')}: {shown(one.message)}")
        if one.counterexample:
            echo(f"{' ' * len(prefix)}for example {shown(one.counterexample)}")


def _echo_changed_lines(before: "SchemaVersion", after: "SchemaVersion") -> None:
    """Print the lines that differ, with two around them: a change that breaks nobody is a change too."""
    old, new = (readable(one.schema_type, one.schema).splitlines() for one in (before, after))
    changed = list(unified_diff(old, new, n=2, lineterm=""))[2:]  # the first two name files, which there are none of
    echo("")
    for line in changed or ["no line differs"]:
        echo(shown(line))


def _echo_touched(touched: "list[TouchedMember]") -> None:
    said = {True: ": would break", False: ": goes on", None: ""}
    for one in touched:
        who = f"{one.role} {shown(one.member_id)} (host {shown(one.host)}, pid {shown(one.pid)})"
        echo(f"attached now: {who}{said[one.would_break]}")
