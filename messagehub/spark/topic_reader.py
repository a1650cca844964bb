"""Batch and streaming read of retained topics: one row a message.

Rule 1: a range of offsets is read again as it was read before, whoever reads it: messages have fixed offsets.
Rule 2: what retention has removed before it was read fails the query, or is skipped with a warning where
failOnDataLoss is false.
Rule 3: tasks ask the broker for pages. A range is cut into shares, so that several tasks read a long one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from messagehub.errors import HubError, TopicNotFound
from messagehub.spark.hubs import PLANNING_SECONDS, RUNNING_SECONDS, hub_of, patiently
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import check_columns, conform, read_schema
from messagehub.spark.topic_offsets import (
    Offset,
    check_checkpoint,
    check_starting,
    first_offsets,
    heads,
    last_offsets,
    limited,
    lose,
    losses,
    ranges,
    topics_of,
)
from messagehub.spark.tracebacks import messages_only
from registry import commands, replies

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

COLUMNS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("kind", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary()),
    ]
)
MESSAGES_PER_TASK: Final = 50_000
_PAGE: Final = 1000
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """Messages of one topic, from `first` on and before `stop`."""

    topic: str
    incarnation: int
    first: int
    stop: int


def partitions_of(start: Offset, end: Offset) -> list[InputPartition]:
    return [
        TopicRange(name, incarnation, first, min(first + MESSAGES_PER_TASK, stop))
        for name, incarnation, begin, stop in ranges(start, end)
        for first in range(begin, stop, MESSAGES_PER_TASK)
    ]


def read_range(options: Options, wanted: TopicRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with hub_of(options) as hub:
        rows: list[replies.StoredMessage] = []
        size = 0
        for message in _messages(options, hub, wanted):
            rows.append(message)
            size += len(message.payload)
            if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield conform(_batch(wanted.topic, rows), schema)
                rows, size = [], 0
        if rows:
            yield conform(_batch(wanted.topic, rows), schema)


def _messages(options: Options, hub: "MessageHub", wanted: TopicRange) -> Iterator[replies.StoredMessage]:
    offset = wanted.first
    while offset < wanted.stop:
        command = commands.ReadTopic(topic=wanted.topic, offset=offset, limit=min(_PAGE, wanted.stop - offset))
        try:
            page = patiently(partial(hub.ask, command), RUNNING_SECONDS)
        except TopicNotFound:
            lose(options, f"topic {wanted.topic!r} is gone, with its messages from {offset} on")
            return
        assert isinstance(page, replies.TopicPage)
        if page.incarnation != wanted.incarnation:
            lose(options, f"topic {wanted.topic!r} was deleted and made again, with its messages from {offset} on")
            return
        found = [message for message in page.messages if message.offset < wanted.stop]
        at = found[0].offset if found else wanted.stop
        if at > offset:
            lose(options, f"topic {wanted.topic!r} no longer has its messages {offset} to {at - 1}")
        yield from found
        offset = found[-1].offset + 1 if found else wanted.stop


def _batch(topic: str, messages: list[replies.StoredMessage]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "topic": [topic] * len(messages),
        "offset": [message.offset for message in messages],
        "timestamp": [_microseconds(message.at) for message in messages],
        "kind": [message.kind for message in messages],
        "headers": [[(name, _text(value)) for name, value in message.headers.items()] for message in messages],
        "payload": [message.payload for message in messages],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in COLUMNS], schema=COLUMNS)


def _microseconds(at: float) -> int:
    """Never later than the time itself: a message is found by the time that its row shows."""
    found = int(at * 1e6)
    return found if found / 1e6 <= at else found - 1


def _text(value: Any) -> str:
    """A header's text as it is; any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


@messages_only
class TopicReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = read_schema(schema)
        check_columns(COLUMNS, schema, f"topic {options.topic!r}")

    def partitions(self) -> list[InputPartition]:
        with hub_of(self._options) as hub:
            topics = topics_of(self._options, hub, seconds=PLANNING_SECONDS)
            check_starting(self._options, topics)
            start = first_offsets(self._options, hub, topics)
            return partitions_of(start, last_offsets(self._options, topics))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TopicRange):  # else Spark's own stand-in for "no partitions"
            yield from read_range(self._options, partition, self._schema)


@messages_only
class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = read_schema(schema)
        self._target: dict[str, int] | None = None
        self._turn = 0
        self._told: dict[str, str] = {}
        check_columns(COLUMNS, schema, f"topic {options.topic!r}")

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        with hub_of(self._options) as hub:
            topics = topics_of(self._options, hub, seconds=PLANNING_SECONDS, may_be_none=True)
            check_starting(self._options, topics)
            return first_offsets(self._options, hub, topics)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        most = self._options.max_rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        with hub_of(self._options) as hub:
            found = topics_of(self._options, hub, seconds=RUNNING_SECONDS, may_be_none=True, known=self._named)
        self._target = {name: topic.next_offset for name, topic in found.items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  Spark's name
        check_checkpoint(self._options, start)
        with hub_of(self._options) as hub:
            topics = topics_of(self._options, hub, seconds=RUNNING_SECONDS, may_be_none=True, known=start)
            self._tell_losses(losses(self._options, start, topics))
            end = heads(hub, topics, start)
        if self._target is not None:
            end = {
                name: place | {"offset": min(place["offset"], self._target[name])}
                for name, place in end.items()
                if name in self._target
            }
        if isinstance(limit, ReadMaxRows):
            self._turn += 1
            end = limited(start, end, limit.max_rows, turn=self._turn)
        return dict(sorted((start | end).items()))

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  Spark's name
        """Return the offset to show in the query's progress, beside the one that the query has reached."""
        try:
            with hub_of(self._options) as hub:
                topics = topics_of(self._options, hub, seconds=0.0, may_be_none=True, known=self._named)
        except HubError:
            return None
        return {name: {"incarnation": each.incarnation, "offset": each.next_offset} for name, each in topics.items()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        check_checkpoint(self._options, start)
        return partitions_of(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange)
        yield from read_range(self._options, partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Nothing to let go of: what a topic retains does not depend on who has read it."""

    @property
    def _named(self) -> tuple[str, ...]:
        return self._options.patterns.topics

    def _tell_losses(self, found: dict[str, str]) -> None:
        """Once for each topic, as long as it is so."""
        for name, said in found.items():
            if self._told.get(name) != said:
                lose(self._options, said)
        self._told = found
