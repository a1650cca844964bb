"""Whoever asked and wants nothing more is heard by the handler: streams that are left, requests that are cancelled."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import RequestCancelled, RequestTimeout, SendTimeout
from messagehub.services.context import ServiceContext, ServiceMessage
from tests import preloaded
from tests.integration.harness import Served, clean_environment, eventually
from tests.messaging.service_harness import SECONDS, Gate, has_nothing_open, metrics, patient_hub


@pytest.fixture
def hub(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as serving:
        yield serving


class Endless:
    """Streams until it is told that nobody wants more, and notes how it ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.was_cancelled = False

    def __call__(self, message: ServiceMessage, context: ServiceContext) -> None:
        try:
            while True:
                context.stream(b"x")
        except BaseException as error:
            self.error, self.was_cancelled = error, context.is_cancelled
            raise
        finally:
            self.ended.set()


def leave_loop(streamed: Any) -> None:
    for partial in streamed:
        assert partial == b"x"
        break


def close(streamed: Any) -> None:
    assert next(streamed) == b"x"
    streamed.close()


def leave_block(streamed: Any) -> None:
    with streamed:
        assert next(streamed) == b"x"


def leave_async_loop(streamed: Any) -> None:
    async def read() -> None:
        async for partial in streamed:
            assert partial == b"x"
            break

    asyncio.run(read())


@pytest.mark.parametrize("leave", [leave_loop, close, leave_block, leave_async_loop])
def test_leaving_a_stream_stops_its_handler(leave: Any, hub: MessageHub, caller: MessageHub) -> None:
    endless = Endless()
    with hub.serve("service:endless", endless):
        leave(caller.stream("service:endless", timeout=600))
        assert endless.ended.wait(SECONDS)
        assert isinstance(endless.error, RequestCancelled)
        assert endless.was_cancelled
        eventually(lambda: has_nothing_open(caller))
        assert metrics(caller)["late_replies"] == 0  # the end of what was cancelled is no reply


def test_a_generator_that_streams_is_closed_when_its_reader_leaves(hub: MessageHub, caller: MessageHub) -> None:
    closed = threading.Event()

    def count(message: ServiceMessage, context: ServiceContext) -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    with hub.serve("service:count", count):
        for number in caller.stream("service:count", timeout=600):
            if number == 3:
                break
        assert closed.wait(SECONDS)


def test_an_asynchronous_generator_is_closed_when_its_reader_leaves(hub: MessageHub, caller: MessageHub) -> None:
    closed = threading.Event()

    async def count(message: ServiceMessage, context: ServiceContext) -> AsyncIterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    with hub.serve("service:count", count):
        for number in caller.stream("service:count", timeout=600):
            if number == 3:
                break
        assert closed.wait(SECONDS)


def test_a_killed_caller_stops_the_handler_of_its_stream(hub: MessageHub, broker: Served) -> None:
    program = """
import sys
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5)
for _ in hub.stream("service:endless", timeout=600):
    print("begun", flush=True)
"""
    endless = Endless()
    with hub.serve("service:endless", endless):
        command = [sys.executable, "-c", program, broker.endpoint]
        with preloaded.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as caller:
            try:
                assert caller.stdout.readline() == "begun\n"
                assert not endless.ended.is_set()
            finally:
                caller.kill()
        assert endless.ended.wait(SECONDS)
        assert isinstance(endless.error, RequestCancelled)


def test_a_caller_whose_hub_is_closed_stops_the_handler_of_its_stream(hub: MessageHub, broker: Served) -> None:
    endless = Endless()
    with hub.serve("service:endless", endless):
        with patient_hub(broker) as other:
            streamed = other.stream("service:endless", timeout=600)
            assert next(streamed) == b"x"
        assert endless.ended.wait(SECONDS)
        assert isinstance(endless.error, RequestCancelled)


