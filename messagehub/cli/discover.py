"""`messagehub discover`: where a channel's data is."""

from typing import Annotated

import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_fields, echo_json, echo_table, table_line
from messagehub.cli.session import settings_for
from messagehub.errors import BrokerUnavailable, ChannelNotFound, ChannelNotReady


def discover(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait, up to the timeout, until it is active.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Find where a channel's data is, and its schema.

    0: found (see `status`: active, pending, stalled); 1: unknown, or with --wait not active in time; 3: no broker.
    """
    from messagehub.hub import MessageHub

    settings = settings_for(endpoint, dir, timeout)
    with MessageHub(settings) as hub:
        try:
            found = hub.discover(channel, wait=wait, required=True)
        except ChannelNotReady:
            if not hub.is_connected:
                raise BrokerUnavailable(f"no broker came up at {settings.endpoint} in time") from None
            raise
    if found is None:
        raise ChannelNotFound(f"nobody has registered channel {channel!r}", channel=channel)
    if as_json:
        echo_json(found)
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
            "consumers": found.consumer_count,
            "metadata": found.metadata,
            "source": found.source,
            "revision": found.revision,
        }
    )
    if found.producers:
        echo("")
        echo_table(
            ("PRODUCER", "STATUS", "SHM NAME", "CONFIG", "HOST", "PID"),
            [(p.producer_id, p.status, p.shm_name, p.config, p.host, p.pid) for p in found.producers],
        )
