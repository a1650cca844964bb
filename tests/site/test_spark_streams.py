"""Spark's stream reader over rings of another host of the site: as Spark calls it, but in one process."""

import textwrap
from collections.abc import Iterator

import pytest

from tests.site.hosts import Elsewhere, Site, process_on

START = """
from pyspark.sql.streaming.datasource import ReadAllAvailable
from messagehub.spark.channels import available_schema
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import struct_of
from messagehub.spark.stream_reader import RingStreamReader
from registry.errors import ChannelNotFound
ALL = ReadAllAvailable()
def query(channel, known=None, seconds=20.0, **given):
    "Return a reader; hubs hear of each other's channels a moment later."
    where = {"dir": str(hub.settings.dir), "domain": hub.settings.domain}
    options = Options.parse({"channel": channel} | where | given)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return RingStreamReader(options, struct_of(known or available_schema(options)))
        except ChannelNotFound:
            assert time.monotonic() < deadline
            time.sleep(0.05)
def values(reader, start, end):
    found = []
    for one in reader.partitions(start, end):
        for batch in reader.read(one):
            found += batch.column("x").to_pylist()
    return sorted(found)
def ended(reader, start, wanted, seconds=20.0):
    "Return the offset at which the query has these values; hubs hear of each other's producers a moment later."
    deadline = time.monotonic() + seconds
    while True:
        end = reader.latestOffset(start, ALL)
        found = values(reader, start, end)
        if found == wanted:
            return end
        assert time.monotonic() < deadline, (found, end)
        time.sleep(0.05)
"""
WRITE = """
def batch(*values):
    return pa.record_batch([pa.array(values, pa.int64())], names=["x"])
schema = batch().schema
"""


@pytest.fixture(scope="module")
def spark_on_beta(hosts: Site) -> Iterator[Elsewhere]:
    """A process of Spark on beta."""
    with process_on(hosts["beta"]) as started:
        started.do(START + WRITE)
        yield started


@pytest.fixture(scope="module")
def producer_on_alpha(hosts: Site) -> Iterator[Elsewhere]:
    with process_on(hosts["alpha"]) as started:
        started.do(WRITE)
        yield started


def test_a_ring_of_another_host_is_streamed_by_offsets(spark_on_beta: Elsewhere, producer_on_alpha: Elsewhere) -> None:
    producer_on_alpha.do("""
        producer = hub.producer("s.ring", schema=schema, capacity=8)
        producer.write(batch(1, 2))
    """)
    spark_on_beta.do("""
        reader = query("s.ring")
        start = reader.initialOffset()
        (place,) = start.values()
        assert place == {"channel": "s.ring", "epoch": 1, "sequence": 0, "host": "alpha"}, place
        end = reader.latestOffset(start, ALL)
        assert values(reader, start, end) == [1, 2]
        shown = reader.reportLatestOffset()
        (place,) = shown.values()
        assert place["behind"] == {"payloads": 1}, place
        reader.commit(end)
        (place,) = reader.reportLatestOffset().values()
        assert place["behind"] == {"payloads": 0}, place
        reader.stop()
    """)
    producer_on_alpha.do("producer.write(batch(3)); producer.close()")
    spark_on_beta.do("""
        again = query("s.ring", schema)  # another run, with the offset from its checkpoint
        following = ended(again, end, [3])
        assert again.latestOffset(following, ALL).keys() == following.keys()
        again.commit(following)
        again.stop()
    """)


def test_a_blocking_producer_waits_for_a_query_on_another_host(
    spark_on_beta: Elsewhere, producer_on_alpha: Elsewhere
) -> None:
    producer_on_alpha.do("""
        producer = hub.producer("s.held", schema=schema, capacity=4, when_full="block")
        producer.write(batch(1))
    """)
    spark_on_beta.do("""
        reader = query("s.held")
        start = reader.initialOffset()
    """)
    producer_on_alpha.do("""
        from messagehub.shm.errors import RingFull
        for value in (2, 3, 4):
            producer.write(batch(value), timeout=10)
        try:
            producer.write(batch(5), timeout=0.3)
            raise AssertionError("nobody held it back")
        except RingFull:
            pass
    """)
    spark_on_beta.do("""
        end = ended(reader, start, [1, 2, 3, 4])
        reader.commit(end)
    """)
    producer_on_alpha.do("producer.write(batch(5), timeout=10)")
    spark_on_beta.do("""
        following = ended(reader, end, [5])
        reader.stop()
    """)
    producer_on_alpha.do("producer.close()")


