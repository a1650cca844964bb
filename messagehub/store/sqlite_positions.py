"""Named positions of retained topics in SQLite.

Rule: each message that was handed out and not acknowledged is a row, so that a write costs as much as it changes.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from registry import events
from registry.records import TopicPosition
from registry.topics.positions import SavedPosition

TABLES = """
CREATE TABLE IF NOT EXISTS topic_positions (incarnation INTEGER, name TEXT, next_offset INTEGER NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (incarnation, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS topic_unacked (incarnation INTEGER, name TEXT, offset INTEGER, deliveries INTEGER NOT NULL,
    PRIMARY KEY (incarnation, name, offset)) WITHOUT ROWID;
"""
_PUT = "INSERT OR REPLACE INTO topic_positions VALUES (?, ?, ?, ?)"
_MOVE = "UPDATE topic_positions SET next_offset = ? WHERE incarnation = ? AND name = ?"
_DELETE = "DELETE FROM topic_positions WHERE incarnation = ? AND name = ?"
_DELIVER = "INSERT OR REPLACE INTO topic_unacked VALUES (?, ?, ?, ?)"
_ACKNOWLEDGE = "DELETE FROM topic_unacked WHERE incarnation = ? AND name = ? AND offset = ?"
_PASS_OVER = "DELETE FROM topic_unacked WHERE incarnation = ? AND name = ? AND offset < ?"
_FORGET = "DELETE FROM topic_unacked WHERE incarnation = ? AND name = ?"

Row = tuple[str, tuple[Any, ...]]
_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[TopicPosition] = msgspec.json.Decoder(TopicPosition)


def of_deleted_topic(incarnation: int) -> Sequence[Row]:
    return (
        ("DELETE FROM topic_positions WHERE incarnation = ?", (incarnation,)),
        ("DELETE FROM topic_unacked WHERE incarnation = ?", (incarnation,)),
    )


def _set(event: events.PositionSet) -> Sequence[Row]:
    key, record = (event.incarnation, event.position), event.record
    return (_PUT, (*key, record.next_offset, _encode(record).decode())), (_FORGET, key)


def _delete(event: events.PositionDeleted) -> Sequence[Row]:
    key = (event.incarnation, event.position)
    return (_DELETE, key), (_FORGET, key)


def _deliver(event: events.MessagesDelivered) -> Sequence[Row]:
    key = (event.incarnation, event.position)
    rows: list[Row] = [(_MOVE, (event.next_offset, *key)), (_PASS_OVER, (*key, event.first_offset))]
    return [*rows, *((_DELIVER, (*key, offset, deliveries)) for offset, deliveries in event.deliveries)]


def _acknowledge(event: events.MessagesAcknowledged) -> Sequence[Row]:
    return [(_ACKNOWLEDGE, (event.incarnation, event.position, offset)) for offset in event.offsets]


ROWS: dict[type[events.Event], Callable[[Any], Sequence[Row]]] = {
    events.PositionSet: _set,
    events.PositionDeleted: _delete,
    events.MessagesDelivered: _deliver,
    events.MessagesAcknowledged: _acknowledge,
}


def load(connection: sqlite3.Connection) -> list[SavedPosition]:
    found: dict[tuple[int, str], SavedPosition] = {}
    query = "SELECT incarnation, name, next_offset, record FROM topic_positions"
    for incarnation, name, next_offset, record in connection.execute(query):
        position = replace(_decoder.decode(record), next_offset=next_offset)
        found[incarnation, name] = SavedPosition(position, {})
    query = "SELECT incarnation, name, offset, deliveries FROM topic_unacked ORDER BY offset"
    for incarnation, name, offset, deliveries in connection.execute(query):
        found[incarnation, name].deliveries[offset] = deliveries
    return list(found.values())
