"""Every method that waits for a broker has an asynchronous form, which does the same and does not block the loop."""

import asyncio
import functools
import inspect
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import BrokerUnavailable, ConfigurationError, TopicNotFound
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.shm.errors import GroupInUse
from messagehub.topics.topic import Topic
from registry import commands, replies
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import SECONDS, Gate, patient_hub


@pytest.fixture
def hub(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as serving:
        yield serving


async def echo(message: ServiceMessage, context: ServiceContext) -> Any:
    return message.payload


def test_what_a_hub_does_with_its_broker_can_be_awaited(broker: Served) -> None:
    async def run() -> None:
        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            assert await hub.connect_async(timeout=SECONDS)
            registration = await hub.register_producer_async("sensor", schema_hash="abc", timeout=SECONDS)
            assert registration
            found = await hub.discover_async("sensor", timeout=SECONDS)
            assert found is not None
            assert found.schema_hash == "abc"
            assert await hub.discover_async("other", timeout=SECONDS) is None
            assert [each.channel for each in await hub.channels_async(timeout=SECONDS)] == ["sensor"]
            assert await hub.register_consumer_async("sensor", timeout=SECONDS)
            assert len(await hub.consumers_async("sensor", timeout=SECONDS)) == 1
            assert await hub.describe_async("sensor", timeout=SECONDS) is not None
            await hub.register_schema_async("readings", pa.schema([("n", pa.int64())]), timeout=SECONDS)
            assert await hub.subjects_async(timeout=SECONDS) == ["readings"]
            assert (await hub.health_async(timeout=SECONDS))["status"] == "healthy"
            async with await hub.register_producer_async("left", schema_hash="abc", timeout=SECONDS) as left:
                assert left.source == "broker"
            assert left.is_closed
            assert [each.channel for each in await hub.channels_async(timeout=SECONDS)] == ["sensor"]
            assert await hub.topics_async(timeout=SECONDS) == []
            assert await hub.services_async(timeout=SECONDS) == []
            with hub.subscribe("news.>", timeout=SECONDS) as subscription:
                await hub.publish_async("news.today", {"n": 1}, timeout=SECONDS)
                async with asyncio.timeout(SECONDS):
                    assert (await anext(aiter(subscription))).payload == {"n": 1}

    asyncio.run(run())


def test_what_is_asked_over_a_connection_takes_no_thread_for_each_request(broker: Served) -> None:
    async def run() -> None:
        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            assert hub.connect(timeout=SECONDS)
            before = hub.metrics()["requests"]["PING"]["count"]
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(hub.ask_async(commands.Ping(), timeout=SECONDS)) for _ in range(100)]
                refused = tasks.create_task(asking_for_nothing(hub))
            assert all(isinstance(each.result(), replies.Pong) for each in asked)
            assert refused.result() == "TOPIC_NOT_FOUND"
            assert hub.metrics()["requests"]["PING"]["count"] == before + 100
            assert not [thread.name for thread in threading.enumerate() if "background" in thread.name]

    asyncio.run(run())


async def asking_for_nothing(hub: MessageHub) -> str:
    with pytest.raises(TopicNotFound) as refused:
        await hub.ask_async(commands.DescribeTopic(topic="nothing"), timeout=SECONDS)
    return refused.value.code


def test_whoever_asks_a_broker_that_does_not_answer_is_told_in_time(broker: Served) -> None:
    async def run() -> None:
        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            assert hub.connect(timeout=SECONDS)
            broker.signal(signal.SIGSTOP)
            try:
                with pytest.raises(BrokerUnavailable):
                    await hub.ask_async(commands.Ping(), timeout=0.2)
            finally:
                broker.signal(signal.SIGCONT)
            assert hub.metrics()["timeouts"] == 1

    asyncio.run(run())


def test_what_a_hub_does_with_tables_and_groups_can_be_awaited(broker: Served) -> None:
    async def run() -> None:
        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            table = pa.table({"n": [1, 2]})
            for channel in ("dropped", "destroyed"):
                manifest = await hub.publish_table_async(channel, table)
                assert await hub.register_table_async(channel, manifest, timeout=SECONDS)
            assert await hub.check_table_async("dropped", table.schema, timeout=SECONDS)
            assert [each.channel for each in await hub.tables_async(timeout=SECONDS)] == ["destroyed", "dropped"]
            assert (await hub.drop_table_async("dropped", timeout=SECONDS)).channel == "dropped"
            assert (await hub.destroy_channel_async("destroyed", data=True, timeout=SECONDS)).channel == "destroyed"
            assert await hub.tables_async(timeout=SECONDS) == []
            async with (
                await hub.producer_async("shared", timeout=SECONDS),
                await hub.consumer_async("shared", group="g", timeout=SECONDS),
            ):
                with pytest.raises(GroupInUse):
                    await hub.delete_group_async("shared", "g")

    asyncio.run(run())


