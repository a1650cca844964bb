"""What a notebook shows of a hub, and of what it finds and makes. Values are handed in: nothing is asked for here."""

from typing import Any

from messagehub.display import markup
from messagehub.display.listing import Listing, cell
from messagehub.display.values import counted, duration, moment, short, shown, size
from registry.formats.differences import Difference
from registry.records import Table
from registry.replies import StatsReport


def hub_html(settings: Any, state: str, health: dict[str, Any], stats: StatsReport | None) -> str:
    """Return a hub: `settings` say where it is, `health` and `stats` how it is, where a broker said so."""
    counts = ("channels", "producers", "consumers", "schemas")
    return markup.fields(
        "MessageHub",
        {
            "state": state,
            "problems": "; ".join(health.get("problems", [])) or health.get("reason"),
            "endpoint": settings.endpoint,
            "directory": settings.dir,
            "broker": f"pid {stats.pid}, up {duration(stats.uptime_seconds)}" if stats else None,
            "holds": ", ".join(counted(getattr(stats, name), name[:-1]) for name in counts) if stats else None,
            "revision": health.get("revision"),
        },
    )


def discovery_html(found: Any) -> str:
    """Return where a channel is, who writes it, and what is in the way of reading it."""
    schema = " ".join(filter(None, (short(found.schema_hash), found.schema_version, found.schema_type, found.schema)))
    pieces = [
        markup.fields(
            f"channel {found.channel}",
            {
                "status": found.status,
                "conflict": found.conflict,
                "known by": found.source,
                "shared memory": found.shm_name,
                "schema": schema,
                "access": found.access,
                "table": _table_text(found.table),
                "consumers": found.consumer_count,
                "metadata": found.metadata,
                "compatible": found.compatible,
            },
        )
    ]
    if found.producers:
        pieces.append(Listing(found.producers)._repr_html_())
    pieces += [differences_html(one.differences, f"version {one.version}") for one in found.differences]
    return markup.together(pieces)


def differences_html(differences: list[Difference], of: str = "") -> str:
    """Return what one schema refuses of the other, with a document that shows it."""
    rows = [[one.path or "/", one.message, one.counterexample] for one in differences]
    return markup.table(("where", "difference", "a document that shows it"), rows, caption=of)


def consumer_html(consumer: Any, group: str | None) -> str:
    is_closed = consumer.is_closed
    return markup.fields(
        f"consumer of {consumer.channel}",
        {
            "state": "closed" if is_closed else consumer.source or "waiting for a producer",
            "group": group,
            "schema": _schema_text(consumer.schema),
            "read up to": None if is_closed else f"{consumer.sequence:,}",
            "lag": None if is_closed else counted(consumer.lag, "item"),
            "missed": counted(consumer.missed, "item"),
        },
    )


def producer_html(producer: Any, *, is_closed: bool) -> str:
    return markup.fields(
        f"producer of {producer.channel}",
        {
            "state": "closed" if is_closed else f"known by {producer.source}",
            "shared memory": producer.shm_name,
            "schema": _schema_text(producer.schema) or "raw bytes",
            "written": None if is_closed else counted(producer.sequence, "item"),
            "skipped": None if is_closed or not producer.skipped else counted(producer.skipped, "item"),
        },
    )


def record_html(record: Any) -> str:
    """Return any record of the registry, with a table for each list of records in it."""
    simple, lists = {}, []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        listed = list(value.values()) if isinstance(value, dict) else value
        if isinstance(listed, list) and listed and hasattr(listed[0], "__struct_fields__"):
            lists.append((name, listed))
        elif hasattr(value, "__struct_fields__"):
            lists.append((name, [value]))
        elif name != "id":
            simple[name.replace("_", " ")] = cell(name, value)
    pieces = [markup.fields(type(record).__name__, simple)]
    for name, listed in lists:
        inner = record_html(listed[0]) if len(listed) == 1 else Listing(listed)._repr_html_()
        pieces.append(markup.paragraph(name.replace("_", " ")) + inner)
    return markup.together(pieces)


def _table_text(table: Table | None) -> str | None:
    if table is None:
        return None
    at = f", {moment(table.committed_at)}" if table.committed_at else ""
    return f"generation {table.generation}, {table.rows:,} rows, {size(table.size_bytes)}, on {shown(table.host)}{at}"


def _schema_text(schema: Any) -> str | None:
    """Return an Arrow schema as names and types, a dtype as it is."""
    if schema is None:
        return None
    if hasattr(schema, "names") and hasattr(schema, "field"):
        return ", ".join(f"{one.name}: {one.type}" for one in schema)
    return str(schema)
