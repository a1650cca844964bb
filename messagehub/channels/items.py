"""Items with what is known of them: number, time, producer."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from messagehub.shm.errors import HandleClosed, TableMissing
from messagehub.shm.rings.read_results import Item, Producers, producer_of
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.tables.tables import TableStore
from registry.channels.leases import default_owner


@dataclass(frozen=True, slots=True)
class ReadItem:
    """A value as `read` gives it, and where it comes from.

    `sequence` is its number in its producer's ring, or the generation of a table. `written_at` is in seconds since
    1970. `producer_id` is None for a table.
    """

    value: Any
    sequence: int
    written_at: float
    producer_id: str | None


Origin = tuple[int, int, Producers]
"""Where a value comes from: sequence, nanoseconds since 1970, who wrote the ring (nobody: a table).

A plain tuple, since one is made for every item; the producer's name is looked up when somebody asks for it.
"""


class LastRead(threading.local):
    """The origin of what a thread has read last: threads that share a consumer do not see each other's."""

    origin: Origin = (0, 0, ())


def item_from(channel: str, origin: Origin, value: Any) -> ReadItem:
    return ReadItem(value, origin[0], origin[1] / 1e9, producer_id_of(channel, origin))


def producer_id_of(channel: str, origin: Origin) -> str | None:
    sequence, _, producers = origin
    return (producer_of(sequence, producers) or default_owner(channel)) if producers else None


def table_origin(tables: TableStore, generation: int) -> Origin:
    """Return the origin of a table's generation; its time is 0 if the generation was retired meanwhile."""
    try:
        with tables.open(generation) as snapshot:
            return generation, int(snapshot.manifest.committed_at * 1e9), ()
    except TableMissing:
        return generation, 0, ()


def schema_of_table(tables: TableStore, generation: int) -> Any:
    """Return the schema of one generation of a table, or None if it was retired meanwhile."""
    try:
        with tables.open(generation) as snapshot:
            return snapshot.table().schema
    except TableMissing:
        return None


def newest_of(readers: Sequence[RingReader]) -> Item | None:
    """Return the item that was written last of those in all rings, or None when they are empty."""
    for reader in sorted(readers, key=RingReader.newest_ns, reverse=True) if len(readers) > 1 else readers:
        try:
            item = reader.latest()
        except HandleClosed:
            continue  # the thread that reads has just let go of it
        if item is not None:
            return item
    return None
