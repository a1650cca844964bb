"""Tables of another host of the site: read by the same calls, with the same values and the same errors."""

import json
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import Gap, SchemaMismatch
from messagehub.broker.host_watcher.tables import DROP_SECONDS
from messagehub.errors import TableNotFound, TableOnOtherHost
from messagehub.shm.errors import BlockOnOtherHost
from registry.formats import arrow
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, SiteHub, await_known, gateway_of, on, process_on, run_on

TABLE = pa.table({"x": list(range(1000)), "name": [str(number % 7) for number in range(1000)]})

PUBLISH = """TABLE = pa.table({"x": list(range(1000)), "name": [str(number % 7) for number in range(1000)]})
"""
"""The same there."""


def test_a_table_of_another_host_is_read_with_every_generation_that_comes(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.grows", TABLE)')
        eventually(lambda: here.discover("t.grows"))
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
        eventually(lambda: here.discover("t.typed"))
        with pytest.raises(SchemaMismatch):
            here.consumer("t.typed", expected_schema=pa.schema([("other", pa.int8())])).read(timeout=PATIENCE_SECONDS)
        wider = pa.schema([*TABLE.schema, pa.field("new", pa.int64())])
        here.register_schema("t.wider", arrow.from_arrow(wider), schema_type="ARROW")
        with here.consumer("t.typed", expected_schema=wider) as consumer:
            found = consumer.read(timeout=PATIENCE_SECONDS)
            assert not isinstance(found, Gap)
            assert found.schema == wider
            assert found.column("new").null_count == TABLE.num_rows


def test_a_host_without_a_gateway_is_an_error_that_names_both_hosts(hosts: Site) -> None:
    silent = hosts.add("silent", "--no-http", "--no-gateway")
    await_known(hosts["beta"], "silent")
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


READ = """
import time
from messagehub.spark.channels import available_schema
from messagehub.spark.elsewhere import table_host
from messagehub.spark.options import Options
from messagehub.spark.reader import TableReader
from messagehub.spark.schema_mapping import struct_of
def options_of(channel, **given):
    where = {"dir": str(hub.settings.dir), "domain": hub.settings.domain}
    return Options.parse({"channel": channel} | where | given)
def read(channel, **given):
    options = options_of(channel, **given)
    reader = TableReader(options, struct_of(available_schema(options)))
    return reader, reader.partitions()
def values(reader, partitions):
    return [value for one in partitions for batch in reader.read(one) for value in batch.column("x").to_pylist()]
"""
"""As Spark plans and runs a read, but in one process."""


def test_a_read_of_spark_is_planned_on_any_host(hosts: Site, tmp_path: Path) -> None:
    said = str(tmp_path / "parts")
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near:
        near.do(WRITE_PART.format("t.planned", 2, said))
        there.do(WRITE_PART.format("t.planned", 1, said) + COMMIT)
        eventually(lambda: _rows(hosts["beta"], "t.planned"))
        near.do(
            READ
            + """
reader, (home, away) = read("t.planned")
assert (home.host, away.host, home.home) == ("beta", "alpha", "alpha"), (home, away)
assert values(reader, [home, away]) == [2, 1]
"""
        )
        there.do(f'{PUBLISH}hub.publish_table("t.large", TABLE)')
        eventually(lambda: _rows(hosts["beta"], "t.large"))
        near.do(
            READ
            + """
reader, partitions = read("t.large", maxPartitionBytes="2000")
assert len(partitions) > 3, partitions
assert values(reader, partitions) == list(range(1000))
hub.publish_table("t.large", pa.table({"x": [7]}))  # here: from now on this is the table
heard_by = time.monotonic() + 20  # the data source has a client of its own, which hears of it by an event
while table_host(options_of("t.large")) is not None:
    assert time.monotonic() < heard_by
    time.sleep(0.01)
assert values(*read("t.large")) == [7]
from messagehub.spark.errors import GenerationGone
try:
    read("t.planned", generation="9")
    raise AssertionError("it was read")
except GenerationGone as error:
    assert "there are: 1" in str(error), error
"""
        )


def test_what_would_hide_the_table_of_another_host_is_refused(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        here.publish_table("t.hidden", TABLE.slice(0, 1))
        there.do(f'{PUBLISH}hub.publish_table("t.hidden", TABLE)')
        eventually(lambda: _rows(hosts["beta"], "t.hidden") == TABLE.num_rows)
        with pytest.raises(TableOnOtherHost, match="'alpha', this is 'beta': append on that host"):
            here.publish_table("t.hidden", TABLE.slice(0, 1), mode="append")
        with pytest.raises(TableOnOtherHost, match=r"run `messagehub tables compact t\.hidden` on that host"):
            here.compact_table("t.hidden")
        found = here.discover("t.hidden")
        assert found is not None
        assert found.table is not None
        assert (found.table.host, found.table.rows) == ("alpha", 1000)


def test_a_table_of_another_host_is_dropped_from_here(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.dropped", TABLE)')
        dropped = here.drop_table("t.dropped")
        assert (dropped.table.host, dropped.table.rows) == ("alpha", 1000)
        there.do("""
            from messagehub.shm.channel_directory.location import directory_of
            from messagehub.shm.tables import manifests
            assert manifests.generations(directory_of(hub.settings).tables_path("t.dropped")) == []
        """)
        eventually(lambda: not _rows(hosts["alpha"], "t.dropped"))
        with pytest.raises(TableNotFound):
            here.drop_table("t.dropped")
        there.do(f'{PUBLISH}hub.publish_table("t.destroyed", TABLE)')
        assert here.destroy_channel("t.destroyed", data=True).channel == "t.destroyed"
        assert here.discover("t.destroyed") is None


def test_a_table_of_another_host_is_dropped_at_the_command_line_and_over_http(hosts: Site) -> None:
    beta = hosts["beta"]
    with process_on(hosts["alpha"]) as there, on(beta) as here:
        for name in ("t.by_command", "t.by_http"):
            there.do(f'{PUBLISH}hub.publish_table("{name}", TABLE)')
            eventually(lambda name=name: here.discover(name))
        code, said = run_on(beta, "tables", "drop", "t.by_command", "--yes", "--json")
        assert code == 0, said
        assert json.loads(said)["host"] == "alpha"
        request = urllib.request.Request(f"{beta.http}/api/v1/tables/t.by_http", method="DELETE")
        request.add_header("Authorization", f"Bearer {(beta.dir / 'http.token').read_text().strip()}")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            dropped = json.load(answer)
        assert (dropped["channel"], dropped["table"]["host"]) == ("t.by_http", "alpha")
        there.do("""
            from messagehub.shm.channel_directory.location import directory_of
            from messagehub.shm.tables import manifests
            for name in ("t.by_command", "t.by_http"):
                assert manifests.generations(directory_of(hub.settings).tables_path(name)) == []
        """)
        eventually(lambda: not any(_rows(hosts["alpha"], name) for name in ("t.by_command", "t.by_http")))
        code, said = run_on(beta, "tables", "drop", "t.by_command", "--yes")
        assert (code, "t.by_command" in said) == (1, True)


def test_an_older_table_of_a_third_host_does_not_come_back_when_the_newest_is_dropped(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.older", TABLE)')
        here.publish_table("t.older", TABLE.slice(0, 1))
        eventually(
            lambda: hosts["alpha"].ask({"type": "DISCOVERY_REQUEST", "channel": "t.older"})["table"]["rows"] == 1
        )
        there.do("""
            hub.drop_table("t.older")  # both: the newest on beta, and its own
            hub.publish_table("t.left", pa.table({"x": [1]}))
        """)
        here.publish_table("t.left", TABLE.slice(0, 1))
        eventually(lambda: hosts["alpha"].ask({"type": "DISCOVERY_REQUEST", "channel": "t.left"})["table"]["rows"] == 1)
        here.drop_table("t.left")
        deadline = time.monotonic() + DROP_SECONDS + 2.0
        while time.monotonic() < deadline:
            assert here.tables("t.left") == []
            assert here.tables("t.older") == []
            time.sleep(0.25)


def test_a_dropped_table_takes_the_older_ones_of_other_hosts_along(hosts: Site) -> None:
    """Or else the host that has one would read it, and its next hub would give it to the whole site."""
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        for channel in ("t.stale", "t.restart"):
            there.do(f'{PUBLISH}hub.publish_table("{channel}", TABLE)')
            here.publish_table(channel, TABLE.slice(0, 1))
            eventually(lambda name=channel: _rows(hosts["alpha"], name) == 1)
            here.drop_table(channel)
            eventually(lambda name=channel: not here.tables(name))
        there.do(f"""
            {PUBLISH}
            import time
            deadline = time.monotonic() + {PATIENCE_SECONDS}
            while hub.discover("t.stale") is not None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            hub.publish_table("t.stale", TABLE.slice(5, 2), mode="append")
        """)
        with here.consumer("t.stale", start="oldest") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == TABLE.slice(5, 2)
    assert hosts["alpha"].stop() == 0
    hosts["alpha"].start()
    gateway_of(hosts["beta"], "alpha")
    with on(hosts["beta"]) as here:
        assert here.tables("t.restart") == []


def _rows(hub: SiteHub, channel: str) -> int:
    table = hub.ask({"type": "DISCOVERY_REQUEST", "channel": channel}).get("table")
    return int(table["rows"]) if table else 0


def test_a_table_that_cannot_be_dropped_from_here_says_what_to_run_where(hosts: Site) -> None:
    if "closed" not in hosts.hubs:
        hosts.add("closed", "--no-http", "--no-gateway")
    await_known(hosts["beta"], "closed")
    with process_on(hosts["closed"]) as there, on(hosts["beta"]) as here:
        there.do(f'{PUBLISH}hub.publish_table("t.closed", TABLE)')
        with pytest.raises(TableOnOtherHost, match=r"no Arrow Flight gateway.* `messagehub tables drop t.closed` on"):
            here.drop_table("t.closed")
        assert [one.channel for one in here.tables("t.closed")] == ["t.closed"]
