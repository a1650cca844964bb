"""The contract of stores, which hold what outlives the broker's process.

A store turns events into its own rows at once (`rows`, in the broker's thread, since records go on changing)
and writes many of them in one transaction later (`write`, in the commit thread).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from registry.events import AnyEvent
from registry.records import Channel, Mode, RetainedTopic, SchemaConfig, SchemaVersion, Service
from registry.replies import StoredMessage
from registry.topics.positions import SavedPosition
from registry.topics.retained import SavedTopic


class Saved(Struct):
    """Everything that a registry needs to go on after a restart."""

    channels: list[Channel]
    schemas: list[SchemaVersion]
    revision: int
    last_schema_id: int = 0
    configs: dict[str, SchemaConfig] = field(default_factory=dict)
    modes: dict[str, Mode] = field(default_factory=dict)
    topics: list[SavedTopic] = field(default_factory=list)
    positions: list[SavedPosition] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    """Of a site; a hub on its own stores none."""


class Extent(NamedTuple):
    """Which messages of a topic are within its bounds."""

    first_offset: int
    next_offset: int
    size_bytes: int
    oldest_at: float | None


class StoredTopicReader(Protocol):
    """Reads stored messages of retained topics, on one thread. Bounds hold at once, before anything is removed."""

    def written(self, incarnation: int) -> RetainedTopic | None:
        """Return the topic as it is on disk, which may be less than the registry knows; None if it is not there."""

    def extent(self, topic: RetainedTopic, *, now: float) -> Extent:
        """Return which messages of a written topic are within its bounds."""

    def page(self, topic: RetainedTopic, *, offset: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        """Return messages from an offset on: at least one if there is one, however large it is."""

    def offset_at(self, topic: RetainedTopic, at: float, extent: Extent) -> int:
        """Return the offset of the first message that is not older than `at`."""

    def close(self) -> None: ...


class Store(Protocol):
    def load(self) -> Saved:
        """Return what was written last. It may be called again, from any thread, after a failed write."""

    def rows(self, event: AnyEvent) -> Sequence[Any]:
        """Return the event in the store's own form."""

    def write(self, rows: Sequence[Any], *, revision: int, durable: bool) -> None:
        """Write all rows in one transaction or, with an OSError or StoreError, none.

        If durable, they are on disk when this returns. A store that cannot write so much at once writes event by
        event in order; `written` of its StoreError is the revision that it reached.
        """

    def trim(self, *, now: float) -> bool:
        """Remove some messages beyond the bounds of their topics.

        Return True if there are more. Called by the writing thread.
        """

    def topic_reader(self) -> StoredTopicReader:
        """Return a new reader."""

    def probe(self) -> None:
        """Raise what `write` would raise now."""

    def close(self) -> None: ...
