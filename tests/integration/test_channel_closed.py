"""A channel that is destroyed while it is used says so to everybody who uses it."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub.errors import ChannelClosed
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import PATIENCE_SECONDS, Served, eventually

BATCH = pa.record_batch({"n": [1]})


@pytest.fixture
def place(tmp_path: Path, served: Callable[..., Served]) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"e{os.getpid()}") as made:
        server = served(dir=made.dir, heartbeat_seconds=0.5, beacon_seconds=0.1)
        yield made
        server.close()


def test_producer_and_consumer_of_a_destroyed_channel_are_told(place: Place) -> None:
    hub, other = place.hub(), place.hub()
    producer = hub.producer("doomed", schema=BATCH.schema)
    consumer = other.consumer("doomed", start="oldest")
    producer.write(BATCH)
    plain = hub.register_consumer("doomed")
    heard: list[object] = []

    def read() -> None:
        try:
            while (batch := consumer.read()) is not None:
                heard.append(batch)
        except ChannelClosed as closed:
            heard.append(closed)

    reading = threading.Thread(target=read)
    reading.start()
    eventually(lambda: heard)
    hub.destroy_channel("doomed")
    reading.join(PATIENCE_SECONDS)
    assert not reading.is_alive()
    assert isinstance(heard[-1], ChannelClosed)
    eventually(lambda: isinstance(producer.registration.error, ChannelClosed))
    with pytest.raises(ChannelClosed) as closed:
        producer.write(BATCH)
    assert closed.value.details == {"channel": "doomed"}
    with pytest.raises(ChannelClosed):
        producer.loan(8)
    with pytest.raises(ChannelClosed):
        asyncio.run(producer.write_async(BATCH))
    for look in (consumer.latest, consumer.latest_item, lambda: asyncio.run(consumer.read_async(timeout=1.0))):
        with pytest.raises(ChannelClosed):
            look()
    with pytest.raises(ChannelClosed), consumer:
        consumer.read(timeout=1.0)
    eventually(lambda: isinstance(plain.error, ChannelClosed))
    assert not plain
    producer.close()
    eventually(lambda: hub.discover("doomed") is None)
    with hub.producer("doomed", schema=BATCH.schema) as again:
        assert again.write(BATCH)


def test_a_member_of_a_group_and_one_that_only_looks_are_told_too(place: Place) -> None:
    hub, other = place.hub(), place.hub()
    with (
        hub.producer("shared_doom") as producer,
        other.consumer("shared_doom", group="workers", start="oldest") as member,
        other.consumer("shared_doom") as looking,
    ):
        producer.write(b"1")
        assert member.read(timeout=PATIENCE_SECONDS) == b"1"
        assert looking.latest() == b"1"
        hub.destroy_channel("shared_doom")
        eventually(lambda: isinstance(looking.registration.error, ChannelClosed))
        with pytest.raises(ChannelClosed):
            looking.latest()
        with pytest.raises(ChannelClosed):
            member.read(timeout=PATIENCE_SECONDS)