def waiting_methods(cls: type) -> set[str]:
    """The public methods that take a timeout, but for those that are awaited themselves."""
    return {
        name
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
        and not name.endswith("_async")
        and "timeout" in inspect.signature(method).parameters
    }


def test_everything_of_a_hub_that_waits_can_be_awaited() -> None:
    # These two are awaited as such, and nobody waits in `submit`.
    asynchronous = {f"{name}_async" for name in waiting_methods(MessageHub) - {"begin_request", "stream", "submit"}}
    assert {"request_async", "discover_async", "health_async"} <= asynchronous
    assert {name for name in asynchronous if not inspect.iscoroutinefunction(getattr(MessageHub, name, None))} == set()


async def unawaited(*_: Any) -> None:
    raise AssertionError("nobody calls it")


@pytest.mark.parametrize("given", [unawaited, functools.partial(unawaited, 1)])
def test_an_async_callback_that_nobody_would_await_is_refused(hub: MessageHub, caller: MessageHub, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"on_event .* is an async function"):
        caller.tap(b"channel/", given)
    with hub.serve("service:echo", echo):
        pending = caller.begin_request("service:echo", 1, timeout=SECONDS)
        with pytest.raises(ConfigurationError, match=r"callback .* is an async function"):
            pending.add_done_callback(given)
        assert pending.result() == 1


def test_everything_of_a_topic_that_waits_can_be_awaited(broker: Served) -> None:
    waiting = waiting_methods(Topic)
    assert {"keep", "publish", "positions"} <= waiting
    assert {f"{name}_async" for name in waiting} <= vars(Topic).keys()

    async def run() -> None:
        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            topic = await hub.topic_async("jobs", timeout=SECONDS)
            await topic.keep_async(100, timeout=SECONDS)
            assert await topic.publish_async("one", timeout=SECONDS) == 1
            assert await topic.publish_all_async(["two", "three"], timeout=SECONDS) == 2
            assert (await topic.describe_async(timeout=SECONDS)).messages == 3
            async with await topic.subscribe_async(durable="billing", timeout=SECONDS) as subscription:
                async with asyncio.timeout(SECONDS):
                    assert (await anext(aiter(subscription))).payload == "one"
                assert [each.position.name for each in await topic.positions_async(timeout=SECONDS)] == ["billing"]
                assert len((await topic.position_async("billing", timeout=SECONDS)).members) == 1
            assert (await topic.reset_position_async("billing", 3, timeout=SECONDS)).next_offset == 3
            await topic.delete_position_async("billing", timeout=SECONDS)
            await topic.delete_async(timeout=SECONDS)
            with pytest.raises(TopicNotFound):
                await topic.describe_async(timeout=SECONDS)

    asyncio.run(run())


def test_an_awaited_call_of_a_topic_leaves_the_event_loop_free(broker: Served) -> None:
    """A topic becomes retained only when nobody publishes to it plainly any more, which takes a moment."""

    async def run() -> None:
        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            await hub.publish_async("busy", b"plain", timeout=SECONDS)
            topic = await hub.topic_async("busy", timeout=SECONDS)
            keeping = asyncio.create_task(topic.keep_async(10, timeout=SECONDS))
            ticks = 0
            while not keeping.done():
                ticks += 1
                await asyncio.sleep(0.001)
            await keeping
            assert ticks > 10

    asyncio.run(run())


def test_a_channel_is_awaited_until_it_is_active(broker: Served, hub: MessageHub) -> None:
    async def run() -> None:
        waiting = asyncio.create_task(hub.discover_async("later", wait=True, timeout=SECONDS))
        await hub.register_producer_async("later", schema_hash="abc", timeout=SECONDS)
        found = await waiting
        assert found is not None
        assert found.is_active

    asyncio.run(run())


def test_a_registration_that_nobody_waits_for_any_more_is_ended(broker: Served, hub: MessageHub) -> None:
    async def run() -> None:
        task = asyncio.create_task(hub.register_producer_async("dropped", schema_hash="abc", timeout=SECONDS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(eventually, is_free)

    def is_free() -> bool:
        found = hub.discover("dropped", timeout=SECONDS)
        return found is None or not found.is_active

    asyncio.run(run())


def test_awaiting_ends_when_the_hub_is_closed(broker: Served, caller: MessageHub) -> None:
    gate = Gate()

    async def run() -> None:
        hub = MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5)
        asked = asyncio.create_task(hub.request_async("service:gate", timeout=600))
        assert await asyncio.to_thread(gate.entered.acquire, timeout=SECONDS)
        await hub.close_async()
        with pytest.raises(Exception, match="closed"):
            await asked
        with pytest.raises(Exception, match="closed"):
            await hub.request_async("service:gate", timeout=SECONDS)

    with caller.serve("service:gate", gate):
        asyncio.run(run())
        gate.opened.set()
