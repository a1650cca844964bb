"""A list of lines under a cursor, of which only those on the screen are drawn: a hub may have 10,000 channels."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from messagehub.cli.dashboard.columns import COLUMNS, Line, ListColumn, fitting
from messagehub.cli.dashboard.observer import Part
from messagehub.display.columns import columns_of, shortened

_PLAIN, _CURSOR = Style(), Style(reverse=True)
_COLOURS = {
    **dict.fromkeys(("active", "healthy"), Style(color="green")),
    **dict.fromkeys(("pending", "stalled", "degraded", "read-only"), Style(color="yellow")),
    **dict.fromkeys(("conflict", "unavailable"), Style(color="red")),
}


def colour_of(word: str) -> Style:
    return _COLOURS.get(word, _PLAIN)


class LineList(ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-1_000_000_000)", show=False),
        Binding("end,G", "move(1_000_000_000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        def __init__(self, line: Line) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__()
        self.part: Part = "channels"
        self.lines: Sequence[Line] = ()
        self.cursor = 0

    def show(self, part: Part, lines: Sequence[Line]) -> None:
        """Show other lines. The cursor stays where it is at the top, else on its line."""
        chosen = self._key(self.lines[self.cursor]) if part == self.part and 0 < self.cursor < len(self.lines) else None
        if part != self.part:
            self.cursor = 0
        self.part, self.lines = part, lines
        if chosen is not None:
            found = next((at for at, line in enumerate(lines) if self._key(line) == chosen), self.cursor)
            self.cursor = min(found, max(len(lines) - 1, 0))
        self.virtual_size = Size(self.size.width, len(lines))
        self._keep_cursor_visible()
        self.refresh()

    def heading(self, sorted_by: int) -> Strip:
        """Return the line of headings; that of the column by which the lines are sorted is underlined."""
        sorting = COLUMNS[self.part][sorted_by]
        segments = []
        for column, room in self._columns():
            style = Style(bold=True, underline=column is sorting)
            segments += [Segment(_padded(column.heading, room, column), style), Segment(" ")]
        return Strip(segments[:-1])

    def texts(self, line: Line) -> list[str]:
        """Return the cells of a line as they are drawn."""
        return [_padded(shortened(column.cell(line), room), room, column) for column, room in self._columns()]

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if at >= len(self.lines):
            return Strip.blank(width)
        is_cursor = at == self.cursor and self.has_focus
        segments = []
        for text in self.texts(self.lines[at]):
            style = _CURSOR if is_cursor else colour_of(text.strip())
            segments += [Segment(text, style), Segment(" ", _CURSOR if is_cursor else _PLAIN)]
        return Strip(segments).adjust_cell_length(width, _CURSOR if is_cursor else _PLAIN)

    def action_move(self, by: int) -> None:
        self.cursor = min(max(self.cursor + by, 0), max(len(self.lines) - 1, 0))
        self._keep_cursor_visible()
        self.refresh()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 1, 1))

    def action_choose(self) -> None:
        if self.cursor < len(self.lines):
            self.post_message(self.Chosen(self.lines[self.cursor]))

    def on_focus(self) -> None:
        self.refresh()

    def _keep_cursor_visible(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, force=True, x_axis=False)

    def _columns(self) -> list[tuple[ListColumn, int]]:
        return fitting(self.part, max(self.scrollable_content_region.width, 20))

    def _key(self, line: Line) -> object:
        name = getattr(line, "channel", None) or getattr(line, "host", None) or getattr(line, "address", None)
        return name or line


def _padded(text: str, room: int, column: ListColumn) -> str:
    blanks = " " * max(room - columns_of(text), 0)
    return blanks + text if column.is_right else text + blanks
