"""Nothing outlives the process: for the embedded broker of tests and notebooks.

State is kept as evolved copies, so that a reload after a failure gives what was written, not what was lost.
"""

from collections.abc import Sequence

import msgspec

from messagehub.store import Saved
from registry.events import AnyEvent, SchemaRegistered
from registry.records import Channel, SchemaVersion
from registry.state import Channels

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)
_channels_decoder: msgspec.msgpack.Decoder[list[Channel]] = msgspec.msgpack.Decoder(list[Channel])


class MemoryStore:
    def __init__(self) -> None:
        self._channels = Channels()
        self._schemas: list[SchemaVersion] = []
        self._revision = 0

    def load(self) -> Saved:
        copies = _channels_decoder.decode(_encoder.encode(list(self._channels.values())))
        return Saved(copies, list(self._schemas), self._revision)

    def rows(self, event: AnyEvent) -> Sequence[bytes]:
        return (_encoder.encode(event),)

    def write(self, rows: Sequence[bytes], *, revision: int, durable: bool) -> None:  # noqa: ARG002  nothing is durable
        for row in rows:
            event = _decoder.decode(row)
            if isinstance(event, SchemaRegistered):
                self._schemas.append(event.schema)
            else:
                self._channels.evolve(event)
        self._revision = revision

    def probe(self) -> None:
        return None

    def close(self) -> None:
        return None
