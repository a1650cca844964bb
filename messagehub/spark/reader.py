"""Batch read: blocks of a generation as partitions, large ones in equal shares, small ones together; Arrow batches out.

Rule 1: the generation is chosen once, when the read is planned; its tasks open that one and no other. It stays for
the grace time of its retention after it is superseded, and as long as a task holds it.
Rule 2: a read is planned on any host of the site: the manifest comes from the host that has it. A block is read where
its memory is; a task on another host gets its rows through the gateway there.
Rule 3: partitions are as large as Spark makes those of files, so that many small appends do not become many tasks.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from messagehub.shm.errors import NothingThere, TableMissing
from messagehub.shm.identity import host
from messagehub.shm.tables.manifests import Part
from messagehub.shm.tables.snapshot import Snapshot, whole_part
from messagehub.spark.channels import generation_gone, newest_snapshot, schema_of
from messagehub.spark.elsewhere import short_gateways
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import check_columns, conform, read_schema
from messagehub.spark.tracebacks import messages_only

if TYPE_CHECKING:
    from messagehub.flight.remote_tables import RemoteSnapshot

BATCH_ROWS = 65_536
OPEN_BYTES = 4 << 20
"""So many bytes could be read in the time that opening a block takes, as `spark.sql.files.openCostInBytes`."""


@dataclass(frozen=True)
class PartShare:
    """Some rows of one block."""

    index: int
    name: str
    part_rows: int
    offset: int
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Shares(InputPartition):
    """What one task reads: shares of one generation that lie on one host."""

    generation: int
    home: str
    """Where the manifest is."""
    host: str
    shares: tuple[PartShare, ...]


@messages_only
class TableReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = read_schema(schema)
        with newest_snapshot(options) as snapshot:
            check_columns(schema_of(snapshot), schema, f"channel {options.channel!r}")

    def partitions(self) -> list[InputPartition]:
        with newest_snapshot(self._options) as snapshot:
            found = self._wanted_parts(snapshot)
            return partitions_of(
                found,
                snapshot.generation,
                self._options.max_partition_bytes,
                cores=os.cpu_count() or 1,
                home=snapshot.host,
            )

    def _wanted_parts(self, snapshot: "Snapshot | RemoteSnapshot") -> list[tuple[int, Part]]:
        """Return the parts to read, with their places in the manifest."""
        return list(enumerate(snapshot.manifest.parts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Shares):  # Spark's own stand-in for "no partitions"
            return
        for batch in _batches(self._options, partition):
            yield conform(batch, self._schema)


def partitions_of(
    parts: list[tuple[int, Part]], generation: int, max_bytes: int, *, cores: int, home: str
) -> list[InputPartition]:
    """Return the partitions over parts of a generation, in the order of their rows. `home` has the manifest.

    As Spark does with files: a partition has up to `max_bytes`, and less where all cores would not have work. A block
    counts for its size and for the opening.
    """
    per_core = sum(part.size_bytes + OPEN_BYTES for _, part in parts) // max(cores, 1)
    most = min(max_bytes, max(OPEN_BYTES, per_core))
    found: list[InputPartition] = []
    for where, neighbours in itertools.groupby(parts, key=lambda one: one[1].host or home):
        packed: list[PartShare] = []
        size = 0
        for index, part in neighbours:
            count = max(1, min(part.rows, -(-part.size_bytes // max_bytes)))
            bounds = [part.rows * each // count for each in range(count + 1)]
            for start, stop in itertools.pairwise(bounds):
                share_bytes = part.size_bytes // count
                if packed and size + share_bytes > most:
                    found.append(Shares(generation, home, where, tuple(packed)))
                    packed, size = [], 0
                packed.append(PartShare(index, part.name, part.rows, start, stop - start, share_bytes))
                size += share_bytes + OPEN_BYTES
        found.append(Shares(generation, home, where, tuple(packed)))
    return found


def _batches(options: Options, partition: Shares) -> Iterator[pa.RecordBatch]:
    here = host()
    if partition.host != here:
        yield from _fetched(options, partition)
        return
    tables = options.tables()
    if partition.home != here:  # the blocks are here
        for share in partition.shares:
            try:
                table = whole_part(os.path.join(tables.path, share.name), share.part_rows)
            except NothingThere:
                raise generation_gone(options, partition.generation) from None
            yield from table.slice(share.offset, share.rows).to_batches(max_chunksize=BATCH_ROWS)
        return
    try:
        snapshot: Snapshot = tables.open(partition.generation)
    except TableMissing:
        raise generation_gone(options, partition.generation) from None
    with snapshot:
        for share in partition.shares:
            table = snapshot.part(share.index)
            yield from table.slice(share.offset, share.rows).to_batches(max_chunksize=BATCH_ROWS)


def _fetched(options: Options, partition: Shares) -> Iterator[pa.RecordBatch]:
    """Give the rows of blocks that are on another host; BlockOnOtherHost where its gateway cannot be reached."""
    from messagehub.flight.messages import FlightTicket

    with short_gateways(options) as gateways:
        try:
            for share in partition.shares:
                rows = (share.offset, share.rows)
                ticket = FlightTicket(channel=options.channel, kind="table", part=share.name, rows=rows)
                table = gateways.table(ticket, partition.host, share.name, rows=share.rows, size_bytes=share.size_bytes)
                yield from table.to_batches(max_chunksize=BATCH_ROWS)
        except NothingThere:
            raise generation_gone(options, partition.generation) from None
