"""Request and reply between real processes, over real sockets: section C of the features."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import (
    BrokerRequired,
    ConfigurationError,
    DuplicateRegistration,
    HandlerFailed,
    HubError,
    IdNotFound,
    InvalidName,
    InvalidRequest,
    MailboxClosed,
    MailboxFull,
    MessageTooLarge,
    NameNotFound,
    NoResponse,
    NotInitialised,
    NotRegistered,
    PoolEmpty,
    PoolNotFound,
    RegistryError,
    RequestTimeout,
    RouteError,
    SendTimeout,
    ServiceNotFound,
)
from messagehub.messaging.service_context import ServiceContext, ServiceMessage
from messagehub.messaging.services import Services
from registry import commands, replies
from registry.services import MOST_ADDRESSES
from tests.conftest import QUICK
from tests.integration.harness import ROOT, Peer, Served, clean_environment, eventually, hub_of

SECONDS = 20.0
SOON = 2.0  # far below every timeout that is given, far above what it takes


class WorkerProcess:
    def __init__(self, broker: Served, address: str, **options: Any) -> None:
        words = [f"{name}={value}" for name, value in options.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.messaging.service_process", broker.endpoint, address, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        self.worker_id = self.process.stdout.readline().strip()
        assert self.worker_id, "the worker did not start"

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@pytest.fixture
def broker(served: Callable[..., Served]) -> Served:
    return served("--no-http", **QUICK)


@pytest.fixture
def worker(broker: Served) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(address: str, **options: Any) -> WorkerProcess:
        started.append(WorkerProcess(broker, address, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def caller(broker: Served) -> Iterator[MessageHub]:
    with hub_of(broker) as hub:
        yield hub


def metrics(hub: MessageHub) -> dict[str, int]:
    found: dict[str, int] = hub.metrics()["services"]
    return found


def services(hub: MessageHub) -> Services:
    return hub._services


def pids(hub: MessageHub, address: str, count: int) -> list[int]:
    return [hub.request(address, {}, timeout=SECONDS)["pid"] for _ in range(count)]


class Gate:
    """Holds handlers of this process until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.seen: list[Any] = []

    def __call__(self, message: ServiceMessage, context: ServiceContext) -> Any:
        self.seen.append(message.payload)
        self.entered.release()
        assert self.opened.wait(SECONDS)
        return message.payload


