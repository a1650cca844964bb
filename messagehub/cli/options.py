"""Options that every command spells the same way."""

import logging
import math
from pathlib import Path
from typing import Annotated, Literal

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
    Literal["latest", "oldest"],
    typer.Option("--start", help="Only what comes from now on, or all that is still there."),
]
Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Go on when all producers have ended; else end with them.")
]
