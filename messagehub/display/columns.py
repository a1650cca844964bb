"""Rows of text in aligned columns, made in one pass: a hub may have tens of thousands of channels.

Rule 1: a pipe gets every column and every cell whole.
Rule 2: on a screen a row of a table is one line. Long cells lose their middle first, then the last columns are left
        out, and a line at the end names them: so a table has its most useful columns first.
Rule 3: pairs of names and values are folded, not shortened: people copy values from them.
"""

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

GAP = "  "
LEAST_COLUMNS = 8
"""No value of a pair is folded into less than this."""
LEAST_OF_LONG = 20
"""Cells are shortened to this before a column is left out; a time is not."""
ELISION = "…"
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_GREEN, _YELLOW, _RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
_COLOURED = {"STATUS", "STATE", "RESULT", "status", "health"}
_COLOURS = {
    **dict.fromkeys(("active", "live", "healthy", "ok"), _GREEN),
    **dict.fromkeys(("pending", "stalled", "dead", "degraded", "read-only"), _YELLOW),
    **dict.fromkeys(("conflict", "damaged", "missing", "unavailable"), _RED),
}


def aligned(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    is_coloured: bool,
    whole: Collection[str] = (),
    at_least: Sequence[int] = (),
) -> Iterator[str]:
    """Return the lines of a table for a screen of that width; None is a pipe. Columns in `whole` are not shortened.

    `at_least` are widths that rows above these have, so that the columns of both stand under one heading.
    """
    widths = [max(map(columns_of, cells)) for cells in zip(headings, *rows, strict=True)]
    widths[: len(at_least)] = map(max, widths, at_least)
    left_out: Sequence[str] = ()
    if width is not None:
        least = [room if name in whole else LEAST_OF_LONG for name, room in zip(headings, widths, strict=True)]
        kept = _fit(widths, least, width)
        left_out, headings = headings[kept:], headings[:kept]
        rows = [[shortened(cell, room) for cell, room in zip(row, widths, strict=False)] for row in rows]
    yield _bold(_line(headings, widths), is_coloured)
    coloured = [at for at, name in enumerate(headings) if is_coloured and name in _COLOURED]
    for row in rows:
        yield _line(row, widths, coloured)
    if left_out:
        said = f"no room for: {', '.join(left_out)}"
        yield f"{_DIM}{said}{_PLAIN}" if is_coloured else said


def paired(pairs: Sequence[tuple[str, str]], *, width: int | None, is_coloured: bool) -> Iterator[str]:
    """Return a line for each name and its value, and more lines where the screen is too narrow for the value."""
    names = max(columns_of(name) for name, _ in pairs)
    room = max(LEAST_COLUMNS, width - names - len(GAP)) if width is not None else None
    for name, value in pairs:
        colour = _COLOURS.get(value.partition(":")[0]) if is_coloured and name in _COLOURED else None
        for said, piece in zip_longest([name], [value] if room is None else _pieces(value, room), fillvalue=""):
            shown = f"{colour}{piece}{_PLAIN}" if colour else piece
            yield f"{_bold(_padded(said, names), is_coloured and bool(said))}{GAP}{shown}".rstrip()


def columns_of(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_columns_of_character, text))


def shortened(text: str, room: int) -> str:
    """Return the text, without its middle where it takes more columns than that: both ends tell long names apart."""
    if columns_of(text) <= room:
        return text
    end = _start_of(text[::-1], (room - 1) // 2)[::-1]
    return _start_of(text, room - 1 - columns_of(end)) + ELISION + end


def _start_of(text: str, room: int) -> str:
    return _pieces(text, room)[0] if room else ""


def _columns_of_character(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _fit(widths: list[int], least: Sequence[int], width: int) -> int:
    """Cut the widths down to what fits and return how many columns there are: at least one.

    What is over when every column has its least goes to those that need little more first.
    """
    for count in range(len(widths), 0, -1):
        room = list(map(min, widths[:count], least))
        spare = width - sum(room) - len(GAP) * (count - 1)
        if spare >= 0:
            break
    else:
        room, spare = [max(width, LEAST_COLUMNS)], 0
    for at in sorted(range(count), key=lambda each: widths[each] - room[each]):
        given = min(max(widths[at] - room[at], 0), spare)
        room[at] += given
        spare -= given
    widths[:] = room
    return count


def _line(cells: Sequence[str], widths: Sequence[int], coloured: Collection[int] = ()) -> str:
    if not coloured:
        return GAP.join(map(_padded, cells, widths)).rstrip()
    shown = []
    for at, (cell, room) in enumerate(zip(cells, widths, strict=True)):
        colour = _COLOURS.get(cell) if at in coloured else None
        shown.append(f"{colour}{cell}{_PLAIN}{' ' * (room - columns_of(cell))}" if colour else _padded(cell, room))
    return GAP.join(shown).rstrip()


def _padded(text: str, room: int) -> str:
    return text + " " * (room - columns_of(text))


def _bold(text: str, is_coloured: bool) -> str:
    return f"{_BOLD}{text}{_PLAIN}" if is_coloured else text


def _pieces(cell: str, room: int) -> list[str]:
    pieces, used = [""], 0
    for character in cell:
        needed = _columns_of_character(character)
        if used + needed > room:
            pieces.append("")
            used = 0
        pieces[-1] += character
        used += needed
    return pieces
