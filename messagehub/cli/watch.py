"""`messagehub watch`: what happens, as it happens."""

from typing import TYPE_CHECKING, Annotated

import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout, known_channels
from messagehub.cli.output import complain, echo, echo_json_line, table_line
from messagehub.cli.session import TURN_SECONDS, Interrupt, connected, connections, interrupt
from messagehub.display.values import instant, short, shown
from messagehub.errors import BrokerTimeout
from registry import events, names, records

if TYPE_CHECKING:
    from messagehub.client.watch import Watch
    from messagehub.hub import MessageHub


def watch(
    channel: Annotated[
        str | None,
        typer.Argument(metavar="CHANNEL", help="Only this channel. Default: all.", autocompletion=known_channels),
    ] = None,
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Print events as they come, one a line, until Ctrl-C.

    Goes on when the broker restarts; what happened while none answered is not shown. With --json: JSON lines.
    """
    if channel is not None:
        channel = names.check_channel(names.logical(channel))
    with interrupt() as interrupted, connected(endpoint, dir, timeout) as hub, hub.watch(channel) as watched:
        if not watched.wait_current(hub.settings.request_timeout_seconds):
            raise BrokerTimeout("the broker answers, but its events do not arrive in time")
        complain(f"messagehub: watching {channel or _number(watched)} from revision {watched.revision}")
        _follow(hub, watched, interrupted, as_json=as_json)


def _follow(hub: "MessageHub", watched: "Watch", interrupted: Interrupt, *, as_json: bool) -> None:
    is_lost, seen, missed = False, connections(hub), 0
    while not interrupted.has_come:
        event = watched.get(TURN_SECONDS)
        if not is_lost and not hub.is_connected:
            is_lost = True
            complain("messagehub: the broker is gone; waiting for it to come back")
        if watched.is_current and connections(hub) != seen:
            is_lost, seen = False, connections(hub)
            complain(f"messagehub: connected again; watching from revision {watched.revision}")
        if watched.missed != missed:
            complain(f"messagehub: {watched.missed - missed} events came faster than they were read and are lost")
            missed = watched.missed
        if event is not None:
            if as_json:
                echo_json_line(event)
            else:
                echo(line(event))


def line(event: events.AnyChannelEvent) -> str:
    """When, which revision, what, where, and the details that this kind of event has."""
    return f"{instant(event.at)}  {event.revision}  {shown(event.channel)}  {kind(event)}  {details(event)}".rstrip()


def kind(event: events.AnyChannelEvent) -> str:
    return str(event.__struct_config__.tag).lower().replace("_", " ")


def details(event: events.AnyChannelEvent) -> str:
    match event:
        case events.ProducerRegistered(producer=producer):
            schema = f"{shown(short(producer.schema_hash))} {producer.schema_version}".rstrip()
            return (
                f"{shown(producer.producer_id)} shm={shown(producer.shm_name)} schema={shown(schema)}{_who(producer)}"
            )
        case events.ConsumerRegistered(consumer=consumer):
            group = f" group={shown(consumer.group)}" if consumer.group else ""
            return f"{shown(consumer.consumer_id)}{group}{_who(consumer)}"
        case events.ProducerUnregistered():
            return f"{shown(event.producer_id)} ({event.reason})"
        case events.ConsumerUnregistered():
            return f"{shown(event.consumer_id)} ({event.reason})"
        case events.ProducerStalled() | events.ProducerRecovered():
            return shown(event.producer_id)
        case events.ConsumerStalled() | events.ConsumerRecovered():
            return shown(event.consumer_id)
        case events.TableCommitted(table=table):
            return shown(table_line(table) or "no table is left")
        case events.ChannelConflicted(reason=reason):
            return shown(reason or "no longer")
        case _:
            return ""


def _who(member: records.Producer | records.Consumer) -> str:
    return f" by pid {member.pid} on {shown(member.host)}" if member.pid is not None else ""


def _number(watched: "Watch") -> str:
    count = len(watched.channels)
    return f"all channels ({count} now)"
