"""`request`, `begin_request`, `stream` and their asynchronous forms: the same retries, dead letters and numbers."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import HandlerFailed, MailboxFull, NoResponse, ServiceNotFound
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.services.replies import PendingReply
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import SECONDS, Gate, WorkerProcess, metrics, patient_hub


def by_request(hub: MessageHub, address: str, payload: Any = None, **options: Any) -> Any:
    return hub.request(address, payload, **options)


def by_begin(hub: MessageHub, address: str, payload: Any = None, **options: Any) -> Any:
    return hub.begin_request(address, payload, **options).result()


def by_stream(hub: MessageHub, address: str, payload: Any = None, **options: Any) -> Any:
    return hub.stream(address, payload, **options).result


def by_await(hub: MessageHub, address: str, payload: Any = None, **options: Any) -> Any:
    return asyncio.run(hub.request_async(address, payload, **options))


def by_awaited_begin(hub: MessageHub, address: str, payload: Any = None, **options: Any) -> Any:
    async def ask() -> Any:
        return await hub.begin_request(address, payload, **options)

    return asyncio.run(ask())


def by_awaited_stream(hub: MessageHub, address: str, payload: Any = None, **options: Any) -> Any:
    async def ask() -> Any:
        return await hub.stream(address, payload, **options)

    return asyncio.run(ask())


WAYS = [by_request, by_begin, by_stream, by_await, by_awaited_begin, by_awaited_stream]
any_way = pytest.mark.parametrize("ask", WAYS)
Way = Callable[..., Any]


def fill(caller: MessageHub, hub: MessageHub, gate: Gate) -> list[PendingReply]:
    """One request is in the handler, and one in the mailbox, which holds no more."""
    held = caller.begin_request("service:busy", 0, timeout=SECONDS)
    assert gate.entered.acquire(timeout=SECONDS)
    waiting = caller.begin_request("service:busy", 1, timeout=SECONDS)
    eventually(lambda: metrics(hub)["received"] == 2)
    return [held, waiting]


@any_way
def test_a_full_mailbox_is_tried_again(ask: Way, broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:busy", gate, mailbox=1), ThreadPoolExecutor(1) as threads:
        first = fill(caller, hub, gate)
        asked = threads.submit(ask, caller, "service:busy", "again", timeout=SECONDS, retries=1000)
        eventually(lambda: metrics(caller)["retried"] >= 2)
        gate.opened.set()
        assert asked.result(SECONDS) == "again"
        assert [each.result() for each in first] == [0, 1]
    assert metrics(caller)["dead_letters"] == 0


@any_way
def test_what_a_full_mailbox_refuses_to_the_end_is_a_dead_letter(ask: Way, broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:busy", gate, mailbox=1):
        held = fill(caller, hub, gate)
        with pytest.raises(MailboxFull):
            ask(caller, "service:busy", "given up", timeout=SECONDS, retries=2)
        eventually(lambda: len(caller.dead_letters("service:busy").letters) == 1)
        (letter,) = caller.dead_letters("service:busy").letters
        assert (letter.code, letter.attempts, letter.form) == ("MAILBOX_FULL", 3, "request")
        assert metrics(caller)["retried"] == 2
        gate.opened.set()
        assert [each.result() for each in held] == [0, 1]
    assert metrics(caller)["dead_letters"] == 1


@any_way
def test_who_is_not_there_yet_is_waited_for(ask: Way, broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, caller, "service:late", 7, timeout=SECONDS, retries=1000)
        eventually(lambda: metrics(caller)["retried"] >= 1)
        with hub.serve("service:late", lambda message, context: message.payload):
            assert asked.result(SECONDS) == 7


@any_way
def test_who_never_comes_is_told_and_a_dead_letter(ask: Way, caller: MessageHub) -> None:
    with pytest.raises(ServiceNotFound):
        ask(caller, "service:never", 7, timeout=SECONDS, retries=1)
    eventually(lambda: len(caller.dead_letters("service:never").letters) == 1)


@any_way
def test_an_idempotent_request_is_asked_of_another(
    ask: Way, worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    crew = [worker("pool:crew") for _ in range(2)]
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as threads:
        job = {"touch": str(begun), "until": str(tmp_path / "go")}
        asked = threads.submit(ask, caller, "pool:crew", job, timeout=60, retries=1, idempotent=True)
        eventually(lambda: metrics(caller)["sent"] == 1)
        crew[0].kill()
        (tmp_path / "go").touch()
        assert asked.result(SECONDS)["pid"] == crew[1].pid
    assert metrics(caller)["retried"] == 1


@any_way
def test_what_may_have_been_done_is_not_done_again(
    ask: Way, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    worker("pool:crew")
    with pytest.raises(NoResponse):
        ask(caller, "pool:crew", {"kill": True}, timeout=SECONDS, retries=5)
    assert metrics(caller)["retried"] == 0


@any_way
def test_what_a_handler_raises_is_not_tried_again(ask: Way, broker: Served, caller: MessageHub) -> None:
    calls: list[Any] = []

    def full(message: ServiceMessage, context: ServiceContext) -> None:
        calls.append(message.payload)
        raise MailboxFull("one that the handler asked was full")

    with patient_hub(broker) as hub, hub.serve("service:full", full), pytest.raises(MailboxFull):
        ask(caller, "service:full", 1, timeout=SECONDS, retries=5)
    assert calls == [1]


def test_thirty_begun_requests_all_arrive_at_a_small_mailbox(broker: Served, caller: MessageHub) -> None:
    def echo(message: ServiceMessage, context: ServiceContext) -> Any:
        return message.payload

    with patient_hub(broker) as hub, hub.serve("service:small", echo, mailbox=2):
        pending = [caller.begin_request("service:small", n, timeout=SECONDS, retries=100) for n in range(30)]
        assert [each.result() for each in pending] == list(range(30))


def test_a_stream_is_not_begun_again_after_a_partial_result(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("pool:crew")
    worker("pool:crew")
    job = {"stream": ["first"], "until": "never"}
    streamed = caller.stream("pool:crew", job, timeout=SECONDS, retries=5, idempotent=True)
    assert next(streamed) == "first"
    process.kill()
    with pytest.raises(NoResponse):
        next(streamed)


# -- a pending reply -------------------------------------------------------------------------------------------


def test_a_pending_reply_says_when_it_is_done_and_calls_back(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    called: list[Any] = []
    with patient_hub(broker) as hub, hub.serve("service:gate", gate):
        pending = caller.begin_request("service:gate", 1, timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        assert not pending.done()
        pending.add_done_callback(lambda ended: called.append((ended.result(), threading.get_ident())))
        gate.opened.set()
        eventually(lambda: len(called) == 1)
        assert called[0][0] == 1
        assert pending.done()
        assert not pending.cancel()
        pending.add_done_callback(lambda ended: called.append(ended.result()))  # of an ended one, at once
        eventually(lambda: called[1:] == [1])


def test_a_callback_may_ask_in_turn(broker: Served, caller: MessageHub) -> None:
    answers: list[Any] = []
    with patient_hub(broker) as hub, hub.serve("service:echo", lambda message, context: message.payload):
        pending = caller.begin_request("service:echo", 1, timeout=SECONDS)
        pending.add_done_callback(lambda _: answers.append(caller.request("service:echo", 2, timeout=SECONDS)))
        eventually(lambda: answers == [2])


def test_a_pending_reply_that_nobody_waits_for_ends_at_its_deadline(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    ended = threading.Event()
    with patient_hub(broker) as hub, hub.serve("service:gate", gate):
        pending = caller.begin_request("service:gate", 1, timeout=4.0)
        pending.add_done_callback(lambda _: ended.set())
        assert ended.wait(SECONDS)
        with pytest.raises(TimeoutError):
            pending.result()
        gate.opened.set()


def test_two_threads_get_the_same_result(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:gate", gate), ThreadPoolExecutor(2) as threads:
        pending = caller.begin_request("service:gate", [1], timeout=SECONDS)
        results = [threads.submit(pending.result) for _ in range(2)]
        gate.opened.set()
        assert [each.result(SECONDS) for each in results] == [[1], [1]]


def test_closing_the_hub_ends_what_is_pending(broker: Served) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:gate", gate):
        with patient_hub(broker) as other:
            pending = [other.begin_request("service:gate", 1, timeout=60) for _ in range(3)]
            called: list[Any] = []
            pending[0].add_done_callback(called.append)
            never = [other.begin_request("service:gate", 1, timeout=60, retries=100)]
        for each in pending + never:
            with pytest.raises((NoResponse, HandlerFailed)):
                each.result()
        eventually(lambda: called == [pending[0]])
        gate.opened.set()
