"""Closing while somebody reads or waits: it ends, without a hang and without an error of the system."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import NotInitialised, SubscriptionClosed
from messagehub.shm.errors import HandleClosed
from tests.conftest import QUICK
from tests.integration.harness import Served, eventually, hub_of, wait_until_asleep

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def hub(served: Callable[..., Served]) -> Iterator[MessageHub]:
    with hub_of(served("--no-http", **QUICK)) as connected:
        yield connected


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


READS: dict[str, Callable[[Any], object]] = {
    "for": list,
    "read": lambda consumer: consumer.read(),
    "timeout": lambda consumer: consumer.read(timeout=60),
    "item": lambda consumer: consumer.read_item(timeout=60),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("whose", ["consumer", "hub"])
def test_a_thread_that_reads_is_let_go(tmp_path: Path, pool: ThreadPoolExecutor, how: str, whose: str) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("a") as producer:
        consumer = hub.consumer("a")
        started = threading.Event()
        threads: list[int] = []

        def read() -> object:
            assert consumer.read(timeout=60) == b"1"
            threads.append(threading.get_native_id())
            started.set()
            return READS[how](consumer)

        reading = pool.submit(read)
        producer.write(b"1")
        assert started.wait(60)
        wait_until_asleep(threads[0])
        (consumer if whose == "consumer" else hub).close()
        assert reading.result(60) in (None, [])
        with pytest.raises(HandleClosed, match="consumer is closed"):
            consumer.read(timeout=0)
        assert list(consumer) == []


def test_closing_at_any_moment_of_reading_raises_nothing(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("a", capacity=4) as producer:
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                producer.write(b"1")

        writing = pool.submit(write)
        try:
            for _ in range(50):
                consumer = hub.consumer("a")
                counted = pool.submit(lambda read=consumer: sum(1 for _ in read))
                eventually(lambda read=consumer: read.sequence > 0)
                consumer.close()
                assert counted.result(60) > 0
        finally:
            stop.set()
        writing.result(60)


@pytest.mark.parametrize("by", ["task", "thread", "hub"])
def test_an_async_loop_ends(tmp_path: Path, by: str) -> None:
    async def run() -> list[object]:
        with MessageHub(dir=tmp_path) as hub, hub.producer("a") as producer:
            consumer = hub.consumer("a")
            begun = asyncio.Event()

            async def read() -> list[object]:
                found = []
                async for value in consumer:
                    found.append(value)
                    begun.set()
                return found

            reading = asyncio.create_task(read())
            producer.write(b"1")
            async with asyncio.timeout(60):
                await begun.wait()
                if by == "task":
                    consumer.close()
                elif by == "thread":
                    await asyncio.to_thread(consumer.close)
                else:
                    await hub.close_async()
                return await reading

    assert asyncio.run(run()) == [b"1"]


def test_a_closed_consumer_never_attaches_again(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("a", capacity=2, when_full="block") as producer:
        consumer = hub.consumer("a", start="oldest")
        consumer.close()
        producer.write(b"1")
        for call in (consumer.latest, consumer.latest_item, consumer.read, consumer.acknowledge):
            with pytest.raises(HandleClosed):
                call()
        assert consumer.is_closed
        for _ in range(5):
            producer.write(b"2", timeout=0)


def test_a_write_that_waits_for_room_is_let_go(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with MessageHub(dir=tmp_path) as hub:
        producer = hub.producer("a", capacity=1, when_full="block")
        with hub.consumer("a", start="oldest") as consumer:
            producer.write(b"1")
            begun = threading.Event()

            def write() -> None:
                begun.set()
                producer.write(b"2")

            writing = pool.submit(write)
            assert begun.wait(60)
            producer.close()
            with pytest.raises(HandleClosed):
                writing.result(60)
            assert consumer.read(timeout=60) == b"1"
        with pytest.raises(HandleClosed):
            producer.write(b"3")


def test_subscriptions_watches_and_streams_end_with_the_hub(hub: MessageHub, pool: ThreadPoolExecutor) -> None:
    subscription, watch = hub.subscribe("t"), hub.watch()
    hub.topic("kept", keep=10)
    kept = hub.subscribe("kept", since="oldest")
    going_on = threading.Event()
    hub.serve("service:a", lambda message, context: (context.stream(1), going_on.wait(60)))
    stream = hub.stream("service:a", timeout=60)
    assert next(stream) == 1
    loops = [pool.submit(list, each) for each in (subscription, kept)]
    waiting = [pool.submit(subscription.receive, 60), pool.submit(watch.get, 60)]
    threading.Timer(0.1, going_on.set).start()
    hub.close()
    for loop in loops:
        assert loop.result(60) == []
    with pytest.raises(SubscriptionClosed):
        waiting[0].result(60)
    waiting[1].result(60)
    assert list(watch) is not None


MAKING: dict[str, Callable[[MessageHub], object]] = {
    "producer": lambda hub: hub.producer("a"),
    "consumer": lambda hub: hub.consumer("a"),
    "member": lambda hub: hub.consumer("a", group="g"),
    "register_producer": lambda hub: hub.register_producer("a", schema_hash="h"),
    "register_consumer": lambda hub: hub.register_consumer("a"),
    "publish_table": lambda hub: hub.publish_table("a", __import__("pyarrow").table({"x": [1]})),
    "drop_table": lambda hub: hub.drop_table("a"),
    "publish": lambda hub: hub.publish("t", 1),
    "publish_local": lambda hub: hub.publish("t", 1, local=True),
    "subscribe": lambda hub: hub.subscribe("t"),
    "subscribe_local": lambda hub: hub.subscribe("t", local=True),
    "topic": lambda hub: hub.topic("t"),
    "keep": lambda hub: hub.topic("t", keep=10),
    "topics": lambda hub: hub.topics(),
    "serve": lambda hub: hub.serve("service:a", lambda message, context: None),
    "request": lambda hub: hub.request("service:a"),
    "begin_request": lambda hub: hub.begin_request("service:a"),
    "send": lambda hub: hub.send("service:a"),
    "stream": lambda hub: hub.stream("service:a"),
    "services": lambda hub: hub.services(),
    "dead_letters": lambda hub: hub.dead_letters(),
    "create_channel": lambda hub: hub.create_channel("a"),
    "register_schema": lambda hub: hub.register_schema("s", {"type": "object"}),
    "subjects": lambda hub: hub.subjects(),
    "discover": lambda hub: hub.discover("a"),
    "channels": lambda hub: hub.channels(),
    "consumers": lambda hub: hub.consumers("a"),
    "describe": lambda hub: hub.describe("a"),
    "connect": lambda hub: hub.connect(),
    "stats": lambda hub: hub.stats(),
    "watch": lambda hub: hub.watch(),
    "tap": lambda hub: hub.tap(b"", lambda _: None),
    "request_async": lambda hub: asyncio.run(hub.request_async("service:a")),
    "discover_async": lambda hub: asyncio.run(hub.discover_async("a")),
    "publish_async": lambda hub: asyncio.run(hub.publish_async("t", 1)),
    "channels_async": lambda hub: asyncio.run(hub.channels_async()),
}


@pytest.mark.parametrize("making", MAKING)
def test_a_closed_hub_makes_and_finds_nothing(hub: MessageHub, making: str) -> None:
    hub.register_producer("a", schema_hash="h", required=True)
    assert hub.discover("a") is not None
    hub.close()
    with pytest.raises(NotInitialised, match="this hub is closed"):
        MAKING[making](hub)
    assert hub.health()["status"] == "unavailable"
    assert hub.metrics()["requests"]
    assert hub.notices() == []


@pytest.mark.parametrize(
    "making", ["producer", "consumer", "register_producer", "publish_table", "discover", "channels"]
)
def test_a_closed_hub_without_a_broker_makes_and_finds_nothing(tmp_path: Path, making: str) -> None:
    with MessageHub(dir=tmp_path) as other, other.producer("a"):
        hub = MessageHub(dir=tmp_path)
        assert hub.discover("a") is not None
        hub.close()
        with pytest.raises(NotInitialised, match="this hub is closed"):
            MAKING[making](hub)
