"""`messagehub publish`: a message to all who subscribe to a topic now, or to a retained topic."""

import sys
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo_json_line
from messagehub.cli.payloads import header_of, value_of
from messagehub.cli.session import connected


def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, e.g. orders.eu.")],
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
    lines: Annotated[bool, typer.Option("--lines", help="Each line of stdin is a message, as it comes.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Publish a message, from the argument or from stdin.

    Only who subscribes now gets it. A retained topic (`messagehub topics keep`) also stores it.
    With --json: a line of JSON for each message that was sent.
    """
    if lines and message is not None:
        raise typer.BadParameter("--lines reads stdin: leave MESSAGE out.")
    headers = dict(header_of(text) for text in header or [])
    with connected(endpoint, dir, timeout) as hub:
        for text in _texts(message, lines=lines):
            payload = value_of(text) if format == "json" else text
            number = hub.publish(topic, payload, headers=headers, timeout=timeout)
            if as_json:
                echo_json_line({"topic": topic, "number": number})


def _texts(message: str | None, *, lines: bool) -> Iterator[bytes]:
    if message is not None:
        yield message.encode()
    elif lines:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
    else:
        yield sys.stdin.buffer.read()
