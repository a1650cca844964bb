"""Batch read: one partition per block of a generation, larger blocks in equal shares; Arrow batches out.

Rule 1: the generation is chosen once, when the read is planned; its tasks open that one and no other. It stays for
the grace time of its retention after it is superseded, and as long as a task holds it.
Rule 2: a block is read where its memory is.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from messagehub.shm.errors import BlockOnOtherHost, NothingThere, TableMissing
from messagehub.shm.identity import host
from messagehub.shm.manifests import Manifest
from messagehub.shm.snapshot import Snapshot
from messagehub.shm.table_blocks import read_block
from messagehub.spark.channels import generation_gone, newest_snapshot, schema_of
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import check_columns, conform, read_schema

BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Share(InputPartition):
    """Some rows of one block of one generation."""

    generation: int
    planned_on: str
    index: int
    name: str
    host: str
    offset: int
    rows: int


class TableReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = read_schema(schema)
        with newest_snapshot(options) as snapshot:
            check_columns(schema_of(snapshot), schema, options.channel)

    def partitions(self) -> list[InputPartition]:
        with newest_snapshot(self._options) as snapshot:
            return shares(snapshot.manifest, self._options.max_partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):  # Spark's own stand-in for "no partitions"
            return
        for batch in _batches(self._options, partition):
            yield conform(batch, self._schema)


def shares(manifest: Manifest, max_bytes: int) -> list[InputPartition]:
    found: list[InputPartition] = []
    for index, part in enumerate(manifest.parts):
        count = max(1, min(part.rows, -(-part.size_bytes // max_bytes)))
        bounds = [part.rows * each // count for each in range(count + 1)]
        where = part.host or host()
        found += [
            Share(manifest.generation, host(), index, part.name, where, start, stop - start)
            for start, stop in itertools.pairwise(bounds)
        ]
    return found


def _batches(options: Options, share: Share) -> Iterator[pa.RecordBatch]:
    here = host()
    if share.host != here:
        raise BlockOnOtherHost(share.name, share.host, here)
    tables = options.tables()
    if share.planned_on != here:  # the manifest is on another host; the block is here
        try:
            table = read_block(os.path.join(tables.path, share.name))
        except NothingThere:
            raise generation_gone(options, share.generation) from None
        yield from table.slice(share.offset, share.rows).to_batches(max_chunksize=BATCH_ROWS)
        return
    try:
        snapshot: Snapshot = tables.open(share.generation)
    except TableMissing:
        raise generation_gone(options, share.generation) from None
    with snapshot:
        table = snapshot.part(share.index)
        yield from table.slice(share.offset, share.rows).to_batches(max_chunksize=BATCH_ROWS)
