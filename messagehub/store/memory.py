"""Nothing outlives the process: for the embedded broker of tests and notebooks.

State is kept as evolved copies, so that a reload after a failure gives what was written, not what was lost.
"""

from collections.abc import Sequence

import msgspec

from messagehub.store import Saved
from registry.events import AnyEvent, AnySchemaEvent
from registry.records import Channel
from registry.schema_catalog import SchemaCatalog
from registry.state import Channels

_encoder = msgspec.json.Encoder()  # JSON, since records hold whatever integers JSON can say
_decoder = msgspec.json.Decoder(AnyEvent)
_channels_decoder: msgspec.json.Decoder[list[Channel]] = msgspec.json.Decoder(list[Channel])


class MemoryStore:
    def __init__(self) -> None:
        self._channels = Channels()
        self._catalog = SchemaCatalog()
        self._revision = 0

    def load(self) -> Saved:
        copies = _channels_decoder.decode(_encoder.encode(list(self._channels.values())))
        catalog = self._catalog
        return Saved(
            copies, catalog.every(), self._revision, catalog.last_id, dict(catalog.configs), dict(catalog.modes)
        )

    def rows(self, event: AnyEvent) -> Sequence[bytes]:
        return (_encoder.encode(event),)

    def write(self, rows: Sequence[bytes], *, revision: int, durable: bool) -> None:  # noqa: ARG002  nothing is durable
        for row in rows:
            event = _decoder.decode(row)
            if isinstance(event, AnySchemaEvent):
                self._catalog.evolve(event)
            else:
                self._channels.evolve(event)
        self._revision = revision

    def probe(self) -> None:
        return None

    def close(self) -> None:
        return None
