"""`messagehub discover`: where a channel's data is."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from messagehub.cli.hosts import absent_among, labelled
from messagehub.cli.options import Channel, Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_fields, echo_json, echo_table, ring_line, table_line
from messagehub.cli.session import near_name, settings_for
from messagehub.display.values import counted
from messagehub.errors import BrokerUnavailable, ChannelNotFound, ChannelNotReady

if TYPE_CHECKING:
    from messagehub.channels.inventory import BlockInfo


def discover(
    channel: Channel,
    *,
    expected_schema: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Say too whether a reader of the schema with this hash can read it."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait, up to the timeout, until it is active.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Find where a channel's data is, and its schema.

    0: found (see `status`: active, pending, stalled); 1: unknown, or with --wait not active in time; 3: no broker.
    """
    from messagehub.channels.inventory import rings
    from messagehub.hub import MessageHub
    from messagehub.shm.channel_directory.location import directory_of

    settings = settings_for(endpoint, dir, timeout)
    with MessageHub(settings) as hub:
        try:
            found = hub.discover(channel, expected_schema=expected_schema, wait=wait, required=True)
        except BrokerUnavailable as error:
            known = f"the directory of this host does not know channel {channel!r}{near_name(hub, channel)}"
            raise BrokerUnavailable(f"{known}, and {error.message}", **error.details) from None
        except ChannelNotReady:
            if not hub.is_connected:
                raise BrokerUnavailable(f"no broker came up at {settings.endpoint} in time") from None
            raise
        if found is None:
            raise ChannelNotFound(f"nobody has registered channel {channel!r}", channel=channel)
        hosts = {found.table.host if found.table else None, *(producer.host for producer in found.producers)}
        absent = {} if as_json else absent_among(hub, hosts)
    local = [block for block in rings(directory_of(settings), found.channel) if block.state == "live"]
    if as_json:
        echo_json(msgspec.to_builtins(found) | {"readers": _readers(local)})
        return
    echo_fields(
        {
            "channel": found.channel,
            "status": found.status,
            "shm name": found.shm_name,
            "schema hash": found.schema_hash,
            "schema version": found.schema_version,
            "schema id": found.schema_id,
            "schema": found.schema,
            "table": table_line(found.table),
            **({} if found.compatible is None else {"compatible": found.compatible}),
            "consumers": found.consumer_count,
            "metadata": found.metadata,
            "source": found.source,
            "revision": found.revision,
        }
    )
    for name, health in sorted(absent.items()):
        echo(f"host {name} is {health}, so what it has cannot be read now: see `messagehub hosts`")
    for each in (difference for version in found.differences for difference in version.differences):
        echo(f"not compatible: {each.message}")
    if found.producers:
        echo("")
        echo_table(
            ("PRODUCER", "STATUS", "PID", "HOST", "RING", "SHM NAME", "METADATA"),
            [
                (p.producer_id, p.status, p.pid, labelled(p.host, absent), ring_line(p.config), p.shm_name, p.metadata)
                for p in found.producers
            ],
            whole=("RING",),
        )
    readers = _readers(local)
    if readers:
        echo("")
        columns = ("reader", "slots_held", "items_unread", "shm_name")
        echo_table(
            [column.replace("_", " ").upper() for column in columns],
            [[row["group"] or row["pid"], row["slots_held"], row["items_unread"], row["shm_name"]] for row in readers],
        )
    for block in local:
        if block.held_back is not None:
            echo(f"held back: {block.held_back}")
        if block.skipped:
            echo(f"skipped: {counted(block.skipped, 'item')}, because readers held every slot")


def _readers(blocks: "list[BlockInfo]") -> list[dict[str, Any]]:
    """Of this host. `items_unread`: written after the last item that the reader has read, overwritten ones included."""
    return [
        {
            "shm_name": block.shm_name,
            "pid": holder.pid,
            "group": holder.group,
            "members": holder.members,
            "slots_held": holder.held,
            "items_unread": holder.lag,
        }
        for block in blocks
        for holder in block.holders
    ]