# -- addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["id:worker-one", "name:one", "service:resize", "pool:crew"])
def test_each_kind_of_address_leads_to_its_worker(
    address: str, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker(address)
    assert caller.request(address, {})["pid"] == process.pid
    assert caller.request(f"id:{process.worker_id}", {})["pid"] == process.pid


@pytest.mark.parametrize(
    ("address", "error"),
    [("id:x", IdNotFound), ("name:x", NameNotFound), ("service:x", ServiceNotFound), ("pool:x", PoolNotFound)],
)
def test_each_unknown_kind_has_its_own_error(caller: MessageHub, address: str, error: type[HubError]) -> None:
    for ask in (caller.request, caller.send, caller.stream):
        with pytest.raises(error) as caught:
            ask(address, b"", timeout=SECONDS)
        assert type(caught.value) is error


def test_what_is_no_address_is_refused(caller: MessageHub) -> None:
    for address in ("x", "queue:x", "name:", "name:a b"):
        with pytest.raises(InvalidName):
            caller.request(address, b"")
        with pytest.raises(InvalidName):
            caller.serve(address, lambda message, context: None)


# -- pools -----------------------------------------------------------------------------------------------------


def test_round_robin_goes_one_two_three_one(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    crew = [worker("pool:crew") for _ in range(3)]
    assert pids(caller, "pool:crew", 7) == [crew[n].pid for n in (0, 1, 2, 0, 1, 2, 0)]


def test_another_caller_of_a_pool_begins_with_another_worker(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    crew = [worker("pool:crew") for _ in range(2)]
    assert pids(caller, "pool:crew", 2) == [crew[0].pid, crew[1].pid]
    with hub_of(broker) as other:
        assert pids(other, "pool:crew", 3) == [crew[1].pid, crew[0].pid, crew[1].pid]


def test_random_is_uniform(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    crew = [worker("pool:crew", strategy="random") for _ in range(3)]
    counts = Counter(pids(caller, "pool:crew", 3000))
    assert counts.keys() == {process.pid for process in crew}
    chi_squared = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_squared < 23.0, counts  # by chance once in 100,000 runs


def test_least_busy_avoids_who_has_something_to_do(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    worker("pool:crew", strategy="least_busy")
    worker("pool:crew", strategy="least_busy")
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(caller.request, "pool:crew", {"until": str(gate)}, timeout=SECONDS)
        eventually(lambda: metrics(caller)["sent"] == 1)
        others = set(pids(caller, "pool:crew", 20))
        gate.touch()
        assert len(others) == 1
        assert held.result(SECONDS)["pid"] not in others


def test_least_busy_learns_from_replies_what_others_ask_for(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    crew = [worker("pool:crew", strategy="least_busy", concurrency=8) for _ in range(2)]
    gate = tmp_path / "gate"
    with hub_of(broker) as other, ThreadPoolExecutor(4) as threads:
        busy = f"id:{crew[0].worker_id}"
        held = [threads.submit(other.request, busy, {"until": str(gate)}, timeout=SECONDS) for _ in range(4)]
        eventually(lambda: metrics(other)["sent"] == 4)
        asked = Counter(pids(caller, "pool:crew", 20))
        gate.touch()
        assert all(each.result(SECONDS) for each in held)
    assert asked[crew[0].pid] <= 1  # until its first reply tells
    assert asked[crew[1].pid] >= 19


def test_a_worker_that_joins_or_leaves_a_pool_is_noticed(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    first = worker("pool:crew")
    assert set(pids(caller, "pool:crew", 3)) == {first.pid}
    second = worker("pool:crew")
    eventually(lambda: set(pids(caller, "pool:crew", 2)) == {first.pid, second.pid})
    first.close()
    eventually(lambda: set(pids(caller, "pool:crew", 4)) == {second.pid})


def test_an_empty_pool_is_not_a_missing_pool(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    with pytest.raises(PoolNotFound):
        caller.request("pool:crew", {})
    only = worker("pool:crew")
    assert pids(caller, "pool:crew", 1) == [only.pid]
    only.close()
    with pytest.raises(PoolEmpty):
        caller.request("pool:crew", {})
    caller.remove_pool("pool:crew")
    with pytest.raises(PoolNotFound):
        caller.request("pool:crew", {})


# -- request and reply -----------------------------------------------------------------------------------------


def test_payloads_and_headers_arrive_as_what_they_were(broker: Served, caller: MessageHub) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    payloads = [
        b"",
        b"\x00\xff",
        {"a": [1, None, "ü"]},
        "text",
        None,
        3.5,
        batch,
        pa.table({"a": [1]}),
        b"x" * (2**20 - 100),
    ]
    seen: list[tuple[dict[str, Any], str, str, str]] = []

    def echo(message: ServiceMessage, context: ServiceContext) -> Any:
        seen.append((message.headers, message.address, message.priority, message.sender))
        return message.payload

    with hub_of(broker) as hub, hub.serve("service:echo", echo):
        for payload in payloads:
            assert caller.request("service:echo", payload, headers={"n": 1}, priority="high") == payload
        assert caller.request("service:echo", bytearray(b"ab")) == b"ab"
    assert seen[0] == ({"n": 1}, "service:echo", "high", services(caller)._sender)
    assert seen[-1][0] == {}


def test_what_cannot_be_sent_is_refused(broker: Served, caller: MessageHub) -> None:
    with pytest.raises(MessageTooLarge):
        caller.request("service:echo", b"x" * (2**20 + 1))
    with pytest.raises(InvalidRequest):
        caller.request("service:echo", object())
    with pytest.raises(InvalidRequest):
        caller.send("service:echo", b"", headers={"a": object()})
    with pytest.raises(ConfigurationError):
        caller.send("service:echo", b"", priority="urgent")  # type: ignore[arg-type]
    with hub_of(broker) as hub:
        for options in ({"mailbox": 0}, {"concurrency": 0}, {"overflow": "explode"}, {"overflow": {"urgent": "drop"}}):
            with pytest.raises(ConfigurationError):
                hub.serve("name:x", lambda message, context: None, **options)  # type: ignore[arg-type]


def test_an_instant_reply_is_never_lost(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    worker("service:echo", concurrency=4)

    def ask(start: int) -> bool:
        return all(caller.request("service:echo", n, timeout=SECONDS) == n for n in range(start, start + 500))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(0, 8000, 1000)))
    assert metrics(caller)["sent"] == 4000
    assert metrics(caller)["late_replies"] == metrics(caller)["timeouts"] == 0


def test_a_timeout_clears_what_was_pending_and_the_late_reply_is_counted(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, hub.serve("service:slow", gate, concurrency=2):
        started = time.monotonic()
        with pytest.raises(RequestTimeout):
            caller.request("service:slow", 1, timeout=0.2)
        assert 0.2 <= time.monotonic() - started < SOON
        (link,) = services(caller)._links._links.values()
        assert not link._pending
        assert metrics(caller)["timeouts"] == 1
        assert metrics(caller)["late_replies"] == 0
        gate.opened.set()
        eventually(lambda: metrics(caller)["late_replies"] == 1)
        assert caller.request("service:slow", 2, timeout=SECONDS) == 2
    assert metrics(caller)["late_replies"] == 1


def test_a_worker_killed_mid_request_is_heard_of_at_once(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    process = worker("service:resize")
    begun = tmp_path / "begun"
    caller.request("service:resize", {})
    with ThreadPoolExecutor(3) as threads:
        asked = [
            threads.submit(caller.request, "service:resize", {"touch": str(begun), "until": "never"}, timeout=60),
            threads.submit(caller.request, "service:resize", {"until": "never"}, timeout=60),
            threads.submit(list, caller.stream("service:resize", {"until": "never"}, timeout=60)),
        ]
        eventually(lambda: metrics(caller)["sent"] == 4)
        killed = time.monotonic()
        process.kill()
        for each in asked:
            with pytest.raises(NoResponse):
                each.result(SECONDS)
        assert time.monotonic() - killed < SOON
    with pytest.raises(ServiceNotFound):
        caller.request("service:resize", {})


def test_the_others_of_a_pool_take_over_from_a_killed_one(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    crew = [worker("pool:crew") for _ in range(3)]
    assert len(set(pids(caller, "pool:crew", 3))) == 3
    crew[1].kill()
    assert set(pids(caller, "pool:crew", 20)) == {crew[0].pid, crew[2].pid}
    assert metrics(caller)["retried"] == 0  # nothing had been sent to it: that is no retry


def test_an_idempotent_request_is_asked_of_another_when_its_worker_ends(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    crew = [worker("pool:crew") for _ in range(2)]
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(
            caller.request, "pool:crew", {"until": str(tmp_path / "go")}, timeout=60, retries=1, idempotent=True
        )
        eventually(lambda: metrics(caller)["sent"] == 1)
        crew[0].kill()
        (tmp_path / "go").touch()
        assert asked.result(SECONDS)["pid"] == crew[1].pid
    assert metrics(caller)["retried"] == 1


# -- handlers --------------------------------------------------------------------------------------------------


def test_a_handler_can_send_request_and_reply(broker: Served, caller: MessageHub) -> None:
    noted: list[Any] = []

    def front(message: ServiceMessage, context: ServiceContext) -> None:
        assert 0 < context.remaining_seconds <= SECONDS
        context.send("name:log", {"asked": message.payload})
        context.reply(context.request("service:double", message.payload) + 1)
        assert context.is_answered
        with pytest.raises(InvalidRequest):
            context.reply(0)

    with (
        hub_of(broker) as hub,
        hub.serve("service:front", front),
        hub.serve("service:double", lambda message, context: 2 * message.payload),
        hub.serve("name:log", lambda message, context: noted.append(message.payload)),
    ):
        assert caller.request("service:front", 20, timeout=SECONDS) == 41
        eventually(lambda: noted == [{"asked": 20}])


def test_a_deferred_reply_comes_from_another_thread(broker: Served, caller: MessageHub) -> None:
    def later(message: ServiceMessage, context: ServiceContext) -> None:
        context.defer()
        threading.Timer(0.05, context.reply, [message.payload]).start()

    with hub_of(broker) as hub, hub.serve("service:later", later):
        assert caller.request("service:later", 7, timeout=SECONDS) == 7


def test_a_handler_sees_the_callers_deadline(broker: Served, caller: MessageHub) -> None:
    with hub_of(broker) as hub, hub.serve("name:d", lambda message, context: context.deadline):
        before = time.monotonic()
        assert before + 7 <= caller.request("name:d", timeout=7) <= time.monotonic() + 7


def test_what_a_handler_raises_is_raised_at_the_callers(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    worker("service:odd")
    with pytest.raises(InvalidRequest, match="not like this") as refused:
        caller.request("service:odd", {"raise": "refusal"})
    assert refused.value.details == {"field": "raise"}
    for asked, name in (({"raise": "defect"}, "KeyError"), ({"exit": 1}, "SystemExit")):
        with pytest.raises(HandlerFailed) as failed:
            caller.request("service:odd", asked)
        assert failed.value.details["error"] == name
    assert caller.request("service:odd", 1) == 1


def test_a_reply_that_cannot_be_sent_is_the_handlers_failure(broker: Served, caller: MessageHub) -> None:
    results: list[Any] = [object(), b"x" * (2**20 + 1)]
    with hub_of(broker) as hub, hub.serve("name:bad", lambda message, context: results.pop()):
        for _ in range(2):
            with pytest.raises(HandlerFailed):
                caller.request("name:bad", timeout=SECONDS)


def test_up_to_concurrency_handlers_run_at_once(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, hub.serve("name:gate", gate, concurrency=3), ThreadPoolExecutor(5) as threads:
        asked = [threads.submit(caller.request, "name:gate", n, timeout=SECONDS) for n in range(5)]
        for _ in range(3):
            assert gate.entered.acquire(timeout=SECONDS)
        eventually(lambda: metrics(hub)["received"] == 5)
        assert not gate.entered.acquire(timeout=0.1)
        gate.opened.set()
        assert sorted(each.result(SECONDS) for each in asked) == list(range(5))


# -- streamed replies ------------------------------------------------------------------------------------------


def test_partial_results_come_in_order_then_the_reply(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    process = worker("service:stream", concurrency=4)
    with caller.stream("service:stream", {"stream": list(range(100))}, timeout=SECONDS) as streamed:
        assert list(streamed) == list(range(100))
        assert streamed.result["pid"] == process.pid
    assert list(caller.stream("service:stream", 5, timeout=SECONDS)) == []
    assert caller.request("service:stream", {"stream": [1, 2]}, timeout=SECONDS)["pid"] == process.pid
    assert services(caller)._streams.router.stats().active_requests == 0


def test_streams_at_once_are_never_mixed(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    worker("service:stream", concurrency=8)

    def read(name: int) -> bool:
        items = [[name, n] for n in range(200)]
        return list(caller.stream("service:stream", {"stream": items}, timeout=SECONDS)) == items

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(16)))
    stats = services(caller)._streams.router.stats()
    assert (stats.active_requests, stats.orphans, stats.dropped, stats.routed) == (0, 0, 0, 16 * 201)


def test_partial_results_are_there_before_the_reply(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    worker("service:stream")
    gate = tmp_path / "gate"
    streamed = caller.stream("service:stream", {"stream": ["first"], "until": str(gate)}, timeout=SECONDS)
    assert next(streamed) == "first"
    gate.touch()
    assert list(streamed) == []


def test_a_stream_ends_at_its_deadline_or_with_what_the_handler_raises(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    worker("service:stream")
    failing = caller.stream("service:stream", {"stream": [1], "raise": "refusal"}, timeout=SECONDS)
    assert next(failing) == 1
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            next(failing)
    gate = tmp_path / "gate"
    streamed = caller.stream("service:stream", {"stream": [1], "until": str(gate)}, timeout=0.3)
    assert next(streamed) == 1
    with pytest.raises(RequestTimeout):
        next(streamed)
    gate.touch()
    eventually(lambda: metrics(caller)["late_replies"] == 1)
    assert services(caller)._streams.router.stats().active_requests == 0


# -- delivery, retries, dead letters ---------------------------------------------------------------------------


def test_send_returns_when_the_mailbox_has_it_and_keeps_order(
    worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    worker("name:log", mailbox=1000)
    for number in range(200):
        caller.send("name:log", {"touch": str(tmp_path / "log"), "mark": number}, timeout=SECONDS)
    caller.request("name:log", {}, timeout=SECONDS)
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(200)]


def test_what_is_not_there_yet_is_tried_again_with_growing_pauses_until_it_is(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(caller.request, "service:late", {}, timeout=60, retries=1000)
        eventually(lambda: metrics(caller)["retried"] >= 3)
        process = worker("service:late")
        assert asked.result(SECONDS)["pid"] == process.pid
    assert caller.dead_letters().letters == []


def test_after_n_retries_the_error_is_raised_and_the_message_is_kept(caller: MessageHub) -> None:
    started = time.monotonic()
    with pytest.raises(ServiceNotFound):
        caller.send("service:gone", {"n": 1}, headers={"trace": "t"}, retries=3, timeout=SECONDS)
    assert time.monotonic() - started >= (0.02 + 0.04 + 0.08) / 2  # the pauses, at their shortest
    assert metrics(caller)["retried"] == 3
    (letter,) = eventually(lambda: caller.dead_letters().letters)
    assert (letter.address, letter.code, letter.form, letter.attempts) == (
        *("service:gone", "SERVICE_NOT_FOUND", "send"),
        4,
    )
    assert (letter.headers, letter.payload_kind, letter.payload_base64) == ({"trace": "t"}, "json", "eyJuIjoxfQ==")
    assert letter.sender == services(caller)._sender
    assert caller.dead_letters("service:other").letters == []


def test_retries_end_at_the_timeout(caller: MessageHub) -> None:
    started = time.monotonic()
    with pytest.raises(ServiceNotFound):
        caller.request("service:gone", b"", retries=1000, timeout=0.5)
    assert time.monotonic() - started < 0.5 + SOON


def test_a_large_dead_letter_is_kept_without_its_payload(caller: MessageHub) -> None:
    with pytest.raises(NameNotFound):
        caller.send("name:gone", b"x" * 100_000)
    (letter,) = eventually(lambda: caller.dead_letters().letters)
    assert (letter.payload_base64, letter.payload_bytes) == (None, 100_000)


# -- mailboxes -------------------------------------------------------------------------------------------------


def fill(hub: MessageHub, caller: MessageHub, address: str, gate: Gate, size: int) -> None:
    """One in the handler, `size` in the mailbox."""
    caller.send(address, "running", timeout=SECONDS)
    assert gate.entered.acquire(timeout=SECONDS)
    for number in range(size):
        caller.send(address, number, priority="high", timeout=SECONDS)


def test_a_full_mailbox_refuses_when_error_is_asked_for(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, hub.serve("name:full", gate, mailbox=2, overflow="error"):
        fill(hub, caller, "name:full", gate, 2)
        for ask in (caller.request, caller.send):
            with pytest.raises(MailboxFull):
                ask("name:full", "more", timeout=SECONDS)
        assert metrics(hub)["refused"] == 2
        gate.opened.set()
        assert caller.request("name:full", "more", retries=50, timeout=SECONDS) == "more"
    assert gate.seen == ["running", 0, 1, "more"]


def test_a_full_mailbox_drops_when_drop_is_asked_for(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, hub.serve("name:full", gate, mailbox=2, overflow="drop"):
        fill(hub, caller, "name:full", gate, 2)
        caller.send("name:full", "lost", timeout=SECONDS)
        with pytest.raises(NoResponse, match="dropped"):
            caller.request("name:full", "asked", timeout=SECONDS)
        assert metrics(hub)["dropped"] == 2
        (letter,) = eventually(lambda: caller.dead_letters().letters)
        assert (letter.payload_base64, letter.sender) == ("Imxvc3Qi", services(caller)._sender)
        gate.opened.set()
    assert gate.seen == ["running", 0, 1]


def test_a_full_mailbox_has_senders_wait_when_block_is_asked_for(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with (
        hub_of(broker) as hub,
        hub_of(broker) as impatient,
        hub.serve("name:full", gate, mailbox=2, overflow="block"),
        ThreadPoolExecutor(1) as threads,
    ):
        fill(hub, caller, "name:full", gate, 2)
        with pytest.raises(SendTimeout):
            impatient.send("name:full", "too late", timeout=0.2)
        waiting = threads.submit(caller.request, "name:full", "patient", timeout=SECONDS)
        eventually(lambda: metrics(caller)["sent"] == 4)
        assert metrics(hub)["received"] == 3
        gate.opened.set()
        assert waiting.result(SECONDS) == "patient"
        eventually(lambda: metrics(hub)["expired"] == 1)
    assert gate.seen == ["running", 0, 1, "patient"]
    assert metrics(hub)["received"] == 5


def test_by_default_high_waits_normal_is_refused_low_is_dropped_and_high_goes_first(
    broker: Served, caller: MessageHub
) -> None:
    gate = Gate()
    with (
        hub_of(broker) as hub,
        hub_of(broker) as other,
        hub.serve("name:full", gate, mailbox=3),
        ThreadPoolExecutor(1) as threads,
    ):
        caller.send("name:full", "running", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        for priority in ("low", "normal", "high"):
            caller.send("name:full", priority, priority=priority, timeout=SECONDS)  # type: ignore[arg-type]
        caller.send("name:full", "dropped", priority="low", timeout=SECONDS)
        with pytest.raises(MailboxFull):
            caller.send("name:full", "refused", priority="normal", timeout=SECONDS)
        waiting = threads.submit(other.send, "name:full", "waited", priority="high", timeout=SECONDS)
        eventually(lambda: metrics(other)["sent"] == 1)
        assert not waiting.done()
        gate.opened.set()
        waiting.result(SECONDS)
    assert gate.seen[:2] == ["running", "high"]
    assert sorted(gate.seen) == sorted(["running", "high", "normal", "low", "waited"])
    assert gate.seen.index("waited") < gate.seen.index("low")
    counted = metrics(hub)
    assert (counted["received"], counted["handled"], counted["dropped"], counted["refused"]) == (7, 5, 1, 1)


def test_a_policy_can_be_given_for_one_priority(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, hub.serve("name:full", gate, mailbox=1, overflow={"normal": "drop"}):
        fill(hub, caller, "name:full", gate, 1)
        caller.send("name:full", "lost", timeout=SECONDS)
        assert metrics(hub)["dropped"] == 1
        gate.opened.set()


# -- the registry ----------------------------------------------------------------------------------------------


def test_of_many_who_register_one_name_at_once_one_wins(broker: Served) -> None:
    hubs = [MessageHub(endpoint=broker.endpoint) for _ in range(8)]
    start = threading.Barrier(8)

    def register(hub: MessageHub) -> str:
        start.wait(SECONDS)
        try:
            return hub.serve("name:one", lambda message, context: None).worker_id
        except DuplicateRegistration:
            return ""

    try:
        with ThreadPoolExecutor(8) as threads:
            won = [worker_id for worker_id in threads.map(register, hubs) if worker_id]
        assert len(won) == 1
        (listed,) = hubs[0].services("name:")
        assert [each.worker_id for each in listed.workers] == won
    finally:
        for hub in hubs:
            hub.close()


def test_a_name_is_free_as_soon_as_its_process_was_killed(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    first = worker("name:one")
    with pytest.raises(DuplicateRegistration) as caught:
        caller.serve("name:one", lambda message, context: None)
    assert caught.value.details["pid"] == first.pid
    first.kill()
    with caller.serve("name:one", lambda message, context: "second"), hub_of(broker) as other:
        assert other.request("name:one") == "second"


def test_unregistering_an_unknown_is_an_error(caller: MessageHub) -> None:
    with pytest.raises(NotRegistered):
        caller.ask(commands.UnregisterWorker(worker_id="nobody", lease=caller.lease))


def test_a_refused_registration_leaves_nothing_behind(broker: Served, caller: MessageHub) -> None:
    with hub_of(broker) as hub, hub.serve("name:one", lambda message, context: 1):
        with pytest.raises(DuplicateRegistration):
            caller.serve("name:one", lambda message, context: 2)
        assert [s.address for s in caller.services()] == ["name:one"]
        assert caller.request("name:one") == 1


# -- the eleven conditions (not found, both timeouts, duplicates and pools are above) --------------------------


def test_a_closed_mailbox_says_so(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, ThreadPoolExecutor(2) as threads:
        ending = hub.serve("name:ending", gate)
        caller.send("name:ending", "running", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        queued = threads.submit(caller.request, "name:ending", "queued", timeout=SECONDS)
        eventually(lambda: metrics(hub)["received"] == 2)
        closing = threads.submit(ending.close, timeout=0.3)
        eventually(lambda: ending.mailbox.is_closed)
        (entry,) = [e for e in services(caller).directory._entries.values() if e.address == "name:ending"]
        link = services(caller)._links._links[entry.routes[0].worker.endpoint] if entry.routes else None
        assert link is None or not link.is_lost
        with pytest.raises((MailboxClosed, NameNotFound)):
            caller.request("name:ending", "more", timeout=SECONDS)
        with pytest.raises(MailboxClosed):
            queued.result(SECONDS)
        closing.result(SECONDS)
        ending.close()  # again
        gate.opened.set()


def test_closing_handles_what_was_taken(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, ThreadPoolExecutor(1) as threads:
        ending = hub.serve("name:ending", gate)
        for number in range(4):
            caller.send("name:ending", number, timeout=SECONDS)
        closing = threads.submit(ending.close)
        eventually(lambda: ending.mailbox.is_closed)
        gate.opened.set()
        closing.result(SECONDS)
    assert gate.seen == [0, 1, 2, 3]


def test_a_stopped_worker_gives_a_send_timeout_when_it_takes_nothing_more(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:stopped")
    caller.request("service:stopped", {})
    process.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(caller.request, "service:stopped", b"x" * 2**19, timeout=1.0)
        eventually(lambda: metrics(caller)["sent"] >= 1)
        with pytest.raises(SendTimeout):
            caller.request("service:stopped", b"y" * 2**19, timeout=0.5)
        with pytest.raises((SendTimeout, RequestTimeout)):
            first.result(SECONDS)
    process.signal(signal.SIGCONT)
    assert caller.request("service:stopped", b"again", timeout=SECONDS) == b"again"


def test_a_stopped_worker_that_was_never_reached_gives_a_send_timeout(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:stopped")
    process.signal(signal.SIGSTOP)
    with pytest.raises(SendTimeout):
        caller.request("service:stopped", {}, timeout=0.3)


def test_a_worker_that_cannot_be_reached_is_a_route_error(broker: Served, caller: MessageHub) -> None:
    with Peer(broker.endpoint) as peer:
        for name, endpoint in (("one", "unix:@messagehub-nobody"), ("two", "tcp://elsewhere:1")):
            registered = peer.ask(
                {
                    "type": "SERVICE_REGISTER",
                    "address": f"name:{name}",
                    "worker_id": name,
                    "endpoint": endpoint,
                    "key": "k",
                    "lease": "L",
                }
            )
            assert registered["type"] == "SERVICE_REGISTER_ACK"
            with pytest.raises(RouteError):
                caller.request(f"name:{name}", timeout=SECONDS)


def test_a_stranger_in_the_place_of_a_worker_is_a_route_error_and_a_wrong_key_gets_nothing(
    broker: Served, caller: MessageHub
) -> None:
    handled: list[Any] = []
    with hub_of(broker) as hub, hub.serve("name:one", lambda message, context: handled.append(1)):
        resolved = caller.ask(commands.ResolveService(address="name:one"))
        assert isinstance(resolved, replies.ServiceResolved)
        (real,) = resolved.service.workers
        with Peer(broker.endpoint) as peer:
            forged = {"address": "name:two", "worker_id": "two", "endpoint": real.endpoint, "key": "wrong"}
            peer.ask({"type": "SERVICE_REGISTER", "lease": "L", **forged})
        with pytest.raises(RouteError):
            caller.request("name:two", timeout=SECONDS)
        assert handled == []
        assert metrics(hub)["malformed"] == 1


def test_a_full_registry_is_a_registry_error(broker: Served, caller: MessageHub) -> None:
    with Peer(broker.endpoint, kind=5) as dealer:  # DEALER, many requests in flight
        most = MOST_ADDRESSES // 2
        for number in range(most):
            said = {"address": f"name:n{number}", "worker_id": f"w{number}", "endpoint": "unix:@x", "key": "k"}
            dealer.send({"type": "SERVICE_REGISTER", "lease": "L", **said})
        for _ in range(most):
            assert dealer.receive()["type"] == "SERVICE_REGISTER_ACK"
        with pytest.raises(RegistryError):
            caller.serve("name:more", lambda message, context: None)


def test_a_closed_hub_is_not_initialised(broker: Served) -> None:
    hub = MessageHub(endpoint=broker.endpoint)
    hub.close()
    for ask in (hub.request, hub.send, hub.stream):
        with pytest.raises(NotInitialised):
            ask("name:x", b"")
    with pytest.raises(NotInitialised):
        hub.serve("name:x", lambda message, context: None)


def test_without_a_broker_services_say_so_at_once(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub:
        started = time.monotonic()
        for ask in (hub.request, hub.send, hub.stream):
            with pytest.raises(BrokerRequired):
                ask("name:x", b"", timeout=SECONDS)
        with pytest.raises(BrokerRequired):
            hub.serve("name:x", lambda message, context: None, timeout=SECONDS)
        assert time.monotonic() - started < SOON


# -- metrics ---------------------------------------------------------------------------------------------------


def test_metrics_are_exact_under_many_threads(broker: Served, caller: MessageHub) -> None:
    handled = threading.Semaphore(0)

    def count(message: ServiceMessage, context: ServiceContext) -> None:
        handled.release()

    with hub_of(broker) as hub, hub.serve("name:count", count, concurrency=4, mailbox=10, overflow="error"):

        def ask(_: int) -> int:
            refused = 0
            for number in range(200):
                try:
                    (caller.send if number % 2 else caller.request)("name:count", number, timeout=SECONDS)
                except MailboxFull:
                    refused += 1
            return refused

        with ThreadPoolExecutor(16) as threads:
            refused = sum(threads.map(ask, range(16)))
        for _ in range(3200 - refused):
            assert handled.acquire(timeout=SECONDS)
    sent, received = metrics(caller), metrics(hub)
    assert sent["sent"] == received["received"] == 3200
    assert (received["handled"], received["refused"], received["dropped"]) == (3200 - refused, refused, 0)
    assert sent["dead_letters"] == refused
    assert (sent["retried"], sent["timeouts"], sent["late_replies"]) == (0, 0, 0)


# -- broker restarts, forks, ends ------------------------------------------------------------------------------


def test_under_load_a_killed_broker_costs_no_request_and_services_come_back_by_themselves(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    crew = [worker("pool:crew") for _ in range(2)]
    worker("service:echo")
    stop = threading.Event()

    def load() -> int:
        count = 0
        while not stop.is_set():
            assert caller.request("service:echo", count, timeout=SECONDS) == count
            assert caller.request("pool:crew", {}, timeout=SECONDS)["pid"] in {process.pid for process in crew}
            count += 1
        return count

    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(load) for _ in range(2)]
        eventually(lambda: metrics(caller)["sent"] > 100)
        broker.kill()
        before = metrics(caller)["sent"]
        eventually(lambda: metrics(caller)["sent"] > before + 100)  # nobody needs the broker to go on
        broker.start()
        with hub_of(broker) as fresh:  # knows nothing of before
            addresses = {"pool:crew", "service:echo"}
            eventually(lambda: {s.address for s in fresh.services() if s.workers} == addresses)
            assert fresh.request("service:echo", "again", timeout=SECONDS) == "again"
            eventually(lambda: set(pids(fresh, "pool:crew", 4)) == {process.pid for process in crew})
        stop.set()
        assert all(each.result(SECONDS) > 0 for each in loads)
    third = worker("pool:crew")  # and the caller hears from the new broker
    eventually(lambda: third.pid in pids(caller, "pool:crew", 3))


def test_a_worker_that_dies_while_no_broker_runs_is_noticed_by_its_callers(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:echo")
    assert caller.request("service:echo", 1) == 1
    broker.kill()
    process.kill()
    with pytest.raises(BrokerRequired):
        caller.request("service:echo", 2, timeout=SECONDS)
    broker.start()
    eventually(caller.connect)
    with pytest.raises(ServiceNotFound):
        caller.request("service:echo", 3, timeout=SECONDS)


def test_dead_letters_wait_for_a_broker(broker: Served, caller: MessageHub) -> None:
    caller.connect()
    broker.kill()
    with pytest.raises(BrokerRequired):
        caller.send("name:gone", b"kept", timeout=SECONDS)
    broker.start()
    (letter,) = eventually(lambda: caller.connect() and caller.dead_letters().letters)
    assert (letter.code, letter.payload_base64) == ("BROKER_REQUIRED", "a2VwdA==")


def test_a_forked_child_has_services_of_its_own(broker: Served, caller: MessageHub) -> None:
    with hub_of(broker) as hub, hub.serve("name:parent", lambda message, context: os.getpid()) as parent:
        assert caller.request("name:parent") == os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                parent.close()  # closed already: it is the parent's
                answered = caller.request("name:parent", timeout=SECONDS)
                with caller.serve("name:child", lambda message, context: os.getpid()):
                    asked = hub.request("name:child", timeout=SECONDS)
                code = 0 if (answered, asked) == (os.getppid(), os.getpid()) else 2
                hub.close()
                caller.close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert caller.request("name:parent", timeout=SECONDS) == os.getpid()


def test_closing_a_hub_ends_what_it_asked_and_serves(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with hub_of(broker) as hub, ThreadPoolExecutor(1) as threads:
        hub.serve("name:gate", gate)
        asked = threads.submit(caller.request, "name:gate", 1, timeout=60)
        assert gate.entered.acquire(timeout=SECONDS)
        caller.close()
        with pytest.raises(NoResponse):
            asked.result(SECONDS)
        gate.opened.set()
    hub.close()


def test_a_thousand_requests_use_one_connection(broker: Served, caller: MessageHub) -> None:
    with hub_of(broker) as hub, hub.serve("name:a", lambda m, c: 1), hub.serve("name:b", lambda m, c: 2):
        for _ in range(500):
            assert (caller.request("name:a"), caller.request("name:b")) == (1, 2)
        assert len(services(caller)._links._links) == 1
        server = services(hub)._server
        assert server is not None
        assert len(server._callers) == 1


def test_threads_of_a_closed_service_end(broker: Served) -> None:
    with hub_of(broker) as hub:
        kept = hub.serve("name:kept", lambda message, context: 1)
        before = threading.active_count()
        for _ in range(5):
            hub.serve("name:passing", lambda message, context: 1, concurrency=8).close()
        eventually(lambda: threading.active_count() == before)
        assert kept.is_registered


def test_strangers_on_the_socket_harm_nobody(broker: Served, caller: MessageHub) -> None:
    import socket

    with hub_of(broker) as hub, hub.serve("name:one", lambda message, context: message.payload):
        server = services(hub)._server
        assert server is not None
        for said in (b"", b"\x00" * 100, b"\xff" * 100, os.urandom(5000), b"GET / HTTP/1.1\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect("\0" + server.endpoint.removeprefix("unix:@"))
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(SECONDS)
                try:
                    assert stranger.recv(100) == b""
                except ConnectionResetError:
                    pass  # it hung up on what it had not read
        assert caller.request("name:one", 1, timeout=SECONDS) == 1
        assert metrics(hub)["malformed"] >= 3
