"""Consumers as people use them: shared by threads and tasks, `next`, `async with`, `schema`, `lag`, a dead producer."""

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.channels.consumer.consumers import Consumer
from messagehub.errors import HubError, RingFull
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import eventually

SECONDS = 30.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"shared{os.getpid()}") as made:
        yield made


@pytest.fixture
def hub(place: Place) -> Iterator[MessageHub]:
    with MessageHub(**place.arguments) as opened:
        yield opened


def numbered(number: int) -> bytes:
    return json.dumps(number).encode()


# -- several readers ---------------------------------------------------------------------------------------


def test_threads_that_share_a_consumer_get_every_item_once(hub: MessageHub) -> None:
    count, threads = 2000, 4
    found: list[list[tuple[int, int]]] = [[] for _ in range(threads)]

    def read(into: list[tuple[int, int]]) -> None:
        while (item := consumer.read_item()) is not None:
            into.append((json.loads(item.value), item.sequence))

    producer = hub.producer("shared", capacity=8, when_full="block")
    with hub.consumer("shared") as consumer:
        readers = [threading.Thread(target=read, args=(into,)) for into in found]
        for reader in readers:
            reader.start()
        for number in range(count):
            producer.write(numbered(number), timeout=SECONDS)
        producer.close()
        for reader in readers:
            reader.join(SECONDS)
        assert not any(reader.is_alive() for reader in readers)
        assert sorted(pair for into in found for pair in into) == [(number, number + 1) for number in range(count)]
        assert consumer.missed == 0


def test_tasks_and_a_thread_that_share_a_consumer_get_every_item_once(hub: MessageHub) -> None:
    count = 1000
    found: list[int] = []

    async def read() -> None:
        async for value in consumer:
            found.append(json.loads(value))
            await asyncio.sleep(0)

    def write() -> None:
        for number in range(count):
            producer.write(numbered(number), timeout=SECONDS)
        producer.close()

    def iterate() -> None:
        found.extend(json.loads(value) for value in consumer)

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(read() for _ in range(5)), asyncio.to_thread(iterate), asyncio.to_thread(write))

    producer = hub.producer("tasks", capacity=8, when_full="block")
    with hub.consumer("tasks") as consumer:
        asyncio.run(main())
        assert (sorted(found), consumer.missed) == (list(range(count)), 0)


def test_who_waits_for_its_turn_keeps_its_deadline_and_latest_waits_for_nobody(hub: MessageHub) -> None:
    got: list[Any] = []
    with hub.producer("turns") as producer, hub.consumer("turns") as consumer:
        producer.write(b"first")
        assert consumer.read(timeout=SECONDS) == b"first"
        waiting = threading.Thread(target=lambda: got.append(consumer.read(timeout=SECONDS)))
        waiting.start()
        assert consumer.read(timeout=0.05) is None
        assert asyncio.run(consumer.read_async(timeout=0.05)) is None
        assert consumer.latest() == b"first"
        producer.write(b"second")
        waiting.join(SECONDS)
        assert got == [b"second"]
        assert consumer.latest() == b"second"


