"""Requests that go on by themselves, on background threads: their turns in a pool, deadlines, pauses and ends."""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import NotInitialised, ServiceNotFound
from messagehub.runtime.background import MOST_THREADS
from messagehub.services import requests as service_requests
from messagehub.services.replies import PendingReply
from tests.integration.harness import Served
from tests.messaging.service_harness import SECONDS, SOON, Gate, metrics, patient_hub

WORKERS = 3
TURNS = 4


def by_await(hub: MessageHub) -> Any:
    return asyncio.run(hub.request_async("pool:shared", timeout=SECONDS))


def by_awaited_begin(hub: MessageHub) -> Any:
    async def ask() -> Any:
        return await hub.begin_request("pool:shared", timeout=SECONDS)

    return asyncio.run(ask())


def by_awaited_stream(hub: MessageHub) -> Any:
    async def ask() -> Any:
        return await hub.stream("pool:shared", timeout=SECONDS)

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [by_await, by_awaited_begin, by_awaited_stream])
def test_every_worker_of_a_pool_has_its_turn(
    ask: Callable[[MessageHub], Any], broker: Served, caller: MessageHub
) -> None:
    """Also those to which there is no connection yet, which is made in the background."""
    with patient_hub(broker) as hub:
        for number in range(WORKERS):
            with_number = f"id-{number}"
            hub.serve("pool:shared", lambda message, context, answer=with_number: answer)  # type: ignore[misc]
        served = Counter(ask(caller) for _ in range(WORKERS * TURNS))
    assert served == {f"id-{number}": TURNS for number in range(WORKERS)}


@pytest.mark.parametrize("form", ["request", "send", "begin"])
def test_a_deadline_holds_while_all_background_threads_are_busy(form: str, broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    is_over = threading.Event()
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "request": lambda: caller.request_async("service:gate", timeout=0.2),
        "send": lambda: caller.send_async("service:away", timeout=0.2),
        "begin": lambda: caller.begin_request("service:gate", timeout=0.2),
    }

    async def ask() -> float:
        began_at = time.monotonic()
        with pytest.raises(TimeoutError):
            await ways[form]()
        return time.monotonic() - began_at

    with patient_hub(broker) as hub, hub.serve("service:gate", gate), hub.serve("service:now", lambda *_: 1):
        try:
            for _ in range(MOST_THREADS):
                entered = threading.Event()
                pending = caller.begin_request("service:now", timeout=SECONDS)
                pending.add_done_callback(lambda _, entered=entered: entered.set() or is_over.wait(SECONDS))  # type: ignore[misc]
                assert entered.wait(SECONDS)
            with ThreadPoolExecutor(1) as threads:
                assert threads.submit(asyncio.run, ask()).result(SECONDS) < SOON
        finally:
            is_over.set()
            gate.opened.set()


def test_channels_that_are_waited_for_hold_up_nobody(caller: MessageHub) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS):
            waiting = [
                asyncio.create_task(caller.discover_async(f"nobody.n{number}", wait=True, timeout=600))
                for number in range(2 * MOST_THREADS)
            ]
            assert await caller.topics_async(timeout=SECONDS) == []
            waiting[0].cancel()
            await caller.close_async()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert all(isinstance(error, NotInitialised) for error in ended[1:])

    asyncio.run(run())


def test_callbacks_that_exit_do_not_end_the_threads_that_call_them(
    broker: Served, caller: MessageHub, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: PendingReply) -> None:
        raise SystemExit(1)

    with patient_hub(broker) as hub, hub.serve("service:echo", lambda message, context: message.payload, mailbox=1000):
        pending = [caller.begin_request("service:echo", n, timeout=SECONDS) for n in range(2 * MOST_THREADS)]
        for each in pending:
            each.add_done_callback(leave)
        assert [each.result() for each in pending] == list(range(2 * MOST_THREADS))
        assert asyncio.run(caller.topics_async(timeout=SECONDS)) == []
    assert "a callback of a request to service:echo failed" in caplog.text


def test_the_pauses_of_any_number_of_retries_can_be_computed(
    caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_requests, "BACKOFF_MAX_SECONDS", 1e-6)  # a thousand real pauses take ten minutes
    with pytest.raises(ServiceNotFound):
        caller.request("service:nobody", timeout=60, retries=1100)
    assert metrics(caller)["retried"] == 1100


def test_a_reply_that_the_parent_waits_for_ends_at_once_in_a_forked_child(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:gate", gate):
        asyncio.run(caller.topics_async(timeout=SECONDS))  # from now on a background thread waits for work
        pending = caller.begin_request("service:gate", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.run(asyncio.wait_for(pending, SOON))
            except NotInitialised:
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        gate.opened.set()
        pending.result()
