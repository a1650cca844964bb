"""`messagehub trace --topic …`: where one message of a topic went."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from messagehub.cli.output import echo, echo_fields, echo_json, echo_table
from messagehub.cli.session import connected
from messagehub.display.values import duration, instant, moment

if TYPE_CHECKING:
    from registry.replies import MessageTrace, ReportedSubscription, TracedPosition


def show_message(
    topic: str | None,
    correlation_id: str | None,
    offset: int | None,
    publisher: str | None,
    number: int | None,
    endpoint: str | None,
    dir: Path | None,
    timeout: float | None,
    *,
    as_json: bool,
) -> None:
    if topic is None:
        raise typer.BadParameter("--offset, --publisher and --number are of a message of --topic.")
    if correlation_id is not None:
        raise typer.BadParameter("give ID or --topic: an exchange has an id, a message an offset or a number.")
    given = (offset is not None, publisher is not None, number is not None)
    if given not in ((True, False, False), (False, True, True)):
        raise typer.BadParameter("give --offset (of a retained topic), or --publisher and --number (of a plain one).")
    with connected(endpoint, dir, timeout) as hub:
        found = hub.trace_message(topic, offset=offset, publisher=publisher, number=number, timeout=timeout)
    if as_json:
        echo_json(msgspec.to_builtins(found))
    else:
        _show(found)


def _show(found: "MessageTrace") -> None:
    by, message = found.published_by, f"{found.topic} at offset {found.offset}"
    if found.offset is None:
        message = f"{found.topic} number {found.number} of publisher {found.publisher}"
    echo_fields(
        {
            "message": message,
            "published by": "not known" if by is None else f"{by.program or 'a process'}, pid {by.pid} on {by.host}",
            "stored": instant(found.published_at) if found.published_at is not None else None,
            "correlation id": found.correlation_id,
        }
    )
    rows: list[tuple[Any, ...]] = [(*_who(one), _plain(one.outcome), one.reason) for one in found.subscriptions]
    rows += [
        (found.topic, f"durable {one.position}", None, one.pid, one.host, _plain(one.outcome), _more(one))
        for one in found.positions
    ]
    rows += [(*_who(one), "ended", f"{one.ended_by}, {moment(one.ended_at)}") for one in found.ended]
    echo("")
    if rows:
        echo_table(("PATTERN", "KIND", "PROGRAM", "PID", "HOST", "OUTCOME", "WHY"), rows)
    else:
        echo(f"nobody is known to subscribe to {found.topic}")
    if found.home is not None:
        echo(f"who published it, and who reads it under a durable name, is known on its home: run this on {found.home}")
    if not found.is_complete:
        echo("some processes have not answered yet: ask again")


def _who(one: "ReportedSubscription") -> tuple[Any, ...]:
    kind = f"{one.kind} {one.name}" if one.name else one.kind
    return " ".join(one.patterns), kind, one.program, one.pid, one.host


def _plain(outcome: str) -> str:
    return outcome.replace("_", " ")


def _more(one: "TracedPosition") -> str | None:
    if one.dead_letter is not None:
        return f"dead letter {one.dead_letter}"
    if one.outcome == "handed_out":
        again = f"again in {duration(one.again_in_seconds)}" if one.again_in_seconds else "free to be handed out again"
        return f"handed out {one.deliveries} times, {again}"
    return None
