"""What `messagehub top` says in words: the lines above the lists, one channel in full, and one screen for a pipe."""

from collections.abc import Iterator
from typing import Any

from messagehub.channels.flow import RingFlow
from messagehub.cli.dashboard.columns import COLUMNS, PARTS, arranged, lines_of, rate
from messagehub.cli.dashboard.observer import ChannelDetail, HubSnapshot
from messagehub.cli.output import table_line
from messagehub.cli.watch import details, kind
from messagehub.display.columns import aligned, paired, shortened
from messagehub.display.values import counted, duration, moment, short, shown, size
from registry.records import Channel

SHOWN_EVENTS = 20


def heading(snapshot: HubSnapshot) -> str:
    """Return which hub this is and how it is."""
    said = [f"MessageHub {snapshot.health}"]
    if snapshot.pid is not None:
        said.append(f"pid {snapshot.pid}")
    if snapshot.uptime_seconds is not None:
        said.append(f"up {duration(snapshot.uptime_seconds)}")
    said.append(shown(snapshot.endpoint))
    return "  ".join(said)


def totals(snapshot: HubSnapshot) -> str:
    """Return what flows on this host, and what it takes."""
    flowing = snapshot.totals
    said = [counted(len(snapshot.channels) + snapshot.left_out, "channel")]
    if snapshot.has_rates:
        said.append(f"{rate(flowing.items_per_second)} items/s, {size(round(flowing.bytes_per_second))}/s")
    said.append(f"rings {size(flowing.memory_bytes)}, free {size(snapshot.shared_free_bytes)}")
    if snapshot.requests_per_second is not None:
        refused = snapshot.refused_per_second or 0.0
        said.append(
            f"{rate(snapshot.requests_per_second)} requests/s" + (f", {rate(refused)} refused" if refused else "")
        )
    return "  ".join(said)


def trouble(snapshot: HubSnapshot) -> str:
    """Return what is wrong, blank where nothing is."""
    if not snapshot.is_answered:
        return "no broker answers: this is what the directory of this host knows"
    if snapshot.problems:
        return shown("; ".join(snapshot.problems))
    if snapshot.health == "read-only":
        return "read-only: its disk is full or failing"
    return f"{snapshot.unsampled:,} channels have no rates: there are too many" if snapshot.unsampled else ""


def whole(snapshot: HubSnapshot, *, contains: str, by: int, is_reversed: bool, **screen: Any) -> Iterator[str]:
    """Return the lines of one screen, for a pipe."""
    yield heading(snapshot)
    yield totals(snapshot)
    if said := trouble(snapshot):
        yield said
    for part in PARTS:
        found = lines_of(snapshot, part)
        if not found and part != "channels":
            continue
        columns = COLUMNS[part]
        is_sorted_here = part == "channels"
        lines = arranged(
            found,
            part,
            contains=contains if is_sorted_here else "",
            by=by if is_sorted_here else 0,
            is_reversed=is_reversed and is_sorted_here,
        )
        yield ""
        rows = [[column.cell(line) for column in columns] for line in lines]
        yield from aligned([column.heading for column in columns], rows, **screen)
    if not snapshot.channels:
        yield "no channels"


def channel_text(detail: ChannelDetail, width: int) -> str:
    """Return a channel with its members, rings and events, for a screen of that width."""
    if detail.found is None:
        return f"{shown(detail.channel)}: there is no such channel now"
    channel = detail.found
    pieces = [
        list(paired(_fields(channel, detail), width=width, is_coloured=False)),
        _section("PRODUCER", ("STATUS", "PID", "HOST", "ITEMS/S", "BYTES/S"), _producers(channel, detail.rings), width),
        _section(
            "CONSUMER",
            ("STATUS", "PID", "ITEMS/S", "LAG", "BYTES", "BEHIND", "HOLDS", "GROUP", "HOST"),
            _consumers(channel, detail.rings),
            width,
        ),
        _section("GROUP", ("MEMBERS", "LAG", "BYTES", "BEHIND"), _groups(detail.rings), width),
        _section(
            "RING",
            ("FILL", "SLOTS", "ITEMS", "SIZE", "WHEN FULL", "FORMAT", "SKIPPED", "LAST WRITE"),
            _rings(detail.rings),
            width,
        ),
        [shortened(_event_line(one.event), width) for one in detail.events[:SHOWN_EVENTS] if one.event is not None],
    ]
    return "\n\n".join("\n".join(piece) for piece in pieces if piece)


