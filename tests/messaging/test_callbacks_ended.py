"""Callbacks of closed subscriptions, and of event loops that have ended: none is called late, none is lost unseen."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Subscription
from tests.integration.harness import Served, eventually, hub_of

SECONDS = 30.0


def has_callback_thread() -> bool:
    return any(thread.name == "messagehub-callback" for thread in threading.enumerate())


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Slow:
    """A callback that waits in its first call."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.go_on = threading.Event()

    def __call__(self, message: Message) -> None:
        self.seen.append(message.payload)
        self.go_on.wait(SECONDS)


def test_no_callback_is_called_after_close_and_what_it_did_not_get_is_counted(
    broker: Served, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    with hub_of(broker) as hub:
        subscription = hub.subscribe("t", slow)
        for number in range(10):
            hub.publish("t", number)
        eventually(lambda: (len(slow.seen), subscription.buffered) == (1, 9))
        subscription.close(timeout=0.1)
        assert (subscription.lost_in_buffer, subscription.buffered) == (9, 0)
        slow.go_on.set()
        eventually(lambda: not has_callback_thread())
    assert slow.seen == [0]
    assert [text for text in texts(caplog) if "9 messages" in text]


def test_a_callback_that_closes_is_not_called_again(broker: Served) -> None:
    seen: list[Any] = []
    are_here = threading.Event()
    with hub_of(broker) as hub:

        def close(message: Message) -> None:
            seen.append(message.payload)
            are_here.wait(SECONDS)
            subscription.close()

        subscription = hub.subscribe("t", close)
        for number in range(3):
            hub.publish("t", number)
        eventually(lambda: (len(seen), subscription.buffered) == (1, 2))
        are_here.set()
        eventually(lambda: not has_callback_thread())
        assert (seen, subscription.lost_in_buffer) == ([0], 2)


def test_an_awaited_callback_is_not_called_after_close_either(broker: Served) -> None:
    seen: list[Any] = []

    async def run(hub: MessageHub) -> None:
        go_on = asyncio.Event()

        async def wait(message: Message) -> None:
            seen.append(message.payload)
            await go_on.wait()

        subscription = await hub.subscribe_async("t", wait)
        for number in range(3):
            hub.publish("t", number)
        async with asyncio.timeout(SECONDS):
            while (len(seen), subscription.buffered) != (1, 2):
                await asyncio.sleep(0.01)
        await subscription.close_async(timeout=0.1)
        assert subscription.lost_in_buffer == 2
        go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)

    with hub_of(broker) as hub:
        asyncio.run(run(hub))
    assert seen == [0]


def run_and_close(main: Awaitable[Subscription]) -> Subscription:
    """Without cancelling what still waits, as asyncio.run would."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


@pytest.mark.parametrize("run", [asyncio.run, run_and_close])
def test_a_subscription_is_closed_with_one_warning_when_the_loop_of_its_callback_has_ended(
    run: Callable[[Any], Subscription], broker: Served, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def take(message: Message) -> None:
        seen.append(message.payload)

    async def begin(hub: MessageHub) -> Subscription:
        subscription = await hub.subscribe_async("t", take)
        await hub.publish_async("t", "first")
        async with asyncio.timeout(SECONDS):
            while not seen:
                await asyncio.sleep(0.01)
        return subscription

    with hub_of(broker) as hub:
        subscription = run(begin(hub))
        hub.publish("t", "later")  # where nothing cancelled the callback's task, the next message tells
        eventually(lambda: subscription.is_closed)
        subscription.close()
    assert (seen, subscription.buffered) == (["first"], 0)
    assert len([text for text in texts(caplog) if "event loop" in text]) == 1


def test_a_durable_name_keeps_what_the_ended_loop_did_not_get(broker: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def take(_: Message) -> None:
        """Nothing comes while its loop runs."""

    async def begin(hub: MessageHub) -> Subscription:
        return await hub.subscribe_async("orders", take, durable="billing")

    with hub_of(broker) as hub:
        topic = hub.topic("orders", keep=10)
        assert asyncio.run(begin(hub)).is_closed
        topic.publish("later")
        with hub.subscribe("orders", durable="billing") as again:
            assert again.receive(SECONDS).payload == "later"
    assert [text for text in texts(caplog) if "stay in the store" in text]
