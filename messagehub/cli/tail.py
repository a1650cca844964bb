"""`messagehub tail`: a channel's data as it comes, with or without a broker."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Channel, Dir, Endpoint, Follow, Json, Start
from messagehub.cli.output import complain, echo, echo_json_line, screen
from messagehub.cli.session import TURN_SECONDS, interrupt, near_name
from messagehub.display.values import shown

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
    tables = _Tables(rows or SHOWN_ROWS)
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
                _show_json(value, rows) if as_json else tables.show(value)
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


def _show_json(value: Any, most_rows: int | None) -> None:
    from messagehub.payloads.rows import first_rows, rows_of

    headings, rows = rows_of(value if most_rows is None else first_rows(value, most_rows))
    for row in rows:
        echo_json_line(dict(zip(headings, row, strict=True)))


class _Tables:
    """Items as tables. Items of one row each, such as samples, are one table: its heading is printed once."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._headings: list[str] = []
        self._widths: list[int] = []

    def show(self, value: Any) -> None:
        from messagehub.display.columns import aligned, columns_of
        from messagehub.payloads.rows import count_rows, first_rows, rows_of

        found, rows = rows_of(first_rows(value, self._most_rows))
        headings = [heading.upper() for heading in found]
        cells = [list(map(shown, row)) for row in rows]
        goes_on = len(rows) == 1 and headings == self._headings
        lines = list(aligned(headings, cells, at_least=self._widths if goes_on else (), **screen()))
        echo("\n".join(lines[1:2] if goes_on else lines))
        if count_rows(value) > len(rows):
            echo(f"… and {count_rows(value) - len(rows):,} more rows (--rows shows more of them)")
        before = self._widths if goes_on else [0] * len(headings)
        self._headings = headings if len(rows) == 1 else []
        self._widths = [
            max(room, columns_of(cell)) for room, cell in zip(before, cells[0] if cells else [], strict=False)
        ]
