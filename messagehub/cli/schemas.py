"""`messagehub schemas`: list, get and register; the other commands have files of their own."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from messagehub.cli import schema_changes, schema_transfer
from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_fields, echo_json, echo_table
from messagehub.cli.schema_input import SchemaTypeOption, read_schema, readable
from messagehub.cli.session import connected
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import short, shown
from messagehub.errors import SubjectNotFound

if TYPE_CHECKING:
    from messagehub.hub import MessageHub
    from registry.replies import SchemaVersionSummary

app = typer.Typer(
    name="schemas",
    cls=ListingGroup,
    help="List schemas; get, register, check, compare, delete and configure them; move all of them.",
    rich_markup_mode=None,
)


@app.command(name="list", cls=HubCommand)
def list_schemas(
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="Only the versions of this subject.")] = None,
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List subjects with their newest version, or all versions of one; the default when no other word is given.

    With --json and no SUBJECT: the names only.
    """
    with connected(endpoint, dir, timeout) as hub:
        if subject is not None:
            versions = hub.schema_versions(subject)
            found = [(subject, one) for one in versions]
        elif as_json:
            echo_json(hub.subjects())
            return
        else:
            found = [(name, one) for name in hub.subjects() if (one := _newest(hub, name)) is not None]
    if as_json:
        echo_json(versions)
    elif not found:
        echo("no schemas yet")
    else:
        echo_table(
            ("SUBJECT", "VERSION", "ID", "TYPE", "HASH"),
            [
                (
                    name,
                    one.version,
                    one.schema_id,
                    one.schema_type,
                    one.schema_hash if subject else short(one.schema_hash),
                )
                for name, one in found
            ],
        )


@app.command(cls=HubCommand)
def get(
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="Its newest version, or the one given.")
    ] = None,
    *,
    version: Annotated[int | None, typer.Option(min=1, help="A version of the subject.")] = None,
    schema_id: Annotated[int | None, typer.Option("--id", min=1, help="By id instead.")] = None,
    schema_hash: Annotated[str | None, typer.Option("--hash", help="By hash instead.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the schema's text, as it is stored.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show a schema, by subject (and version), id or hash."""
    if sum(given is not None for given in (subject, schema_id, schema_hash)) != 1:
        raise typer.BadParameter("give one of SUBJECT, --id and --hash.")
    if version is not None and subject is None:
        raise typer.BadParameter("--version goes with a SUBJECT.")
    if raw and as_json:
        raise typer.BadParameter("give either --raw or --json.")
    with connected(endpoint, dir, timeout) as hub:
        found = hub.schema(subject, version=version, schema_id=schema_id, schema_hash=schema_hash)
    one = found.schema
    if raw:
        echo(one.schema)
    elif as_json:
        echo_json({**asdict(one), "places": found.places})
    else:
        echo_fields(
            {
                "subject": one.subject,
                "version": one.version,
                "id": one.schema_id,
                "type": one.schema_type,
                "hash": one.schema_hash,
                "guid": one.guid,
                "references": [f"{other.name} = {other.subject} version {other.version}" for other in one.references],
                "registered as": [f"{place.subject} version {place.version}" for place in found.places],
            }
        )
        echo("")
        for line in readable(one.schema_type, one.schema).splitlines():
            echo(shown(line) if line else "")


@app.command(cls=HubCommand)
def register(
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="What the schema is registered under, e.g. a channel's name.")
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="The schema's file, or - for stdin.")],
    *,
    schema_type: SchemaTypeOption = "JSON",
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Register a schema; the same one again gets the same version and id."""
    schema = read_schema(file, schema_type)
    with connected(endpoint, dir, timeout) as hub:
        made = hub.register_schema(subject, schema, schema_type=schema_type)
    if as_json:
        echo_json({key: value for key, value in asdict(made).items() if key != "id"})
    else:
        echo(f"{shown(made.subject)} version {made.version}: id {made.schema_id}, hash {made.schema_hash}")


app.command(cls=HubCommand)(schema_changes.check)
app.command(cls=HubCommand)(schema_changes.diff)
app.command(cls=HubCommand)(schema_changes.delete)
app.command(cls=HubCommand)(schema_changes.config)
app.command(name="export", cls=HubCommand)(schema_transfer.export)
app.command(name="import", cls=HubCommand)(schema_transfer.import_)


def _newest(hub: "MessageHub", subject: str) -> "SchemaVersionSummary | None":
    """Return the newest version of the subject; None when it was deleted meanwhile."""
    try:
        return hub.schema_versions(subject)[-1]
    except SubjectNotFound:
        return None
