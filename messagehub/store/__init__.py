"""What outlives the broker's process: one contract, several stores.

A store turns events into its own rows at once (`rows`, in the broker's thread, since records go on changing)
and writes many of them in one transaction later (`write`, in the commit thread).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from registry.events import AnyEvent
from registry.records import Channel, Mode, RetainedTopic, SchemaConfig, SchemaVersion
from registry.replies import StoredMessage
from registry.topics.positions import SavedPosition
from registry.topics.retained import SavedTopic


class Saved(Struct):
    """Everything a registry needs to go on."""

    channels: list[Channel]
    schemas: list[SchemaVersion]
    revision: int
    last_schema_id: int = 0
    configs: dict[str, SchemaConfig] = field(default_factory=dict)
    modes: dict[str, Mode] = field(default_factory=dict)
    topics: list[SavedTopic] = field(default_factory=list)
    positions: list[SavedPosition] = field(default_factory=list)


class Extent(NamedTuple):
    """What of a topic is within its bounds."""

    first_offset: int
    next_offset: int
    size_bytes: int
    oldest_at: float | None


class StoredTopicReader(Protocol):
    """Reads stored messages of retained topics, on one thread. Bounds hold at once, before anything is removed."""

    def written(self, incarnation: int) -> RetainedTopic | None:
        """The topic as it is on disk, which may be less than the registry knows; None when it is not."""

    def extent(self, topic: RetainedTopic, *, now: float) -> Extent:
        """Of a topic as it was written."""

    def page(self, topic: RetainedTopic, *, offset: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        """From an offset on; at least one where there is one, however large."""

    def offset_at(self, topic: RetainedTopic, at: float, extent: Extent) -> int:
        """The first one's that is not older."""

    def close(self) -> None: ...


class Store(Protocol):
    def load(self) -> Saved:
        """What was written last. May be called again, from any thread, after a failed write."""

    def rows(self, event: AnyEvent) -> Sequence[Any]:
        """The event in the store's own form."""

    def write(self, rows: Sequence[Any], *, revision: int, durable: bool) -> None:
        """One transaction: all of it or, with an OSError or StoreError, none. Durable: on disk when this returns."""

    def trim(self, *, now: float) -> bool:
        """Remove some of what is beyond the bounds of its topic; True when there is more. By the writing thread."""

    def topic_reader(self) -> StoredTopicReader:
        """A new one."""

    def probe(self) -> None:
        """Raise what `write` would raise now."""

    def close(self) -> None: ...
