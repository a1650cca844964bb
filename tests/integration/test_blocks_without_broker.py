"""FEATURES A: no broker, file-based discovery, direct shared memory; real processes, no daemon anywhere."""

import asyncio
import logging
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from messagehub import HubError, MessageHub
from messagehub.channels.payload_schema import hash_of
from messagehub.errors import BrokerRequired, DataLost, ProducerAlreadyRegistered, SchemaMismatch
from messagehub.shm.errors import HandleClosed
from messagehub.shm.rings.read_results import Gap
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import eventually

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])

PRODUCE = """
with hub.producer(channel, schema=SCHEMA, capacity=8, page_size=4096, **options) as producer:
    for n in range(count):
        producer.write(batch(n), timeout=30)
    say(written=producer.sequence, source=producer.source, shm_name=producer.shm_name)
    sys.stdin.readline()
say(closed=True)
"""


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest):
    with place_in(tmp_path / "hub", f"t{os.getpid()}") as made:
        yield made


def batch(first: int, rows: int = 1) -> pa.RecordBatch:
    numbers = list(range(first, first + rows))
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"item {n}" for n in numbers])], schema=SCHEMA)


def test_a_consumer_finds_another_process_through_the_directory(place: Place) -> None:
    producer = place.process(PRODUCE, channel="sensor_data", count=3, options={})
    assert producer.hear() == {"written": 3, "source": "files", "shm_name": f"/pylabhub_sensor_data@{place.domain}"}
    hub = place.hub()
    found = hub.discover("sensor_data")
    assert found is not None
    assert (found.source, found.status) == ("files", "active")
    assert found.producers[0].pid == producer.pid
    with hub.consumer("sensor_data", start="oldest", expected_schema=SCHEMA) as consumer:
        assert consumer.source == "files"
        assert [consumer.read(timeout=10.0)["n"][0].as_py() for _ in range(3)] == [0, 1, 2]
        assert consumer.read(timeout=0.01) is None


def test_entries_of_dead_producers_are_rejected(place: Place) -> None:
    producer = place.process(PRODUCE, channel="sensor_data", count=1, options={})
    producer.hear()
    hub = place.hub()
    assert hub.discover("sensor_data")
    producer.kill()
    assert hub.discover("sensor_data") is None


def test_a_paused_producer_is_alive(place: Place) -> None:
    producer = place.process(PRODUCE, channel="sensor_data", count=1, options={})
    producer.hear()
    producer.signal(signal.SIGSTOP)
    hub = place.hub()
    assert hub.discover("sensor_data")
    with pytest.raises(ProducerAlreadyRegistered):
        hub.producer("sensor_data", schema=SCHEMA)


def test_without_directory_the_derived_name_is_found_and_checked(place: Place) -> None:
    producer = place.process(PRODUCE, channel="sensor_data", count=2, options={})
    producer.hear()
    os.unlink(Path(place.directory.channel_path("sensor_data")) / "_default.json")
    hub = place.hub()
    found = hub.discover("sensor_data")
    assert found is not None
    assert found.source == "shm"
    other = pa.schema([("other", pa.int8())])
    with pytest.raises(SchemaMismatch) as refused:
        hub.consumer("sensor_data", expected_schema=other)
    assert refused.value.details == {"channel": "sensor_data", "expected": hash_of(other), "actual": hash_of(SCHEMA)}
    with hub.consumer("sensor_data", start="oldest", expected_schema=SCHEMA) as consumer:
        assert consumer.source == "shm"
        assert consumer.read(timeout=10.0).to_pydict() == {"n": [0], "text": ["item 0"]}


