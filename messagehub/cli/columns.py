"""Rows of text in aligned columns, made in one pass: a hub may have tens of thousands of channels."""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import zip_longest

GAP = "  "
LEAST_COLUMNS = 8
"""No column is made narrower than this for a narrow screen."""


def aligned(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None, is_bold: bool
) -> Iterator[str]:
    """Lines for a screen of that width, on which cells that are too long are folded; None is any width.

    Bold are the headings, or where there are none the first column.
    """
    table = [headings, *rows] if headings else rows
    widths = [max(map(columns_of, cells)) for cells in zip(*table, strict=True)]
    if width is not None:
        _narrow(widths, width)
    for number, row in enumerate(table):
        for cells in _folded(row, widths):
            padded = [cell + " " * (room - columns_of(cell)) for cell, room in zip(cells, widths, strict=True)]
            if not is_bold:
                yield GAP.join(padded).rstrip()
            elif headings:
                line = GAP.join(padded).rstrip()
                yield f"\x1b[1m{line}\x1b[0m" if number == 0 else line
            else:
                yield GAP.join([f"\x1b[1m{padded[0]}\x1b[0m", *padded[1:]]).rstrip()


def columns_of(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_columns_of_character, text))


def _columns_of_character(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _narrow(widths: list[int], width: int) -> None:
    """Take columns from the widest until all fit, or none has any left to give."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0 and max(widths) > LEAST_COLUMNS:
        widths[widths.index(max(widths))] -= 1
        excess -= 1


def _folded(row: Sequence[str], widths: Sequence[int]) -> Iterator[Sequence[str]]:
    """The lines that a row takes: one, unless a cell is wider than its column."""
    if all(columns_of(cell) <= room for cell, room in zip(row, widths, strict=True)):
        yield row
    else:
        yield from zip_longest(*(_pieces(cell, room) for cell, room in zip(row, widths, strict=True)), fillvalue="")


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
