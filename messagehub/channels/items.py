"""Items with what is known of them: number, time, producer."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from messagehub.shm.errors import HandleClosed, TableMissing
from messagehub.shm.rings.read_results import Item, Producers, producer_of
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.tables.manifests import Manifest
from registry.channels.leases import default_owner

if TYPE_CHECKING:
    from messagehub.flight.remote_ring import RemoteRing


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


class Generation(Protocol):
    """One generation of a table, to be closed when it was read."""

    @property
    def manifest(self) -> Manifest: ...

    def table(self, *, verify: bool = False) -> Any: ...

    def schema(self) -> Any: ...

    def __enter__(self) -> "Generation": ...

    def __exit__(self, *_: object) -> None: ...


class Generations(Protocol):
    """The tables of a channel: in the memory of this host, or of another one."""

    def generations(self) -> list[int]: ...

    def open(self, generation: int) -> Generation: ...


AnyRing: TypeAlias = "RingReader | RemoteRing"
"""A ring of this host, or of another one."""


class LastRead(threading.local):
    """The origin of what a thread has read last: threads that share a consumer do not see each other's."""

    origin: Origin = (0, 0, ())


def item_from(channel: str, origin: Origin, value: Any) -> ReadItem:
    return ReadItem(value, origin[0], origin[1] / 1e9, producer_id_of(channel, origin))


def producer_id_of(channel: str, origin: Origin) -> str | None:
    sequence, _, producers = origin
    return (producer_of(sequence, producers) or default_owner(channel)) if producers else None


def table_origin(tables: Generations, generation: int) -> Origin:
    """Return the origin of a table's generation; its time is 0 if the generation was retired meanwhile."""
    try:
        with tables.open(generation) as snapshot:
            return generation, int(snapshot.manifest.committed_at * 1e9), ()
    except TableMissing:
        return generation, 0, ()


def schema_of_table(tables: Generations, generation: int) -> Any:
    """Return the schema of one generation of a table, or None if it was retired meanwhile."""
    try:
        with tables.open(generation) as snapshot:
            return snapshot.schema()
    except TableMissing:
        return None


def newest_of(readers: Sequence["AnyRing"]) -> Item | None:
    """Return the item that was written last of those in all rings, or None when they are empty."""
    here = [reader for reader in readers if isinstance(reader, RingReader)]
    newest = None
    for reader in sorted(here, key=RingReader.newest_ns, reverse=True) if len(here) > 1 else here:
        newest = _latest(reader)
        if newest is not None:
            break
    for ring in readers:
        if not isinstance(ring, RingReader):
            item = _latest(ring)
            newest = item if item is not None and (newest is None or item.written_ns > newest.written_ns) else newest
    return newest


def _latest(reader: "AnyRing") -> Item | None:
    try:
        return reader.latest()
    except HandleClosed:
        return None  # the thread that reads has just let go of it
