"""Lists of records that show themselves as tables: in a notebook, and where Python prints them."""

from collections.abc import Iterator
from typing import Any, SupportsIndex, TypeVar, overload

import msgspec

from messagehub.display.values import moment, short, shown, size
from registry.formats.differences import Difference
from registry.records import Consumer, Producer, RetainedTopic
from registry.replies import ReportedSubscription, ServiceSummary, TableSummary

Record = TypeVar("Record")
WIDTH, MAX_LINES = 120, 60
_COLUMNS: dict[type, tuple[str, ...]] = {
    Consumer: ("consumer_id", "status", "group", "pid", "host", "registered_at", "expected_schema_hash"),
    Difference: ("kind", "path", "message", "counterexample"),
    Producer: ("producer_id", "status", "pid", "host", "shm_name", "schema_version", "registered_at"),
    RetainedTopic: ("name", "next_offset", "total_bytes", "keep", "home", "created_at"),
    ReportedSubscription: (
        *("patterns", "kind", "name", "program", "pid", "host", "received", "lost", "buffered"),
        *("received_at", "began_at"),
    ),
    ServiceSummary: ("address", "workers", "strategy", "revision"),
    TableSummary: (
        *("channel", "table.generation", "table.rows", "table.size_bytes", "table.schema_version"),
        *("table.host", "table.user", "table.committed_at"),
    ),
}
"""Of records with more fields than a table has room for. The others are shown whole."""


class Listing(list[Record]):
    """A list in all respects. Parts of it, by slices, are shown as tables too."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> "Listing[Record]": ...
    def __getitem__(self, at: SupportsIndex | slice) -> "Record | Listing[Record]":
        return Listing(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def __repr__(self) -> str:
        if not self or not columns_of_record(self[0]):
            return super().__repr__()
        from messagehub.display.columns import aligned

        headings, rows = self._table(MAX_LINES)
        lines = list(aligned([name.upper() for name in headings], rows, width=WIDTH, is_coloured=False))
        if len(self) > MAX_LINES:
            lines.append(f"… and {len(self) - MAX_LINES:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from messagehub.display.markup import paragraph, table

        if self and not columns_of_record(self[0]):
            return table(("value",), [[each] for each in self])
        return table(*self._table(len(self))) if self else paragraph("none")

    def _table(self, most: int) -> tuple[list[str], list[list[str]]]:
        names = columns_of_record(self[0])
        headings = [
            name.rpartition(".")[2].removesuffix("_at").removesuffix("_bytes").replace("_", " ") for name in names
        ]
        return headings, [list(_cells(record, names)) for record in self[:most]]


def columns_of_record(record: Any) -> tuple[str, ...]:
    return _COLUMNS.get(type(record)) or tuple(getattr(record, "__struct_fields__", ()))


def _cells(record: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = record
        for attribute in name.split("."):
            value = getattr(value, attribute)
        yield cell(name, value)


def cell(name: str, value: Any) -> str:
    """Return a field as a person reads it; its name says what it is."""
    if name.endswith("_at") and isinstance(value, float):
        return moment(value) if value else "-"
    if name.endswith("_bytes") and isinstance(value, int):
        return size(value)
    if name.endswith("_hash") and isinstance(value, str):
        return shown(short(value))
    if isinstance(value, msgspec.Struct):
        return shown({key: each for key, each in msgspec.structs.asdict(value).items() if each is not None})
    if isinstance(value, list | dict) and any(isinstance(each, msgspec.Struct) for each in _values(value)):
        return str(len(value))
    return shown(value)


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value
