"""Where a value comes from: number, time, producer; and which value is the latest."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from messagehub.channels.items import ReadItem
from messagehub.shm.rings.read_results import Gap
from tests.integration.block_processes import Place, place_in

PATIENCE = 30.0
INT = np.dtype("<i8")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"o{os.getpid()}") as made:
        yield made


def test_an_item_says_what_is_known_of_it(place: Place) -> None:
    hub = place.hub()
    with hub.producer("items") as producer, hub.consumer("items", start="oldest") as consumer:
        assert (consumer.written_at, consumer.producer_id) == (0.0, None)
        before = time.time()
        producer.write(b"a")
        producer.write(b"b")
        item = consumer.read_item(timeout=PATIENCE)
        assert isinstance(item, ReadItem)
        assert (item.value, item.sequence, item.producer_id) == (b"a", 1, "items/default")
        assert before - 0.001 <= item.written_at <= time.time() + 0.001
        assert consumer.read(timeout=PATIENCE) == b"b"
        assert (consumer.sequence, consumer.producer_id) == (2, "items/default")
        assert item.written_at <= consumer.written_at <= time.time() + 0.001
        assert consumer.read_item(timeout=0) is None
        assert consumer.latest_item() == ReadItem(b"b", 2, consumer.written_at, "items/default")
        producer.write(b"c")
        assert asyncio.run(consumer.read_item_async(timeout=PATIENCE)).value == b"c"


def test_a_gap_is_handed_out_as_it_is_and_is_no_sequence(place: Place) -> None:
    hub = place.hub()
    with hub.producer("items", capacity=2) as producer, hub.consumer("items", on_lag="gap") as consumer:
        for _ in range(5):
            producer.write(b"x")
        gap = consumer.read_item(timeout=PATIENCE)
        assert gap == Gap(1, 3)
        with pytest.raises(TypeError):
            float(gap[0])  # type: ignore[index]
        with pytest.raises(TypeError):
            list(gap)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            np.asarray(gap, dtype=float)
        assert consumer.read_item(timeout=PATIENCE).sequence == 4


def test_threads_see_the_origin_of_what_they_have_read_themselves(place: Place) -> None:
    hub = place.hub()
    with hub.producer("items") as producer, hub.consumer("items") as consumer:
        producer.write(b"a")
        consumer.read(timeout=PATIENCE)
        mine = consumer.written_at
        seen = []
        thread = threading.Thread(target=lambda: seen.append(consumer.written_at))
        thread.start()
        thread.join(PATIENCE)
        assert seen == [0.0]
        assert consumer.written_at == mine > 0


def test_items_of_several_producers_name_them(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("many", access="shared", producer_id="left") as left,
        hub.producer("many", access="shared", producer_id="right") as right,
        hub.consumer("many") as consumer,
    ):
        left.write(b"l")
        right.write(b"r")
        found = [consumer.read_item(timeout=PATIENCE) for _ in range(2)]
        assert sorted((item.value, item.producer_id) for item in found) == [(b"l", "left"), (b"r", "right")]


def test_the_latest_is_the_newest_of_all_producers(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("many", access="shared", producer_id="a") as first,
        hub.producer("many", access="shared", producer_id="b") as second,
        hub.consumer("many") as consumer,
    ):
        for n in range(4):
            writer, name = ((first, "a"), (second, "b"))[n % 2]
            writer.write(b"%d" % n)
            found = consumer.latest_item()
            assert (found.value, found.producer_id) == (b"%d" % n, name)


@pytest.mark.parametrize("ends", ["close", "kill"])
def test_the_latest_is_of_a_shared_producer_that_was_started_again(place: Place, ends: str) -> None:
    program = """
    producer = hub.producer("restarted", access="shared", schema=np.dtype("<i8"))
    producer.write(np.array([first]))
    say(written=first)
    sys.stdin.readline()
    producer.close()
    """
    old = place.process(program, first=1)
    assert old.hear() == {"written": 1}
    with place.hub().consumer("restarted", start="oldest") as consumer:
        assert consumer.latest().tolist() == [1]
        if ends == "kill":
            old.kill()
        else:
            old.tell()
            old.finish()
        new = place.process(program, first=2)
        assert new.hear() == {"written": 2}
        assert consumer.latest().tolist() == [2]
        new.kill()
        assert consumer.latest().tolist() == [2]


def test_the_latest_of_a_ring_and_a_table_is_the_newer_one(place: Place) -> None:
    hub = place.hub()
    schema = pa.schema([("n", pa.int64())])

    def rows(n: int) -> pa.RecordBatch:
        return pa.record_batch([[n]], schema=schema)

    with hub.producer("both", schema=schema) as producer, hub.consumer("both") as consumer:
        producer.write(rows(1))
        assert consumer.latest().to_pydict() == {"n": [1]}
        hub.publish_table("both", pa.Table.from_batches([rows(2)]))
        found = consumer.latest_item()
        assert (found.value.to_pydict(), found.sequence, found.producer_id) == ({"n": [2]}, 1, None)
        producer.write(rows(3))
        assert consumer.latest().to_pydict() == {"n": [3]}


def test_a_ring_that_was_replaced_leaves_no_loss_uncounted(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("replaced", start="oldest") as consumer, hub.producer("replaced", capacity=16) as producer:
        for n in range(10):
            producer.write(b"%d" % n)
        assert [consumer.read(timeout=PATIENCE) for _ in range(3)] == [b"0", b"1", b"2"]
        position = consumer.position
    with hub.producer("replaced", capacity=32) as producer:
        producer.write(b"new")
        with hub.consumer("replaced", start=position) as consumer:
            assert consumer.read(timeout=PATIENCE) == b"new"
            assert (consumer.missed, consumer.sequence) == (7, 11)


def test_what_came_between_two_reads_and_was_replaced_is_counted(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("replaced", start="oldest") as consumer:
        with hub.producer("replaced", capacity=16) as producer:
            for n in range(10):
                producer.write(b"%d" % n)
        assert [consumer.read(timeout=PATIENCE) for _ in range(10)][-1] == b"9"
        assert consumer.read() is None  # the stream has ended, and the consumer has let go of the ring
        with hub.producer("replaced", capacity=16) as producer:
            for n in range(10, 15):
                producer.write(b"%d" % n)
        with hub.producer("replaced", capacity=8) as producer:
            producer.write(b"new")
            assert consumer.read(timeout=PATIENCE) == b"new"
            assert consumer.missed == 5


def test_what_a_producer_left_unread_stays_readable_after_its_linger_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagehub.channels.consumer.attachments.LINGER_SECONDS", 0.0)
    process = place.process(
        """
        producer = hub.producer("left", capacity=16)
        for n in range(15):
            producer.write(b"%d" % n)
        say(written=15)
        sys.stdin.readline()
        """
    )
    assert process.hear() == {"written": 15}
    with place.hub().consumer("left", start="oldest") as consumer:
        assert [consumer.read(timeout=PATIENCE) for _ in range(10)][-1] == b"9"
        process.kill()
        for _ in range(2):  # looks at the channel, and sees for longer than the linger time that its producer is dead
            assert consumer.latest() == b"14"
        assert [consumer.read(timeout=PATIENCE) for _ in range(5)] == [b"%d" % n for n in range(10, 15)]
        assert consumer.missed == 0


def test_a_position_whose_rings_are_gone_is_told_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    from messagehub.shm.channel_directory.cleaning import clean

    hub = place.hub()
    with hub.producer("gone") as producer, hub.consumer("gone", start="oldest") as consumer:
        producer.write(b"1")
        assert consumer.read(timeout=PATIENCE) == b"1"
        position = consumer.position
    clean(place.directory, now=time.time() + 1000.0, linger_seconds=0.0)
    clean(place.directory, now=time.time() + 2000.0, linger_seconds=0.0)
    with hub.producer("gone") as producer:
        producer.write(b"2")
        with caplog.at_level("WARNING", "messagehub"), hub.consumer("gone", start=position) as consumer:
            assert consumer.read(timeout=PATIENCE) == b"2"
        assert ["no ring that `start` names" in record.message for record in caplog.records].count(True) == 1


def test_a_position_beyond_the_end_is_told_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    hub = place.hub()
    with hub.producer("beyond") as producer, hub.consumer("beyond", start="oldest") as consumer:
        producer.write(b"1")
        assert consumer.read(timeout=PATIENCE) == b"1"
        ((block_id, (_, epoch, sequence)),) = consumer.position.items()
        for beyond in ([block_id, epoch, sequence + 1], [block_id, epoch + 1, sequence]):
            caplog.clear()
            with caplog.at_level("WARNING", "messagehub"), hub.consumer("beyond", start={block_id: beyond}) as again:
                assert again.read(timeout=PATIENCE) == b"1"
            said = [record.message for record in caplog.records if "cannot be read from there on" in record.message]
            assert len(said) == 1
            assert said[0].endswith("is ahead of it. Reading begins with the oldest item that is there")