def test_rings_of_both_hosts_are_one_stream_and_a_pattern_finds_them(
    spark_on_beta: Elsewhere, producer_on_alpha: Elsewhere
) -> None:
    producer_on_alpha.do("""
        there = [hub.producer(name, schema=schema, access="shared") for name in ("rigs.a", "rigs.b")]
        for producer, value in zip(there, (1, 2)):
            producer.write(batch(value))
    """)
    spark_on_beta.do("""
        with hub.producer("rigs.a", schema=schema, access="shared") as here:
            here.write(batch(3))
            reader = query("rigs.*")
            end = ended(reader, {}, [1, 2, 3])
            assert {(place["channel"], place["host"]) for place in end.values()} == {
                ("rigs.a", "alpha"), ("rigs.b", "alpha"), ("rigs.a", "beta")
            }
            since = query("rigs.b", startingTimestamp="0")
            start = since.initialOffset()
            assert values(since, start, since.latestOffset(start, ALL)) == [2]
            reader.stop(), since.stop()
    """)
    producer_on_alpha.do("for producer in there: producer.close()")


def test_what_was_overwritten_on_another_host_fails_the_query_or_is_counted(
    spark_on_beta: Elsewhere, producer_on_alpha: Elsewhere
) -> None:
    producer_on_alpha.do("""
        producer = hub.producer("s.lost", schema=schema, capacity=4)
        producer.write(batch(1))
    """)
    spark_on_beta.do("""
        from messagehub.errors import DataLost
        reader, tolerant = query("s.lost"), query("s.lost", failOnDataLoss="false")
        start = reader.initialOffset()
        end = ended(reader, start, [1])
        reader.stop()
    """)
    producer_on_alpha.do("for value in range(2, 12): producer.write(batch(value))")
    spark_on_beta.do("""
        reader = query("s.lost")
        following = reader.latestOffset(end, ALL)
        try:
            values(reader, end, following)
            raise AssertionError("nothing was lost")
        except DataLost as error:
            assert "are lost (overwritten)" in str(error), error
        counted = tolerant.latestOffset(end, ALL)
        (place,) = counted.values()
        found = values(tolerant, end, counted)  # a value that is on its way elsewhere may be there yet
        lost = place.get("lost", 0)  # 0: all of it was on its way, or it is found out by reading, and logged
        assert lost + len(found) == 10 or (lost == 0 and len(found) < 10), (counted, found)
        assert found[-2:] == [10, 11], found  # what is on its way to two queries may hold two of four slots
        reader.stop(), tolerant.stop()
    """)
    producer_on_alpha.do("producer.close()")


def test_a_query_goes_on_when_the_gateway_is_started_again(
    hosts: Site, spark_on_beta: Elsewhere, producer_on_alpha: Elsewhere
) -> None:
    from tests.site.hosts import gateway_pid

    producer_on_alpha.do("""
        producer = hub.producer("s.again", schema=schema, capacity=64)
        producer.write(batch(1))
    """)
    spark_on_beta.do("""
        reader = query("s.again")
        start = reader.initialOffset()
        end = ended(reader, start, [1])
        reader.commit(end)
    """)
    producer_on_alpha.do(
        textwrap.dedent(f"""
        import os, signal
        os.kill({gateway_pid(hosts["alpha"])}, signal.SIGKILL)
        producer.write(batch(2))
    """)
    )
    spark_on_beta.do("""
        following = ended(reader, end, [2])
        reader.commit(following)
        reader.stop()
    """)
    producer_on_alpha.do("producer.close()")
