"""How commands speak: tables for people, JSON for scripts, errors on stderr.

Rule 1: with --json stdout carries JSON and nothing else, whatever happens.
Rule 2: what a peer chose (hashes, ids, messages) never reaches a terminal as control characters.
"""

import os
import shutil
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from messagehub.display.values import shown, size

if TYPE_CHECKING:
    from registry.records import Table


def echo(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def echo_json(value: Any) -> None:
    echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def echo_json_line(value: Any) -> None:
    echo(msgspec.json.encode(value).decode())


def complain(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        pass  # whoever read it has left: nobody can be told


def have_standard_streams() -> None:
    """Open what the caller closed (`>&-`): else the next file or socket that is opened would be written to."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(opened, mode, closefd=opened != fd))  # noqa: SIM115  it stays open


def drop_unwritten() -> None:
    """Forget what stdout does not take (`| head`, a full disk): else Python complains about it when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def echo_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], *, whole: Collection[str] = ()) -> None:
    """Print rows under headings, the most useful columns first; those in `whole` are shown whole or not at all."""
    from messagehub.display.columns import aligned

    echo("\n".join(aligned(headings, [list(map(shown, row)) for row in rows], whole=whole, **screen())))


def echo_fields(fields: dict[str, Any]) -> None:
    """Names and values, one pair a line."""
    from messagehub.display.columns import paired

    echo("\n".join(paired([(name, shown(value)) for name, value in fields.items()], **screen())))


def screen() -> dict[str, Any]:
    """A pipe has no width: a line per row, whole, is what grep and awk want. https://no-color.org is honoured."""
    if not sys.stdout.isatty():
        return {"width": None, "is_coloured": False}
    is_coloured = os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return {"width": shutil.get_terminal_size().columns, "is_coloured": is_coloured}


def ring_line(config: Any) -> str:
    """How a producer's ring is set up, in human units; what is not a ring's is shown as it is."""
    if not isinstance(config, dict) or not {"capacity", "page_size"} <= config.keys():
        return shown(config)
    try:
        slots = f"{int(config['capacity']):,} x {size(int(config['page_size']))}"
    except (TypeError, ValueError):  # a peer may say anything
        return shown(config)
    usual = {"policy": "RingBuffer", "checksum": "none"}
    rest = [
        shown(value) if name == "when_full" else f"{shown(name)}={shown(value)}"
        for name, value in config.items()
        if name not in ("capacity", "page_size") and usual.get(name) != value
    ]
    return ", ".join([slots, *rest])


def table_line(table: "Table | None") -> str | None:
    """A committed table, and who wrote it, in one line."""
    if table is None:
        return None
    by = " ".join(filter(None, (table.user, table.application, f"pid {table.pid}" if table.pid else None)))
    schema = f"schema {table.schema}" + (f" (id {table.schema_id})" if table.schema_id else "")
    return f"generation {table.generation}, {table.rows} rows, {schema}, on {table.host}, by {by or 'unknown'}"
