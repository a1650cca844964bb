"""Defects that a review of services found, each with what it did to a user."""

import asyncio
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import (
    DuplicateRegistration,
    HandlerFailed,
    HubError,
    InvalidRequest,
    MailboxClosed,
    MailboxFull,
    NameNotFound,
    NotInitialised,
    RequestCancelled,
    RequestTimeout,
    ServiceNotFound,
)
from messagehub.services import server as service_server
from messagehub.services import services as services_module
from messagehub.services.connection import NotSent, ServiceAnswer, ServiceConnection
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.services.frames import ANSWER, CALL, REFUSED, REPLY, REQUEST, STREAM, call
from messagehub.services.server_connections import ServerConnection
from registry.events import service_topic
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import (
    SECONDS,
    Gate,
    WorkerProcess,
    connection_of,
    has_waiting,
    metrics,
    patient_hub,
    services,
    stranger_to,
    welcomed,
    worker_of,
)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError


def is_read(connection: ServiceConnection) -> bool:
    """Whether a thread waits for what comes on the connection."""
    return connection.reading.is_held


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Interrupts the main thread, as Ctrl-C does, once the condition holds."""
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    threads: list[threading.Thread] = []

    def once(condition: Callable[[], Any]) -> None:
        def run() -> None:
            eventually(condition)
            signal.pthread_kill(main, signal.SIGUSR1)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield once
    for thread in threads:
        thread.join(SECONDS)
    signal.signal(signal.SIGUSR1, before)


# -- handlers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "heard"),
    [
        (ValueError("half a character: \udcff"), HandlerFailed),
        (InvalidRequest("half a character: \udcff"), InvalidRequest),
        (Unspeakable(), HandlerFailed),
        (asyncio.CancelledError(), HandlerFailed),
    ],
    ids=["surrogate", "refusal", "no-text", "cancelled"],
)
def test_whatever_a_handler_raises_is_heard_of_and_the_service_goes_on(
    broker: Served, caller: MessageHub, raised: BaseException, heard: type[HubError]
) -> None:
    def fail(message: ServiceMessage, context: ServiceContext) -> Any:
        if message.payload == "fail":
            raise raised
        return message.payload

    with patient_hub(broker) as hub, hub.serve("name:odd", fail):
        with pytest.raises(heard):
            caller.request("name:odd", "fail", timeout=5)
        assert caller.request("name:odd", "next", timeout=5) == "next"


def service_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "messagehub-service"]


def test_a_stuck_handler_of_a_closed_service_leaves_somebody_to_read(broker: Served, caller: MessageHub) -> None:
    stuck, gate = Gate(), Gate()
    others = set(service_threads())  # of a hub that lives for the whole session
    with patient_hub(broker) as hub:
        ended = hub.serve("name:stuck", stuck)
        caller.send("name:stuck", 1, timeout=SECONDS)
        assert stuck.entered.acquire(timeout=SECONDS)
        ended.close(timeout=0.1)
        hub.serve("name:next", gate, mailbox=1, overflow="error")
        caller.send("name:next", 1, timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        try:
            caller.send("name:next", 2, timeout=5)
            with pytest.raises(MailboxFull):
                caller.send("name:next", 3, timeout=5)
        finally:
            stuck.opened.set()
            gate.opened.set()
        # one for the handler that is left, and one to read
        eventually(lambda: len(set(service_threads()) - others) == 2)


def test_handlers_that_do_not_end_are_waited_for_together(
    broker: Served, caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_server, "CLOSE_SECONDS", 0.5)
    monkeypatch.setattr(services_module, "DRAIN_SECONDS", 0.5)
    before = len(os.listdir("/proc/self/fd"))
    gate = Gate()
    with patient_hub(broker) as hub:
        hub.serve("name:stuck", gate, concurrency=40)
        for number in range(40):
            caller.send("name:stuck", number, timeout=SECONDS)
            assert gate.entered.acquire(timeout=SECONDS)
        started = time.monotonic()
        hub.close()
        assert time.monotonic() - started < 0.5 * 40 / 2
    caller.close()
    gate.opened.set()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_an_id_is_served_once_by_a_hub(broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, hub.serve("id:one", lambda message, context: 1) as first:
        with pytest.raises(DuplicateRegistration):
            hub.serve("id:one", lambda message, context: 2)
        assert caller.request("id:one", timeout=SECONDS) == 1
        first.close()
        hub.serve("id:one", lambda message, context: 3)
        assert caller.request("id:one", timeout=SECONDS, retries=50) == 3


# -- dead letters ----------------------------------------------------------------------------------------------


def test_a_dead_letter_with_too_many_headers_does_not_end_the_hubs_thread(caller: MessageHub) -> None:
    """That thread sends the heartbeats: without them, all that the hub registered ran out."""
    with pytest.raises(NameNotFound):
        caller.send("name:large", b"", headers={"a": "x" * (2**20 - 50)})
    with pytest.raises(NameNotFound):
        caller.send("name:small", b"", headers={"a": 1})
    letters = eventually(lambda: found if len(found := caller.dead_letters().letters) == 2 else None)
    assert [(letter.address, letter.headers) for letter in letters] == [("name:large", {}), ("name:small", {"a": 1})]


def test_news_of_other_addresses_do_not_shorten_the_pauses_between_retries(broker: Served, caller: MessageHub) -> None:
    stop = threading.Event()
    with patient_hub(broker) as hub, ThreadPoolExecutor(1) as threads:
        hub.serve("pool:lively", lambda message, context: 1)
        caller.request("pool:lively", timeout=SECONDS)
        news: list[bytes | None] = []
        caller.tap(service_topic("pool:lively").encode(), news.append)

        def come_and_go() -> None:
            while not stop.is_set():
                hub.serve("pool:lively", lambda message, context: 2).close()

        coming = threads.submit(come_and_go)
        eventually(lambda: len(news) > 5)
        started = time.monotonic()
        with pytest.raises(NameNotFound):
            caller.send("name:nobody", b"", retries=6, timeout=SECONDS)
        elapsed = time.monotonic() - started
        stop.set()
        coming.result(SECONDS)
    assert elapsed >= 0.02 * (2**6 - 1) / 2  # the pauses, at their shortest


# -- interrupts ------------------------------------------------------------------------------------------------


def test_after_an_interrupt_a_result_can_still_be_taken_and_the_link_is_read(
    broker: Served, caller: MessageHub, interrupt: Callable[[Callable[[], Any]], None]
) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:gate", gate, concurrency=3):
        pending = caller.begin_request("name:gate", 7, timeout=SECONDS)
        connection = connection_of(caller)
        interrupt(lambda: is_read(connection))
        with pytest.raises(KeyboardInterrupt):
            pending.result()
        interrupt(lambda: is_read(connection))
        with pytest.raises(KeyboardInterrupt):
            caller.request("name:gate", 8, timeout=SECONDS)
        streamed = caller.stream("name:gate", 9, timeout=SECONDS)
        gate.opened.set()
        assert streamed.result == 9
        assert pending.result() == 7
        entry = services(caller).requests.directory.find("name:gate")
        assert entry is not None
        assert [route.asked for route in entry.routes] == [0]
        eventually(lambda: metrics(caller)["late_replies"] == 1)


def test_a_message_that_was_broken_off_is_not_continued_by_the_next(
    worker: Callable[..., WorkerProcess], caller: MessageHub, interrupt: Callable[[Callable[[], Any]], None]
) -> None:
    process = worker("service:stopped")
    caller.request("service:stopped", 0, timeout=SECONDS)
    connection = connection_of(caller)
    process.signal(signal.SIGSTOP)

    def is_full() -> bool:
        """The socket takes nothing more, so that the sender waits in the middle of its message."""
        return not select.select([], [connection.fd], [], 0)[1]

    interrupt(is_full)
    with pytest.raises(KeyboardInterrupt):
        caller.request("service:stopped", b"x" * (2**20 - 100), timeout=60)
    process.signal(signal.SIGCONT)
    assert caller.request("service:stopped", b"next", timeout=SECONDS) == b"next"


def test_threads_that_wait_for_one_result_both_get_it(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:gate", gate), ThreadPoolExecutor(2) as threads:
        pending = caller.begin_request("name:gate", 7, timeout=SECONDS)
        connection = connection_of(caller)
        first = threads.submit(pending.result)
        eventually(lambda: is_read(connection))
        second = threads.submit(pending.result)
        assert gate.entered.acquire(timeout=SECONDS)
        gate.opened.set()
        assert (first.result(SECONDS), second.result(SECONDS)) == (7, 7)


# -- connections -----------------------------------------------------------------------------------------------------


def test_a_link_that_ended_before_sending_is_not_waited_for(broker: Served, caller: MessageHub) -> None:
    """Two threads have the connection; one reads its end and closes it before the other has sent."""
    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: 1):
        caller.request("name:one", timeout=SECONDS)
        connection = connection_of(caller)
        connection.close()
        with pytest.raises(NotSent):
            connection.ask(100, b"", time.monotonic() + SECONDS)
        assert caller.request("name:one", timeout=SECONDS) == 1


def test_an_earlier_turn_to_read_is_not_taken_for_the_answer(broker: Served, caller: MessageHub) -> None:
    """At its deadline, while another thread hands the answer over: the caller got b"" for it."""
    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: 1):
        caller.request("name:one", timeout=SECONDS)
        answer = ServiceAnswer()
        answer.news.put(None)

        def hand_over() -> None:
            eventually(lambda: answer.is_awaited)
            answer.take(REPLY, 0, 0, b"\0" * ANSWER.size + b"here")

        with ThreadPoolExecutor(1) as threads:
            threads.submit(hand_over)
            found = connection_of(caller).finish(100, answer, time.monotonic() - 1).frame
        assert found.endswith(b"here")


def test_what_was_answered_before_the_worker_ended_is_not_lost_to_one_who_sends(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:echo")
    caller.request("service:echo", 0, timeout=SECONDS)
    pending = caller.begin_request("service:echo", 1, timeout=SECONDS)
    connection = connection_of(caller)
    assert select.select([connection.fd], [], [], SECONDS)[0]  # the answer is here, unread
    process.kill()
    with pytest.raises(NotSent):
        connection.post(100, b"x", ServiceAnswer(), time.monotonic() + SECONDS)
    assert pending.result() == 1
    with pytest.raises(ServiceNotFound):
        caller.request("service:echo", 2, timeout=SECONDS)


def test_who_asks_while_its_own_hub_closes_hears_that(broker: Served) -> None:
    with patient_hub(broker) as hub, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(hub.request, "name:nobody", timeout=60, retries=1000)
        eventually(lambda: metrics(hub)["retried"] > 0)
        hub.close()
        with pytest.raises(NotInitialised):
            asked.result(SECONDS)


def test_a_large_reply_is_given_to_its_caller_before_the_worker_closes(broker: Served, caller: MessageHub) -> None:
    large = b"x" * (2**20 - 100)
    with patient_hub(broker) as hub, ThreadPoolExecutor(1) as threads:
        hub.serve("name:large", lambda message, context: large)
        pending = caller.begin_request("name:large", timeout=SECONDS)
        eventually(lambda: metrics(hub)["handled"] == 1)
        closing = threads.submit(hub.close)
        assert pending.result() == large
        closing.result(SECONDS)


def test_what_comes_while_a_worker_closes_is_refused_so_that_it_can_be_tried_again(
    broker: Served, caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with patient_hub(broker) as hub:
        served = hub.serve("name:ending", lambda message, context: 1)
        caller.request("name:ending", timeout=SECONDS)
        connection = connection_of(caller)
        monkeypatch.setattr(
            ServerConnection, "is_to_be_read", lambda *_: False
        )  # by nobody, as when the threads have ended
        frame = call(REQUEST, 1, 0, 100, time.monotonic() + SECONDS, served.worker_id.encode(), b"", b"")
        answer = ServiceAnswer()
        connection.post(100, frame, answer, time.monotonic() + SECONDS)
        hub.close()
        assert connection.finish(100, answer, time.monotonic() + SECONDS).form == REFUSED


# -- streams and strangers -------------------------------------------------------------------------------------


def test_a_long_stream_waits_for_its_reader_instead_of_being_cut_off(broker: Served, caller: MessageHub) -> None:
    piece = b"x" * (2**20 - 100)

    def stream(message: ServiceMessage, context: ServiceContext) -> Any:
        for _ in range(message.payload):
            context.stream(piece)
        return message.payload

    with patient_hub(broker) as hub, hub.serve("name:long", stream):
        assert sum(len(part) for part in caller.stream("name:long", 100, timeout=60)) == 100 * len(piece)


def test_a_handler_does_not_wait_for_a_caller_that_left_in_the_middle_of_a_stream(broker: Served) -> None:
    ended = threading.Event()
    streamed: list[int] = []

    def stream(message: ServiceMessage, context: ServiceContext) -> None:
        try:
            for number in range(40):
                context.stream(b"x" * (2**20 - 100))
                streamed.append(number)
        except RequestCancelled:
            ended.set()

    with patient_hub(broker) as hub, hub.serve("name:long", stream) as served:
        with welcomed(worker_of(hub, "name:long")) as peer:
            peer.sendall(call(STREAM, 1, 0, 1, time.monotonic() + 60, served.worker_id.encode(), b"", b""))
            eventually(lambda: len(streamed) > 8)  # more than what may wait for a caller that takes nothing
            assert not ended.wait(0.1)
        assert ended.wait(SECONDS)


def test_streams_that_were_left_early_are_not_kept(broker: Served, caller: MessageHub) -> None:
    def stream(message: ServiceMessage, context: ServiceContext) -> None:
        for number in range(3):
            context.stream(number)

    with patient_hub(broker) as hub, hub.serve("name:stream", stream):
        for _ in range(50):
            for part in caller.stream("name:stream", timeout=SECONDS):
                assert part == 0
                break
        assert list(caller.stream("name:stream", timeout=SECONDS)) == [0, 1, 2]
        eventually(lambda: connection_of(caller).is_idle)


def test_a_connection_that_is_lost_while_somebody_sends_is_closed(broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: 1):
        assert caller.request("name:one", timeout=SECONDS) == 1
        connection = connection_of(caller)
        sent, go_on = threading.Event(), threading.Event()
        real = connection._socket  # private: a send that takes its time cannot be had otherwise

        class Slow:
            def send(self, data: bytes) -> int:
                count = real.send(data)
                sent.set()
                go_on.wait(SECONDS)
                return count

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        connection._socket = Slow()  # private: as above, for this one connection
        sending = threading.Thread(target=connection.tell, args=(b"", time.monotonic() + SECONDS))
        sending.start()
        assert sent.wait(SECONDS)
        connection.close()
        go_on.set()
        sending.join()
        assert real.fileno() == -1


def test_a_stranger_may_not_announce_more_than_a_greeting(broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: 1):
        with stranger_to(worker_of(hub, "name:one")) as stranger:
            stranger.settimeout(5)
            stranger.sendall((2**20).to_bytes(4, "little") + b"\0" * CALL.size)
            assert stranger.recv(1) == b""
        assert caller.request("name:one", timeout=SECONDS) == 1


def test_who_waits_for_room_is_told_when_the_service_closes(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, patient_hub(broker) as other, ThreadPoolExecutor(1) as threads:
        ending = hub.serve("name:full", gate, mailbox=1, overflow="block")
        for number in range(2):
            caller.send("name:full", number, timeout=SECONDS)
        waiting = threads.submit(other.send, "name:full", "more", timeout=SECONDS)
        eventually(lambda: has_waiting(ending))
        ending.close(timeout=0)
        with pytest.raises(MailboxClosed):
            waiting.result(SECONDS)
        gate.opened.set()


@pytest.mark.parametrize("error", [ValueError("no such order 7"), KeyError("k"), TimeoutError("x")])
def test_a_handler_fails_with_any_exception_and_its_text(caller: MessageHub, error: Exception) -> None:
    def deferred(message: ServiceMessage, context: ServiceContext) -> None:
        context.defer()
        context.fail(error)

    handlers = {"deferred": deferred, "at-once": lambda message, context: context.fail(error)}
    for name, handler in handlers.items():
        address = f"service:fails-{name}-{type(error).__name__}"
        with (
            caller.serve(address, handler),
            pytest.raises(HandlerFailed, match=str(error)) as failed,
        ):
            caller.request(address, 1, timeout=SECONDS)
        assert failed.value.details == {"error": type(error).__name__, "address": address}


@pytest.mark.parametrize("wrong", ["text", None, ValueError, {"error": 1}])
def test_what_is_no_exception_is_no_failure(caller: MessageHub, wrong: Any) -> None:
    with (
        caller.serve("service:fails", lambda message, context: context.fail(wrong)),
        pytest.raises(HubError, match="fail takes an exception"),
    ):
        caller.request("service:fails", 1, timeout=SECONDS)


def test_a_slow_reader_is_told_that_the_stream_had_not_ended(caller: MessageHub) -> None:
    def flood(message: ServiceMessage, context: ServiceContext) -> None:
        for _ in range(40):  # more than the reader's side holds
            context.stream(b"x" * 2**20)

    with caller.serve("service:flood", flood):
        deadline = time.monotonic() + 6.0
        with caller.stream("service:flood", timeout=6.0) as partials:
            next(partials)
            eventually(lambda: time.monotonic() > deadline)
            with pytest.raises(RequestTimeout, match="the stream of service:flood had not ended"):
                list(partials)


def test_a_caller_that_has_not_heard_of_a_change_is_served_by_who_serves_now(
    broker: Served, caller: MessageHub
) -> None:
    """The process of the worker that has ended goes on, so its socket is there and refuses what comes for it."""
    with patient_hub(broker) as one, patient_hub(broker) as other:
        one.serve("service:stays", lambda message, context: None)
        other.serve("service:stays.too", lambda message, context: None)
        for number in range(60):
            serving = (one, other)[number % 2].serve("service:moves", lambda message, context, n=number: n)
            assert caller.request("service:moves", None, timeout=SECONDS) == number
            assert caller.begin_request("service:moves", None, timeout=SECONDS).result() == number
            serving.close()
