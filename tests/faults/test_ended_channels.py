"""What comes and goes leaves nothing: not in shared memory, not in the broker."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.broker.host_watcher import cleaner
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Peer, eventually, hub_of
from tests.integration.invariants import gauge

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def directory() -> Directory:
    return Directory(os.environ["MESSAGEHUB_DOMAIN"])


def rings(directory: Directory) -> list[str]:
    return [name for name in os.listdir(directory.root) if name.endswith(f"@{directory.domain}")]


def test_the_directory_of_a_channel_goes_when_nothing_is_left_in_it(directory: Directory, tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path / "none") as hub:
        with hub.producer("ended", capacity=2, page_size=64) as producer, hub.consumer("ended") as consumer:
            producer.write(b"x")
            assert consumer.read(timeout=30) is not None
        with hub.producer("lives", capacity=2, page_size=64):
            assert hub.register_consumer("lives", consumer_id="r")
            now = time.time()
            clean(directory, now=now)
            assert directory.channels() == ["ended", "lives"], "it lingers"
            clean(directory, now=now + 31)
            assert directory.channels() == ["lives"]
    clean(directory, now=now + 70)
    clean(directory, now=now + 140)
    assert directory.channels() == []
    assert os.listdir(directory.path) == []
    assert rings(directory) == []


def test_a_channel_that_has_or_had_tables_keeps_its_directory(directory: Directory) -> None:
    """It remembers the number of the last generation, which is never given twice."""
    directory.make_tables("c")
    clean(directory, now=time.time() + 1000, linger_seconds=0.0)
    assert directory.channels() == ["c"]


def test_a_channel_of_which_only_a_number_is_left_is_passed_over_until_it_changes(directory: Directory) -> None:
    """So that cleaning costs what there is, and not what there was."""
    directory.make_tables("c")
    store = TableStore(directory.tables_path("c"))
    schema = pa.schema([("n", pa.int64())])
    store.publish([], schema, now=time.time())
    settled: dict[str, tuple[int, int]] = {}
    later = time.time() + 100.0
    clean(directory, now=later, settled=settled)
    assert settled == {}, "there is a table"
    store.drop()
    for _ in range(2):
        clean(directory, now=later, settled=settled)
        assert list(settled) == ["c"]
    assert store.publish([], schema, now=time.time()).generation == 2
    clean(directory, now=later, settled=settled)
    assert settled == {}


def test_registering_while_a_cleaner_removes_directories(directory: Directory, tmp_path: Path) -> None:
    """The cleaner removes at once what is empty: whoever waited for its lock makes it anew."""
    stop = threading.Event()
    failed: list[Exception] = []

    def cleaning() -> None:
        try:
            while not stop.is_set():
                clean(directory, now=time.time(), linger_seconds=0.0)
        except Exception as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=cleaning)
    thread.start()
    try:
        with MessageHub(dir=tmp_path / "none") as hub:
            for _ in range(60):
                with hub.producer("c", capacity=2, page_size=64) as producer:
                    producer.write(b"x")
                    found = hub.discover("c")
                    assert found is not None
                    assert found.status == "active"
                directory.make_tables(f"tables{len(directory.channels())}")
    finally:
        stop.set()
        thread.join()
    assert failed == []


def test_a_broker_forgets_channels_that_ended_and_sees_them_again(
    directory: Directory, embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "CLEAN_SECONDS", 0.05)
    monkeypatch.setattr(cleaner, "clean", partial(clean, linger_seconds=0.0))
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        for _ in range(2):
            with hub_of(broker) as hub:
                kept = [hub.producer(f"c{number}", capacity=2, page_size=64) for number in range(20)]
                assert eventually(lambda: gauge(peer, "watched_directories") == 20)
                for producer in kept:
                    producer.close()
            assert eventually(lambda: directory.channels() == [])
            assert eventually(lambda: gauge(peer, "watched_directories") == 0)
            assert eventually(lambda: peer.stats()["channels"] == 0)
            assert eventually(lambda: peer.stats()["leases"] == 0)


def test_a_consumer_that_waits_sees_a_channel_whose_directory_is_made_again(
    directory: Directory, tmp_path: Path
) -> None:
    with MessageHub(dir=tmp_path / "none") as hub:
        directory.make_channel("c")
        with hub.consumer("c", start="oldest") as consumer:
            assert consumer.read(timeout=0.05) is None
            clean(directory, now=time.time() + 100)
            assert directory.channels() == []
            with hub.producer("c", capacity=2, page_size=64) as producer:
                producer.write(b"x")
                assert consumer.read(timeout=30) is not None
