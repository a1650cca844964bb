"""A broker that is stopped (SIGSTOP): no deadline of a user is exceeded for its sake, and no event loop is held up.

Without a deadline of its own every call here would take `request_timeout_seconds`, ten times the patience of a test.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import HubError
from tests.integration.harness import Served, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")

TERMS = {"heartbeat_seconds": 0.5, "stall_seconds": 200.0, "lease_seconds": 400.0, "beacon_seconds": 0.1}
NEVER_SECONDS = 600.0
SLACK_SECONDS = 20.0
"""For a loaded machine; far below what a call without a deadline would take."""


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    return served("--no-http", **TERMS)


@pytest.fixture
def hub(server: Served) -> Iterator[MessageHub]:
    with hub_of(server, request_timeout_seconds=NEVER_SECONDS) as connected:
        yield connected


@contextlib.contextmanager
def paused(server: Served) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + SLACK_SECONDS


def test_a_read_ends_at_its_deadline_whatever_the_consumer_has_to_ask(server: Served, hub: MessageHub) -> None:
    with hub.consumer("nobody", timeout=30) as consumer, paused(server):
        for _ in range(3):
            consumer.wake()  # as when the broker says that the channel changed
            with within(0.3):
                assert consumer.read(timeout=0.3) is None
                assert consumer.latest() is None


def test_a_read_that_is_awaited_lets_the_event_loop_run(server: Served, hub: MessageHub) -> None:
    async def run() -> int:
        with hub.consumer("nobody", timeout=30) as consumer, paused(server):
            reading = asyncio.create_task(consumer.read_async(timeout=0.5))
            ticks = 0
            while not reading.done():
                consumer.wake()
                await asyncio.sleep(0.01)
                ticks += 1
            assert await reading is None
            return ticks

    with within(0.5):
        assert asyncio.run(run()) > 5


def test_what_is_here_is_read_while_the_broker_is_paused(server: Served, hub: MessageHub) -> None:
    with (
        hub.consumer("later", timeout=30) as consumer,
        paused(server),
        hub_of(server, request_timeout_seconds=0.2) as other,
        other.producer("later") as producer,
        within(5),
    ):
        producer.write(b"1")
        assert consumer.read(timeout=NEVER_SECONDS) == b"1"


CALLS: dict[str, Callable[[MessageHub], object]] = {
    "producer": lambda hub: hub.producer("new", timeout=0.3).close(),
    "consumer": lambda hub: hub.consumer("new", timeout=0.3).close(),
    "consumer_here": lambda hub: hub.consumer("here", timeout=0.3).close(),
    "expected": lambda hub: hub.consumer("here", expected_schema=pa.schema({"x": pa.int8()}), timeout=0.3).close(),
    "member": lambda hub: hub.consumer("here", group="g", timeout=0.3).close(),
    "register_producer": lambda hub: hub.register_producer("p", schema_hash="h", timeout=0.3),
    "register_consumer": lambda hub: hub.register_consumer("here", timeout=0.3),
    "discover": lambda hub: hub.discover("unknown", timeout=0.3),
    "discover_wait": lambda hub: hub.discover("unknown", wait=True, timeout=0.3),
    "discover_expected": lambda hub: hub.discover("here", expected_schema="h", wait=True, timeout=0.3),
    "channels": lambda hub: hub.channels(timeout=0.3),
    "consumers": lambda hub: hub.consumers("here", timeout=0.3),
    "describe": lambda hub: hub.describe("here", timeout=0.3),
    "connect": lambda hub: hub.connect(timeout=0.3),
    "stats": lambda hub: hub.stats(timeout=0.3),
    "health": lambda hub: hub.health(timeout=0.3),
    "create_channel": lambda hub: hub.create_channel("c", timeout=0.3),
    "register_schema": lambda hub: hub.register_schema("s", {"type": "object"}, timeout=0.3),
    "schema": lambda hub: hub.schema("s", timeout=0.3),
    "subjects": lambda hub: hub.subjects(timeout=0.3),
    "schema_versions": lambda hub: hub.schema_versions("s", timeout=0.3),
    "check_table": lambda hub: hub.check_table("t", pa.schema({"x": pa.int8()}), timeout=0.3),
    "drop_table": lambda hub: hub.drop_table("t", timeout=0.3),
    "publish": lambda hub: hub.publish("topic", 1, timeout=0.3),
    "publish_kept": lambda hub: hub.topic("kept").publish(1, timeout=0.3),
    "publish_all": lambda hub: hub.topic("kept").publish_all([1], timeout=0.3),
    "subscribe": lambda hub: hub.subscribe("topic", timeout=0.3).close(),
    "subscribe_kept": lambda hub: hub.subscribe("kept", since="oldest", timeout=0.3).close(),
    "keep": lambda hub: hub.topic("other", keep=10, timeout=0.3),
    "describe_topic": lambda hub: hub.topic("kept").describe(timeout=0.3),
    "topics": lambda hub: hub.topics(timeout=0.3),
    "serve": lambda hub: hub.serve("service:new", lambda message, context: None, timeout=0.3).close(timeout=0.3),
    "request": lambda hub: hub.request("service:unknown", timeout=0.3, retries=3),
    "begin_request": lambda hub: hub.begin_request("service:unknown", timeout=0.3).result(),
    "send": lambda hub: hub.send("service:unknown", timeout=0.3),
    "stream": lambda hub: list(hub.stream("service:unknown", timeout=0.3)),
    "services": lambda hub: hub.services(timeout=0.3),
    "remove_pool": lambda hub: hub.remove_pool("pool:p", timeout=0.3),
    "dead_letters": lambda hub: hub.dead_letters(timeout=0.3),
    "resend": lambda hub: hub.resend_dead_letters(timeout=0.3),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_ends_at_its_deadline(server: Served, hub: MessageHub, call: str) -> None:
    hub.topic("kept", keep=10, timeout=30)
    producer = hub.producer("here", schema=pa.schema({"x": pa.int8()}), timeout=30)
    with producer, paused(server), within(0.3), contextlib.suppress(HubError):
        CALLS[call](hub)


AWAITED: dict[str, Callable[[MessageHub], Any]] = {
    "discover": lambda hub: hub.discover_async("unknown", timeout=0.3),
    "channels": lambda hub: hub.channels_async(timeout=0.3),
    "connect": lambda hub: hub.connect_async(timeout=0.3),
    "register_producer": lambda hub: hub.register_producer_async("p", schema_hash="h", timeout=0.3),
    "register_schema": lambda hub: hub.register_schema_async("s", {"type": "object"}, timeout=0.3),
    "publish": lambda hub: hub.publish_async("topic", 1, timeout=0.3),
    "topic": lambda hub: hub.topic_async("other", keep=10, timeout=0.3),
    "request": lambda hub: hub.request_async("service:unknown", timeout=0.3),
    "send": lambda hub: hub.send_async("service:unknown", timeout=0.3),
    "serve": lambda hub: hub.serve_async("service:new", lambda message, context: None, timeout=0.3),
    "services": lambda hub: hub.services_async(timeout=0.3),
    "pending": lambda hub: _awaited(hub.begin_request("service:unknown", timeout=0.3)),
    "stream": lambda hub: _awaited(hub.stream("service:unknown", timeout=0.3)),
}


async def _awaited(reply: Any) -> object:
    return await reply


@pytest.mark.parametrize("call", AWAITED)
def test_what_is_awaited_ends_at_its_deadline_and_lets_the_loop_run(server: Served, hub: MessageHub, call: str) -> None:
    async def run() -> float:
        waiting = asyncio.ensure_future(_run(hub, call))
        longest = 0.0
        while not waiting.done():
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)
        await waiting
        return longest

    hub.connect(timeout=30)
    with paused(server), within(0.3):
        assert asyncio.run(run()) < SLACK_SECONDS


async def _run(hub: MessageHub, call: str) -> None:
    with contextlib.suppress(HubError):
        await AWAITED[call](hub)


def test_closing_a_service_keeps_its_deadline(server: Served, hub: MessageHub) -> None:
    served = hub.serve("service:a", lambda message, context: None, timeout=30)
    with paused(server), within(0.2):
        served.close(timeout=0.2)
