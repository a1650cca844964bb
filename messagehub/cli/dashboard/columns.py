"""The columns of each list that `messagehub top` shows: heading, width, what a cell says, and what it is sorted by."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from messagehub.channels.flow import ChannelFlow
from messagehub.cli.dashboard.observer import ChannelLine, HostLine, HubEvent, HubSnapshot, Part
from messagehub.cli.watch import details, kind
from messagehub.display.values import duration, moment, shown, size
from registry.replies import ServiceSummary

PARTS: tuple[Part, ...] = ("channels", "hosts", "services", "events")


class ListColumn(NamedTuple):
    """`width` 0 takes what the others leave. Columns that do not fit are left out, those of the highest `rank` first.
    `is_falling`: sorting by it begins with the largest."""

    heading: str
    width: int
    cell: Callable[[Any], str]
    key: Callable[[Any], Any]
    is_right: bool = False
    is_falling: bool = False
    rank: int = 0


def rate(per_second: float) -> str:
    """In at most seven characters."""
    if per_second < 99.95:
        return f"{per_second:.3g}"
    for limit, divisor, unit in ((99_999, 1, ""), (9_999_500, 1e3, "k"), (1e10, 1e6, "M")):
        if per_second < limit:
            return f"{per_second / divisor:,.0f}{unit}"
    return f"{per_second:.1e}"


def _flow(
    read: Callable[[ChannelFlow], Any], say: Callable[[Any], str]
) -> tuple[Callable[..., str], Callable[..., Any]]:
    """Return cell and key of a column that is blank where no ring is on this host."""

    def cell(line: ChannelLine) -> str:
        return say(read(line.flow)) if line.flow is not None else "-"

    def key(line: ChannelLine) -> Any:
        return read(line.flow) if line.flow is not None else -1

    return cell, key


def _number(heading: str, width: int, read: Callable[[Any], Any], *, rank: int = 0) -> ListColumn:
    return ListColumn(heading, width, lambda line: f"{read(line):,}", read, is_right=True, is_falling=True, rank=rank)


def _text(heading: str, width: int, read: Callable[[Any], str | None], *, rank: int = 0) -> ListColumn:
    return ListColumn(heading, width, lambda line: shown(read(line)), lambda line: read(line) or "", rank=rank)


def _measured(
    heading: str, width: int, read: Callable[[ChannelFlow], Any], say: Callable[[Any], str], rank: int
) -> ListColumn:
    return ListColumn(heading, width, *_flow(read, say), is_right=True, is_falling=True, rank=rank)


def _seconds_behind(seconds: float) -> str:
    return duration(seconds) if seconds else "0"


def _slowest(flow: ChannelFlow) -> str:
    return shown(flow.slowest) + (" (held back)" if flow.is_held_back else "")


COLUMNS: dict[Part, tuple[ListColumn, ...]] = {
    "channels": (
        _text("CHANNEL", 0, lambda line: line.channel),
        _text("STATUS", 8, lambda line: line.status),
        _number("PROD", 4, lambda line: line.producers, rank=2),
        _number("CONS", 4, lambda line: line.consumers, rank=2),
        _measured("ITEMS/S", 7, lambda flow: flow.items_per_second, rate, 0),
        _measured("BYTES/S", 8, lambda flow: flow.bytes_per_second, lambda many: size(round(many)), 1),
        _measured("LAG", 7, lambda flow: flow.lag_items, lambda many: f"{many:,}", 0),
        _measured("BEHIND", 9, lambda flow: flow.lag_seconds, _seconds_behind, 1),
        ListColumn("SLOWEST READER", 22, *_flow(_slowest, str), rank=3),
        _measured("MEMORY", 8, lambda flow: flow.memory_bytes, size, 4),
        _text("VERSION", 8, lambda line: line.schema_version, rank=5),
    ),
    "hosts": (
        _text("HOST", 0, lambda line: line.host + (" (this one)" if line.is_this_host else "")),
        _text("HEALTH", 8, lambda line: line.health, rank=1),
        _text("ROLE", 8, lambda line: line.role, rank=2),
        _number("CHANNELS", 8, lambda line: line.channels),
        _number("PRODUCERS", 9, lambda line: line.producers),
        _number("CONSUMERS", 9, lambda line: line.consumers),
        _number("STALLED", 7, lambda line: line.stalled),
        _number("TABLES", 6, lambda line: line.tables),
    ),
    "services": (
        _text("ADDRESS", 0, lambda line: line.address),
        _number("WORKERS", 7, lambda line: len(line.workers)),
        _number("STALLED", 7, lambda line: sum(one.status == "stalled" for one in line.workers)),
        _number("AT ONCE", 7, lambda line: sum(one.concurrency for one in line.workers)),
        _number("WAITING", 7, lambda line: sum(one.mailbox.queued for one in line.workers if one.mailbox)),
        _text("STRATEGY", 11, lambda line: line.strategy),
        _text("HOSTS", 12, lambda line: ", ".join(sorted({one.host for one in line.workers if one.host})), rank=2),
        _text("PIDS", 16, lambda line: ", ".join(str(one.pid) for one in line.workers if one.pid), rank=1),
    ),
    "events": (
        ListColumn("AT", 8, lambda line: moment(line.at).partition(" ")[2], lambda line: line.at, is_falling=True),
        _text("CHANNEL", 18, lambda line: line.event.channel if line.event else "-"),
        _text("EVENT", 21, lambda line: kind(line.event) if line.event else "hub"),
        _text("DETAILS", 0, lambda line: details(line.event) or " " if line.event else line.said),
    ),
}
DEFAULT_SORT: dict[Part, int] = {"channels": 4, "hosts": 0, "services": 0, "events": 0}
Line = ChannelLine | HostLine | ServiceSummary | HubEvent
AnyLine = TypeVar("AnyLine", bound=Line)


def lines_of(snapshot: HubSnapshot, part: Part) -> Sequence[Line]:
    match part:
        case "channels":
            return snapshot.channels
        case "hosts":
            return snapshot.hosts
        case "services":
            return snapshot.services or ()
        case "events":
            return snapshot.events


def arranged(lines: Sequence[AnyLine], part: Part, *, contains: str, by: int, is_reversed: bool) -> list[AnyLine]:
    """Return the lines that have the text in a cell that is no number, sorted by a column, and then by the first."""
    columns = COLUMNS[part]
    kept = list(lines)
    if contains:
        wanted, texts = contains.casefold(), [column.cell for column in columns if not column.is_right]
        kept = [line for line in kept if any(wanted in cell(line).casefold() for cell in texts)]
    kept.sort(key=columns[0].key, reverse=columns[0].is_falling)
    if by or is_reversed:
        kept.sort(key=columns[by].key, reverse=columns[by].is_falling != is_reversed)
    return kept


def column_named(part: Part, word: str) -> int | None:
    """Return which column a word of the command line names: `lag`, `items/s`, `slowest`."""
    headings = [column.heading.lower() for column in COLUMNS[part]]
    return next((at for at, heading in enumerate(headings) if heading.startswith(word.lower())), None)


def fitting(part: Part, width: int, gap: int = 1) -> list[tuple[ListColumn, int]]:
    """Return the columns that have room, with the width of each. The one without a width takes the rest."""
    columns = list(COLUMNS[part])
    while True:
        taken = sum(column.width + gap for column in columns)
        room = width - taken + gap
        if room >= min(width // 4, 24) or not any(column.rank for column in columns):
            return [(column, column.width or max(room, 1)) for column in columns]
        worst = max(column.rank for column in columns)
        columns.remove([column for column in columns if column.rank == worst][-1])
