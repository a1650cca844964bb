"""Streaming write: every micro-batch is one transaction named by its query and its number.

Rule 1: a micro-batch that is replayed (a crash after the publish, before Spark noted it) is recognised by its name and
published once. Its second set of blocks is dropped.
Rule 2: Spark builds the writer anew for every step, and only tasks know the query: a transaction begins with the first
task that asks for it, and the tasks' messages carry its name to the commit.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from messagehub.spark.options import Options
from messagehub.spark.tracebacks import messages_only
from messagehub.spark.writer import TableSink, WrittenPart

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"


@messages_only
class StreamTableWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        self._sink = TableSink(options, schema, "overwrite" if overwrite else "append")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        context = TaskContext.get()
        assert context is not None
        name = f"{context.getLocalProperty(QUERY)}_{context.getLocalProperty(BATCH)}"
        return self._sink.write_part(self._sink.open_or_begin(name), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803  Spark's
        for name in _named(messages):
            self._sink.publish(self._sink.open_or_begin(name), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803  Spark's
        for name in _named(messages):
            self._sink.end(name)


def _named(messages: list[WriterCommitMessage | None]) -> set[str]:
    """One name, or none when no task came far enough to say it; what it left is dropped by the replay."""
    return {message.transaction for message in messages if isinstance(message, WrittenPart)}