def _fields(channel: Channel, detail: ChannelDetail) -> list[tuple[str, str]]:
    schema = " ".join(filter(None, (short(channel.schema_hash), channel.schema_version, channel.schema_type)))
    pairs = [
        ("channel", shown(channel.name)),
        ("status", shown(detail.status)),
        ("schema", shown(schema)),
        ("access", shown(channel.access) + (", declared" if channel.declared else "")),
    ]
    if channel.conflict:
        pairs.append(("conflict", shown(channel.conflict)))
    if channel.table is not None:
        pairs.append(("table", shown(table_line(channel.table))))
    held_back = [ring.producer_id for ring in detail.rings if ring.is_held_back]
    if held_back:
        pairs.append(("held back", f"{shown(held_back)} waits for readers, or they hold every slot"))
    return pairs


def _section(name: str, headings: tuple[str, ...], rows: list[list[Any]], width: int) -> list[str]:
    if not rows:
        return []
    cells = [list(map(shown, row)) for row in rows]
    return list(aligned((name, *headings), cells, width=width, is_coloured=False))


def _producers(channel: Channel, rings: list[RingFlow]) -> list[list[Any]]:
    by_id = {ring.producer_id: ring for ring in rings}
    rows = []
    for one in channel.producers.values():
        ring = by_id.get(one.producer_id)
        flows = [rate(ring.items_per_second), size(round(ring.bytes_per_second))] if ring else [None, None]
        rows.append([one.producer_id, one.status, one.pid, one.host, *flows])
    return rows


def _consumers(channel: Channel, rings: list[RingFlow]) -> list[list[Any]]:
    """Return those that lag most first. What reads without being registered is shown too."""
    lags: dict[str, list[Any]] = {}
    for reader in (reader for ring in rings for reader in ring.readers):
        held = lags.setdefault(reader.consumer_id or f"pid {reader.pid}", [0.0, 0, 0, 0.0, 0, reader.pid, reader.host])
        for at, value in enumerate((reader.items_per_second, reader.lag_items, reader.lag_bytes)):
            held[at] += value
        held[3] = max(held[3], reader.lag_seconds)
        held[4] += reader.held_slots
    rows = []
    for name in sorted({*channel.consumers, *lags}, key=lambda name: -lags[name][1] if name in lags else 0):
        one, lag = channel.consumers.get(name), lags.get(name)
        measured = (
            [rate(lag[0]), f"{lag[1]:,}", size(lag[2]), duration(lag[3]) if lag[3] else "0", lag[4]] if lag else []
        )
        rows.append(
            [
                name,
                one.status if one else "not registered",
                one.pid if one else lag and lag[5],
                *(measured or [None] * 5),
                one.group if one else None,
                one.host if one else lag and lag[6],
            ]
        )
    return rows


def _groups(rings: list[RingFlow]) -> list[list[Any]]:
    return [
        [one.group, one.members, f"{one.lag_items:,}", size(one.lag_bytes), duration(one.lag_seconds)]
        for ring in rings
        for one in ring.groups
    ]


def _rings(rings: list[RingFlow]) -> list[list[Any]]:
    return [
        [
            ring.shm_name,
            f"{ring.fill:.0%}",
            ring.slots,
            f"{ring.head:,}",
            size(ring.memory_bytes),
            ring.when_full,
            ring.format,
            ring.skipped_items,
            moment(ring.written_at) if ring.written_at else None,
        ]
        for ring in rings
    ]


def _event_line(event: Any) -> str:
    return f"{moment(event.at)}  {kind(event)}  {details(event)}".rstrip()
