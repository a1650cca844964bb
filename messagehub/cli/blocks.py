"""`messagehub blocks`: what lies in shared memory; needs no broker."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.failures import REFUSED, HubCommand
from messagehub.cli.options import Dir, Json
from messagehub.cli.output import complain, echo, echo_fields, echo_json, echo_table
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import instant, size
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.shm.channel_directory.directory import Directory

app = typer.Typer(
    name="blocks",
    cls=ListingGroup,
    help="List what lies in shared memory; inspect, verify and clean it. Needs no broker.",
    rich_markup_mode=None,
)
Domain = Annotated[
    str | None,
    typer.Option("--domain", metavar="NAME", help="Which directory of channels. [env: MESSAGEHUB_DOMAIN]"),
]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Only channels that start with this.")]


@app.command(name="list", cls=HubCommand)
def list_blocks(prefix: Prefix = "", *, domain: Domain = None, dir: Dir = None, as_json: Json = False) -> None:
    """List rings and tables; the default when no other word is given."""
    from messagehub.channels.inventory import inventory

    directory = _directory(domain, dir)
    found = [block for block in inventory(directory) if block.channel.startswith(prefix)]
    if as_json:
        echo_json(found)
    elif not found:
        echo(_nothing(prefix))
    else:
        columns = ["channel", "state", *(["flaw"] if any(block.flaw for block in found) else [])]
        columns += ["size_bytes", "head", "readers", "pid", "kind", "format", "held", "skipped", "shm_name"]
        rows = [
            [size(block.size_bytes) if column == "size_bytes" else getattr(block, column) for column in columns]
            for block in found
        ]
        headings = ["SIZE" if column == "size_bytes" else column.replace("_", " ").upper() for column in columns]
        echo_table(headings, rows)


@app.command(cls=HubCommand)
def inspect(
    name: Annotated[str, typer.Argument(metavar="SHM_NAME", help="As `messagehub blocks` shows it.")],
    *,
    domain: Domain = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Show a block's header, or a table's manifest."""
    from messagehub.channels.inventory import header

    found = header(_directory(domain, dir), name)
    if as_json:
        echo_json(found)
    else:
        echo_fields(found | {"created_at": instant(found["created_at"])})


@app.command(cls=HubCommand)
def verify(prefix: Prefix = "", *, domain: Domain = None, dir: Dir = None, as_json: Json = False) -> None:
    """Compare payloads with their checksums, where they have one; 1 when one is wrong."""
    from messagehub.channels.inventory import inventory
    from messagehub.channels.inventory import verify as verify_block

    directory = _directory(domain, dir)
    blocks = [block for block in inventory(directory) if block.channel.startswith(prefix)]
    results = [verify_block(directory, block) for block in blocks]
    if as_json:
        echo_json(results)
    elif not results:
        echo(_nothing(prefix))
    else:
        rows = [(one.channel, one.shm_name, one.checked, one.result) for one in results]
        echo_table(("CHANNEL", "SHM NAME", "PAYLOADS CHECKED", "RESULT"), rows)
    if any(result.flaw for result in results):
        raise typer.Exit(REFUSED)


@app.command(cls=HubCommand)
def clean(
    *,
    now: Annotated[bool, typer.Option("--now", help="Also what is still within its linger time.")] = False,
    domain: Domain = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Remove what dead producers left. What somebody holds is never touched."""
    from messagehub.shm.channel_directory.cleaning import LINGER_SECONDS
    from messagehub.shm.channel_directory.cleaning import clean as clean_directory

    linger = 0.0 if now else LINGER_SECONDS
    done = clean_directory(_directory(domain, dir), now=time.time(), linger_seconds=linger)
    if as_json:
        echo_json({"producers": done.producers, "blocks": done.blocks, "busy": done.busy, "flaws": done.flaws})
        return
    echo(f"removed {len(done.producers)} dead producers and {len(done.blocks)} blocks")
    for channel in done.busy:
        echo(f"channel {channel} is being changed by somebody else: try again")
    for flaw in done.flaws:
        complain(f"left alone: {flaw}")


def _directory(domain: str | None, dir: Any) -> "Directory":
    from messagehub.shm.channel_directory.location import directory_of

    return directory_of(Settings.for_client(domain=domain, dir=dir))


def _nothing(prefix: str) -> str:
    return f"no blocks of channels that start with {prefix!r}" if prefix else "no blocks"
