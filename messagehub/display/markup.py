"""HTML for notebooks: tables of names, rows and values.

Rule 1: everything that is not ours is escaped.
Rule 2: colours are inherited, so that it is read on light and on dark pages alike.
Rule 3: it is bounded: at most `MAX_ROWS` rows and `MAX_CHARACTERS` of a cell, and the rest is counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from messagehub.display.values import shown

MAX_ROWS = 200
MAX_CHARACTERS = 1000
_TABLE = "border-collapse:collapse;color:inherit;background:transparent"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], *, caption: str = "") -> str:
    """Return rows under headings. A caption says what they are."""
    head = "".join(f'<th scope="col" style="{_CELL}">{_cell(name)}</th>' for name in headings)
    body = "".join(_row(row) for row in rows[:MAX_ROWS])
    left = len(rows) - MAX_ROWS
    more = f"<p>… and {left:,} more</p>" if left > 0 else ""
    return (
        f'<table style="{_TABLE}">{_caption(caption)}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'
    )


def fields(title: str, values: Mapping[str, Any]) -> str:
    """Return names and values, one pair a row; those without a value are left out."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_cell(name)}</th><td style="{_CELL}">{_cell(value)}</td></tr>'
        for name, value in values.items()
        if value is not None and value not in ("", [], {})
    )
    return f'<table style="{_TABLE}">{_caption(title)}<tbody>{rows}</tbody></table>'


def paragraph(text: str) -> str:
    return f"<p>{_cell(text)}</p>"


def together(pieces: Iterable[str]) -> str:
    return "<div>" + "".join(pieces) + "</div>"


def _row(row: Sequence[Any]) -> str:
    return "<tr>" + "".join(f'<td style="{_CELL}">{_cell(value)}</td>' for value in row) + "</tr>"


def _caption(text: str) -> str:
    style = "text-align:left;font-weight:bold;color:inherit;caption-side:top"
    return f'<caption style="{style}">{_cell(text)}</caption>' if text else ""


def _cell(value: Any) -> str:
    text = shown(value)
    return escape(text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…")
