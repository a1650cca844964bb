"""Async iterators share the event loop: a reader that always has a next item at hand does not stop other tasks."""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError, ReceiveTimeout, SubscriptionClosed
from messagehub.shm.rings.ring import open_reader
from messagehub.topics.messages import Message
from tests.conftest import QUICK
from tests.integration.harness import Embedded, hub_of
from tests.shm.rings import payload, writer

SECONDS = 30.0
ITEMS = 60
WORK_SECONDS = 0.002
FEWEST_TICKS = ITEMS // 10
"""All items take 120 ms at least, and the loop is shared every 5 ms: a busy machine only makes that more often."""


@pytest.fixture
def broker(embedded: Callable[..., Embedded]) -> Embedded:
    return embedded(**QUICK)


def work() -> None:
    until = time.monotonic() + WORK_SECONDS
    while time.monotonic() < until:
        pass


async def ticks_while(source: AsyncIterator[Any]) -> int:
    """How often another task runs while the items of a source are worked on."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    count = 0
    async for _ in source:
        work()
        count += 1
        if count == ITEMS:
            break
    ticking.cancel()
    return ticks


@pytest.mark.parametrize("kind", ["plain", "retained", "local", "group", "durable"])
def test_a_subscription_shares_the_event_loop(broker: Embedded, kind: str) -> None:
    with hub_of(broker) as hub:
        if kind in ("retained", "durable"):
            hub.topic("t", keep=1000)
        options: dict[str, Any] = {
            "plain": {},
            "retained": {"since": "oldest"},
            "local": {"local": True},
            "group": {"group": "g"},
            "durable": {"durable": "d", "buffer": ITEMS},
        }[kind]
        with hub.subscribe("t", **options) as subscription:
            for number in range(ITEMS):
                hub.publish("t", number, local=kind == "local")
            deadline = time.monotonic() + SECONDS
            while subscription.buffered < ITEMS:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert asyncio.run(ticks_while(aiter(subscription))) >= FEWEST_TICKS


def test_a_consumer_shares_the_event_loop() -> None:
    with (
        MessageHub() as hub,
        hub.producer("c", capacity=2 * ITEMS, page_size=64) as producer,
        hub.consumer("c", start="oldest") as consumer,
    ):
        for number in range(ITEMS):
            producer.write(b"%d" % number)
        assert asyncio.run(ticks_while(aiter(consumer))) >= FEWEST_TICKS


def test_a_ring_shares_the_event_loop(tmp_path: Path) -> None:
    with (
        closing(writer(str(tmp_path), slot_count=2 * ITEMS)) as made,
        closing(open_reader(str(tmp_path / "ring"), start="oldest")) as reader,
    ):
        for number in range(1, ITEMS + 1):
            made.write(payload(number))
        assert asyncio.run(ticks_while(aiter(reader))) >= FEWEST_TICKS


def test_a_watch_shares_the_event_loop_and_is_woken_in_it(broker: Embedded) -> None:
    async def scenario(hub: MessageHub) -> None:
        async with hub.watch() as watch:
            assert await watch.get_async(0.01) is None
            first = asyncio.create_task(watch.get_async(SECONDS))
            await asyncio.to_thread(watch.wait_current, SECONDS)
            for number in range(ITEMS):
                await asyncio.to_thread(hub.register_producer, f"c{number}", schema_hash="h", required=True)
            event = await first
            assert event is not None
            assert event.channel == "c0"
            hub.register_producer("last", schema_hash="h", required=True)
            assert await ticks_while(aiter(watch)) >= FEWEST_TICKS
            watch.close()
            assert [event async for event in watch][-1].channel == "last", "it ends after what was queued"

    with hub_of(broker) as hub:
        asyncio.run(asyncio.wait_for(scenario(hub), SECONDS))


def test_receiving_in_a_loop_has_a_deadline_and_an_end(broker: Embedded) -> None:
    async def scenario(hub: MessageHub) -> None:
        async with hub.subscribe("t") as subscription:
            with pytest.raises(ReceiveTimeout):
                await subscription.receive_async(0.01)
            waiting = asyncio.create_task(subscription.receive_async(SECONDS))
            await asyncio.sleep(0)
            hub.publish("t", 1)
            assert (await waiting).payload == 1
        with pytest.raises(SubscriptionClosed):
            await subscription.receive_async()

    with hub_of(broker) as hub:
        asyncio.run(asyncio.wait_for(scenario(hub), SECONDS))


# -- callbacks -------------------------------------------------------------------------------------------------


class Received:
    """What an asynchronous callback got, and where it ran."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.threads: set[int] = set()
        self.is_complete = threading.Event()

    async def take(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.threads.add(threading.get_ident())
        self.numbers.append(message.payload)
        if len(self.numbers) == 3:
            self.is_complete.set()

    async def __call__(self, message: Message) -> None:
        await self.take(message)


FORMS: dict[str, Callable[[Received], Callable[[Message], object]]] = {
    "method": lambda received: received.take,
    "object": lambda received: received,
    "partial": lambda received: functools.partial(Received.take, received),
    "lambda": lambda received: lambda message: received.take(message),  # noqa: PLW0108  that is the form
}


@pytest.mark.parametrize("form", FORMS)
def test_an_async_callback_is_awaited_without_a_loop(broker: Embedded, form: str) -> None:
    received = Received()
    with hub_of(broker) as hub, hub.subscribe("t", FORMS[form](received)):
        for number in range(3):
            hub.publish("t", number)
        assert received.is_complete.wait(SECONDS)
    assert received.numbers == [0, 1, 2]
    assert threading.get_ident() not in received.threads


@pytest.mark.parametrize("form", ["method", "object", "partial"])
def test_an_async_callback_is_awaited_in_the_loop_that_runs(broker: Embedded, form: str) -> None:
    received = Received()

    async def scenario(hub: MessageHub) -> None:
        async with hub.subscribe("t", FORMS[form](received)) as subscription:
            for number in range(3):
                hub.publish("t", number)
            while subscription.received + subscription.buffered < 3:
                await asyncio.sleep(0.01)
        assert received.numbers == [0, 1, 2], "what was buffered is handed over before `async with` ends"

    with hub_of(broker) as hub:
        asyncio.run(asyncio.wait_for(scenario(hub), SECONDS))
    assert received.threads == {threading.get_ident()}


def test_an_async_callback_that_fails_concerns_one_message(broker: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    received = Received()

    async def fail_first(message: Message) -> None:
        if message.payload == -1:
            raise LookupError("no such order")
        await received.take(message)

    with hub_of(broker) as hub, hub.subscribe("t", fail_first):
        for number in range(-1, 3):
            hub.publish("t", number)
        assert received.is_complete.wait(SECONDS)
    assert received.numbers == [0, 1, 2]
    assert "no such order" in caplog.text


def test_a_subscription_whose_loop_has_ended_is_closed(broker: Embedded) -> None:
    async def scenario(hub: MessageHub) -> Any:
        subscription = hub.subscribe("t", Received())
        await asyncio.sleep(0)
        return subscription

    with hub_of(broker) as hub:
        assert asyncio.run(scenario(hub)).is_closed


def generator(message: Message) -> Any:
    yield message


async def async_generator(message: Message) -> Any:
    yield message


@pytest.mark.parametrize(
    "callback",
    ["print", lambda: None, lambda one, two: None, generator, async_generator, 7],
    ids=["text", "no argument", "two arguments", "generator", "async generator", "number"],
)
def test_what_cannot_be_called_with_a_message_is_refused_at_once(callback: Any) -> None:
    with MessageHub() as hub, pytest.raises(ConfigurationError, match="callback"):
        hub.subscribe("t", callback, local=True)
