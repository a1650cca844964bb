"""`messagehub tables`: list committed tables, drop or compact one; works without a broker for those of this host."""

from typing import Annotated

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.hosts import absent_among, labelled
from messagehub.cli.options import Dir, Endpoint, Json, Timeout, known_channels
from messagehub.cli.output import echo, echo_json, echo_table
from messagehub.cli.session import settings_for
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import moment, size

app = typer.Typer(
    name="tables",
    cls=ListingGroup,
    help="List committed tables; drop or compact one.",
    rich_markup_mode=None,
)


@app.command(name="list", cls=HubCommand)
def list_tables(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only channels that start with this.")] = "",
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List the newest table of each channel; the default when no other word is given."""
    from messagehub.hub import MessageHub

    with MessageHub(settings_for(endpoint, dir, timeout)) as hub:
        found = hub.tables(prefix)
        absent = {} if as_json else absent_among(hub, {one.table.host for one in found})
    if as_json:
        echo_json(found)
    elif not found:
        echo(f"no tables of channels that start with {prefix!r}" if prefix else "no tables")
    else:
        columns = "CHANNEL ROWS SIZE SINCE SCHEMA VERSION HOST GENERATION PARTS USER PID APPLICATION"
        echo_table(
            columns.split(),
            [
                (
                    one.channel,
                    one.table.rows,
                    size(one.table.size_bytes),
                    moment(one.table.committed_at),
                    one.table.schema,
                    one.table.schema_version,
                    labelled(one.table.host, absent),
                    one.table.generation,
                    one.table.parts,
                    one.table.user,
                    one.table.pid,
                    one.table.application,
                )
                for one in found
            ],
        )


@app.command(cls=HubCommand)
def drop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The channel's name.", autocompletion=known_channels)],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Only the registry's record, of a table whose host is gone.")
    ] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Remove a channel's table, all its generations, from the memory of its host and from the registry."""
    from messagehub.hub import MessageHub

    with MessageHub(settings_for(endpoint, dir, timeout)) as hub:
        if not yes:
            typer.confirm(f"Drop the table of channel {name}?", abort=True, err=True)
        dropped = hub.drop_table(name, forget=forget)
    table = dropped.table
    if as_json:
        echo_json({"channel": dropped.channel, "generation": table.generation, "rows": table.rows, "host": table.host})
    else:
        echo(f"the table of channel {dropped.channel} is dropped (generation {table.generation}, {table.rows} rows)")


@app.command(cls=HubCommand)
def compact(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The channel's name.", autocompletion=known_channels)],
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Pack the small parts of a channel's table, on this host, into large ones: a new generation with the same rows."""
    from messagehub.hub import MessageHub

    with MessageHub(settings_for(endpoint, dir, timeout)) as hub:
        packed = hub.compact_table(name)
    if as_json:
        echo_json(
            {
                "channel": name,
                "generation": packed.generation if packed else None,
                "parts": len(packed.parts) if packed else None,
            }
        )
    elif packed is None:
        echo(f"the table of channel {name} has no small parts to pack")
    else:
        parts = f"{len(packed.parts)} part{'s' * (len(packed.parts) != 1)}"
        echo(f"the table of channel {name} has {parts} now (generation {packed.generation}, {packed.rows} rows)")
