"""Members of a group that wait for a channel while the broker comes and goes."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.channels.consumer.consumers import Consumer
from tests.conftest import QUICK
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import PATIENCE_SECONDS, Served, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")

PRODUCER = """
producer = hub.producer("work", capacity=8, when_full="block")
for number in range(8):
    producer.write(b"%d" % number)
say(wrote=8)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"members{os.getpid()}") as made:
        yield made


@pytest.fixture
def server(place: Place) -> Iterator[Served]:
    with Served(place.dir, **QUICK) as started:
        yield started


def read(consumer: Consumer, timeout: float) -> Any:
    """As `consumer.read`, on a thread of its own: the test ends also when that does not."""
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(consumer.read(timeout=timeout)), daemon=True)
    reading.start()
    reading.join(PATIENCE_SECONDS)
    assert found, f"read(timeout={timeout}) did not return in {PATIENCE_SECONDS} s"
    return found[0]


def restart(server: Served, hub: MessageHub) -> None:
    """Another broker is there, and the hub has heard of it."""
    server.start()
    eventually(lambda: hub.connect(timeout=1.0))


def test_a_member_of_a_channel_that_nobody_produces_reads_as_long_as_it_is_told_after_a_restart_of_the_broker(
    place: Place, server: Served
) -> None:
    hub = place.hub()
    with hub.consumer("work", group="crew") as member:
        assert read(member, 0.01) is None
        server.kill()
        restart(server, hub)
        for _ in range(20):
            assert read(member, 0.05) is None


def test_a_member_whose_channel_came_without_a_broker_joins_its_group_when_there_is_one(
    place: Place, server: Served
) -> None:
    """The producer is paused, so that all that the member hears of it is what the next broker finds by itself."""
    hub = place.hub()
    with hub.consumer("work", start="oldest", group="crew") as member:
        server.kill()
        producer = place.process(PRODUCER)
        assert producer.hear() == {"wrote": 8}
        producer.signal(signal.SIGSTOP)
        assert read(member, 0.5) is None  # nobody shares the channel out
        restart(server, hub)
        assert [bytes(read(member, PATIENCE_SECONDS)) for _ in range(8)] == [b"%d" % number for number in range(8)]
        producer.signal(signal.SIGCONT)
