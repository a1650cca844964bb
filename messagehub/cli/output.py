"""How commands speak: tables for people, JSON for scripts, errors on stderr.

Rule 1: with --json stdout carries JSON and nothing else, whatever happens.
Rule 2: what a peer chose (hashes, ids, messages) never reaches a terminal as control characters.
"""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from registry.records import Table

PIPE_COLUMNS = 1000
SHORT_LENGTH = 12


def echo(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def echo_json(value: Any) -> None:
    echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def echo_json_line(value: Any) -> None:
    echo(msgspec.json.encode(value).decode())


def complain(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def shown(value: Any) -> str:
    """One value as a person reads it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{shown(name)}={shown(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "-"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def short(text: str | None) -> str | None:
    """Enough of a hash to tell it from others in a list."""
    return text if text is None or len(text) <= SHORT_LENGTH + 1 else f"{text[:SHORT_LENGTH]}…"


def instant(at: float) -> str:
    """Local time, to the millisecond."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def echo_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    _print_table(headings, rows)


def echo_fields(fields: dict[str, Any]) -> None:
    """Names and values, one pair a line."""
    _print_table((), list(fields.items()))


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width: a line per row, whole, is what grep and awk want.
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=bool(headings))
    for heading in headings or ("", ""):
        table.add_column(heading, overflow="fold", style=None if headings or table.columns else "bold")
    for row in rows:
        table.add_row(*map(shown, row))
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        echo(line.rstrip())


def table_line(table: "Table | None") -> str | None:
    """A committed table, and who wrote it, in one line."""
    if table is None:
        return None
    by = " ".join(filter(None, (table.user, table.application, f"pid {table.pid}" if table.pid else None)))
    schema = f"schema {table.schema}" + (f" (id {table.schema_id})" if table.schema_id else "")
    return f"generation {table.generation}, {table.rows} rows, {schema}, on {table.host}, by {by or 'unknown'}"