def test_a_cancelled_task_does_not_keep_the_turn(hub: MessageHub) -> None:
    async def main() -> None:
        first, second, third = (asyncio.create_task(consumer.read_async(timeout=SECONDS)) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        producer.write(b"x")
        assert await third == b"x"

    with hub.producer("cancelled") as producer, hub.consumer("cancelled") as consumer:
        asyncio.run(main())


# -- next, async with, schema, lag -------------------------------------------------------------------------


def test_next_gives_one_item_and_ends_with_the_stream(hub: MessageHub) -> None:
    with hub.consumer("next") as consumer:
        with hub.producer("next") as producer:
            producer.write(b"one")
            producer.write(b"two")
            assert next(consumer) == b"one"
            assert next(iter(consumer)) == b"two"
        with pytest.raises(StopIteration):
            next(consumer)
        assert next(consumer, "over") == "over"


def test_everything_can_be_opened_in_an_event_loop(place: Place) -> None:
    async def main() -> None:
        async with MessageHub(**place.arguments) as hub:
            async with await hub.consumer_async("opened") as consumer:
                async with await hub.producer_async("opened") as producer:
                    assert await producer.write_async(b"x") == 1
                    assert await anext(consumer) == b"x"
                with pytest.raises(HubError):
                    producer.write(b"y")
                with pytest.raises(StopAsyncIteration):
                    await anext(consumer)
            with pytest.raises(HubError, match="closed"):
                consumer.read(timeout=0.0)
            async with hub.consumer("opened") as again, hub.producer("opened") as writer:
                await writer.write_async(b"z")
                assert await again.read_async(timeout=SECONDS) == b"z"
            async with hub.subscribe("opened.topic", local=True) as subscription:
                hub.publish("opened.topic", 1, local=True)
                assert (await subscription.receive_async(timeout=SECONDS)).payload == 1

    asyncio.run(main())


def test_an_async_write_waits_for_room_while_the_loop_goes_on(hub: MessageHub) -> None:
    async def main() -> None:
        for number in range(2):
            await producer.write_async(numbered(number))
        with pytest.raises(RingFull, match=f"process {os.getpid()} has not read 2 items"):
            await producer.write_async(numbered(9), timeout=np.float32(0.05))
        abandoned = asyncio.create_task(producer.write_async(numbered(9)))
        blocked = threading.Thread(target=lambda: producer.write(numbered(2), timeout=SECONDS))
        blocked.start()  # holds the ring for itself until there is room
        await asyncio.sleep(0.01)
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        waiting = asyncio.create_task(producer.write_async(numbered(3), timeout=SECONDS))
        found = [json.loads(await consumer.read_async(timeout=SECONDS)) for _ in range(4)]
        await waiting
        await asyncio.to_thread(blocked.join, SECONDS)
        assert (sorted(found), found[:2]) == ([0, 1, 2, 3], [0, 1])
        assert await consumer.read_async(timeout=0.0) is None

    with (
        hub.producer("room", policy="DoubleBuffer", when_full="block") as producer,
        hub.consumer("room") as consumer,
    ):
        asyncio.run(main())


def test_an_async_write_is_refused_as_a_write_is(hub: MessageHub) -> None:
    schema = pa.schema([("n", pa.int64())])
    table = pa.table({"n": range(1000)})
    for when_full in ("block", "error", "overwrite"):
        with hub.producer("refused", schema=schema, page_size=512, when_full=when_full, split_rows=True) as producer:
            with pytest.raises(HubError, match="slots"):
                asyncio.run(producer.write_async(pa.table({"n": range(1_000_000)})))
            with pytest.raises(HubError):
                asyncio.run(producer.write_async(b"bytes"))
            first = producer.sequence
            last = asyncio.run(producer.write_async(table.slice(0, 100)))
            assert producer.last_written == (first + 1, last)


def test_an_async_writer_shares_the_event_loop(hub: MessageHub) -> None:
    async def main() -> None:
        ticks, is_done = 0, False

        async def tick() -> None:
            nonlocal ticks
            while not is_done:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        for _ in range(100):  # which take 200 ms at least, however the machine divides them
            await producer.write_async(b"x")
            until = time.monotonic() + 0.002
            while time.monotonic() < until:
                pass
        is_done = True
        await ticking
        assert ticks > 5

    with hub.producer("ticks") as producer:
        asyncio.run(main())


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (pa.schema([("a", pa.float64())]), pa.record_batch({"a": [1.0]})),
        (np.dtype("f4"), np.zeros(3, "f4")),
        (None, b"abc"),
    ],
    ids=["arrow", "numpy", "raw"],
)
def test_producers_and_consumers_know_their_schema(hub: MessageHub, schema: Any, payload: Any) -> None:
    with hub.consumer("known") as early:
        assert early.schema is None
        with hub.producer("known", schema=schema) as producer, hub.consumer("known") as consumer:
            producer.write(payload)
            assert producer.schema == consumer.schema == schema
            early.read(timeout=SECONDS)
            assert early.schema == schema


def test_a_consumer_knows_the_schema_of_a_table(hub: MessageHub) -> None:
    table = pa.table({"n": [1, 2]})
    hub.publish_table("table", table)
    with hub.consumer("table") as consumer:
        assert (consumer.schema, consumer.lag) == (table.schema, 1)
        assert consumer.read(timeout=SECONDS) == table
        assert consumer.lag == 0


def test_lag_is_what_was_written_and_not_read(hub: MessageHub) -> None:
    with (
        hub.producer("lag", capacity=4, access="shared") as first,
        hub.producer("lag", access="shared") as second,
        hub.consumer("lag") as consumer,
    ):
        assert consumer.lag == 0
        for number in range(6):
            first.write(numbered(number))
        second.write(b"x")
        assert consumer.lag == 7
        while consumer.read(timeout=0.0) is not None:
            continue
        assert (consumer.lag, consumer.missed) == (0, 2)


# -- a producer that died ----------------------------------------------------------------------------------


def killed_after_writing(place: Place, payload: bytes) -> int:
    """The pid of a process that wrote one item and was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            with MessageHub(**place.arguments) as hub:
                producer = hub.producer("mortal")
                producer.write(payload)
                signal.pause()
        finally:
            os._exit(1)
    return pid


@pytest.mark.parametrize("is_async", [False, True], ids=["iterated", "async"])
def test_a_producer_that_died_is_told_of_once(place: Place, caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    def died() -> list[str]:
        return [text for text in caplog.messages if "has ended without closing its stream" in text]

    found: list[bytes] = []

    def read(consumer: Consumer) -> None:
        async def collect() -> None:
            async for value in consumer:
                found.append(value)

        if is_async:
            asyncio.run(collect())
        else:
            found.extend(consumer)

    with caplog.at_level(logging.WARNING, "messagehub"):
        pid = killed_after_writing(place, b"last words")
        with MessageHub(**place.arguments) as hub, hub.consumer("mortal", start="oldest") as consumer:
            reading = threading.Thread(target=read, args=(consumer,))
            reading.start()
            eventually(lambda: consumer.sequence == 1)
            assert died() == []
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            eventually(died)
            with hub.producer("mortal") as producer:
                producer.write(b"next")
                eventually(lambda: consumer.sequence == 2)
            reading.join(SECONDS)
            assert not reading.is_alive()
    (said,) = died()
    assert f"channel 'mortal': its producer, pid {pid}," in said
    if is_async:
        assert found == [b"last words", b"next"]
