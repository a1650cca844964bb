"""`format("messagehub")`: a channel as a DataFrame, in batches and streams, both ways.

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
from messagehub.spark.writer import TableWriter

if TYPE_CHECKING:
    from messagehub.spark.stream_reader import RingStreamReader
    from messagehub.spark.stream_writer import StreamTableWriter

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class MessageHubSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "messagehub"

    def schema(self) -> StructType:
        return struct_of(available_schema(self._parsed()))

    def reader(self, schema: StructType) -> TableReader:
        options = self._parsed("read")
        check_expected(options)
        # With push-down switched off Spark refuses a reader that could push, and does not say which it is:
        # only the worker that pushes loads this module.
        main = getattr(sys.modules["__main__"], "__spec__", None)
        is_pushing = _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
        if not is_pushing:
            return TableReader(options, schema)
        from messagehub.spark.filters import FilteringTableReader

        return FilteringTableReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        return TableWriter(self._parsed("write"), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> "RingStreamReader":  # noqa: N802  Spark's name
        from messagehub.spark.stream_reader import RingStreamReader

        options = self._parsed("readStream")
        check_expected(options)
        return RingStreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamTableWriter":  # noqa: N802  Spark's name
        from messagehub.spark.stream_writer import StreamTableWriter

        return StreamTableWriter(self._parsed("writeStream"), schema, overwrite=overwrite)

    def _parsed(self, use: Use | None = None) -> Options:
        return Options.parse(self.options, use)
