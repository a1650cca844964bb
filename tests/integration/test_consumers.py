"""What a consumer reads, when it waits and when it ends: real processes and shared memory, mostly without a broker."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from messagehub import HubError
from messagehub.channels.payload_schema import hash_of
from messagehub.errors import DataLost, SchemaMismatch
from messagehub.shm.errors import ReaderFilesGone
from messagehub.shm.rings.read_results import Gap
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Peer, Served, eventually

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
PATIENCE = 30.0

PACED = """
say(ready=True)
sys.stdin.readline()
with hub.producer(channel, schema=SCHEMA, capacity=256) as producer:
    for n in range(1, count + 1):
        producer.write(batch(n))
        time.sleep(0.001)
    say(written=producer.sequence)
    sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"c{os.getpid()}") as made:
        yield made


@pytest.fixture(params=["alone", "broker"])
def either(request: pytest.FixtureRequest, place: Place) -> Iterator[Place]:
    """The same test without a broker, and with one that everybody knows. A consumer that is closed before the broker of
    a busy machine has answered has read without it."""
    if request.param == "alone":
        yield place
        return
    with Served(place.dir, heartbeat_seconds=0.5, beacon_seconds=0.1) as server, Peer(server.endpoint) as peer:
        yield place
        assert peer.stats()["requests"]["PRODUCER_REGISTER"]["count"] > 0


