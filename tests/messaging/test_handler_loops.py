"""Event loops in which handlers and callbacks run: what ends there ends one message, and never the rest."""

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import BrokerRequired, MailboxClosed, SendTimeout
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.topics.messages import Message
from messagehub.topics.retained.subscriptions import RetainedSubscription
from registry.topics.retained import PLAIN_SECONDS
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import SECONDS, SOON, metrics, patient_hub


async def leave() -> None:
    raise SystemExit(3)


async def echo(message: ServiceMessage, context: ServiceContext) -> Any:
    return message.payload


def test_a_task_that_exits_does_not_end_the_loop_of_all_handlers(
    broker: Served, caller: MessageHub, caplog: pytest.LogCaptureFixture
) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def begin(message: ServiceMessage, context: ServiceContext) -> None:
        tasks.append(asyncio.create_task(leave()))

    with patient_hub(broker) as hub, hub.serve("service:begin", begin), hub.serve("service:echo", echo):
        caller.request("service:begin", timeout=SECONDS)
        eventually(tasks[0].done)
        assert caller.request("service:echo", 1, timeout=SECONDS) == 1
    assert isinstance(tasks[0].exception(), SystemExit)
    assert "a task of an asynchronous handler failed" in caplog.text


def test_a_worker_whose_loop_was_closed_leaves_its_pool(broker: Served, caller: MessageHub) -> None:
    async def serve() -> None:
        await hub.serve_async("pool:mixed", echo, timeout=SECONDS)

    with patient_hub(broker) as hub, patient_hub(broker) as other:
        asyncio.run(serve())
        other.serve("pool:mixed", lambda message, context: "here")
        answers = [caller.request("pool:mixed", timeout=SECONDS, retries=3) for _ in range(6)]
        assert answers == ["here"] * 6
        eventually(lambda: [len(pool.workers) for pool in caller.services("pool:mixed", timeout=SECONDS)] == [1])
        counted = metrics(hub)
        assert counted["received"] == counted["refused"] >= 1  # until the broker and the caller know that it left


def test_what_a_closed_loop_cannot_handle_is_refused(broker: Served, caller: MessageHub) -> None:
    async def serve() -> None:
        await hub.serve_async("service:gone", echo, timeout=SECONDS)

    with patient_hub(broker) as hub:
        asyncio.run(serve())
        with pytest.raises(MailboxClosed, match="event loop"):
            caller.request("service:gone", timeout=SECONDS)
        with pytest.raises(Exception, match="service:gone"):
            caller.request("service:gone", timeout=SECONDS)


def test_an_async_callback_closes_its_own_subscription_at_once(caller: MessageHub) -> None:
    took: list[float] = []
    is_over = threading.Event()

    async def close(message: Message) -> None:
        began_at = time.monotonic()
        await subscription.close_async()
        took.append(time.monotonic() - began_at)
        is_over.set()

    subscription = caller.subscribe("orders.new", close, timeout=SECONDS)
    caller.publish("orders.new", 1, timeout=SECONDS)
    assert is_over.wait(SECONDS)
    assert took[0] < SOON


def test_something_cancelled_inside_of_a_callback_concerns_one_message(
    caller: MessageHub, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def callback(message: Message) -> None:
        seen.append(message.payload)
        task = asyncio.create_task(asyncio.sleep(SECONDS))
        task.cancel()
        await task

    async def run() -> None:
        async with caller.subscribe("orders.new", callback, timeout=SECONDS):
            for number in range(3):
                await caller.publish_async("orders.new", number, timeout=SECONDS)
            await asyncio.to_thread(eventually, lambda: caplog.text.count(failed) == 3)
            assert seen == [0, 1, 2]

    failed = "the callback of 'orders.new' failed"
    asyncio.run(run())
    assert caplog.text.count(failed) == 3


def test_a_cancelled_task_of_callbacks_closes_its_subscription(caller: MessageHub) -> None:
    async def callback(message: Message) -> None:
        await asyncio.sleep(SECONDS)

    async def run() -> None:
        nonlocal subscription
        subscription = caller.subscribe("orders.new", callback, timeout=SECONDS)
        await caller.publish_async("orders.new", 1, timeout=SECONDS)
        await asyncio.to_thread(eventually, lambda: subscription.received == 1)

    subscription: Any = None
    asyncio.run(run())  # which cancels the tasks that are left
    assert subscription.is_closed


def test_a_subscription_is_awaited_and_its_callback_runs_in_the_loop(caller: MessageHub) -> None:
    async def run() -> None:
        seen: list[tuple[Any, bool]] = []
        loop = asyncio.get_running_loop()

        async def callback(message: Message) -> None:
            seen.append((message.payload, asyncio.get_running_loop() is loop))

        async with (
            await caller.subscribe_async("orders.*", callback, timeout=SECONDS),
            await caller.subscribe_async("orders.>", buffer=10, timeout=SECONDS) as subscription,
        ):
            await caller.publish_async("orders.new", 1, timeout=SECONDS)
            assert (await subscription.receive_async(SECONDS)).payload == 1
            await asyncio.to_thread(eventually, lambda: seen == [(1, True)])

    asyncio.run(run())


def test_a_subscription_that_a_stopped_broker_does_not_confirm_does_not_stop_the_loop(
    broker: Served, caller: MessageHub
) -> None:
    async def run() -> int:
        ticks = 0
        task = asyncio.create_task(caller.subscribe_async("orders.new", timeout=5.0))
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        with pytest.raises((TimeoutError, BrokerRequired)):
            await task
        return ticks

    caller.connect(timeout=SECONDS)
    broker.signal(signal.SIGSTOP)
    try:
        assert asyncio.run(run()) > 10  # one that blocks the loop leaves it one
    finally:
        broker.signal(signal.SIGCONT)


def test_publishing_to_a_retained_topic_has_one_deadline_for_all_that_is_asked(
    broker: Served, caller: MessageHub
) -> None:
    topic = caller.topic("orders", keep=10, timeout=SECONDS)
    topic.publish(1, timeout=SECONDS)
    asked_at = time.monotonic()
    eventually(lambda: time.monotonic() > asked_at + PLAIN_SECONDS)  # whether it is retained is asked again after that
    broker.signal(signal.SIGSTOP)
    try:
        began_at = time.monotonic()
        with pytest.raises(SendTimeout):
            topic.publish(2, timeout=6.0)
        assert time.monotonic() - began_at < 10.0  # each of the two questions took as long as it was given
    finally:
        broker.signal(signal.SIGCONT)


def test_a_position_that_began_at_a_time_goes_on_from_there(caller: MessageHub) -> None:
    topic = caller.topic("orders", keep=10, timeout=SECONDS)
    for number in range(3):
        topic.publish(number, timeout=SECONDS)
    with caller.subscribe("orders", since=time.time(), timeout=SECONDS) as subscription:
        assert isinstance(subscription, RetainedSubscription)
        positions = eventually(lambda: subscription.positions)
    topic.publish("new", timeout=SECONDS)
    with caller.subscribe("orders", since=positions, timeout=SECONDS) as subscription:
        assert subscription.receive(SECONDS).payload == "new"
