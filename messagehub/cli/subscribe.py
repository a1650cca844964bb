"""`messagehub subscribe`: the messages of topics as they come."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import complain, echo, echo_json_line
from messagehub.cli.payloads import fields_of, kind_of, text_of
from messagehub.cli.session import TURN_SECONDS, connected, interrupt
from messagehub.cli.topics import since_of
from messagehub.display.values import instant
from messagehub.errors import HubError, ReceiveTimeout

if TYPE_CHECKING:
    from messagehub.topics.messages import Message


def subscribe(
    patterns: Annotated[
        list[str],
        typer.Argument(metavar="PATTERN...", help="Topics; * is any one component, a last > one or more."),
    ],
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET|TIME|PLACE",
            help="Retained topics only: from an offset, a time (ISO), an age (10m, 2h, 7d), or oldest, newest, last.",
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Share the messages with all others of this group and patterns.")
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A retained topic only: go on where this name was, and share messages with others of it.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this many messages.")] = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Print messages as they come, one a line with the kind of their payload, until Ctrl-C or --count.

    Goes on when the broker restarts. What is lost is counted on stderr. With --json: JSON lines.
    With --since what retained topics hold comes first, and then what is published, each message once.
    With --durable a message is acknowledged when it was printed; --since is where a new name begins (oldest).
    """
    lost = 0
    begin = None if since is None else since_of(since, "--since")
    with (
        interrupt() as interrupted,
        connected(endpoint, dir, timeout) as hub,
        hub.subscribe(patterns, since=begin, group=group, durable=durable, timeout=timeout) as subscription,
    ):
        complain(f"messagehub: subscribed to {subscription.pattern}")
        while not interrupted.has_come and subscription.received != count:
            try:
                message = subscription.receive(TURN_SECONDS)
            except ReceiveTimeout:
                continue
            if subscription.lost != lost:
                complain(f"messagehub: {subscription.lost - lost} messages were lost")
                lost = subscription.lost
            try:
                _print(message, as_json)
            except HubError as unreadable:  # whoever published it must not end this
                complain(f"messagehub: {unreadable.message}")
            if durable is not None:
                message.ack()


def _print(message: "Message", as_json: bool) -> None:
    if as_json:
        echo_json_line(_fields(message))
    else:
        payload = message.payload
        headers = f"  headers={text_of(message.headers)}" if message.headers else ""
        echo(f"{instant(message.sent_at)}  {message.topic}  {kind_of(payload)}  {text_of(payload)}{headers}")


def _fields(message: "Message") -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": message.topic,
        "number": message.number,
        "sent_at": message.sent_at,
        "headers": message.headers,
    }
    if message.offset is not None:
        fields["offset"] = message.offset
    return fields | fields_of(message.payload)
