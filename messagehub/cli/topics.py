"""`messagehub topics`: list, describe, keep, delete."""

import re
from typing import Annotated, Any

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import duration, echo, echo_fields, echo_json, echo_table, instant
from messagehub.cli.session import connected
from messagehub.cli.subcommands import ListingGroup
from messagehub.durations import seconds_of

app = typer.Typer(
    name="topics",
    cls=ListingGroup,
    help="List kept topics; keep, describe, delete one.",
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]
_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def age(text: str) -> float:
    """Seconds, or a number with s, m, h or d."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def size(text: str) -> int:
    """Bytes, or a number with k, M or G."""
    found = re.fullmatch(r"([0-9]+)([kmg]?)b?", text.lower())
    if found is None or not int(found[1]):
        raise typer.BadParameter(f"{text!r} is not a size such as 4096, 64M or 1G.")
    return int(found[1]) * _SIZES[found[2]]


@app.command(name="list", cls=HubCommand)
def list_topics(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Only those that match, e.g. orders.>")] = ">",
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List kept topics; the default when no other word is given."""
    with connected(endpoint, dir, timeout) as hub:
        found = [hub.topic(topic.name).describe() for topic in hub.topics(pattern)]
    if as_json:
        echo_json([_plain(one) for one in found])
    elif not found:
        echo("no kept topics yet" if pattern == ">" else f"no kept topic matches {pattern!r}")
    else:
        echo_table(
            ("TOPIC", "MESSAGES", "BYTES", "FIRST", "NEXT", "OLDEST", "KEEPS"),
            [
                (
                    one.topic.name,
                    one.messages,
                    one.size_bytes,
                    one.first_offset,
                    one.topic.next_offset,
                    instant(one.oldest_at) if one.oldest_at is not None else None,
                    _bounds(one.topic.keep),
                )
                for one in found
            ],
        )


@app.command(cls=HubCommand)
def describe(
    name: Name, endpoint: Endpoint = None, dir: Dir = None, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Show a kept topic and how much of it there is."""
    with connected(endpoint, dir, timeout) as hub:
        found = hub.topic(name).describe()
    if as_json:
        echo_json(_plain(found))
    else:
        echo_fields(
            {
                "topic": found.topic.name,
                "keeps": _bounds(found.topic.keep),
                "messages": found.messages,
                "bytes": found.size_bytes,
                "first offset": found.first_offset,
                "next offset": found.topic.next_offset,
                "oldest": instant(found.oldest_at) if found.oldest_at is not None else None,
                "created": instant(found.topic.created_at),
            }
        )


@app.command(cls=HubCommand)
def keep(
    name: Name,
    *,
    messages: Annotated[int | None, typer.Option(min=1, help="The newest so many. Default: any number.")] = None,
    bytes: Annotated[
        int | None, typer.Option("--bytes", parser=size, metavar="SIZE", help="At most so much, e.g. 1G. Default: 64M.")
    ] = None,
    age: Annotated[
        float | None, typer.Option("--age", parser=age, metavar="TIME", help="None older than that, e.g. 12h or 7d.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Change the bounds of a topic that is kept.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Store what is published to a topic from now on, within bounds."""
    from registry.records import Keep

    bounds = Keep(messages=messages, seconds=age, **({} if bytes is None else {"size_bytes": bytes}))
    with connected(endpoint, dir, timeout) as hub:
        kept = hub.topic(name).keep(bounds, replace=replace)
    if as_json:
        echo_json(kept)
    else:
        echo(f"topic {kept.name} is kept: {_bounds(kept.keep)}")


@app.command(cls=HubCommand)
def delete(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Keep a topic no longer, and forget what was kept."""
    with connected(endpoint, dir, timeout) as hub:
        if not yes:
            found = hub.topic(name).describe()
            typer.confirm(f"Delete topic {name} with {found.messages} messages?", abort=True, err=True)
        hub.topic(name).delete()
    if as_json:
        echo_json({"topic": name})
    else:
        echo(f"topic {name} is no longer kept")


def _plain(found: Any) -> dict[str, Any]:
    from msgspec import to_builtins

    plain: dict[str, Any] = to_builtins(found)
    del plain["type"]
    return plain


def _bounds(bounds: Any) -> str:
    said = [f"{bounds.messages} messages"] if bounds.messages is not None else []
    said.append(f"{bounds.size_bytes} bytes")
    if bounds.seconds is not None:
        said.append(duration(bounds.seconds))
    return ", ".join(said)
