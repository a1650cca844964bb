"""A broker that is stopped (SIGSTOP): no deadline of a user is exceeded for its sake, and no event loop is held up.

Without a deadline of its own every call here would take `request_timeout_seconds`, ten times the patience of a test.
"""

import asyncio
import contextlib
import inspect
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from messagehub import Consumer, Message, MessageHub, Producer, Registration, Subscription, Topic, Watch
from messagehub.errors import HubError, NotInitialised
from messagehub.services.replies import PendingReply
from messagehub.services.streams import StreamedReply
from messagehub.services.workers import ServiceWorker
from registry import commands
from tests.integration.harness import Served, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")

TERMS = {"heartbeat_seconds": 60.0, "stall_seconds": 200.0, "lease_seconds": 400.0, "beacon_seconds": 30.0}
"""So rare heartbeats and beacons that no hub notices the silence: one that has does not wait for an answer."""
NEVER_SECONDS = 600.0
SLACK_SECONDS = 20.0
AWAITED_SECONDS = 4.0
"""How long an event loop has to show that it runs: longer than a thread is held up on a loaded machine."""
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
            reading = asyncio.create_task(consumer.read_async(timeout=AWAITED_SECONDS))
            ticks = 0
            while not reading.done():
                consumer.wake()
                await asyncio.sleep(0.01)
                ticks += 1
            assert await reading is None
            return ticks

    with within(AWAITED_SECONDS):
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


TIMEOUT = 0.3
SCHEMA = pa.schema({"x": pa.int8()})
CLASSES = (MessageHub, Topic, Producer, Consumer, Subscription, Message, Watch, Registration, ServiceWorker)
NOT_CALLED = {
    "MessageHub.run_forever_async": "it waits for a signal to this process",
    "ServiceWorker.run_async": "it waits for a signal to this process",
    "ServiceWorker.stream_async": "it is for the contexts of handlers, which no broker serves",
}
AT_ONCE = {
    "MessageHub.close_async": "it has nothing registered",
    "MessageHub.compact_table_async": "there is no table to compact",
    "MessageHub.delete_group_async": "groups are files of this host",
    "Consumer.close_async": "nobody produces its channel, so that it is not registered",
    "Subscription.close_async": "no callback is to be waited for",
}
"""Awaited calls that have nothing to wait for here, so that the event loop has no time to show that it runs."""
GIVEN: dict[str, Any] = {
    "command": commands.Ping(),
    "done": lambda reply, error: None,
    "member_id": "nobody",
    "schema": SCHEMA,
    "schema_hash": "h",
    "subject": "s",
    "topic": "plain",
    "pattern": "plain",
    "payload": b"1",
    "payloads": [b"1"],
    "keep": 10,
    "durable": "d",
    "since": "oldest",
    "table": pa.table({"x": [1]}),
    "handler": lambda message, context: None,
    "group": "g",
    "size": 1,
}
"""Arguments that are required, by their names; a channel, a name and an address are new ones for each call."""
OPTIONS: dict[str, dict[str, Any]] = {
    "schema": {"subject": "s"},
    "topic": {"keep": 10},
    "wait_current": {"revision": 10**9},
    "remove_pool": {"address": "pool:p"},
    "request": {"retries": 3},
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("MessageHub.consumer", {"channel": "here"}),
    ("MessageHub.consumer", {"channel": "here", "expected_schema": SCHEMA}),
    ("MessageHub.consumer", {"channel": "here", "group": "g"}),
    ("MessageHub.register_consumer", {"channel": "here"}),
    ("MessageHub.describe", {"channel": "here"}),
    ("MessageHub.discover", {"wait": True}),
    ("MessageHub.discover", {"channel": "here", "expected_schema": "h", "wait": True}),
    ("MessageHub.publish", {"topic": "kept"}),
    ("MessageHub.subscribe", {"pattern": "kept", "since": "oldest"}),
    ("MessageHub.subscribe", {"pattern": "kept", "durable": "d"}),
    ("MessageHub.subscribe", {"pattern": "plain", "group": "g"}),
]


def calls(is_wanted: Callable[[str, Any], bool]) -> list[str]:
    """The public methods of these classes of which that is true, by their full names."""
    return [
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and f"{cls.__name__}.{name}" not in NOT_CALLED and is_wanted(name, function)
    ]


def takes_timeout(name: str, function: Any) -> bool:
    return not name.endswith("_async") and "timeout" in inspect.signature(function).parameters


def is_awaited(name: str, function: Any) -> bool:
    return name.endswith("_async")


