"""`messagehub trace`: who asked what, and what was answered; and where one message of a topic went."""

from typing import Annotated

import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_json, echo_table
from messagehub.cli.session import certain, connected
from messagehub.cli.trace_message import show_message
from messagehub.display.values import duration, instant
from messagehub.errors import HubError


class ExchangeNotFound(HubError):
    code = "EXCHANGE_NOT_FOUND"


def trace(
    correlation_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The request's id. Default: the newest exchanges.")
    ] = None,
    *,
    topic: Annotated[str | None, typer.Option(help="Follow one message of this topic instead.")] = None,
    offset: Annotated[int | None, typer.Option(min=1, help="With --topic: of a retained one.")] = None,
    publisher: Annotated[
        str | None, typer.Option(metavar="HEX", help="With --topic, of a plain one: message.publisher.hex().")
    ] = None,
    number: Annotated[int | None, typer.Option(min=0, help="With --publisher: message.number.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show the newest exchanges with the broker, or those with one id; with --topic, where one message went.

    A message is named by --offset in a retained topic, by --publisher and --number in a plain one. The processes that
    subscribe are asked, which takes a few seconds.
    """
    if any(given is not None for given in (topic, offset, publisher, number)):
        show_message(topic, correlation_id, offset, publisher, number, endpoint, dir, timeout, as_json=as_json)
        return
    with connected(endpoint, dir, timeout) as hub:
        exchanges = certain(hub, hub.trace(correlation_id, limit=limit))
    if correlation_id is not None and not exchanges:
        raise ExchangeNotFound(
            f"the broker remembers no exchange with id {correlation_id!r}: it keeps the newest ones only,"
            " and forgets them at a restart"
        )
    if as_json:
        echo_json(exchanges)
        return
    if not exchanges:
        echo("no exchanges yet")
        return
    echo_table(
        ("AT", "REQUEST", "ABOUT", "ANSWER", "TOOK", "ID", "SIDE", "PEER"),
        [
            (
                instant(one["at"]),
                one["request"],
                f"{one['name']} at {one['offset']}" if one.get("offset") else one.get("name"),
                one["answer"],
                duration(one["seconds"]),
                one["correlation_id"],
                one["side"],
                one.get("peer"),
            )
            for one in exchanges
        ],
        whole=("ID",),
    )
