"""`messagehub tail`: a channel's data as it comes, with or without a broker."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Channel, Dir, Endpoint, Follow, Json, Start
from messagehub.cli.output import complain, echo, echo_json_line, echo_table
from messagehub.cli.session import TURN_SECONDS, interrupt, near_name

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

SHOWN_ROWS = 20
HINT_SECONDS = 1.0


def tail(
    channel: Channel,
    *,
    start: Start = "latest",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this many batches.")] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="Show this many rows of each batch. Default: 20, with --json all."),
    ] = None,
    follow: Follow = True,
    domain: Domain = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Print batches as they come, as tables or, with --json, a line of JSON for each row."""
    from messagehub.hub import MessageHub
    from messagehub.shm.rings.read_results import Gap

    seen = 0
    hint_at: float | None = time.monotonic() + HINT_SECONDS
    with (
        MessageHub(endpoint=endpoint, dir=dir, domain=domain) as hub,
        interrupt() as interrupted,
        hub.consumer(channel, start=start, on_lag="gap", follow=follow) as consumer,
    ):
        while not interrupted.has_come and seen != count:
            value = consumer.read(timeout=TURN_SECONDS)
            if isinstance(value, Gap):
                complain(f"items {value.first} to {value.last} were overwritten before they were read")
            elif value is not None:
                _show(value, rows or (None if as_json else SHOWN_ROWS), as_json=as_json)
                seen += 1
            elif not follow and consumer.has_ended:
                break
            elif not seen and hint_at is not None and time.monotonic() > hint_at:
                hint_at = None
                if consumer.source is None and hub.discover(channel) is None:
                    complain(_hint(hub, channel))


def _hint(hub: "MessageHub", channel: str) -> str:
    """What else may be meant by a name that no channel has."""
    said = f"nobody knows channel {channel!r} yet{near_name(hub, channel)}; waiting for it"
    return f"{said}. Messages of a topic are read with `messagehub subscribe {channel}`"


def _show(value: Any, most_rows: int | None, *, as_json: bool) -> None:
    from messagehub.payloads.rows import count_rows, first_rows, rows_of

    headings, rows = rows_of(value if most_rows is None else first_rows(value, most_rows))
    if as_json:
        for row in rows:
            echo_json_line(dict(zip(headings, row, strict=True)))
    else:
        echo_table([heading.upper() for heading in headings], rows)
        if count_rows(value) > len(rows):
            echo(f"… and {count_rows(value) - len(rows):,} more rows (--rows shows more of them)")
