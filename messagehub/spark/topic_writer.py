"""Batch and streaming write to topics: one message a row.

Rule 1: tasks publish while they run, so a failed job leaves the messages that its tasks had published.
Rule 2: a task that is tried again publishes nothing twice to a retained topic: its messages have the numbers that they
had before, and the broker says which it has stored. The same holds for a micro-batch of a stream that is replayed.
Rule 3: that takes rows in the same order. The messages that were stored last are compared with the rows of their
numbers; where they differ the task fails, since messages would be lost and others published twice.
Rule 4: to a topic that is not retained each attempt publishes all its messages, and only current subscribers get them.
"""

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from messagehub.errors import HubError, InvalidRequest
from messagehub.payloads.encoding import decode_payload
from messagehub.protocol.topic_frames import KIND_OF
from messagehub.spark.errors import BadOption, RowsReordered, UnsupportedColumn
from messagehub.spark.hubs import PLANNING_SECONDS, RUNNING_SECONDS, hub_of, patiently
from messagehub.spark.options import Options
from messagehub.spark.stream_writer import BATCH, QUERY
from messagehub.spark.tracebacks import messages_only
from messagehub.topics.retained.publishing import MAX_BATCH, check_retained_size, pieces
from registry import commands, replies
from registry.records import PayloadKind, RetainedMessage
from registry.topics.patterns import check_topic

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

_TAKEN: Final[dict[str, tuple[tuple[type[spark.DataType], ...], str]]] = {
    "payload": ((spark.BinaryType, spark.StringType), "binary or string"),
    "topic": ((spark.StringType,), "string"),
    "kind": ((spark.StringType,), "string"),
    "headers": ((spark.MapType,), "map<string,string>"),
}
_MESSAGES_OF_A_BATCH: Final = 1 << 28
_BATCHES_OF_A_PUBLISHER: Final = 1 << 20
"""A number on the wire has 53 bits: these are for the messages of one task and for micro-batches. After so many
micro-batches a stream publishes under another name."""


@dataclass
class Sent(WriterCommitMessage):
    messages: int


