"""Retained topics in SQLite: definitions, messages, and what each publisher sent last.

Rule 1: a message is a row under (incarnation, offset), written in the same transaction as the topic's next offset.
Rule 2: bounds hold for readers at once (`_first`); rows beyond them are removed later, a bounded number at a time, in
transactions of their own, so that no publisher waits for them.
Rule 3: `start` is how much was stored before a message, so that bounds in bytes need no counting.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from messagehub.store import Extent, sqlite_positions
from registry import events
from registry.records import LastBatch, RetainedTopic
from registry.replies import StoredMessage
from registry.topics.retained import MOST_PUBLISHERS, SavedTopic, size_bytes

ROWS_AT_ONCE = 2_000
SWEEP_SECONDS = 5.0
PUBLISHER_SECONDS = 3600.0
TABLES = """
CREATE TABLE IF NOT EXISTS topics (incarnation INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS topic_messages (incarnation INTEGER, offset INTEGER, at REAL NOT NULL,
    start INTEGER NOT NULL, kind TEXT NOT NULL, headers TEXT, payload BLOB NOT NULL, PRIMARY KEY (incarnation, offset))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topic_publishers (incarnation INTEGER, publisher TEXT, number INTEGER NOT NULL,
    count INTEGER NOT NULL, offset INTEGER NOT NULL, at REAL NOT NULL, PRIMARY KEY (incarnation, publisher))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deleted_topics (incarnation INTEGER PRIMARY KEY);
"""
_PUT_TOPIC = "INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?)"
_GROW_TOPIC = "UPDATE topics SET next_offset = ?, total_bytes = ? WHERE incarnation = ?"
_PUT_MESSAGE = "INSERT INTO topic_messages VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_PUBLISHER = "INSERT OR REPLACE INTO topic_publishers VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_BEFORE = "DELETE FROM topic_messages WHERE incarnation = ? AND offset < ?"
_OLDEST = "SELECT min(offset) FROM topic_messages WHERE incarnation = ?"

Row = tuple[str, tuple[Any, ...]]
_encode = msgspec.json.Encoder().encode
_headers_decoder = msgspec.json.Decoder(dict[str, Any])
_topic_decoder: msgspec.json.Decoder[RetainedTopic] = msgspec.json.Decoder(RetainedTopic)


def _put_topic(event: events.TopicRetained) -> Sequence[Row]:
    record = event.record
    values = (record.incarnation, record.next_offset, record.total_bytes, _encode(record).decode())
    return ((_PUT_TOPIC, values),)


def _delete_topic(event: events.TopicDeleted) -> Sequence[Row]:
    incarnation = (event.incarnation,)
    return (
        ("DELETE FROM topics WHERE incarnation = ?", incarnation),
        ("DELETE FROM topic_publishers WHERE incarnation = ?", incarnation),
        ("INSERT INTO deleted_topics VALUES (?)", incarnation),  # its messages go little by little
        *sqlite_positions.of_deleted_topic(event.incarnation),
    )


def _put_messages(event: events.MessagesRetained) -> Sequence[Row]:
    incarnation, at = event.incarnation, event.at
    start = event.total_bytes - sum(map(size_bytes, event.messages))
    rows: list[Row] = []
    for offset, message in enumerate(event.messages, event.offset):
        headers = _encode(message.headers).decode() if message.headers else None
        rows.append((_PUT_MESSAGE, (incarnation, offset, at, start, message.kind, headers, message.payload)))
        start += size_bytes(message)
    rows.append((_GROW_TOPIC, (event.offset + len(event.messages), event.total_bytes, incarnation)))
    if event.publisher is not None:
        last = (incarnation, event.publisher, event.number, len(event.messages), event.offset, at)
        rows.append((_PUT_PUBLISHER, last))
    return rows


ROWS: dict[type[events.Event], Callable[[Any], Sequence[Row]]] = {
    events.TopicRetained: _put_topic,
    events.TopicDeleted: _delete_topic,
    events.MessagesRetained: _put_messages,
}


def load(connection: sqlite3.Connection) -> list[SavedTopic]:
    found: dict[int, SavedTopic] = {}
    query = "SELECT incarnation, next_offset, total_bytes, record FROM topics"
    for incarnation, next_offset, total_bytes, record in connection.execute(query):
        topic = _topic_decoder.decode(record)
        topic.next_offset, topic.total_bytes = next_offset, total_bytes
        found[incarnation] = SavedTopic(topic, {})
    query = "SELECT incarnation, publisher, number, count, offset FROM topic_publishers ORDER BY offset"
    for incarnation, publisher, number, count, offset in connection.execute(query):
        found[incarnation].publishers[publisher] = LastBatch(number=number, count=count, offset=offset)
    for saved in found.values():
        for publisher in list(saved.publishers)[:-MOST_PUBLISHERS]:
            del saved.publishers[publisher]
    return list(found.values())


class TopicRetention:
    """Which rows to remove next; used by the thread that writes."""

    def __init__(self) -> None:
        self.has_more = False
        self._touched: set[int] = set()
        self._sweep_at = 0.0
        self._written = 0

    def note(self, rows: Sequence[Row]) -> None:
        """Take note of what was written."""
        for statement, values in rows:
            if statement is _PUT_MESSAGE:
                self._written += 1
            elif statement is _GROW_TOPIC:
                self._touched.add(values[2])
            elif statement is _PUT_TOPIC:
                self._touched.add(values[0])

    def rows(self, connection: sqlite3.Connection, *, now: float) -> list[Row]:
        budget = max(ROWS_AT_ONCE, 2 * self._written)
        self._written = 0
        looked_at, self._touched = self._touched, set()
        rows: list[Row] = []
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            aged = "SELECT incarnation FROM topics WHERE json_extract(record, '$.keep.seconds') IS NOT NULL"
            looked_at |= {incarnation for (incarnation,) in connection.execute(aged)}
            rows.append(("DELETE FROM topic_publishers WHERE at < ?", (now - PUBLISHER_SECONDS,)))
        for incarnation in looked_at:
            topic = _topic(connection, incarnation)
            if topic is not None and not self._remove(
                connection, incarnation, _first(connection, topic, now), rows, budget
            ):
                self._touched.add(incarnation)
        for (incarnation,) in connection.execute("SELECT incarnation FROM deleted_topics").fetchall():
            if self._remove(connection, incarnation, None, rows, budget):
                rows.append(("DELETE FROM deleted_topics WHERE incarnation = ?", (incarnation,)))
            else:
                self._touched.add(incarnation)
        self.has_more = bool(self._touched)
        return rows

    def _remove(
        self, connection: sqlite3.Connection, incarnation: int, first: int | None, rows: list[Row], budget: int
    ) -> bool:
        """Remove all rows before the first that stays, or all. Return False if that takes more than one transaction."""
        oldest = connection.execute(_OLDEST, (incarnation,)).fetchone()[0]
        if oldest is None or (first is not None and oldest >= first):
            return True
        newest = "SELECT max(offset) + 1 FROM topic_messages WHERE incarnation = ?"
        end = connection.execute(newest, (incarnation,)).fetchone()[0] if first is None else first
        rows.append((_DELETE_BEFORE, (incarnation, min(end, oldest + budget))))
        return bool(end <= oldest + budget)


class SQLiteTopicReader:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def written(self, incarnation: int) -> RetainedTopic | None:
        return _topic(self._connection, incarnation)

    def extent(self, topic: RetainedTopic, *, now: float) -> Extent:
        first = _first(self._connection, topic, now)
        query = "SELECT start, at FROM topic_messages WHERE incarnation = ? AND offset = ?"
        row = self._connection.execute(query, (topic.incarnation, first)).fetchone()
        start, oldest_at = row or (topic.total_bytes, None)
        return Extent(first, topic.next_offset, topic.total_bytes - start, oldest_at)

    def page(self, topic: RetainedTopic, *, offset: int, limit: int, max_bytes: int) -> list[StoredMessage]:
        query = (
            "SELECT offset, at, kind, headers, payload FROM topic_messages WHERE incarnation = ? AND offset >= ?"
            " ORDER BY offset LIMIT ?"
        )
        found: list[StoredMessage] = []
        size = 0
        for position, at, kind, headers, payload in self._connection.execute(query, (topic.incarnation, offset, limit)):
            size += len(payload) + len(headers or "")
            if found and size > max_bytes:
                break
            said = _headers_decoder.decode(headers) if headers else {}
            found.append(StoredMessage(offset=position, at=at, kind=kind, payload=payload, headers=said))
        return found

    def offset_at(self, topic: RetainedTopic, at: float, extent: Extent) -> int:
        low, high = extent.first_offset, extent.next_offset
        query = "SELECT at FROM topic_messages WHERE incarnation = ? AND offset = ?"
        while low < high:
            middle = (low + high) // 2
            row = self._connection.execute(query, (topic.incarnation, middle)).fetchone()
            if row is None or row[0] < at:  # none: removed a moment ago, so older
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        self._connection.close()


def _topic(connection: sqlite3.Connection, incarnation: int) -> RetainedTopic | None:
    query = "SELECT next_offset, total_bytes, record FROM topics WHERE incarnation = ?"
    row = connection.execute(query, (incarnation,)).fetchone()
    if row is None:
        return None
    topic = _topic_decoder.decode(row[2])
    topic.next_offset, topic.total_bytes = row[0], row[1]
    return topic


def _first(connection: sqlite3.Connection, topic: RetainedTopic, now: float) -> int:
    """Return the oldest offset within the bounds.

    Each bound excludes the oldest only, so the scan ends at the first that fits.
    """
    keep = topic.keep
    query = (
        "SELECT offset FROM topic_messages WHERE incarnation = ? AND offset >= ? AND start >= ? AND at >= ?"
        " ORDER BY offset LIMIT 1"
    )
    lowest = topic.next_offset - keep.messages if keep.messages is not None else 0
    oldest_at = now - keep.seconds if keep.seconds is not None else 0.0
    values = (topic.incarnation, lowest, topic.total_bytes - keep.size_bytes, oldest_at)
    row = connection.execute(query, values).fetchone()
    return int(row[0]) if row else topic.next_offset
