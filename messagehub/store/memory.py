"""A store in memory, for the embedded broker of tests and notebooks. Nothing outlives the process.

State is kept as evolved copies, so that a reload after a failure gives what was written, not what was lost.
"""

from collections.abc import Sequence

import msgspec

from messagehub.store import Saved
from messagehub.store.memory_topics import MemoryTopicReader, MemoryTopics
from registry.channels.state import Channels
from registry.events import AnyEvent, AnySchemaEvent, AnyTopicEvent
from registry.records import Channel
from registry.schemas.catalog import SchemaCatalog

_encoder = msgspec.json.Encoder()  # JSON, since records hold whatever integers JSON can say
_decoder = msgspec.json.Decoder(AnyEvent)
_channels_decoder: msgspec.json.Decoder[list[Channel]] = msgspec.json.Decoder(list[Channel])


class MemoryStore:
    def __init__(self) -> None:
        self._channels = Channels()
        self._catalog = SchemaCatalog()
        self._topics = MemoryTopics()
        self._revision = 0

    def load(self) -> Saved:
        copies = _channels_decoder.decode(_encoder.encode(list(self._channels.values())))
        catalog = self._catalog
        configs, modes = dict(catalog.configs), dict(catalog.modes)
        topics, positions = self._topics.saved(), self._topics.saved_positions()
        return Saved(copies, catalog.every(), self._revision, catalog.last_id, configs, modes, topics, positions)

    def rows(self, event: AnyEvent) -> Sequence[bytes]:
        return (_encoder.encode(event),)

    def write(self, rows: Sequence[bytes], *, revision: int, durable: bool) -> None:  # noqa: ARG002  nothing is durable
        for row in rows:
            event = _decoder.decode(row)
            if isinstance(event, AnySchemaEvent):
                self._catalog.evolve(event)
            elif isinstance(event, AnyTopicEvent):
                self._topics.evolve(event)
            else:
                self._channels.evolve(event)
        self._revision = revision

    def trim(self, *, now: float) -> bool:
        self._topics.trim(now=now)
        return False

    def topic_reader(self) -> MemoryTopicReader:
        return MemoryTopicReader(self._topics)

    def probe(self) -> None:
        return None

    def close(self) -> None:
        return None