class TopicSink:
    """What batch and streaming writes share: which columns there are, and how a task publishes its rows."""

    def __init__(self, options: Options, schema: spark.StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise BadOption('what is published to a topic is added to it: use .mode("append")')
        self._options = options
        patterns = options.patterns
        self._topic = patterns.topics[0] if len(patterns.texts) == 1 and patterns.topics else None
        _check(schema, has_topic=self._topic is not None, pattern=patterns.text)
        self._has_column = "topic" in schema.names
        with hub_of(options) as hub:
            # Before any task runs: is a broker there, and may this peer ask it?
            patiently(partial(hub.topics, patterns.texts[0]), PLANNING_SECONDS)

    def publish(self, batches: Iterator[pa.RecordBatch], publisher: str, number: int) -> Sent:
        """Publish all rows of a task, in their order. `number` is that of the first message to each topic."""
        with hub_of(self._options) as hub:
            topics: dict[str, _Topic | _PlainTopic] = {}
            count = 0
            for batch in batches:
                count += batch.num_rows
                if count > _MESSAGES_OF_A_BATCH:
                    raise BadOption(f"a partition has over {_MESSAGES_OF_A_BATCH} rows: repartition the DataFrame")
                for name, messages in self._by_topic(batch).items():
                    if name not in topics:
                        topics[name] = _topic(hub, name, publisher, number)
                    topics[name].publish(messages)
        return Sent(count)

    def _by_topic(self, batch: pa.RecordBatch) -> dict[str, list[RetainedMessage]]:
        found: dict[str, list[RetainedMessage]] = {}
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        default = itertools.repeat(None)
        rows = zip(
            columns["payload"],
            columns.get("topic", default),
            columns.get("kind", default),
            columns.get("headers", default),
            strict=False,
        )
        for payload, topic, kind, headers in rows:
            name = self._name(topic)
            found.setdefault(name, []).append(self._message(name, payload, kind, headers))
        return found

    def _name(self, topic: str | None) -> str:
        if not self._has_column:
            assert self._topic is not None
            return self._topic
        if topic is None:
            raise UnsupportedColumn("a row has no topic: its column `topic` is null", column="topic")
        if not self._options.patterns.matches(check_topic(topic)):
            raise UnsupportedColumn(
                f"a row is for topic {topic!r}, which option topic ({self._options.topic}) does not match",
                column="topic",
            )
        return topic

    def _message(self, topic: str, payload: Any, kind: str | None, headers: Any) -> RetainedMessage:
        if payload is None:
            raise UnsupportedColumn(f"a row for topic {topic!r} has no payload: its column `payload` is null")
        content = payload.encode() if isinstance(payload, str) else bytes(payload)
        said = _kind(kind) if kind else self._options.payload_kind
        if said != "bytes":
            _check_content(topic, said, content)
        return RetainedMessage(payload=content, kind=said, headers=dict(headers or ()))


class _Topic:
    """A retained topic that one task publishes to."""

    def __init__(self, hub: "MessageHub", name: str, publisher: str, number: int) -> None:
        self._hub = hub
        self._name = name
        self._publisher = publisher
        self._next_number = number
        self._recent: dict[int, RetainedMessage] = {}
        """The newest messages by their numbers, as many as may have been stored at once."""

    def publish(self, messages: Sequence[RetainedMessage]) -> None:
        check_retained_size(max(len(message.payload) for message in messages))
        for piece in pieces(messages):
            number, self._next_number = self._next_number, self._next_number + len(piece)
            self._recent |= dict(enumerate(piece, number))
            for old in list(self._recent)[: -2 * MAX_BATCH]:
                del self._recent[old]
            self._send(piece, number)

    def _send(self, piece: list[RetainedMessage], number: int) -> None:
        """Send what the broker does not have yet of some messages that follow each other."""
        while piece:
            command = commands.PublishMessages(
                topic=self._name, messages=piece, publisher=self._publisher, number=number
            )
            try:
                answer = patiently(partial(self._hub.ask, command), RUNNING_SECONDS)
            except InvalidRequest as refused:
                last = refused.details.get("last_number")
                if not isinstance(last, int) or last < number:
                    raise
                if last in self._recent:  # else more was stored: a later piece is compared
                    self._compare(last, refused.details["last_offset"], refused.details["last_count"])
                stored = min(last - number + 1, len(piece))
                piece, number = piece[stored:], number + stored
            else:
                assert isinstance(answer, replies.MessagesRetained)
                if answer.duplicate:
                    self._compare(number + answer.count - 1, answer.offset + answer.count - 1, answer.count)
                return

    def _compare(self, last_number: int, last_offset: int, count: int) -> None:
        """Compare the messages that were stored last with those that have their numbers now."""
        command = commands.ReadTopic(topic=self._name, offset=last_offset - count + 1, limit=count)
        page = patiently(partial(self._hub.ask, command), RUNNING_SECONDS)
        assert isinstance(page, replies.TopicPage)
        for stored in page.messages:
            mine = self._recent.get(last_number - last_offset + stored.offset)
            if mine is None or stored.offset > last_offset:
                continue
            if (stored.payload, stored.kind, stored.headers) != (mine.payload, mine.kind, mine.headers):
                raise RowsReordered(
                    f"the rows for topic {self._name!r} come in another order than when this task was tried before, or"
                    " are others: messages would be lost. Sort the DataFrame within its partitions"
                    " (sortWithinPartitions) before it is written; a query that was changed needs a new checkpoint",
                    topic=self._name,
                )


class _PlainTopic:
    """A topic that is not retained."""

    def __init__(self, hub: "MessageHub", name: str) -> None:
        self._hub = hub
        self._name = name

    def publish(self, messages: Sequence[RetainedMessage]) -> None:
        for message in messages:
            payload = decode_payload(KIND_OF[message.kind], memoryview(message.payload), self._name)
            self._hub.publish(self._name, payload, headers=message.headers or None, timeout=RUNNING_SECONDS)


def _topic(hub: "MessageHub", name: str, publisher: str, number: int) -> "_Topic | _PlainTopic":
    is_retained = bool(patiently(partial(hub.topics, name), RUNNING_SECONDS))
    return _Topic(hub, name, publisher, number) if is_retained else _PlainTopic(hub, name)


@messages_only
class TopicWriter(DataSourceArrowWriter):
    """Built once, in a process of the driver: its name holds for all tasks and their retries."""

    def __init__(self, options: Options, schema: spark.StructType, *, overwrite: bool) -> None:
        self._sink = TopicSink(options, schema, overwrite=overwrite)
        self._name = f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self._sink.publish(iterator, f"{self._name}-{_context().partitionId()}", 1)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: tasks have published."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back."""


@messages_only
class StreamTopicWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Options, schema: spark.StructType, *, overwrite: bool) -> None:
        self._sink = TopicSink(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _context()
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if not query or batch is None:
            raise RuntimeError("Spark does not say which micro-batch of which query this is")
        return self._sink.publish(iterator, *numbered(query, int(batch), context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Nothing to do: tasks have published."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Nothing can be taken back. The replay publishes what is missing."""


def numbered(query: str, batch: int, partition: int) -> tuple[str, int]:
    """Return the publisher of a task of a micro-batch, and the number of its first message."""
    era, rest = divmod(batch, _BATCHES_OF_A_PUBLISHER)
    return f"spark-{query}-{era}-{partition}", rest * _MESSAGES_OF_A_BATCH + 1


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _check(schema: spark.StructType, *, has_topic: bool, pattern: str) -> None:
    """Refuse, before any task runs, what is not a message."""
    kinds: Mapping[str, spark.DataType] = {field.name: field.dataType for field in schema}
    rule = "A message has the columns payload and, if you like, topic, kind and headers (map<string,string>)"
    for name, kind in kinds.items():
        if name not in _TAKEN:
            raise UnsupportedColumn(f"column {name!r} is no part of a message. {rule}: select those", column=name)
        types, expected = _TAKEN[name]
        if not isinstance(kind, types) or (isinstance(kind, spark.MapType) and not _is_text_map(kind)):
            raise UnsupportedColumn(f"column {name!r} is {kind.simpleString()}, not {expected}", column=name)
    if "payload" not in kinds:
        raise UnsupportedColumn(f"there is no column payload. {rule}; to_json(struct(…)) makes one of others")
    if "topic" not in kinds and not has_topic:
        raise BadOption(
            f"option topic is the pattern {pattern!r}: name one topic, or say the topic of each row in a column topic"
        )


def _is_text_map(kind: spark.MapType) -> bool:
    return isinstance(kind.keyType, spark.StringType) and isinstance(kind.valueType, spark.StringType)


def _kind(text: str) -> PayloadKind:
    if text not in KIND_OF:
        raise UnsupportedColumn(f"kind {text!r} is not one of {', '.join(KIND_OF)}", column="kind")
    return text


def _check_content(topic: str, kind: PayloadKind, content: bytes) -> None:
    """Refuse what subscribers could not decode."""
    try:
        decode_payload(KIND_OF[kind], memoryview(content), topic)
    except (HubError, ValueError, pa.ArrowException) as error:
        raise UnsupportedColumn(f"a row for topic {topic!r} is not {kind}: {error}", column="payload") from None