def test_what_a_consumer_hands_out_by_default_is_data(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    hub = place.hub()
    with hub.producer("fast", capacity=4) as producer, hub.consumer("fast", start="oldest") as consumer:
        with caplog.at_level(logging.WARNING):
            for first in (0, 10):
                for n in range(first, first + 10):
                    producer.write(b"%d" % n)
                found = [bytes(consumer.read(timeout=PATIENCE)) for _ in range(4)]
                assert found == [b"%d" % n for n in range(first + 6, first + 10)]
        assert consumer.missed == 12
    told = [record.getMessage() for record in caplog.records if "overwritten" in record.getMessage()]
    assert len(told) == 1
    assert "when_full='block'" in told[0]


def test_what_is_lost_before_the_first_read_is_told_as_was_asked_for(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("fast", capacity=4) as producer,
        hub.consumer("fast", start="oldest", on_lag="gap") as told,
        hub.consumer("fast", start="latest", on_lag="raise") as raising,
    ):
        for n in range(1, 11):
            producer.write(b"%d" % n)
        assert told.read(timeout=PATIENCE) == Gap(1, 6)
        assert bytes(told.read(timeout=PATIENCE)) == b"7"
        with pytest.raises(DataLost) as lost:
            raising.read(timeout=PATIENCE)
        assert (lost.value.details["first"], lost.value.details["last"]) == (1, 6)


def test_a_consumer_that_waits_reads_from_the_first_item(either: Place) -> None:
    """At 1 kHz; it was missed once in three."""
    for attempt in range(3):
        producer = either.process(PACED, channel=f"paced{attempt}", count=200)
        producer.hear()
        with either.hub().consumer(f"paced{attempt}") as consumer:
            producer.tell()
            found = [consumer.read(timeout=PATIENCE)["n"][0].as_py() for _ in range(200)]
            assert found == list(range(1, 201))
            assert (consumer.sequence, consumer.missed) == (200, 0)
        producer.tell()


def test_the_number_of_the_last_item_is_known_whoever_slept_for_it(either: Place) -> None:
    """In an event loop, and in a thread: the value that ended a sleep was not counted, until the next one."""
    hub = either.hub()
    with hub.producer("slow") as producer, hub.consumer("slow") as consumer:

        async def read_in_the_loop() -> None:
            for number in range(1, 6):
                reading = asyncio.ensure_future(consumer.read_async(timeout=PATIENCE))
                await asyncio.sleep(0.02)
                producer.write(b"1")
                assert bytes(await reading) == b"1"
                assert consumer.sequence == number

        asyncio.run(read_in_the_loop())
        for number in range(6, 11):
            with ThreadPoolExecutor(1) as threads:
                reading = threads.submit(consumer.read, PATIENCE)
                time.sleep(0.02)
                producer.write(b"2")
                assert bytes(reading.result(PATIENCE)) == b"2"
            assert consumer.sequence == number


def test_what_came_before_a_waiting_consumer_attached_is_counted(either: Place) -> None:
    hub = either.hub()
    with hub.consumer("burst") as consumer, hub.producer("burst", capacity=4) as producer:
        for n in range(1, 11):
            producer.write(b"%d" % n)
        assert bytes(consumer.read(timeout=PATIENCE)) == b"7"
        assert consumer.missed == 6


def test_a_consumer_waits_without_being_woken_by_time(place: Place) -> None:
    """Nothing but its own deadline ends the sleep: no look is due while nobody produces."""
    text = """
    import resource
    with hub.consumer("quiet") as consumer:
        assert consumer.read(timeout=0.1) is None
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        assert consumer.read(timeout=1.5) is None
        say(switches=resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
    """
    assert place.process(text).hear()["switches"] <= 3


@pytest.mark.parametrize("start", ["oldest", "latest"])
def test_a_consumer_that_comes_after_a_stream_ended_waits_for_the_next(either: Place, start: str) -> None:
    hub = either.hub()
    with hub.producer("late", schema=SCHEMA) as producer:
        producer.write(_batch(1))
    follow = either.process(
        """
        with hub.consumer("late", start=start) as consumer:
            say(ended=consumer.has_ended)
            for found in consumer:
                say(n=found["n"][0].as_py())
        say(over=True)
        """,
        start=start,
    )
    assert follow.hear() == {"ended": False}
    if start == "oldest":
        assert follow.hear() == {"n": 1}
    with hub.producer("late", schema=SCHEMA) as producer:
        producer.write(_batch(2))
        assert follow.hear() == {"n": 2}
    assert follow.hear() == {"over": True}


def test_one_that_does_not_follow_ends_when_nobody_produces(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("empty", follow=False) as consumer:
        assert list(consumer) == []
    with hub.producer("late", schema=SCHEMA) as producer:
        producer.write(_batch(1))
    with hub.consumer("late", start="oldest", follow=False) as consumer:
        assert [found["n"][0].as_py() for found in consumer] == [1]
        assert consumer.has_ended
    hub.publish_table("table", pa.table({"x": [1]}))
    with hub.consumer("table", start="oldest", follow=False) as consumer:
        assert [found["x"].to_pylist() for found in consumer] == [[1]]


def test_one_that_does_not_follow_reads_a_killed_producers_ring_to_its_end(place: Place) -> None:
    producer = place.process(PACED, channel="killed", count=3)
    producer.hear()
    producer.tell()
    producer.hear()
    hub = place.hub()
    with hub.consumer("killed", start="oldest", follow=False) as consumer:
        assert consumer.read()["n"][0].as_py() == 1
        producer.kill()
        assert [found["n"][0].as_py() for found in consumer] == [2, 3]


def test_a_waiting_consumer_reads_every_generation_of_a_table(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("table") as consumer:
        for x in (1, 2):
            hub.publish_table("table", pa.table({"x": [x]}))
        assert [consumer.read(timeout=PATIENCE)["x"].to_pylist() for _ in range(2)] == [[1], [2]]


def test_a_channel_whose_directory_is_made_again_is_heard_of(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("again") as consumer:
        with hub.producer("again") as producer:
            producer.write(b"1")
            assert bytes(consumer.read(timeout=PATIENCE)) == b"1"
            eventually(lambda: hub.discover("again").consumer_count)  # a thread enters it there, and is done with it
        assert consumer.read() is None
        place.remove_channel("again")
        os.unlink(place.directory.exclusive_block("again"))
        assert consumer.read(timeout=0.01) is None
        with hub.producer("again") as producer:
            producer.write(b"2")
            assert bytes(consumer.read(timeout=PATIENCE)) == b"2"


def test_a_block_of_another_channel_is_never_read(place: Place) -> None:
    hub = place.hub()
    with hub.producer("secret", schema_hash="same") as producer:
        producer.write(b"not for you")
        with (
            hub.register_producer("public", schema_hash="same", shm_name=producer.shm_name),
            hub.consumer("public", start="oldest") as consumer,
        ):
            assert consumer.read(timeout=0.05) is None


def test_an_unknown_on_lag_is_refused_by_name(place: Place) -> None:
    with pytest.raises(HubError, match="on_lag 'maybe'"):
        place.hub().consumer("bad", on_lag="maybe")


def _batch(n: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([n], pa.int64()), pa.array([f"item {n}"])], schema=SCHEMA)


def test_an_array_of_another_process_is_one_item(place: Place) -> None:
    text = """
    with hub.producer("arrays", schema=np.dtype("<f8"), page_size=64_000) as producer:
        producer.write(np.arange(8000.0).reshape(1000, 8))
        producer.write(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
        say(written=producer.sequence)
        sys.stdin.readline()
    """
    producer = place.process(text)
    assert producer.hear() == {"written": 2}
    with place.hub().consumer("arrays", start="oldest", expected_schema=np.dtype("<f8")) as consumer:
        first, second = (consumer.read(timeout=PATIENCE) for _ in range(2))
        assert first.shape == (1000, 8)
        assert first[999, 7] == 7999.0
        assert second.flags.f_contiguous
        assert second.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    producer.tell()


@pytest.mark.parametrize(
    "bad",
    [
        {"capacity": 0},
        {"capacity": -1},
        {"capacity": 1.5},
        {"capacity": 1 << 21},
        {"page_size": 0},
        {"page_size": True},
        {"page_size": "4096"},
        {"schema": np.dtype(("<f8", (3,)))},
        {"schema": "no such type"},
        {"schema": pa.int64()},
        {"split_rows": True},
    ],
    ids=str,
)
def test_what_a_producer_cannot_be_is_refused_by_the_arguments_name(place: Place, bad: dict[str, object]) -> None:
    hub = place.hub()
    with pytest.raises(HubError, match=next(iter(bad))):
        hub.producer("bad", **bad)  # type: ignore[arg-type]
    assert hub.discover("bad") is None
    assert place.blocks() == []


WITHOUT_DIRECTORY = """
with hub.producer("gone", schema=SCHEMA, **options) as producer:
    producer.write(batch(1))
    say(ready=True)
    for line in sys.stdin:
        producer.write(batch(int(line)))
"""


@pytest.mark.parametrize("options", [{}, {"when_full": "block"}], ids=["overwrite", "block"])
def test_with_the_directory_gone_a_ring_is_read_by_its_name(place: Place, options: dict[str, str]) -> None:
    producer = place.process(WITHOUT_DIRECTORY, options=options)
    producer.hear()
    place.remove_channel("gone")
    hub = place.hub()
    found = hub.discover("gone")
    assert found is not None
    assert (found.status, found.source) == ("active", "shm")
    with hub.consumer("gone", start="oldest", lossless=False) as consumer:
        assert consumer.source == "shm"
        assert consumer.read(timeout=PATIENCE)["n"].to_pylist() == [1]
        assert consumer.read(timeout=0.05) is None
        producer.tell("2")
        assert consumer.read(timeout=PATIENCE)["n"].to_pylist() == [2]
        producer.tell("3")
        assert asyncio.run(consumer.read_async(timeout=PATIENCE))["n"].to_pylist() == [3]
        if options:
            with pytest.raises(ReaderFilesGone, match="lossless=False"):
                hub.consumer("gone")


def test_a_ring_that_is_read_by_its_name_ends_with_its_producer(place: Place) -> None:
    hub = place.hub()
    producer = hub.producer("gone")
    place.remove_channel("gone")
    with hub.consumer("gone", start="oldest") as consumer:
        producer.write(b"1")
        assert bytes(consumer.read()) == b"1"
        producer.close()
        assert consumer.read() is None


def test_without_a_broker_an_expected_schema_is_compatible_where_it_is_equal(place: Place) -> None:
    hub = place.hub()
    other = pa.schema([("n", pa.int64())])
    with hub.producer("asked", schema=SCHEMA):
        for _ in range(2):
            assert hub.discover("asked", expected_schema=SCHEMA).compatible is True
            assert hub.discover("asked", expected_schema=other).compatible is False
            assert hub.discover("asked").compatible is None
        place.remove_channel("asked")
        assert hub.discover("asked", expected_schema=SCHEMA, wait=True).compatible is True
        assert hub.discover("asked", expected_schema=other).compatible is False
    assert hub.discover("nobody", expected_schema=SCHEMA) is None


def test_a_reader_is_told_by_fields_and_types_what_it_cannot_read(place: Place) -> None:
    hub = place.hub()
    narrow = pa.schema([("n", pa.int32())])
    with hub.producer("wider", schema=narrow) as producer, hub.consumer("wider", expected_schema=narrow) as consumer:
        producer.write(pa.record_batch([pa.array([1], pa.int32())], schema=narrow))
        assert consumer.read(timeout=PATIENCE).to_pydict() == {"n": [1]}
        producer.close()
        with hub.producer("wider", schema=SCHEMA):
            for _ in range(2):
                with pytest.raises(SchemaMismatch) as refused:
                    eventually(lambda: consumer.read(timeout=0.1))
                assert "is written as (n: int64, text: string); the consumer expects (n: int32)" in str(refused.value)
                assert "leave expected_schema out" in str(refused.value)
                expected, actual = hash_of(narrow), hash_of(SCHEMA)
                assert refused.value.details == {"channel": "wider", "expected": expected, "actual": actual}
