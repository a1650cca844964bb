"""Options that every command spells the same way."""

import logging
import math
from pathlib import Path
from typing import Annotated, Any

import typer

MOST_SECONDS = 86_400.0
COMPLETION_SECONDS = 1.0


def seconds(text: str) -> float:
    """A duration that may be waited for: more than nothing, at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_SECONDS:
        raise typer.BadParameter(f"{text!r} is not a number of seconds above 0 and up to {MOST_SECONDS:.0f}.")
    return value


def start_of(text: str) -> str | int:
    """As a consumer's `start`: a word, or how many of the last items, as a negative number."""
    if text in ("latest", "oldest"):
        return text
    if text.startswith("-") and text[1:].isdecimal() and int(text):
        return int(text)
    raise typer.BadParameter(f"{text!r} is neither latest nor oldest nor a negative number, -N for the last N items.")


def known_channels(incomplete: str) -> list[str]:
    """Return the channels that begin so, for the shell's completion. The environment says which hub."""
    from messagehub.hub import MessageHub

    log = logging.getLogger("messagehub")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a completion prints nothing but names
    try:
        with MessageHub() as hub:
            return [found.channel for found in hub.channels(incomplete, timeout=COMPLETION_SECONDS)]
    finally:
        log.setLevel(level)


Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Where the broker listens. Default: the broker of the directory. [env: MESSAGEHUB_ENDPOINT]",
    ),
]
Dir = Annotated[
    Path | None,
    # Whether it can be read is found where it is read, which says who may.
    typer.Option("--dir", metavar="DIR", readable=False, help="The hub's directory. [env: MESSAGEHUB_DIR]"),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", parser=seconds, help="How long to wait for an answer. Default: 5."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, for scripts.")]
SchemaFile = Annotated[
    str | None, typer.Option("--schema", metavar="FILE", help="The schema itself, from a file, or - for stdin.")
]
Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.", autocompletion=known_channels)]
Start = Annotated[
    Any,
    typer.Option(
        "--start",
        metavar="latest|oldest|-N",
        parser=start_of,
        help="Only what comes from now on, all that is still there too, or the last N items too.",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Go on when all producers have ended; else end with them.")
]
