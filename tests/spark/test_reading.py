"""What there is to read, planned in this process: shares of blocks, refusals, blocks elsewhere."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from messagehub import MessageHub
from messagehub.errors import ChannelNotFound, ChannelNotReady, SchemaMismatch
from messagehub.shm.errors import BlockOnOtherHost, NothingThere, PayloadDamaged
from messagehub.shm.tables.manifests import Manifest, Part, manifest_path
from messagehub.shm.tables.tables import TableStore
from messagehub.spark.channels import available_schema, check_expected, newest_snapshot
from messagehub.spark.errors import BadOption, GenerationGone
from messagehub.spark.filters import FilteringTableReader
from messagehub.spark.options import Options
from messagehub.spark.reader import TableReader, partitions_of
from messagehub.spark.schema_mapping import schema_hash, schema_text, struct_of
from registry.records import Block
from tests.integration.harness import checked_broker

TABLE = pa.table({"id": list(range(1000)), "price": [0.5] * 1000})


@pytest.fixture
def options(channel_options: dict[str, str]) -> Options:
    return Options.parse(channel_options)


@pytest.fixture
def hub(channel_options: dict[str, str]) -> Any:
    with MessageHub(dir=channel_options["dir"], domain=channel_options["domain"]) as opened:
        yield opened


def test_larger_blocks_are_read_in_shares_and_every_row_once(hub: MessageHub, channel_options: dict[str, str]) -> None:
    hub.publish_table("sales", TABLE)
    hub.publish_table("sales", TABLE.slice(0, 3), mode="append")
    reader = TableReader(Options.parse(channel_options | {"maxPartitionBytes": "5000"}), struct_of(TABLE.schema))
    shares = reader.partitions()
    assert len(shares) == 5
    found = [batch for share in shares for batch in reader.read(share)]
    assert pa.Table.from_batches(found).column("id").to_pylist() == [*range(1000), 0, 1, 2]


def test_a_read_keeps_the_generation_it_was_planned_with_until_that_is_gone(hub: MessageHub, options: Options) -> None:
    hub.publish_table("sales", TABLE)
    reader = TableReader(options, StructType.fromJson(struct_of(TABLE.schema).jsonValue()))
    (share,) = reader.partitions()
    hub.publish_table("sales", TABLE.slice(0, 1))
    assert sum(batch.num_rows for batch in reader.read(share)) == 1000
    options.tables().sweep(now=time.time() + 3600)
    with pytest.raises(GenerationGone, match=r"generation 1 .* there are: 2"):
        list(reader.read(share))


def test_unknown_empty_and_live_channels_are_told_apart(hub: MessageHub, options: Options) -> None:
    with pytest.raises(ChannelNotFound, match="'sales' is not known"):
        newest_snapshot(options)
    with hub.producer("sales", schema=TABLE.schema):
        assert available_schema(options) == TABLE.schema
        with pytest.raises(ChannelNotReady, match=r"spark\.readStream"):
            newest_snapshot(options)


def test_the_expected_schema_is_compared_by_hash_or_by_column(hub: MessageHub, channel_options: dict[str, str]) -> None:
    hub.publish_table("sales", TABLE)
    text = schema_text(TABLE.schema)
    narrower = struct_of(pa.schema([("id", pa.int32())])).json()
    missing = struct_of(pa.schema([("colour", pa.string())])).json()
    for fine in (schema_hash(text), text, struct_of(TABLE.schema).json()):
        check_expected(Options.parse(channel_options | {"expectedSchema": fine}))
    for wrong, said in [("0" * 64, "hash"), (narrower, '"id" changed'), (missing, '"colour" is not there')]:
        with pytest.raises(SchemaMismatch, match=said):
            check_expected(Options.parse(channel_options | {"expectedSchema": wrong}))
    with pytest.raises(BadOption, match="expectedSchema"):
        check_expected(Options.parse(channel_options | {"expectedSchema": "id long"}))


def test_a_part_on_another_host_is_refused_with_its_host(hub: MessageHub, options: Options, tables: TableStore) -> None:
    hub.publish_table("sales", TABLE)
    transaction = tables.begin(now=time.time())
    with tables.open() as snapshot:
        digest = snapshot.manifest.schema_hash
    there = Part(f"{transaction.id}-0-0.arrow", 10, 1000, "elsewhere")
    transaction.commit([there], now=time.time(), mode="append", schema_hash=digest)
    reader = TableReader(options, struct_of(TABLE.schema))
    here, away = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(here)) == 1000
    with pytest.raises(BlockOnOtherHost, match="'elsewhere'"):
        list(reader.read(away))


def test_a_channel_that_lives_on_another_host_is_refused_with_that_host(domain: str, tmp_path: Path) -> None:
    with checked_broker(domain=domain) as endpoint, MessageHub(endpoint=endpoint, domain=domain) as hub:
        blocks = [Block(shm_name="/pylabhub_far", host="elsewhere")]
        with hub.register_producer("far", schema_hash="h", blocks=blocks, shm_name="/pylabhub_far", required=True):
            options = Options.parse({"channel": "far", "domain": domain, "endpoint": endpoint})
            with pytest.raises(BlockOnOtherHost, match="'elsewhere'"):
                newest_snapshot(options)


def test_filters_open_only_the_parts_that_may_match(hub: MessageHub, options: Options, tables: TableStore) -> None:
    """Of the others even the blocks may be gone."""
    for start in (0, 1000, 2000):
        rows = pa.table({"id": range(start, start + 1000), "price": [0.5] * 1000})
        hub.publish_table("sales", rows, mode="append")
    with tables.open() as snapshot:
        for part in (snapshot.manifest.parts[0], snapshot.manifest.parts[2]):
            os.unlink(os.path.join(tables.path, part.name))

    def found(schema: pa.Schema, *filters: spark.Filter) -> int:
        reader = FilteringTableReader(options, struct_of(schema))
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return sum(batch.num_rows for share in reader.partitions() for batch in reader.read(share))

    wanted = [spark.GreaterThan(("id",), 1009), spark.LessThanOrEqual(("id",), 1019)]
    assert found(TABLE.schema, *wanted) == 10
    assert found(TABLE.schema, spark.EqualTo(("id",), -1)) == 0
    assert found(pa.schema([("id", pa.int32())]), *wanted) == 10
    with pytest.raises(NothingThere):  # as text 1009 is before 2, so nothing can be skipped
        found(pa.schema([("id", pa.string())]), spark.EqualTo(("id",), "1010"))


def test_a_part_with_other_rows_than_its_manifest_says_is_refused(
    hub: MessageHub, options: Options, tables: TableStore
) -> None:
    manifest = hub.publish_table("sales", TABLE)
    path = Path(manifest_path(tables.path, manifest.generation))
    path.write_bytes(dataclasses.replace(manifest, parts=(dataclasses.replace(manifest.parts[0], rows=999),)).to_json())
    reader = TableReader(options, struct_of(TABLE.schema))
    with pytest.raises(PayloadDamaged, match="it has 1000 rows, and its manifest says 999"):
        [list(reader.read(share)) for share in reader.partitions()]


def test_rows_without_columns_are_counted_without_their_data(hub: MessageHub, options: Options) -> None:
    hub.publish_table("sales", TABLE)
    reader = TableReader(options, StructType([]))
    batches = [batch for share in reader.partitions() for batch in reader.read(share)]
    assert sum(batch.num_rows for batch in batches) == 1000
    assert {batch.num_columns for batch in batches} == {0}


def manifest_of(sizes: list[int], hosts: list[str] | None = None) -> Manifest:
    places = hosts or [""] * len(sizes)
    parts = [Part(f"p{n}", 10, size, where) for n, (size, where) in enumerate(zip(sizes, places, strict=True))]
    return Manifest(generation=1, committed_at=0.0, transaction="t", parts=tuple(parts), schema_hash="h")


def blocks_by_partition(manifest: Manifest, max_bytes: int = 128 << 20, cores: int = 2) -> list[list[int]]:
    planned = partitions_of(list(enumerate(manifest.parts)), manifest.generation, max_bytes, cores=cores, home="here")
    return [[share.index for share in one.shares] for one in planned]  # type: ignore[attr-defined]


def test_small_blocks_are_read_together_and_large_ones_apart() -> None:
    assert blocks_by_partition(manifest_of([100])) == [[0]]
    assert blocks_by_partition(manifest_of([100, 100])) == [[0], [1]], "both cores have work"
    assert blocks_by_partition(manifest_of([100] * 4)) == [[0, 1], [2, 3]]
    assert len(blocks_by_partition(manifest_of([100] * 120))) == 4
    assert blocks_by_partition(manifest_of([64 << 20] * 4)) == [[0], [1], [2], [3]]
    assert blocks_by_partition(manifest_of([300 << 20, 100])) == [[0], [0], [0, 1]]
    assert blocks_by_partition(manifest_of([100] * 3), max_bytes=50, cores=1) == [[0], [0], [1], [1], [2], [2]]
    assert blocks_by_partition(manifest_of([100] * 4, ["a", "a", "b", "b"]), cores=1) == [[0, 1], [2, 3]]
    assert blocks_by_partition(manifest_of([])) == []
