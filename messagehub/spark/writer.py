"""Batch write: one transaction, one immutable block per task attempt, one commit.

Rule 1: the writer is built once, in a process of the driver, and pickled to the tasks and to the commit: what it
decides when it is built (schema, transaction) holds for all of them.
Rule 2: nothing is visible before the commit, which is one step; a write that failed leaves nothing.
Rule 3: the schema is checked when the writer is built, before any task runs, and again before the commit, since jobs
are long. The commit registers schema and table.
Rule 4: the transaction lives as long as the driver's JVM. No Python process lives through a long job.
"""

import itertools
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from messagehub.shm.channel_directory.entries import newest_table, table_details
from messagehub.shm.errors import ShmFull
from messagehub.shm.identity import ProcessIdentity, jvm_ancestor
from messagehub.shm.tables.compaction import compact_appended
from messagehub.shm.tables.manifests import Part
from messagehub.shm.tables.tables import Mode, Transaction
from messagehub.spark.channels import newest_snapshot
from messagehub.spark.options import Options
from messagehub.spark.registration import check, register
from messagehub.spark.schema_mapping import (
    appended,
    comments_of,
    conform,
    matched_by_name,
    schema_hash,
    schema_text,
    written_schema,
)
from messagehub.spark.tracebacks import messages_only
from registry.formats import arrow

_APPLICATION = "spark.app.id"


@dataclass
class WrittenPart(WriterCommitMessage):
    """What one attempt left, and for which application; an empty partition leaves no block."""

    transaction: str
    part: Part | None
    application: str | None = None


def stored_as(options: Options, schema: pa.Schema, mode: Mode) -> tuple[pa.Schema, dict[str, str] | None]:
    """Return the schema under which a DataFrame is stored, and where its columns come from if that differs.

    What is appended takes the schema of the table that is there, if it fits by name.
    """
    before = newest_table(options.directory(), options.channel, with_schema=True) if mode == "append" else None
    if before is None or not isinstance(before.schema, str):
        return schema, None
    table = arrow.to_arrow(before.schema)
    sources = None if table.equals(schema) else matched_by_name(schema, table)
    return (schema, None) if sources is None else (table, sources)


def stored_comments(options: Options, mode: Mode) -> dict[str, str]:
    """Return the comments of the columns of the table that is appended to."""
    if mode != "append" or not options.tables().generations():
        return {}
    with newest_snapshot(options) as snapshot:
        found = snapshot.manifest.details.get("comments")
    return found if isinstance(found, dict) else {}


class TableSink:
    """What batch and streaming writes share: how a task writes its block, how a commit publishes them."""

    def __init__(self, options: Options, schema: StructType, mode: Mode) -> None:
        self._options = options
        self._mode: Mode = mode
        self._given = written_schema(schema)
        self._schema, self._sources = stored_as(options, self._given, mode)
        self._text = schema_text(self._schema)
        self._comments = stored_comments(options, mode) | comments_of(schema)
        check(options, self._text, mode)
        options.directory().make_tables(options.channel)
        self._tables = options.tables()
        self._keeper = jvm_ancestor() or ProcessIdentity.current()

    def begin(self, transaction_id: str) -> Transaction:
        return self._tables.begin(now=time.time(), transaction_id=transaction_id, keeper=self._keeper)

    def join(self, transaction_id: str) -> Transaction:
        """The driver's transaction. On another host it is begun there too: its blocks end by age if it never ends."""
        transaction = self._tables.transaction(transaction_id)
        return transaction if self._keeper.is_here() else self.open_or_begin(transaction_id)

    def open_or_begin(self, transaction_id: str) -> Transaction:
        transaction = self._tables.transaction(transaction_id)
        if transaction.is_open():
            return transaction
        self._options.directory().make_tables(self._options.channel)
        return self.begin(transaction_id)

    def end(self, transaction_id: str) -> None:
        self._tables.transaction(transaction_id).abort()

    def write_part(self, transaction: Transaction, batches: Iterator[pa.RecordBatch]) -> WrittenPart:
        context = TaskContext.get()
        assert context is not None
        application = context.getLocalProperty(_APPLICATION)
        first = next(batches, None)
        if first is None:
            return WrittenPart(transaction.id, None, application)
        schema = self._schema
        conformed = (self._stored(conform(batch, self._given)) for batch in itertools.chain([first], batches))
        attempt = int(context.taskAttemptId())
        try:
            part = transaction.write_part(conformed, schema, part=context.partitionId(), attempt=attempt)
        except ShmFull as full:
            full.add_note(
                f"Partition {context.partitionId()} for channel {self._options.channel!r} did not fit. "
                "Nothing was published and what was written is removed. Enlarge shared memory "
                "(mount -o remount,size=16G /dev/shm), or keep less (options keepGenerations, keepBytes, keepSeconds)."
            )
            raise
        return WrittenPart(transaction.id, part, application)

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self._sources is None else appended(batch, self._schema, self._sources)

    def publish(self, transaction: Transaction, messages: list[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, WrittenPart)]
        parts = [message.part for message in written if message.part is not None]
        if not parts:
            if self._mode == "append" and self._tables.generations():
                transaction.abort()
                return
            parts = [transaction.write_part((), self._schema)]
        check(self._options, self._text, self._mode)
        manifest = transaction.commit(
            parts,
            now=time.time(),
            mode=self._mode,
            schema_hash=schema_hash(self._text),
            retention=self._options.retention(),
            details=table_details(
                self._text,
                application=next((each.application for each in written if each.application), None),
                comments=self._comments,
            ),
        )
        register(self._options, manifest)
        packed = compact_appended(self._tables, manifest, now=time.time()) if self._mode == "append" else None
        if packed is not None:
            register(self._options, packed)


@messages_only
class TableWriter(DataSourceArrowWriter):
    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        self._sink = TableSink(options, schema, "overwrite" if overwrite else "append")
        self._transaction_id = options.transaction or uuid.uuid4().hex
        self._sink.begin(self._transaction_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        return self._sink.write_part(self._sink.join(self._transaction_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.publish(self._sink.join(self._transaction_id), messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002  blocks name their transaction
        self._sink.end(self._transaction_id)
