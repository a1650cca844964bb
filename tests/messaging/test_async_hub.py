"""The hub in programs with an event loop: what is awaited does not block it, and deadlines and cancellations hold."""

import asyncio
import functools
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError, HandlerFailed, MailboxClosed, ServiceNotFound
from messagehub.services.context import ServiceContext, ServiceMessage
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import SECONDS, WorkerProcess, metrics, patient_hub

T = TypeVar("T")


@pytest.fixture
def hub(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as serving:
        yield serving


async def echo(message: ServiceMessage, context: ServiceContext) -> Any:
    return message.payload


class Pulse:
    """Notes the longest time that the event loop did not come to a task that only sleeps."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> "Pulse":
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


# -- asking ----------------------------------------------------------------------------------------------------


def test_many_requests_are_awaited_at_once(hub: MessageHub, caller: MessageHub) -> None:
    async def ask() -> list[Any]:
        asked = (caller.request_async("service:echo", n, timeout=SECONDS) for n in range(200))
        return await asyncio.gather(*asked)

    with hub.serve("service:echo", echo, mailbox=1000):
        threads = threading.active_count()
        assert asyncio.run(ask()) == list(range(200))
        assert threading.active_count() < threads + 40  # and not one for each
    assert metrics(caller)["sent"] == 200


def test_errors_are_raised_where_they_are_awaited(hub: MessageHub, caller: MessageHub) -> None:
    async def ask() -> None:
        with pytest.raises(ServiceNotFound):
            await caller.request_async("service:nobody", timeout=SECONDS)
        pending = caller.begin_request("service:nobody", timeout=SECONDS)  # which does not block, and so cannot know
        with pytest.raises(ServiceNotFound):
            await pending
        with pytest.raises(ServiceNotFound):
            await anext(caller.stream("service:nobody", timeout=SECONDS))

    asyncio.run(ask())


def test_a_pending_reply_is_awaited_more_than_once(hub: MessageHub, caller: MessageHub) -> None:
    async def ask() -> None:
        pending = caller.begin_request("service:echo", [1], timeout=SECONDS)
        assert await pending == [1]
        assert await pending == [1]
        assert pending.done()
        assert await asyncio.gather(pending, pending) == [[1], [1]]

    with hub.serve("service:echo", echo):
        asyncio.run(ask())


def test_a_broker_that_is_stopped_does_not_stop_the_loop(broker: Served, caller: MessageHub) -> None:
    """Each awaited call ends at its own deadline, while other tasks run."""
    calls: list[Callable[[float], Awaitable[Any]]] = [
        lambda timeout: caller.request_async("service:new", timeout=timeout),
        lambda timeout: caller.begin_request("service:new", timeout=timeout),
        lambda timeout: caller.stream("service:new", timeout=timeout),
        lambda timeout: caller.send_async("service:new", timeout=timeout),
        lambda timeout: caller.publish_async("topic.new", b"x", timeout=timeout),
        lambda timeout: caller.discover_async("channel.new", timeout=timeout, required=True),
        lambda timeout: caller.channels_async(timeout=timeout),
        lambda timeout: caller.register_producer_async("channel.new", schema_hash="a", timeout=timeout),
        lambda timeout: caller.serve_async("service:mine", echo, timeout=timeout),
    ]

    async def ask_all() -> float:
        async def ended(call: Callable[[float], Awaitable[Any]]) -> None:
            try:
                await call(6.0)
            except Exception:  # noqa: BLE001  what it says is not what is tested
                return

        async with Pulse() as pulse, asyncio.timeout(SECONDS):
            await asyncio.gather(*(ended(call) for call in calls))
        return pulse.longest

    caller.connect(timeout=SECONDS)
    broker.signal(signal.SIGSTOP)
    try:
        assert asyncio.run(ask_all()) < 5.0  # one that blocks it takes its whole timeout of 6 s
    finally:
        broker.signal(signal.SIGCONT)


def test_a_worker_that_is_stopped_does_not_stop_the_loop(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:stopped", mailbox=1000)
    large = b"x" * 2**19
    caller.request("service:stopped", 0, timeout=SECONDS)
    process.signal(signal.SIGSTOP)

    async def ask() -> float:
        async with Pulse() as pulse:
            asked = [caller.request_async("service:stopped", large, timeout=6.0) for _ in range(20)]
            ended = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, TimeoutError) for each in ended)
        return pulse.longest

    assert asyncio.run(ask()) < 5.0
    process.signal(signal.SIGCONT)
    assert caller.request("service:stopped", b"next", timeout=SECONDS) == b"next"


def test_partial_results_are_iterated_as_they_come(hub: MessageHub, caller: MessageHub) -> None:
    def count(message: ServiceMessage, context: ServiceContext) -> Iterator[int]:
        yield from range(message.payload)
        return "counted"

    async def read() -> None:
        streamed = caller.stream("service:count", 1000, timeout=SECONDS)
        assert [partial async for partial in streamed] == list(range(1000))
        assert await streamed == "counted"
        async with caller.stream("service:count", 3, timeout=SECONDS) as again:
            assert await anext(again) == 0

    with hub.serve("service:count", count):
        asyncio.run(read())


def test_a_long_stream_lets_other_tasks_run(hub: MessageHub, caller: MessageHub) -> None:
    piece = b"x" * 2**19

    async def long(message: ServiceMessage, context: ServiceContext) -> AsyncIterator[bytes]:
        for _ in range(60):
            yield piece

    async def read() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        total = 0
        async for partial in caller.stream("service:long", timeout=60):
            total += len(partial)
        ticking.cancel()
        return total, ticks

    with hub.serve("service:long", long):
        total, ticks = asyncio.run(read())
    assert total == 60 * len(piece)
    assert ticks > 10


# -- serving ---------------------------------------------------------------------------------------------------


def test_asynchronous_handlers_run_side_by_side_without_a_thread_each(hub: MessageHub, caller: MessageHub) -> None:
    async def meet(message: ServiceMessage, context: ServiceContext) -> int:
        arrived.append(message.payload)
        async with asyncio.timeout(SECONDS):
            while len(arrived) < 100:
                await asyncio.sleep(0.001)
        return message.payload

    arrived: list[int] = []
    with hub.serve("service:meet", meet, concurrency=100):
        threads = threading.active_count()
        pending = [caller.begin_request("service:meet", n, timeout=SECONDS) for n in range(100)]
        eventually(lambda: len(arrived) == 100)
        assert threading.active_count() < threads + 10
        assert [each.result() for each in pending] == list(range(100))


def test_at_most_as_many_asynchronous_handlers_run_as_was_said(hub: MessageHub, caller: MessageHub) -> None:
    running: list[int] = []
    most: list[int] = []

    async def handle(message: ServiceMessage, context: ServiceContext) -> None:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.005)
        running.pop()

    with hub.serve("service:two", handle, concurrency=2, mailbox=100):
        for pending in [caller.begin_request("service:two", timeout=SECONDS) for _ in range(30)]:
            pending.result()
    assert max(most) == 2


def test_a_handler_runs_in_the_loop_that_serves_it(broker: Served) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def which(message: ServiceMessage, context: ServiceContext) -> bool:
            return asyncio.get_running_loop() is loop

        async with MessageHub(endpoint=broker.endpoint, hello_timeout_seconds=5) as hub:
            async with await hub.serve_async("service:which", which, timeout=SECONDS):
                assert await hub.request_async("service:which", timeout=SECONDS) is True
            with pytest.raises((ServiceNotFound, MailboxClosed)):  # that it left may not have been heard yet
                await hub.request_async("service:which", timeout=SECONDS)

    asyncio.run(run())


class Handler:
    async def __call__(self, message: ServiceMessage, context: ServiceContext) -> Any:
        return message.payload

    async def method(self, message: ServiceMessage, context: ServiceContext) -> Any:
        return message.payload


async def three(extra: Any, message: ServiceMessage, context: ServiceContext) -> Any:
    return message.payload


@pytest.mark.parametrize(
    "handler",
    [
        echo,
        Handler(),
        Handler().method,
        functools.partial(three, None),
        lambda message, context: three(None, message, context),
    ],
)
def test_whatever_gives_a_coroutine_is_awaited(handler: Any, hub: MessageHub, caller: MessageHub) -> None:
    with hub.serve("service:any", handler):
        assert caller.request("service:any", {"a": 1}, timeout=SECONDS) == {"a": 1}


@pytest.mark.parametrize("handler", [None, 7, "echo", lambda message: None, lambda: None, lambda a, b, c: None])
def test_what_cannot_be_called_with_message_and_context_is_refused_at_once(handler: Any, caller: MessageHub) -> None:
    with pytest.raises(ConfigurationError):
        caller.serve("service:bad", handler)
    with pytest.raises(ConfigurationError):
        asyncio.run(caller.serve_async("service:bad", handler))


def test_what_an_asynchronous_handler_raises_is_raised_at_the_callers(hub: MessageHub, caller: MessageHub) -> None:
    async def fail(message: ServiceMessage, context: ServiceContext) -> None:
        await asyncio.sleep(0)
        raise KeyError("a")

    with hub.serve("service:fail", fail), pytest.raises(HandlerFailed, match="KeyError"):
        caller.request("service:fail", timeout=SECONDS)


def test_an_asynchronous_handler_asks_others(hub: MessageHub, caller: MessageHub) -> None:
    got: list[Any] = []

    async def front(message: ServiceMessage, context: ServiceContext) -> Any:
        await context.send_async("service:log", "seen")
        return await context.request_async("service:echo", message.payload)

    with (
        hub.serve("service:front", front),
        hub.serve("service:echo", echo),
        hub.serve("service:log", lambda message, context: got.append(message.payload)),
    ):
        assert caller.request("service:front", 7, timeout=SECONDS) == 7
        eventually(lambda: got == ["seen"])


def test_generators_stream_and_their_return_is_the_reply(hub: MessageHub, caller: MessageHub) -> None:
    def count(message: ServiceMessage, context: ServiceContext) -> Iterator[int]:
        yield from range(message.payload)
        return "done"

    async def count_async(message: ServiceMessage, context: ServiceContext) -> AsyncIterator[int]:
        for number in range(message.payload):
            yield number

    with hub.serve("service:plain", count), hub.serve("service:async", count_async):
        streamed = caller.stream("service:plain", 3, timeout=SECONDS)
        assert list(streamed) == [0, 1, 2]
        assert streamed.result == "done"
        assert caller.request("service:plain", 3, timeout=SECONDS) == "done"
        assert list(caller.stream("service:async", 3, timeout=SECONDS)) == [0, 1, 2]
        assert caller.request("service:async", 3, timeout=SECONDS) is None


def test_a_slow_reader_holds_up_an_asynchronous_generator_and_not_its_loop(hub: MessageHub, caller: MessageHub) -> None:
    piece = b"x" * (2**20 - 100)
    given: list[int] = []

    async def long(message: ServiceMessage, context: ServiceContext) -> AsyncIterator[bytes]:
        for number in range(40):
            yield piece
            given.append(number)

    with hub.serve("service:long", long), hub.serve("service:echo", echo):
        streamed = caller.stream("service:long", timeout=60)
        eventually(lambda: len(given) >= 8)
        assert caller.request("service:echo", 1, timeout=SECONDS) == 1  # in the same loop
        assert len(given) < 20
        assert sum(len(each) for each in streamed) == 40 * len(piece)


def test_a_sent_message_is_handled_by_a_generator_too(hub: MessageHub, caller: MessageHub) -> None:
    seen: list[int] = []

    def count(message: ServiceMessage, context: ServiceContext) -> Iterator[int]:
        for number in range(3):
            seen.append(number)
            yield number

    with hub.serve("service:count", count):
        caller.send("service:count", timeout=SECONDS)
        eventually(lambda: seen == [0, 1, 2])
