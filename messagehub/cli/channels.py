"""`messagehub channels`: list, describe, create, destroy; delete a consumer group."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Endpoint, Json, SchemaFile, Timeout, known_channels
from messagehub.cli.output import echo, echo_fields, echo_json, echo_table, ring_line, table_line
from messagehub.cli.schema_input import OwnSchemaType, read_own_schema
from messagehub.cli.session import connected, found_in, opened
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import instant, moment, short
from messagehub.errors import BrokerUnavailable

if TYPE_CHECKING:
    from registry.replies import ChannelDescription

app = typer.Typer(
    name="channels",
    cls=ListingGroup,
    help="List channels; describe, create, destroy one; delete a consumer group.",
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The channel's name.", autocompletion=known_channels)]


@app.command(name="list", cls=HubCommand)
def list_channels(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only names that start with this.")] = "",
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List channels; the default when no other word is given.

    Without a broker: those that the directory of this host knows, or 3 if it knows none.
    """
    with opened(endpoint, dir, timeout) as hub:
        found = found_in(hub, lambda: hub.channels(prefix))
    if as_json:
        echo_json(found)
    elif not found:
        echo(f"no channel starts with {prefix!r}" if prefix else "no channels yet")
    else:
        echo_table(
            ("CHANNEL", "STATUS", "PRODUCERS", "CONSUMERS", "SCHEMA", "VERSION", "DECLARED", "REVISION"),
            [
                (
                    one.channel,
                    one.status,
                    one.producer_count,
                    one.consumer_count,
                    short(one.schema_hash),
                    one.schema_version,
                    one.declared,
                    one.revision,
                )
                for one in found
            ],
        )


@app.command(cls=HubCommand)
def describe(
    name: Name, endpoint: Endpoint = None, dir: Dir = None, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Show a channel and its members."""
    with opened(endpoint, dir, timeout) as hub:
        found = found_in(hub, lambda: hub.describe(name))
    if found is None:
        raise BrokerUnavailable("the broker ended before it answered")
    if as_json:
        echo_json({"status": found.status, **_plain(found.channel)})
    else:
        _print(found)


@app.command(cls=HubCommand)
def create(
    name: Name,
    *,
    schema_hash: Annotated[str | None, typer.Option(help="Producers must bring this schema.")] = None,
    schema: SchemaFile = None,
    schema_type: OwnSchemaType = None,
    version: Annotated[str | None, typer.Option(help="The schema's version, as its users call it.")] = None,
    access: Annotated[
        Literal["exclusive", "shared"] | None, typer.Option(help="One producer, or several. Default: they decide.")
    ] = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Declare a channel.

    It stays when it has no members, and what is declared binds its producers.
    """
    document, known_type = read_own_schema(schema, schema_type)
    declaration: dict[str, Any] = {"schema_hash": schema_hash, "schema_version": version, "access": access}
    declaration |= {"schema": document, "schema_type": known_type}
    with connected(endpoint, dir, timeout) as hub:
        made = hub.create_channel(name, **declaration)
    if as_json:
        echo_json({"channel": made.channel, "schema_id": made.schema_id, "revision": made.revision})
    else:
        echo(f"channel {made.channel} is declared (revision {made.revision})")


@app.command(cls=HubCommand)
def destroy(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: Annotated[bool, typer.Option("--data", help="Remove the channel's table too.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """End a channel; its members are told. One that has a table is destroyed only with --data."""
    with connected(endpoint, dir, timeout) as hub:
        if not yes:
            found = hub.describe(name)
            members = (
                f"{len(found.channel.producers)} producers, {len(found.channel.consumers)} consumers" if found else ""
            )
            table = found.channel.table if found else None
            if table is not None and data:
                members += f", a table of {table.rows} rows"
            typer.confirm(f"Destroy channel {name} ({members})?", abort=True, err=True)
        ended = hub.destroy_channel(name, data=data)
    if as_json:
        echo_json({"channel": ended.channel, "revision": ended.revision})
    else:
        echo(f"channel {ended.channel} is destroyed (revision {ended.revision})")


@app.command(cls=HubCommand)
def evict(
    name: Name,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="The producer's or consumer's id.")],
    *,
    role: Annotated[
        Literal["producer", "consumer"] | None, typer.Option(help="Which one, where both have this id.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """End the registration of a producer or consumer: it gets an error, and no producer waits for it any more.

    For a while (lease_seconds) the same process is refused under the same name.
    """
    with connected(endpoint, dir, timeout) as hub:
        if not yes:
            typer.confirm(f"Evict {member} from channel {name}?", abort=True, err=True)
        gone = hub.evict(name, member, role=role)
    if as_json:
        echo_json({"channel": gone.channel, "member_id": gone.member_id, "role": gone.role, "revision": gone.revision})
    else:
        place = "" if gone.pid is None else f" (pid {gone.pid} on host {gone.host})"
        echo(f"{gone.role} {gone.member_id}{place} is evicted from channel {gone.channel} (revision {gone.revision})")


@app.command(name="delete-group", cls=HubCommand)
def delete_group(
    name: Name,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's name.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Forget how far a group that nobody is in has read, so that no producer waits for it. Needs no broker."""
    if not yes:
        typer.confirm(f"Forget what group {group} of channel {name} has not read?", abort=True, err=True)
    with opened(endpoint, dir, timeout) as hub:
        hub.delete_group(name, group)
    if as_json:
        echo_json({"channel": name, "group": group})
    else:
        echo(f"group {group} of channel {name} is forgotten")


def _plain(channel: Any) -> dict[str, Any]:
    from msgspec.structs import asdict

    return asdict(channel)


def _print(found: "ChannelDescription") -> None:
    channel = found.channel
    echo_fields(
        {
            "channel": channel.name,
            "status": found.status,
            "declared": channel.declared,
            "schema hash": channel.schema_hash,
            "schema version": channel.schema_version,
            "schema id": channel.schema_id,
            "schema": channel.schema,
            "access": channel.access,
            "priority": channel.priority,
            "table": table_line(channel.table),
            "config": ring_line(channel.config),
            "metadata": channel.metadata,
            "created": instant(channel.created_at),
            "revision": channel.revision,
        }
    )
    if channel.producers:
        echo("")
        echo_table(
            ("PRODUCER", "STATUS", "PID", "HOST", "RING", "SHM NAME", "SINCE", "ACCESS"),
            [
                (
                    *(p.producer_id, p.status, p.pid, p.host, ring_line(p.config)),
                    *(p.shm_name, moment(p.registered_at), p.access),
                )
                for p in channel.producers.values()
            ],
            whole=("RING",),
        )
    if channel.consumers:
        echo("")
        echo_table(
            ("CONSUMER", "STATUS", "PID", "HOST", "GROUP", "SINCE", "EXPECTS SCHEMA"),
            [
                (
                    c.consumer_id,
                    c.status,
                    c.pid,
                    c.host,
                    c.group,
                    moment(c.registered_at),
                    short(c.expected_schema_hash),
                )
                for c in channel.consumers.values()
            ],
        )