def test_one_warning_is_logged_and_nothing_raises(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    hub = place.hub()
    with caplog.at_level(logging.WARNING):
        registration = hub.register_producer("nominal", schema_hash="abc", schema_version="1.0.0")
        assert registration
        assert registration.source == "files"
        assert hub.discover("nominal").source == "files"
        assert hub.discover("nobody") is None
        assert hub.register_consumer("nominal", expected_schema_hash="abc").source == "files"
    assert len([record for record in caplog.records if "without a broker" in record.message]) == 1
    registration.close()
    assert not registration


def test_what_needs_the_broker_says_so(place: Place) -> None:
    hub = place.hub()
    with hub.producer("grouped"), pytest.raises(BrokerRequired):
        hub.consumer("grouped", group="readers")


def test_of_many_racing_processes_one_gets_the_exclusive_channel(place: Place) -> None:
    text = """
    from messagehub.errors import ProducerAlreadyRegistered
    say(ready=True)
    sys.stdin.readline()
    try:
        producer = hub.producer("raced")
        say(won=True)
    except ProducerAlreadyRegistered:
        say(won=False)
    sys.stdin.readline()
    """
    racers = [place.process(text) for _ in range(6)]
    for racer in racers:
        racer.hear()
    for racer in racers:
        racer.tell()
    outcomes = [racer.hear()["won"] for racer in racers]
    assert sum(outcomes) == 1, outcomes


def test_a_consumer_may_be_there_first(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    hub = place.hub()
    with hub.consumer("late", expected_schema=SCHEMA) as consumer:
        assert consumer.source is None
        assert consumer.read(timeout=0.05) is None
        producer = place.process(PRODUCE, channel="late", count=2, options={})
        assert [consumer.read(timeout=30.0)["n"][0].as_py() for _ in range(2)] == [0, 1]
        assert consumer.source == "files"
        producer.tell()


def test_iteration_ends_with_the_stream_and_goes_on_with_its_successor(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("stream", start="oldest") as consumer:
        for first in (0, 3):
            with hub.producer("stream", schema=SCHEMA) as producer:
                for n in range(first, first + 3):
                    producer.write(batch(n))
            assert [found["n"][0].as_py() for found in consumer] == [first, first + 1, first + 2]


def test_a_killed_producers_successor_goes_on_in_its_ring(place: Place) -> None:
    first = place.process(PRODUCE, channel="stream", count=2, options={})
    first.hear()
    hub = place.hub()
    with hub.consumer("stream", start="oldest") as consumer:
        assert consumer.read(timeout=10.0)["n"][0].as_py() == 0
        first.kill()
        assert consumer.read(timeout=10.0)["n"][0].as_py() == 1
        second = place.process(PRODUCE, channel="stream", count=1, options={})
        second.hear()
        assert consumer.read(timeout=10.0)["n"][0].as_py() == 0
        assert consumer.sequence == 3


def test_several_producers_share_a_channel(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("shared", start="oldest") as consumer:
        producers = [place.process(PRODUCE, channel="shared", count=4, options={"access": "shared"}) for _ in range(3)]
        for producer in producers:
            producer.hear()
        found = [consumer.read(timeout=30.0)["n"][0].as_py() for _ in range(12)]
        assert sorted(found) == sorted([0, 1, 2, 3] * 3)
        assert len(hub.discover("shared").producers) == 3


def test_what_was_overwritten_is_said(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("fast", capacity=4) as producer,
        hub.consumer("fast", start="oldest", on_lag="gap") as told,
        hub.consumer("fast", start="oldest", on_lag="raise") as raising,
        hub.consumer("fast", start="oldest", on_lag="skip") as skipping,
    ):
        producer.write(b"0")
        for consumer in (told, raising, skipping):
            assert bytes(consumer.read(timeout=5.0)) == b"0"
        for n in range(1, 11):
            producer.write(b"%d" % n)
        assert told.read(timeout=5.0) == Gap(2, 7)
        assert bytes(told.read(timeout=5.0)) == b"7"
        with pytest.raises(DataLost):
            raising.read(timeout=5.0)
        assert bytes(skipping.read(timeout=5.0)) == b"7"
        assert skipping.missed == 6


def test_a_view_stays_as_it_was_while_the_ring_wraps(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("views", schema=SCHEMA, capacity=4) as producer,
        hub.consumer("views", start="oldest") as consumer,
    ):
        producer.write(batch(7, rows=20))
        kept = consumer.read(timeout=5.0)
        for n in range(100):
            producer.write(batch(n, rows=20))
        assert kept["n"].to_pylist() == list(range(7, 27))


def test_numpy_and_raw_payloads_and_loans(place: Place) -> None:
    hub = place.hub()
    dtype = np.dtype([("t", "<f8"), ("v", "<i4")])
    with hub.producer("arrays", schema=dtype) as producer, hub.consumer("arrays", expected_schema=dtype) as consumer:
        values = np.array([(0.5, 1), (1.5, 2)], dtype=dtype)
        producer.write(values)
        assert (consumer.read(timeout=5.0) == values).all()
        with producer.loan(dtype.itemsize) as loan:
            np.frombuffer(loan.buffer, dtype=dtype)["v"] = 9
        assert consumer.read(timeout=5.0)["v"].tolist() == [9]


def test_tables_need_nobody_alive(place: Place) -> None:
    text = """
    hub.publish_table("report", pa.table({"x": [1, 2, 3]}), schema_version="2")
    say(done=True)
    """
    place.process(text).finish()
    hub = place.hub()
    found = hub.discover("report")
    assert found is not None
    assert (found.status, found.generation, found.schema_version) == ("active", 1, "2")
    with hub.consumer("report") as consumer:
        assert consumer.read(timeout=5.0)["x"].to_pylist() == [1, 2, 3]
        assert consumer.read(timeout=0.01) is None
        hub.publish_table("report", pa.table({"x": [4]}), mode="append")
        assert consumer.read(timeout=10.0)["x"].to_pylist() == [1, 2, 3, 4]
        assert consumer.latest()["x"].to_pylist() == [1, 2, 3, 4]


def test_async_for(place: Place) -> None:
    hub = place.hub()

    async def collect() -> list[int]:
        with hub.consumer("async", start="oldest") as consumer:
            producer = place.process(PRODUCE, channel="async", count=5, options={"when_full": "block"})
            found = [await consumer.read_async(timeout=30.0)]
            producer.tell()
            return [each["n"][0].as_py() for each in [*found, *[value async for value in consumer]]]

    assert asyncio.run(collect()) == [0, 1, 2, 3, 4]


def test_a_consumer_resumes_at_its_position(place: Place) -> None:
    hub = place.hub()
    with hub.producer("resumed", capacity=8) as producer:
        with hub.consumer("resumed", start="oldest") as consumer:
            for n in range(4):
                producer.write(b"%d" % n)
            consumer.read(timeout=5.0)
            consumer.read(timeout=5.0)
            position = consumer.position
        with hub.consumer("resumed", start=position) as consumer:
            assert bytes(consumer.read(timeout=5.0)) == b"2"


def test_a_forked_child_neither_holds_nor_frees_what_is_its_parents(place: Place) -> None:
    hub = place.hub()
    with hub.producer("forked", schema=SCHEMA) as producer, hub.consumer("forked", start="oldest") as consumer:
        producer.write(batch(0))
        kept = consumer.read(timeout=5.0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.write(batch(1))
            except HandleClosed:
                producer.close()
                consumer.close()
                code = 0 if hub.discover("forked") else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept["n"].to_pylist() == [0]
        producer.write(batch(1))
        assert consumer.read(timeout=5.0)["n"].to_pylist() == [1]
        assert hub.discover("forked")


def test_bad_arguments_are_refused_by_name(place: Place) -> None:
    hub = place.hub()
    for bad in ({"policy": "Heap"}, {"when_full": "maybe"}, {"checksum": "md5"}):
        with pytest.raises(HubError, match=next(iter(bad.values()))):
            hub.producer("bad", **bad)
    with pytest.raises(HubError, match="somewhere"):
        hub.consumer("bad", start="somewhere")
    assert hub.discover("bad") is None


def test_a_full_shared_memory_leaves_nothing_behind(place: Place) -> None:
    hub = place.hub()
    free = shutil.disk_usage("/dev/shm").free
    from messagehub.shm.errors import ShmFull

    with pytest.raises(ShmFull):
        hub.producer("huge", capacity=2, page_size=free)
    assert hub.discover("huge") is None
    assert place.blocks() == []
    with hub.producer("huge"):
        assert hub.discover("huge")


def test_closing_twice_is_harmless_and_a_hub_closes_what_it_opened(place: Place) -> None:
    hub = place.hub()
    producer = hub.producer("closed")
    consumer = hub.consumer("closed")
    hub.close()
    hub.close()
    producer.close()
    consumer.close()
    assert MessageHub(**place.arguments).discover("closed") is None
    eventually(lambda: not [t for t in os.listdir("/proc/self/fd") if "pylabhub_closed" in _target(t)])


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""
