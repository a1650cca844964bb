"""`messagehub topics`: list, describe, keep, delete; subscribers; durable positions."""

import datetime
import re
import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from messagehub.cli.failures import HubCommand
from messagehub.cli.options import Dir, Endpoint, Json, Timeout
from messagehub.cli.output import echo, echo_fields, echo_json, echo_table
from messagehub.cli.session import connected
from messagehub.cli.subcommands import ListingGroup
from messagehub.display.values import counted, duration, instant, moment
from messagehub.display.values import size as human_size
from messagehub.errors import HomeHostUnavailable
from messagehub.topics.durations import seconds_of

if TYPE_CHECKING:
    from messagehub import MessageHub
    from messagehub.topics.retained.positions import Since
    from registry import replies
    from registry.records import RetainedTopic

app = typer.Typer(
    name="topics",
    cls=ListingGroup,
    help="List topics; keep, describe, delete one; show its subscribers; list, reset, delete its durable positions.",
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]
Durable = Annotated[str, typer.Argument(metavar="DURABLE", help="The durable name of a position.")]
_LATELY = "in the last ten minutes"
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
    plain: Annotated[
        bool, typer.Option("--plain", help="Only topics that are not retained, published to in the last ten minutes.")
    ] = False,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List retained topics, and plain ones in use; the default.

    A plain topic is in use if somebody published to it in the last ten minutes. With --json the retained ones are
    listed or, with --plain, the plain ones.
    """
    with connected(endpoint, dir, timeout) as hub:
        found, away = ([], []) if plain else _described(hub, pattern)
        seen = hub.plain_topics(pattern) if plain or not as_json else []
    if as_json:
        echo_json(
            [_built(one) for one in seen] if plain else [*map(_plain, found), *({"topic": _built(t)} for t in away)]
        )
        return
    if found or away:
        _show_retained(found, away)
    elif not plain:
        echo("no retained topics yet" if pattern == ">" else f"no retained topic matches {pattern!r}")
    if seen:
        if not plain:
            echo("")
        echo_table(
            ("PLAIN TOPIC", "PUBLISHERS NOW", "LAST PUBLISHED ABOUT"),
            [(one.name, one.publishers, moment(one.asked_at)) for one in seen],
        )
    elif plain:
        echo("nobody published to a plain topic" + (" " if pattern == ">" else f" that matches {pattern!r} ") + _LATELY)


@app.command(cls=HubCommand)
def describe(
    name: Name, endpoint: Endpoint = None, dir: Dir = None, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Show a retained topic and how much of it there is."""
    with connected(endpoint, dir, timeout) as hub:
        found = hub.topic(name).describe()
    if as_json:
        echo_json(_plain(found))
    else:
        echo_fields(
            {
                "topic": found.topic.name,
                **({"home": found.topic.home} if found.topic.home is not None else {}),
                "keeps": _bounds(found.topic.keep),
                "messages": found.messages,
                "size": human_size(found.size_bytes),
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
    messages: Annotated[
        int | None, typer.Option(min=1, help="Store at most this many, the newest. Default: any number.")
    ] = None,
    bytes: Annotated[
        int | None,
        typer.Option("--bytes", parser=size, metavar="SIZE", help="Store at most this much, e.g. 1G. Default: 64M."),
    ] = None,
    age: Annotated[
        float | None,
        typer.Option("--age", parser=age, metavar="TIME", help="Store none older than this, e.g. 12h or 7d."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Change the bounds of a topic that is retained already.")
    ] = False,
    home: Annotated[
        str | None,
        typer.Option("--home", metavar="HOST", help="Of a site: the host that has its messages. Default: this one."),
    ] = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Store what is published to a topic from now on, within bounds."""
    from registry.records import Keep

    bounds = Keep(messages=messages, seconds=age, **({} if bytes is None else {"size_bytes": bytes}))
    with connected(endpoint, dir, timeout) as hub:
        retained = hub.topic(name).keep(bounds, replace=replace, home=home)
    if as_json:
        echo_json(retained)
    else:
        echo(f"topic {retained.name} is retained: {_bounds(retained.keep)}")


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
    """Stop retaining a topic, and delete its messages.

    In a site also while its home host is away, or lost: what that host still has is deleted when it is back.
    """
    with connected(endpoint, dir, timeout) as hub:
        if not yes:
            try:
                said = f"with {hub.topic(name).describe().messages} messages"
            except HomeHostUnavailable as away:
                said = f"with its messages on host {away.details.get('home')}, which does not answer"
            typer.confirm(f"Delete topic {name} {said}?", abort=True, err=True)
        hub.topic(name).delete()
    if as_json:
        echo_json({"topic": name})
    else:
        echo(f"topic {name} is no longer retained")


@app.command(cls=HubCommand)
def positions(
    name: Name,
    durable: Annotated[
        str | None, typer.Argument(metavar="[DURABLE]", help="One durable name, with its readers.")
    ] = None,
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List the durable names under which a topic is read, and how far each has read."""
    with connected(endpoint, dir, timeout) as hub:
        topic = hub.topic(name)
        described = topic.position(durable) if durable is not None else None
        found = [described.summary] if described is not None else topic.positions()
    if as_json:
        echo_json(found if described is None else _plain(described))
        return
    if not found:
        echo(f"topic {name} has no durable positions")
        return
    echo_table(
        ("POSITION", "LAG", "UNACKED", "ACKNOWLEDGED TO", "ACK WAIT", "MAX UNACKED", "MAX DELIVERIES"),
        [
            (
                one.position.name,
                one.lag,
                one.unacked,
                one.acknowledged_to,
                duration(one.position.ack_wait_seconds),
                one.position.max_unacked,
                one.position.max_deliveries,
            )
            for one in found
        ],
    )
    if described is not None and described.members:
        echo("")
        echo_table(
            ("READER", "STATUS", "PID", "HOST", "UNACKED", "SINCE"),
            [(m.member_id, m.status, m.pid, m.host, m.unacked, moment(m.registered_at)) for m in described.members],
        )


@app.command(cls=HubCommand)
def subscribers(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A topic; without one, every subscription.")
    ] = None,
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show who subscribes to a topic now, and how many messages each received and lost.

    Subscriptions by a pattern that matches are listed too. Counts are of all topics that a subscription matches, as its
    process told the broker in the last seconds.
    """
    with connected(endpoint, dir, timeout) as hub:
        found = hub.subscribers(name)
    if as_json:
        echo_json([_built(one) for one in found])
    elif not found:
        echo("nobody subscribes to any topic" if name is None else f"nobody subscribes to {name}")
    else:
        echo_table(
            ("PATTERN", "KIND", "PROGRAM", "PID", "HOST", "RECEIVED", "WAITING", "LOST", "LAST", "SINCE"),
            [
                (
                    *(" ".join(one.patterns), f"{one.kind} {one.name}" if one.name else one.kind),
                    *(one.program, one.pid, one.host, one.received, one.buffered, one.lost),
                    moment(one.received_at) if one.received_at is not None else None,
                    moment(one.began_at),
                )
                for one in found
            ],
        )


@app.command(name="reset-position", cls=HubCommand)
def reset_position(
    name: Name,
    durable: Durable,
    to: Annotated[
        str,
        typer.Argument(
            metavar="OFFSET|TIME|PLACE",
            help="An offset, a time (ISO), an age (10m, 2h, 7d), or oldest, newest, last.",
        ),
    ],
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Move a durable position to another offset or time, whatever was acknowledged."""
    begin = since_of(to, "TO")
    with connected(endpoint, dir, timeout) as hub:
        position = hub.topic(name).reset_position(durable, begin)
    if as_json:
        echo_json(position)
    else:
        echo(f"position {durable} of topic {name} goes on at offset {position.next_offset}")


@app.command(name="delete-position", cls=HubCommand)
def delete_position(
    name: Name,
    durable: Durable,
    *,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Delete a durable position. Its readers are told."""
    with connected(endpoint, dir, timeout) as hub:
        hub.topic(name).delete_position(durable)
    if as_json:
        echo_json({"topic": name, "position": durable})
    else:
        echo(f"position {durable} of topic {name} is deleted")


def since_of(text: str, hint: str) -> "Since":
    """What `--since` and the place of a reset say."""
    if text in ("oldest", "newest", "last"):
        return cast("Since", text)
    if text.isascii() and text.isdigit():
        return int(text)
    if re.fullmatch(r"[0-9.]+[smhd]", text):
        return time.time() - age(text)
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not an offset, a time such as 2026-01-31T12:00, an age such as 10m, or oldest, newest or"
            " last.",
            param_hint=hint,
        ) from None


def _described(hub: "MessageHub", pattern: str) -> "tuple[list[replies.TopicDescription], list[RetainedTopic]]":
    """Return how much there is of each topic; and the topics of a site whose home host does not answer."""
    found, away = [], []
    for topic in hub.topics(pattern):
        if not topic.next_offset:
            away.append(topic)
            continue
        try:
            found.append(hub.topic(topic.name).describe())
        except HomeHostUnavailable:
            away.append(topic)
    return found, away


def _show_retained(found: "list[replies.TopicDescription]", away: "list[RetainedTopic]") -> None:
    rows: list[list[Any]] = [
        [
            one.topic.name,
            one.messages,
            human_size(one.size_bytes),
            _bounds(one.topic.keep),
            moment(one.oldest_at) if one.oldest_at is not None else None,
            one.first_offset,
            one.topic.next_offset,
            one.topic.home,
        ]
        for one in found
    ]
    rows += [
        [one.name, None, None, _bounds(one.keep), None, None, None, f"{one.home} (does not answer)"] for one in away
    ]
    columns = ["TOPIC", "MESSAGES", "SIZE", "KEEPS", "OLDEST", "FIRST", "NEXT", "HOME"]
    if not any(row[-1] for row in rows):  # a hub on its own
        columns.pop()
        rows = [row[:-1] for row in rows]
    echo_table(columns, sorted(rows))


def _built(found: Any) -> dict[str, Any]:
    from msgspec import to_builtins

    built: dict[str, Any] = to_builtins(found)
    return built


def _plain(found: Any) -> dict[str, Any]:
    plain = _built(found)
    del plain["type"]
    return plain


def _bounds(bounds: Any) -> str:
    said = [counted(bounds.messages, "message")] if bounds.messages is not None else []
    said.append(human_size(bounds.size_bytes))
    if bounds.seconds is not None:
        said.append(duration(bounds.seconds))
    return ", ".join(said)