class Call:
    """One call, with a hub and all else that it needs made while the broker still answers."""

    def __init__(self, server: Served, number: int, call: str, options: dict[str, Any], closing: ExitStack) -> None:
        self.name = f"{call} {options}" if options else call
        self._number = number
        kind, method = call.split(".")
        is_async = method.endswith("_async")
        self._timeout = AWAITED_SECONDS if is_async else TIMEOUT
        limit = AWAITED_SECONDS if is_async else NEVER_SECONDS
        self._hub = closing.enter_context(hub_of(server, request_timeout_seconds=limit, hello_timeout_seconds=5))
        eventually(lambda: self._hub.connect(timeout=30))
        self._method = getattr(self._opened(kind, closing), method)
        self._arguments = self._given(method) | options
        self._made: Any = None
        closing.callback(self._close)

    def _close(self) -> None:
        """When the broker answers again: what it could not be told of meanwhile, such as services, it is told first."""
        with contextlib.suppress(NotInitialised):  # of a hub that the call has closed
            eventually(lambda: self._hub.connect(timeout=30))
        if hasattr(self._made, "close"):
            self._made.close()

    def _opened(self, kind: str, closing: ExitStack) -> Any:
        hub, name = self._hub, f"c{self._number}"
        match kind:
            case "MessageHub":
                return hub
            case "Topic":
                return hub.topic("kept", timeout=30)
            case "Producer":  # whose reader reads nothing: the next item has to wait
                producer = closing.enter_context(hub.producer(name, capacity=1, when_full="block", timeout=30))
                closing.enter_context(hub.consumer(name, copy="never", timeout=30)).read(timeout=0)
                producer.write(b"1")
                return producer
            case "Consumer":
                return closing.enter_context(hub.consumer(name, timeout=30))
            case "Subscription":
                return closing.enter_context(hub.subscribe("quiet", timeout=30))
            case "Message":
                durable = hub.subscribe("kept", durable=name, since="oldest", ack="manual", timeout=30)
                return closing.enter_context(durable).receive(30)
            case "Watch":
                return closing.enter_context(hub.watch("nobody"))
            case "Registration":
                return closing.enter_context(hub.register_consumer("here", timeout=30))
            case ServiceWorker.__name__:
                return closing.enter_context(hub.serve(f"service:{name}", GIVEN["handler"], timeout=30))
        raise AssertionError(kind)

    def _given(self, method: str) -> dict[str, Any]:
        new = {"channel": f"new{self._number}", "name": f"new{self._number}", "address": f"service:new{self._number}"}
        parameters = inspect.signature(self._method).parameters
        required = {name for name, each in parameters.items() if each.default is each.empty} - {"timeout", "options"}
        if "manifest" in required:
            new["manifest"] = self._hub.publish_table(new["channel"], GIVEN["table"])
        given = {name: (GIVEN | new)[name] for name in required}
        timeout = {"timeout": self._timeout} if "timeout" in parameters else {}
        return given | OPTIONS.get(method.removesuffix("_async"), {}) | timeout

    def run(self) -> float:
        """Return how many seconds it took, whatever came of it."""
        began = time.monotonic()
        with contextlib.suppress(HubError, TimeoutError):
            self._made = self._method(**self._arguments)
            if isinstance(self._made, PendingReply):
                self._made.result()
            elif isinstance(self._made, StreamedReply):
                list(self._made)
        return time.monotonic() - began

    def run_async(self) -> int:
        """Return how often another task ran meanwhile."""
        return asyncio.run(ticks_during(self._awaited))

    async def _awaited(self) -> None:
        self._made = await self._method(**self._arguments)


async def ticks_during(call: Callable[[], Awaitable[Any]]) -> int:
    """Return how often another task of the event loop ran until the call ended, whatever came of it."""
    waiting = asyncio.ensure_future(call())
    ticks = 0
    while not waiting.done():
        await asyncio.sleep(0.02)
        ticks += 1
    with contextlib.suppress(HubError, TimeoutError):
        await waiting
    return ticks


@contextlib.contextmanager
def prepared(server: Served, hub: MessageHub, wanted: list[tuple[str, dict[str, Any]]]) -> Iterator[list[Call]]:
    """Each call with a hub of its own: one that has timed out before may know that the broker does not answer."""
    hub.topic("kept", keep=10, timeout=30).publish(b"1", timeout=30)
    with hub.producer("here", schema=SCHEMA, timeout=30), ExitStack() as closing:
        yield [Call(server, number, *each, closing) for number, each in enumerate(wanted)]


def results(ran: Callable[[Call], Any], made: list[Call]) -> dict[str, Any]:
    with ThreadPoolExecutor(32) as pool:
        running = {call.name: pool.submit(ran, call) for call in made}
        return {name: future.result(SLACK_SECONDS) for name, future in running.items()}


def test_every_call_ends_at_its_deadline(server: Served, hub: MessageHub) -> None:
    wanted = [(call, {}) for call in calls(takes_timeout)]
    assert len(wanted) > 50
    with prepared(server, hub, wanted + VARIANTS) as made, paused(server):
        took = results(Call.run, made)
    assert {name: seconds for name, seconds in took.items() if seconds > TIMEOUT + SLACK_SECONDS} == {}


def test_nothing_that_is_awaited_blocks_the_event_loop(server: Served, hub: MessageHub) -> None:
    wanted = [(call, {}) for call in calls(is_awaited)]
    assert len(wanted) > 50
    with prepared(server, hub, wanted) as made, paused(server):
        ticks = results(Call.run_async, made)
    assert {name: count for name, count in ticks.items() if count < 4 and name not in AT_ONCE} == {}


@pytest.mark.parametrize("call", ["begin_request", "stream"])
def test_awaiting_a_reply_lets_the_event_loop_run(server: Served, hub: MessageHub, call: str) -> None:
    eventually(lambda: hub.connect(timeout=30))
    with paused(server), within(AWAITED_SECONDS):
        assert asyncio.run(ticks_during(lambda: getattr(hub, call)("service:unknown", timeout=AWAITED_SECONDS))) > 3


def test_closing_a_service_keeps_its_deadline(server: Served, hub: MessageHub) -> None:
    served = hub.serve("service:a", lambda message, context: None, timeout=30)
    with paused(server), within(0.2):
        served.close(timeout=0.2)
