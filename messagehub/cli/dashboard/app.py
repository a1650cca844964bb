"""The screen of `messagehub top`.

Rule 1: the hub is looked at in a thread, one look at a time, so that keys are answered while it does not answer.
Rule 2: colours are those of the terminal, and nothing is said by colour alone.
"""

import asyncio
import signal
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from messagehub.cli.dashboard.columns import COLUMNS, DEFAULT_SORT, PARTS, arranged, lines_of
from messagehub.cli.dashboard.line_list import LineList, colour_of
from messagehub.cli.dashboard.observer import ChannelDetail, ChannelLine, HubEvent, HubObserver, HubSnapshot, Part
from messagehub.cli.dashboard.texts import channel_text, heading, totals, trouble
from messagehub.display.values import shown
from messagehub.errors import HubError
from messagehub.shm.errors import DataBlockError

LIST_KEYS = "q quit  1-4 lists  enter open  / filter  s sort  r reverse  p pause"
DETAIL_KEYS = "q quit  esc back  up/down scroll  p pause"
FILTER_KEYS = "enter keep the filter  esc none"


class TopApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, LineList, VerticalScroll, Input { background: ansi_default; color: ansi_default; }
    Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    LineList { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; }
    VerticalScroll { height: 1fr; scrollbar-size: 1 1; display: none; }
    VerticalScroll Static { height: auto; }
    Input { height: 1; border: none; padding: 0; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("escape", "leave", show=False, priority=True),
        Binding("1", "part('channels')", show=False),
        Binding("2", "part('hosts')", show=False),
        Binding("3", "part('services')", show=False),
        Binding("4", "part('events')", show=False),
        Binding("tab", "next_part", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("s", "sort(1)", show=False),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", show=False),
        Binding("p", "pause", show=False),
    ]

    def __init__(self, observer: HubObserver, *, contains: str, by: int, every: float) -> None:
        super().__init__(ansi_color=True)
        self._observer = observer
        self._every = every
        self._part: Part = "channels"
        self._contains = contains
        self._sorts: dict[Part, int] = {**DEFAULT_SORT, "channels": by}
        self._is_reversed = False
        self._is_paused = False
        self._is_looking = False
        self._opened: str | None = None
        self.snapshot: HubSnapshot | None = None

    def compose(self) -> ComposeResult:
        yield Static("MessageHub: asking the hub", id="heading")
        yield Static(id="totals")
        yield Static(id="trouble")
        yield Static(id="parts")
        yield Static(id="columns")
        yield LineList()
        with VerticalScroll():
            yield Static(id="detail", markup=False)
        yield Input(placeholder="text that a line has to contain", id="filter")
        yield Static(LIST_KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self.query_one(LineList).focus()
        self.set_interval(self._every, self._look_again)
        self._look_again()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):  # so that the terminal is given back as it was
            loop.add_signal_handler(number, self.exit)

    def on_unmount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    # -- looking -------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        if not self._is_looking and not self._is_paused:
            self._is_looking = True
            self.run_worker(self._look(), exit_on_error=True)

    async def _look(self) -> None:
        """Ask the hub and draw what it says. Whoever quits meanwhile has no widgets left to draw in."""
        part, opened = self._part, self._opened
        try:
            self.snapshot = await asyncio.to_thread(self._observer.look, part)
            if opened is not None:
                self._show_detail(await asyncio.to_thread(self._observer.describe, opened))
        except (HubError, DataBlockError, OSError) as error:
            if self.is_running:
                self.query_one("#trouble", Static).update(Text(shown(str(error)), style="bold"))
            return
        finally:
            self._is_looking = False
        if not self.is_running:
            return
        self._draw()
        if part != self._part or opened != self._opened:
            self._look_again()  # a key was pressed meanwhile

    # -- drawing -------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        snapshot = self.snapshot
        if snapshot is None:
            return
        said = trouble(snapshot)
        self.query_one("#heading", Static).update(_coloured(heading(snapshot), snapshot.health))
        self.query_one("#totals", Static).update(Text(totals(snapshot)))
        self.query_one("#trouble", Static).update(Text(said, style="bold"))
        self.query_one("#trouble", Static).display = bool(said)
        self._draw_lines(snapshot)

    def _draw_lines(self, snapshot: HubSnapshot) -> None:
        listed = self.query_one(LineList)
        by = self._sorts[self._part]
        lines = arranged(
            lines_of(snapshot, self._part), self._part, contains=self._contains, by=by, is_reversed=self._is_reversed
        )
        listed.show(self._part, lines)
        self.query_one("#columns", Static).update(
            Text.assemble(*((one.text, one.style or "") for one in listed.heading(by)))
        )
        parts = Text()
        for number, part in enumerate(PARTS, 1):
            parts.append(f" {number}:{part} ", Style(reverse=part == self._part))
        parts.append(f"  {len(lines):,} listed by {COLUMNS[self._part][by].heading.lower()}")
        parts.append(", reversed" if self._is_reversed else "")
        parts.append(f', with "{self._contains}"' if self._contains else "")
        parts.append(", PAUSED" if self._is_paused else "")
        self.query_one("#parts", Static).update(parts)

    def _show_detail(self, detail: ChannelDetail) -> None:
        if self.is_running and detail.channel == self._opened:
            width = self.query_one(VerticalScroll).scrollable_content_region.width
            self.query_one("#detail", Static).update(Text(channel_text(detail, max(width, 20)), no_wrap=True))

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    # -- keys ----------------------------------------------------------------------------------------------

    def action_part(self, part: Part) -> None:
        self._close_detail()
        self._part = part
        self._is_paused = False
        self._draw()
        self._look_again()

    def action_next_part(self) -> None:
        self.action_part(PARTS[(PARTS.index(self._part) + 1) % len(PARTS)])

    def action_sort(self, by: int) -> None:
        self._sorts[self._part] = (self._sorts[self._part] + by) % len(COLUMNS[self._part])
        self._draw()

    def action_reverse(self) -> None:
        self._is_reversed = not self._is_reversed
        self._draw()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._draw()

    def action_filter(self) -> None:
        self._close_detail()
        asked = self.query_one("#filter", Input)
        asked.value, asked.display = self._contains, True
        asked.focus()
        self._say_keys(FILTER_KEYS)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._contains = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self._end_filter()

    def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        line = event.line
        name = line.channel if isinstance(line, ChannelLine) else None
        if isinstance(line, HubEvent) and line.event is not None:
            name = line.event.channel
        if name is not None:
            self._opened = name
            self._show_one(f"{shown(name)}: looking")
            self._look_again()

    def action_leave(self) -> None:
        if self.query_one("#filter", Input).display:
            self._contains = ""
            self._end_filter()
        elif self._opened is not None:
            self._close_detail()
        else:
            self._contains = ""
        self._draw()

    def _end_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(LineList).focus()
        self._say_keys(LIST_KEYS)
        self._draw()

    def _show_one(self, text: str) -> None:
        self.query_one("#detail", Static).update(Text(text))
        self._switch(is_detail=True)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self.query_one(VerticalScroll).focus()
        self._say_keys(DETAIL_KEYS)

    def _close_detail(self) -> None:
        if self._opened is not None:
            self._opened = None
            self._switch(is_detail=False)
            self.query_one(LineList).focus()
            self._say_keys(LIST_KEYS)

    def _switch(self, *, is_detail: bool) -> None:
        self.query_one(VerticalScroll).display = is_detail
        for widget in (self.query_one(LineList), self.query_one("#columns"), self.query_one("#parts")):
            widget.display = not is_detail

    def _say_keys(self, keys: str) -> None:
        self.query_one("#keys", Static).update(keys)


def _coloured(text: str, word: str) -> Text:
    found = Text(text, no_wrap=True)
    at = text.find(word)
    found.stylize(colour_of(word) + Style(bold=True), at, at + len(word))
    return found