def test_a_handler_hears_that_its_request_was_cancelled(hub: MessageHub, caller: MessageHub) -> None:
    heard = threading.Event()
    begun = threading.Event()

    def wait(message: ServiceMessage, context: ServiceContext) -> None:
        assert not context.is_cancelled
        begun.set()
        deadline = time.monotonic() + SECONDS
        while not context.is_cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        heard.set()

    with hub.serve("service:wait", wait):
        pending = caller.begin_request("service:wait", timeout=600)
        assert begun.wait(SECONDS)
        assert pending.cancel()
        assert heard.wait(SECONDS)
        assert pending.done()
        assert pending.cancelled()
        assert not pending.cancel()
        with pytest.raises(RequestCancelled):
            pending.result()


def test_a_request_that_was_cancelled_in_the_mailbox_is_not_handled(hub: MessageHub, caller: MessageHub) -> None:
    gate = Gate()
    with hub.serve("service:gate", gate):
        first = caller.begin_request("service:gate", "first", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        second = caller.begin_request("service:gate", "second", timeout=SECONDS)
        eventually(lambda: metrics(hub)["received"] == 2)
        assert second.cancel()
        third = caller.begin_request("service:gate", "third", timeout=SECONDS)
        eventually(lambda: metrics(hub)["received"] == 3)  # on the same connection, so the cancellation is there too
        gate.opened.set()
        assert (first.result(), third.result()) == ("first", "third")
    assert gate.seen == ["first", "third"]
    assert metrics(hub)["expired"] == 1


def test_a_cancelled_task_cancels_its_request(hub: MessageHub, caller: MessageHub) -> None:
    begun, heard = threading.Event(), threading.Event()

    def wait(message: ServiceMessage, context: ServiceContext) -> None:
        begun.set()
        deadline = time.monotonic() + SECONDS
        while not context.is_cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        if context.is_cancelled:
            heard.set()

    async def give_up() -> None:
        task = asyncio.create_task(caller.request_async("service:wait", timeout=600))
        assert await asyncio.to_thread(begun.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with hub.serve("service:wait", wait):
        asyncio.run(give_up())
        assert heard.wait(SECONDS)


def test_the_deadline_is_a_cancellation_too(hub: MessageHub, caller: MessageHub) -> None:
    seen: list[bool] = []

    def wait(message: ServiceMessage, context: ServiceContext) -> None:
        deadline = time.monotonic() + SECONDS
        while not context.is_cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append(context.is_cancelled)

    def ask() -> list[bool]:
        with contextlib.suppress(TimeoutError):  # unless the handler, which hears of it at the same moment, is quicker
            caller.request("service:wait", timeout=0.3)
        return seen

    with hub.serve("service:wait", wait):
        assert all(eventually(ask))  # the deadline may pass before the request is handled


@pytest.mark.parametrize("ends_by", ["returning", "raising"])
def test_what_a_handler_gives_after_it_was_told_to_end_is_no_answer(
    hub: MessageHub, caller: MessageHub, ends_by: str
) -> None:
    """The worker sees the deadline a moment before its caller does, who could take the rest of a result for a reply."""

    def patient(message: ServiceMessage, context: ServiceContext) -> str:
        while not context.is_cancelled:
            time.sleep(0.001)
        if ends_by == "raising":
            raise ValueError("told to end")
        return "half of it"

    async def patient_async(message: ServiceMessage, context: ServiceContext) -> str:
        while not context.is_cancelled:
            await asyncio.sleep(0.001)
        if ends_by == "raising":
            raise ValueError("told to end")
        return "half of it"

    too_late = (RequestTimeout, SendTimeout)  # the latter when the deadline passed before it was sent
    with hub.serve("service:plain", patient, concurrency=4), hub.serve("service:async", patient_async):
        for address in ("service:plain", "service:async"):
            for _ in range(5):
                with pytest.raises(too_late):
                    caller.request(address, timeout=0.1)
                with pytest.raises(too_late):
                    caller.begin_request(address, timeout=0.1).result()
                with pytest.raises(too_late):
                    list(caller.stream(address, timeout=0.1))
