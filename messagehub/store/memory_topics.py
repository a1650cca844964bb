"""Retained topics of the memory store. The commit thread writes, a reader reads: under one lock."""

import threading
from collections import deque

import msgspec

from messagehub.store import Extent
from registry.events import AnyTopicEvent, MessagesRetained, TopicDeleted
from registry.records import RetainedTopic
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
            if isinstance(event, TopicDeleted) and not self.catalog.revision(event.name):
                return  # of a site, whose definitions are in etcd: another hub made it, or this one before it restarted
            self.catalog.evolve(event)
            self.positions.evolve(event)
            if isinstance(event, MessagesRetained):
                start = event.total_bytes - sum(map(size_bytes, event.messages))
                rows = self.messages.setdefault(event.incarnation, deque())
                for offset, said in enumerate(event.messages, event.offset):
                    stored = StoredMessage(
                        offset=offset, at=event.at, kind=said.kind, payload=said.payload, headers=said.headers
                    )
                    rows.append((start, stored))
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

    def written(self, incarnation: int) -> RetainedTopic | None:
        found = (topic for topic, _ in self._topics.saved() if topic.incarnation == incarnation)
        return next(found, None)

    def extent(self, topic: RetainedTopic, *, now: float) -> Extent:
        with self._topics.lock:
            rows = self._topics.messages.get(topic.incarnation, ())
            first = next((row for row in rows if _is_within(topic, row, now)), None)
        if first is None:
            return Extent(topic.next_offset, topic.next_offset, 0, None)
        return Extent(first[1].offset, topic.next_offset, topic.total_bytes - first[0], first[1].at)

    def page(self, topic: RetainedTopic, *, offset: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        size = 0
        with self._topics.lock:
            for _, stored in self._topics.messages.get(topic.incarnation, ()):
                if stored.offset >= offset:
                    size += len(stored.payload) + (len(_encode(stored.headers)) if stored.headers else 0)
                    if len(found) >= limit or (found and size > max_bytes):
                        break
                    found.append(stored)
        return found

    def offset_at(self, topic: RetainedTopic, at: float, extent: Extent) -> int:
        with self._topics.lock:
            rows = self._topics.messages.get(topic.incarnation, ())
            found = (stored.offset for _, stored in rows if stored.at >= at and stored.offset >= extent.first_offset)
            return next(found, extent.next_offset)

    def close(self) -> None:
        return None


def _is_within(topic: RetainedTopic, row: Row, now: float) -> bool:
    keep, (start, stored) = topic.keep, row
    return (
        (keep.messages is None or stored.offset >= topic.next_offset - keep.messages)
        and start >= topic.total_bytes - keep.size_bytes
        and (keep.seconds is None or stored.at >= now - keep.seconds)
    )
