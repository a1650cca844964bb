"""`%load_ext messagehub`: the magic `%hub`, and HTML for the records of the registry.

    %hub status             the hub: where it is, how it is
    %hub channels [PREFIX]  the channels, as a table
    %hub tail CHANNEL [N]   the newest N items of a channel on this host; nobody waits for it, and nothing is registered

The hub is the variable `hub` of the notebook, if that is one, else `MessageHub.get_instance()`.
"""

from typing import Any

from messagehub.channels.newest_items import NewestItem, newest_items
from messagehub.display import markup
from messagehub.display.columns import aligned
from messagehub.display.records import record_html
from messagehub.display.values import moment, shown
from messagehub.hub import MessageHub
from messagehub.payloads.rows import count_rows, first_rows, rows_of
from messagehub.shm.channel_directory.location import directory_of
from registry import names, records, replies

USAGE = "%hub status | channels [PREFIX] | tail CHANNEL [N]"
TAIL_ITEMS, MAX_ITEMS, MAX_ROWS = 5, 100, 20
_SHOWN = (replies.Reply, records.Channel, records.Consumer, records.Producer, records.Table, records.SchemaVersion)


class ItemTail:
    """The newest items of a channel, oldest first, each with its first rows."""

    def __init__(self, channel: str, items: list[NewestItem]) -> None:
        self.channel = channel
        self.items = items

    def __repr__(self) -> str:
        lines = [] if self.items else [f"nothing is in channel {shown(self.channel)} on this host"]
        for item in self.items:
            headings, rows = _rows(item)
            lines += [_caption(item), *aligned(headings, rows, width=120, is_coloured=False)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self.items:
            return markup.paragraph(repr(self))
        return markup.together(markup.table(*_rows(item), caption=_caption(item)) for item in self.items)


def load_ipython_extension(ipython: Any) -> None:
    def magic(line: str) -> Any:
        return run_magic(line, ipython.user_ns)

    ipython.register_magic_function(magic, "line", "hub")
    html = ipython.display_formatter.formatters["text/html"]
    for kind in _SHOWN:
        html.for_type(kind, record_html)


def unload_ipython_extension(ipython: Any) -> None:
    ipython.magics_manager.magics["line"].pop("hub", None)
    html = ipython.display_formatter.formatters["text/html"]
    for kind in _SHOWN:
        html.pop(kind, None)


def run_magic(line: str, variables: dict[str, Any]) -> Any:
    """Return what a line after `%hub` asks for. `variables` are those of the notebook."""
    from IPython.core.error import UsageError

    given = variables.get("hub")
    hub = given if isinstance(given, MessageHub) else MessageHub.get_instance()
    match line.split():
        case ["status"]:
            hub.connect(timeout=1.0)
            return hub
        case ["channels"]:
            return hub.channels()
        case ["channels", prefix]:
            return hub.channels(prefix)
        case ["tail", channel]:
            return _tail(hub, channel, TAIL_ITEMS)
        case ["tail", channel, count] if count.isdecimal() and 0 < int(count) <= MAX_ITEMS:
            return _tail(hub, channel, int(count))
        case ["tail", _, count]:
            raise UsageError(f"%hub tail: {count} is not a number from 1 to {MAX_ITEMS}")
        case _:
            raise UsageError(USAGE)


def _tail(hub: MessageHub, channel: str, count: int) -> ItemTail:
    channel = names.check_channel(names.logical(channel))
    return ItemTail(channel, newest_items(directory_of(hub.settings), channel, count))


def _rows(item: NewestItem) -> tuple[list[str], list[list[str]]]:
    value = item.value
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value[: markup.MAX_CHARACTERS])
    headings, rows = rows_of(first_rows(value, MAX_ROWS))
    return headings, [[shown(cell) for cell in row] for row in rows]


def _caption(item: NewestItem) -> str:
    number = count_rows(item.value)
    rows = f", {number:,} rows" + (f" (the first {MAX_ROWS})" if number > MAX_ROWS else "") if number != 1 else ""
    by = f" of {shown(item.producer_id)}" if item.producer_id else ""
    return f"{'item' if item.producer_id else 'table'} {item.sequence}{by}, {moment(item.written_at)}{rows}"
