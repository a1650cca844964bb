"""Kept topics of the memory store. The commit thread writes, a reader reads: under one lock."""

import threading
from collections import deque

import msgspec

from messagehub.store import Extent
from registry.events import AnyTopicEvent, MessagesKept, TopicDeleted
from registry.records import KeptTopic
from registry.replies import StoredMessage
from registry.topics.positions import Positions, SavedPosition
from registry.topics.retained import SavedTopic, TopicCatalog, size_bytes

Row = tuple[int, StoredMessage]
"""How many bytes were stored before it, and the message."""
_encode = msgspec.json.Encoder().encode


class MemoryTopics:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.catalog = TopicCatalog()
        self.positions = Positions(self.catalog)
        self.messages: dict[int, deque[Row]] = {}

    def evolve(self, event: AnyTopicEvent) -> None:
        with self.lock:
            self.catalog.evolve(event)
            self.positions.evolve(event)
            if isinstance(event, MessagesKept):
                start = event.total_bytes - sum(map(size_bytes, event.messages))
                rows = self.messages.setdefault(event.incarnation, deque())
                for offset, said in enumerate(event.messages, event.offset):
                    kept = StoredMessage(
                        offset=offset, at=event.at, kind=said.kind, payload=said.payload, headers=said.headers
                    )
                    rows.append((start, kept))
                    start += size_bytes(said)
            elif isinstance(event, TopicDeleted):
                self.messages.pop(event.incarnation, None)

    def saved(self) -> list[SavedTopic]:
        with self.lock:
            return [
                SavedTopic(msgspec.structs.replace(topic), publishers) for topic, publishers in self.catalog.every()
            ]

    def saved_positions(self) -> list[SavedPosition]:
        with self.lock:
            return self.positions.every()

    def trim(self, *, now: float) -> None:
        with self.lock:
            for topic, _ in self.catalog.every():
                rows = self.messages.get(topic.incarnation)
                while rows and not _is_within(topic, rows[0], now):
                    rows.popleft()


class MemoryTopicReader:
    def __init__(self, topics: MemoryTopics) -> None:
        self._topics = topics

    def written(self, incarnation: int) -> KeptTopic | None:
        found = (topic for topic, _ in self._topics.saved() if topic.incarnation == incarnation)
        return next(found, None)

    def extent(self, topic: KeptTopic, *, now: float) -> Extent:
        with self._topics.lock:
            rows = self._topics.messages.get(topic.incarnation, ())
            first = next((row for row in rows if _is_within(topic, row, now)), None)
        if first is None:
            return Extent(topic.next_offset, topic.next_offset, 0, None)
        return Extent(first[1].offset, topic.next_offset, topic.total_bytes - first[0], first[1].at)

    def page(self, topic: KeptTopic, *, offset: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        size = 0
        with self._topics.lock:
            for _, kept in self._topics.messages.get(topic.incarnation, ()):
                if kept.offset >= offset:
                    size += len(kept.payload) + (len(_encode(kept.headers)) if kept.headers else 0)
                    if len(found) >= limit or (found and size > max_bytes):
                        break
                    found.append(kept)
        return found

    def offset_at(self, topic: KeptTopic, at: float, extent: Extent) -> int:
        with self._topics.lock:
            rows = self._topics.messages.get(topic.incarnation, ())
            found = (kept.offset for _, kept in rows if kept.at >= at and kept.offset >= extent.first_offset)
            return next(found, extent.next_offset)

    def close(self) -> None:
        return None


def _is_within(topic: KeptTopic, row: Row, now: float) -> bool:
    keep, (start, kept) = topic.keep, row
    return (
        (keep.messages is None or kept.offset >= topic.next_offset - keep.messages)
        and start >= topic.total_bytes - keep.size_bytes
        and (keep.seconds is None or kept.at >= now - keep.seconds)
    )
