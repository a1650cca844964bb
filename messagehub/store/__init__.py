"""What outlives the broker's process: one contract, several stores.

A store turns events into its own rows at once (`rows`, in the broker's thread, since records go on changing)
and writes many of them in one transaction later (`write`, in the commit thread).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from registry.events import AnyEvent
from registry.records import Channel, Mode, SchemaConfig, SchemaVersion


class Saved(Struct):
    """Everything a registry needs to go on."""

    channels: list[Channel]
    schemas: list[SchemaVersion]
    revision: int
    last_schema_id: int = 0
    configs: dict[str, SchemaConfig] = field(default_factory=dict)
    modes: dict[str, Mode] = field(default_factory=dict)


class Store(Protocol):
    def load(self) -> Saved:
        """What was written last. May be called again, from any thread, after a failed write."""

    def rows(self, event: AnyEvent) -> Sequence[Any]:
        """The event in the store's own form."""

    def write(self, rows: Sequence[Any], *, revision: int, durable: bool) -> None:
        """One transaction: all of it or, with an OSError or StoreError, none. Durable: on disk when this returns."""

    def probe(self) -> None:
        """Raise what `write` would raise now."""

    def close(self) -> None: ...
