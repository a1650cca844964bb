"""Tables of another host of the site: read by the same calls, with the same values and the same errors."""

from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import Gap, SchemaMismatch
from messagehub.shm.errors import BlockOnOtherHost
from registry.formats import arrow
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, on, process_on

TABLE = pa.table({"x": list(range(1000)), "name": [str(number % 7) for number in range(1000)]})

PUBLISH = """TABLE = pa.table({"x": list(range(1000)), "name": [str(number % 7) for number in range(1000)]})
"""
"""The same there."""


def test_a_table_of_another_host_is_read_with_every_generation_that_comes(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.grows", TABLE)')
        with here.consumer("t.grows", start="oldest") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE
            assert (consumer.source, consumer.sequence) == ("broker", 1)
            assert consumer.read(timeout=0.0) is None
            there.do(f'{PUBLISH}hub.publish_table("t.grows", TABLE.slice(0, 3), mode="append")')
            assert consumer.read(timeout=PATIENCE_SECONDS) == pa.concat_tables([TABLE, TABLE.slice(0, 3)])
            there.do(f'{PUBLISH}hub.publish_table("t.grows", TABLE.slice(0, 1))')
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE.slice(0, 1)
            found = consumer.latest_item()
            assert found is not None
            assert (found.value, found.sequence, found.producer_id) == (TABLE.slice(0, 1), 3, None)
            assert consumer.schema == TABLE.schema


def test_a_table_that_moves_from_host_to_host_is_read_where_the_newest_is(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        here.publish_table("t.moves", TABLE.slice(0, 1))
        with here.consumer("t.moves") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE.slice(0, 1)
            there.do(f'{PUBLISH}hub.publish_table("t.moves", TABLE.slice(0, 2))')
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE.slice(0, 2)
            here.publish_table("t.moves", TABLE.slice(0, 3))
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE.slice(0, 3)
            assert consumer.read(timeout=0.0) is None


def test_another_schema_is_refused_as_on_one_host(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.typed", TABLE)')
        with pytest.raises(SchemaMismatch):
            here.consumer("t.typed", expected_schema=pa.schema([("other", pa.int8())])).read(timeout=1.0)
        wider = pa.schema([*TABLE.schema, pa.field("new", pa.int64())])
        here.register_schema("t.wider", arrow.from_arrow(wider), schema_type="ARROW")
        with here.consumer("t.typed", expected_schema=wider) as consumer:
            found = consumer.read(timeout=PATIENCE_SECONDS)
            assert not isinstance(found, Gap)
            assert found.schema == wider
            assert found.column("new").null_count == TABLE.num_rows


def test_a_host_without_a_gateway_is_an_error_that_names_both_hosts(hosts: Site) -> None:
    silent = hosts.add("silent", "--no-http", "--no-gateway")
    with process_on(silent) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.silent", TABLE)')
        there.do(f'{PUBLISH}hub.publish_table("t.both", TABLE)')
        eventually(lambda: here.discover("t.both"))
        for _ in range(2):
            with pytest.raises(BlockOnOtherHost, match=r"'silent', this is 'beta'.*runs no Arrow Flight gateway"):
                here.consumer("t.silent")
        here.publish_table("t.local", TABLE)
        with here.consumer("t.local") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE


WRITE_PART = """
import time, msgspec
from messagehub.channels.payload_schema import hash_of
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.tables.manifests import Part
from messagehub.shm.tables.tables import TableStore
channel, value, path = {0!r}, {1}, {2!r}
directory = directory_of(hub.settings)
directory.make_tables(channel)
transaction = TableStore(directory.tables_path(channel)).begin(now=time.time())
schema = pa.schema([("x", pa.int64())])
part = transaction.write_part([pa.record_batch([[value]], schema=schema)], schema)
with open(path, "ab") as file:
    file.write(msgspec.json.encode(part) + bytes([10]))
"""
"""As a task of Spark: write one part, and say what it is."""
COMMIT = """
parts = [msgspec.json.decode(line, type=Part) for line in open(path, "rb")]
from messagehub.shm.channel_directory.entries import table_details
from registry.formats import arrow
details = table_details(arrow.from_arrow(schema), schema_version="", metadata={})
manifest = transaction.commit(parts, now=time.time(), schema_hash=hash_of(schema), details=details)
hub.register_table(channel, manifest)
"""


def test_a_table_in_parts_on_two_hosts_is_read_from_both(hosts: Site, tmp_path: Path) -> None:
    both, said = pa.table({"x": [2, 1]}), str(tmp_path / "parts")
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near, on(hosts["beta"]) as here:
        near.do(WRITE_PART.format("t.parts", 2, said))
        there.do(WRITE_PART.format("t.parts", 1, said) + COMMIT)
        with here.consumer("t.parts") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == both
        there.do("""
            with hub.consumer("t.parts") as consumer:
                assert consumer.read(timeout=20).to_pydict() == {"x": [2, 1]}
        """)


def test_a_task_of_spark_reads_a_part_of_another_host(hosts: Site, tmp_path: Path) -> None:
    said, beta = str(tmp_path / "parts"), hosts["beta"]
    with process_on(hosts["alpha"]) as there, process_on(beta) as near:
        there.do(WRITE_PART.format("t.spark", 1, said))
        near.do(WRITE_PART.format("t.spark", 2, said) + COMMIT)
        near.do("""
            from messagehub.spark.options import Options
            from messagehub.spark.reader import TableReader
            from pyspark.sql.types import LongType, StructField, StructType
            options = Options.parse({"channel": channel, "dir": str(hub.settings.dir), "domain": hub.settings.domain})
            reader = TableReader(options, StructType([StructField("x", LongType())]))
            away, home = reader.partitions()
            assert (away.host, home.host) == ("alpha", "beta"), (away, home)
            for partition, value in ((away, 1), (home, 2)):
                found = [batch.to_pydict() for batch in reader.read(partition)]
                assert found == [{"x": [value]}], found
        """)
