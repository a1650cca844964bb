"""Evicting producers and consumers that run: what they hear, and that nobody waits for them any more."""

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from messagehub import MessageHub
from messagehub.errors import Evicted, NotRegistered
from messagehub.shm.errors import RingFull
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import PATIENCE_SECONDS, Served, eventually

READER = """
with hub.consumer(channel, start="oldest", consumer_id="stuck") as consumer:
    value = consumer.read(timeout=30)
    say(first=float(value[0]))
    sys.stdin.readline()
    try:
        while True:
            consumer.read(timeout=30)
    except Exception as error:
        say(error=type(error).__name__, first=float(value[0]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("evict") / "hub", f"v{os.getpid()}") as made:
        server = Served(made.dir, heartbeat_seconds=0.5, beacon_seconds=0.1)
        yield made
        server.close()


@pytest.fixture
def hub(place: Place) -> Iterator[MessageHub]:
    with place.hub() as made:
        yield made


def test_a_loop_that_always_finds_something_ends_with_the_error(place: Place, hub: MessageHub) -> None:
    other = place.hub()
    heard: list[Evicted] = []
    with hub.producer("busy") as producer, other.consumer("busy", consumer_id="loop") as consumer:
        consumer_is_reading = threading.Event()

        def read() -> None:
            try:
                for _ in consumer:
                    consumer_is_reading.set()
            except Evicted as error:
                heard.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        while not consumer_is_reading.is_set():
            producer.write(b"x")
        assert hub.evict("busy", "loop").pid == os.getpid()
        while reading.is_alive():
            producer.write(b"x")
        assert heard[0].details == {"channel": "busy", "member_id": "loop"}
        for _ in range(2):
            with pytest.raises(Evicted):
                consumer.read(timeout=0)
        assert "loop" not in [found.consumer_id for found in hub.consumers("busy")]
        with pytest.raises(Evicted):
            other.consumer("busy", consumer_id="loop")
        with other.consumer("busy", consumer_id="another") as again:
            producer.write(b"y")
            assert again.read(timeout=PATIENCE_SECONDS) == b"y"
    other.close()


def test_a_stopped_consumer_that_is_evicted_holds_no_producer_back(place: Place, hub: MessageHub) -> None:
    with hub.producer("blocked", schema=np.dtype("f8"), capacity=4, page_size=4096, when_full="block") as producer:
        reader = place.process(READER, channel="blocked")
        eventually(lambda: hub.consumers("blocked"))
        producer.write(np.full(500, 1.0))
        assert reader.hear() == {"first": 1.0}
        reader.signal(signal.SIGSTOP)
        for _ in range(3):  # one of four slots is held
            producer.write(np.full(500, 2.0), timeout=PATIENCE_SECONDS)
        with pytest.raises(RingFull):
            producer.write(np.full(500, 3.0), timeout=0.0)
        hub.evict("blocked", "stuck")
        for number in range(8):
            producer.write(np.full(500, 10.0 + number), timeout=PATIENCE_SECONDS)
        reader.signal(signal.SIGCONT)
        reader.tell()
        assert reader.hear() == {"error": "Evicted", "first": 1.0}


def test_an_evicted_producer_ends_its_stream_and_makes_room(place: Place, hub: MessageHub) -> None:
    other = place.hub()
    mine = other.producer("taken")
    mine.write(b"1")
    with hub.consumer("taken", start="oldest") as consumer:
        assert hub.evict("taken", "taken/default").role == "producer"
        with pytest.raises(Evicted):
            eventually(lambda: mine.write(b"2") and False, timeout=PATIENCE_SECONDS)
        eventually(lambda: mine.is_closed)
        with hub.producer("taken") as next_one:
            next_one.write(b"3")
            found = [consumer.read(timeout=PATIENCE_SECONDS)]
            while found[-1] != b"3":
                found.append(consumer.read(timeout=PATIENCE_SECONDS))
    other.close()


def test_a_producer_that_waits_for_room_hears_that_it_was_evicted(place: Place, hub: MessageHub) -> None:
    other = place.hub()
    heard: list[BaseException] = []
    mine = other.producer("waiting", capacity=2, when_full="block")
    with hub.consumer("waiting", start="oldest", consumer_id="idle"):

        def write() -> None:
            try:
                while True:
                    mine.write(b"x")
            except Evicted as error:
                heard.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        eventually(lambda: mine.sequence >= 2)
        hub.evict("waiting", "waiting/default")
        writing.join(PATIENCE_SECONDS)
        assert heard
    other.close()


def test_a_member_of_a_group_leaves_its_share_to_the_others(place: Place, hub: MessageHub) -> None:
    other = place.hub()
    with (
        hub.producer("shared", capacity=64) as producer,
        other.consumer("shared", group="g", consumer_id="one") as one,
        hub.consumer("shared", group="g", consumer_id="two") as two,
    ):
        hub.evict("shared", "one")
        with pytest.raises(Evicted):
            next(one)
        for number in range(10):
            producer.write(b"%d" % number)
        found: set[bytes] = set()
        while len(found) < 10:
            value = two.read(timeout=PATIENCE_SECONDS)
            assert value is not None
            found.add(bytes(value))
    other.close()


def test_who_is_not_there_cannot_be_evicted(hub: MessageHub) -> None:
    with hub.producer("lonely"), pytest.raises(NotRegistered):
        hub.evict("lonely", "nobody")
