"""`messagehub request`: ask whoever serves an address."""

import sys
from typing import Annotated, Any, Literal

import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_json_line
from messagehub.cli.payloads import fields_of, header_of, text_of, value_of
from messagehub.cli.session import connected


def request(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="id:…, name:…, service:… or pool:….")],
    message: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="The message. Default: all of stdin.")
    ] = None,
    *,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    format: Annotated[
        Literal["text", "json"], typer.Option(help="Send the text as it is, or the JSON value that it says.")
    ] = "text",
    priority: Annotated[Literal["high", "normal", "low"], typer.Option(help="Who is handled first.")] = "normal",
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            help="Attempts after the first, where that is safe, with pauses that grow from 20 ms to 1 s.",
        ),
    ] = 0,
    stream: Annotated[bool, typer.Option("--stream", help="Print partial results as they come.")] = False,
    no_reply: Annotated[bool, typer.Option("--no-reply", help="Only send it: done when the worker has it.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send a request, from the argument or from stdin, and print the reply, one line each.

    With --json: JSON lines; with --stream each says whether it is the reply.
    """
    if stream and no_reply:
        raise typer.BadParameter("--stream wants replies, --no-reply none.")
    headers = dict(header_of(text) for text in header or [])
    text = message.encode() if message is not None else sys.stdin.buffer.read()
    payload = value_of(text) if format == "json" else text
    options: dict[str, Any] = {"headers": headers, "priority": priority, "retries": retries, "timeout": timeout}
    with connected(endpoint, dir, timeout) as hub:
        if no_reply:
            hub.send(address, payload, **options)
        elif stream:
            streamed = hub.stream(address, payload, **options)
            for partial in streamed:
                _print(partial, as_json, is_reply=False)
            _print(streamed.result, as_json, is_reply=True)
        else:
            _print(hub.request(address, payload, **options), as_json)


def _print(payload: Any, as_json: bool, **fields: bool) -> None:
    if as_json:
        echo_json_line(fields_of(payload) | fields)
    else:
        echo(text_of(payload))
