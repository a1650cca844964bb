"""`format("messagehub")`: a channel, or retained topics, as a DataFrame, in batches and streams, both ways.

No method here runs in the user's own process: schema, plan, write, commit and every task have processes of their own,
and all of them are given this object by pickle. Each imports this module, so it imports only what every one needs.
"""

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from messagehub.spark.channels import available_schema, check_expected
from messagehub.spark.options import Options, Use
from messagehub.spark.reader import TableReader
from messagehub.spark.schema_mapping import struct_of
from messagehub.spark.tracebacks import messages_only
from messagehub.spark.writer import TableWriter

if TYPE_CHECKING:
    from messagehub.spark.stream_reader import RingStreamReader
    from messagehub.spark.stream_writer import StreamTableWriter
    from messagehub.spark.topic_reader import TopicReader, TopicStreamReader
    from messagehub.spark.topic_writer import StreamTopicWriter, TopicWriter

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


@messages_only
class MessageHubSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "messagehub"

    def schema(self) -> StructType:
        options = self._parsed()
        if options.is_of_topics:
            from messagehub.spark.topic_reader import COLUMNS

            return struct_of(COLUMNS)
        return struct_of(available_schema(options))

    def reader(self, schema: StructType) -> "TableReader | TopicReader":
        options = self._parsed("read")
        if options.is_of_topics:
            from messagehub.spark.topic_reader import TopicReader

            return TopicReader(options, schema)
        check_expected(options)
        # With push-down switched off Spark refuses a reader that could push, and does not say which it is:
        # only the worker that pushes loads this module.
        main = getattr(sys.modules["__main__"], "__spec__", None)
        is_pushing = _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
        if not is_pushing:
            return TableReader(options, schema)
        from messagehub.spark.filters import FilteringTableReader

        return FilteringTableReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "TableWriter | TopicWriter":
        options = self._parsed("write")
        if options.is_of_topics:
            from messagehub.spark.topic_writer import TopicWriter

            return TopicWriter(options, schema, overwrite=overwrite)
        return TableWriter(options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> "RingStreamReader | TopicStreamReader":  # noqa: N802  Spark's name
        options = self._parsed("readStream")
        if options.is_of_topics:
            from messagehub.spark.topic_reader import TopicStreamReader

            return TopicStreamReader(options, schema)
        from messagehub.spark.stream_reader import RingStreamReader

        check_expected(options)
        return RingStreamReader(options, schema)

    def streamWriter(  # noqa: N802  Spark's name
        self, schema: StructType, overwrite: bool
    ) -> "StreamTableWriter | StreamTopicWriter":
        options = self._parsed("writeStream")
        if options.is_of_topics:
            from messagehub.spark.topic_writer import StreamTopicWriter

            return StreamTopicWriter(options, schema, overwrite=overwrite)
        from messagehub.spark.stream_writer import StreamTableWriter

        return StreamTableWriter(options, schema, overwrite=overwrite)

    def _parsed(self, use: Use | None = None) -> Options:
        return Options.parse(self.options, use)
