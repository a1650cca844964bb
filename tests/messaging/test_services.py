"""Request and reply between real processes, over real sockets: section C of the features."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import (
    ConfigurationError,
    HandlerFailed,
    HubError,
    IdNotFound,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NameNotFound,
    NoResponse,
    PoolEmpty,
    PoolNotFound,
    RequestTimeout,
    RouteError,
    ServiceNotFound,
)
from messagehub.services.context import ServiceContext, ServiceMessage
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import (
    SECONDS,
    SOON,
    Gate,
    WorkerProcess,
    connection_of,
    has_nothing_open,
    metrics,
    patient_hub,
    pids,
)

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
    with patient_hub(broker) as other:
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


def busy(caller: MessageHub, process: WorkerProcess) -> int:
    """How many messages a worker of the pool handles, as of its last heartbeat."""
    workers = [worker for pool in caller.services("pool:crew") for worker in pool.workers]
    return sum(each.mailbox.busy for each in workers if each.worker_id == process.worker_id and each.mailbox)


def test_least_busy_learns_from_replies_what_others_ask_for(
    broker: Served, worker: Callable[..., WorkerProcess], caller: MessageHub, tmp_path: Path
) -> None:
    crew = [worker("pool:crew", strategy="least_busy", concurrency=8) for _ in range(2)]
    gate = tmp_path / "gate"
    with patient_hub(broker) as other, ThreadPoolExecutor(4) as threads:
        first = f"id:{crew[0].worker_id}"
        held = [threads.submit(other.request, first, {"until": str(gate)}, timeout=SECONDS) for _ in range(4)]
        eventually(lambda: busy(caller, crew[0]) == 4)
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

    with patient_hub(broker) as hub, hub.serve("service:echo", echo):
        for payload in payloads:
            assert caller.request("service:echo", payload, headers={"n": 1}, priority="high") == payload
        assert caller.request("service:echo", bytearray(b"ab"), timeout=float("inf")) == b"ab"
    with pytest.raises(NameNotFound):
        caller.send("name:nobody")
    (letter,) = eventually(lambda: caller.dead_letters().letters)
    assert seen[0] == ({"n": 1}, "service:echo", "high", letter.sender)
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
    for seconds in (-1, float("nan")):
        with pytest.raises(ConfigurationError):
            caller.request("service:echo", b"", timeout=seconds)
    with patient_hub(broker) as hub:
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
    with patient_hub(broker) as hub, hub.serve("service:slow", gate, concurrency=2):
        started = time.monotonic()
        with pytest.raises(RequestTimeout):
            caller.request("service:slow", 1, timeout=4.0)
        assert 4.0 <= time.monotonic() - started < 4.0 + SOON
        assert connection_of(caller).is_idle
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
    eventually(is_unknown, caller, "service:resize")


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


def is_unknown(caller: MessageHub, address: str) -> bool:
    """Whether nobody serves the address. Until the broker has seen the end of the last worker, it is out of reach."""
    try:
        caller.begin_request(address, 1, timeout=SECONDS)
    except ServiceNotFound:
        return True
    except RouteError:
        return False
    raise AssertionError("somebody took it")


def test_many_requests_are_on_their_way_from_one_thread(
    worker: Callable[..., WorkerProcess], caller: MessageHub
) -> None:
    process = worker("service:echo", concurrency=4, mailbox=200)
    pending = [caller.begin_request("service:echo", n, timeout=SECONDS) for n in range(200)]
    assert [each.result() for each in reversed(pending)] == list(reversed(range(200)))
    assert pending[0].result() == 0  # again, the same
    failing = caller.begin_request("service:echo", {"raise": "refusal"}, timeout=SECONDS)
    late = caller.begin_request("service:echo", {"until": "never"}, timeout=4.0)
    lost = caller.begin_request("service:echo", {"until": "never"}, timeout=60)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            failing.result()
        with pytest.raises(RequestTimeout):
            late.result()
    process.kill()
    with pytest.raises(NoResponse):
        lost.result()
    eventually(is_unknown, caller, "service:echo")
    assert metrics(caller)["sent"] == 203


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
        patient_hub(broker) as hub,
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

    with patient_hub(broker) as hub, hub.serve("service:later", later):
        assert caller.request("service:later", 7, timeout=SECONDS) == 7


def test_a_handler_sees_the_callers_deadline(broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, hub.serve("name:d", lambda message, context: context.deadline):
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
    with patient_hub(broker) as hub, hub.serve("name:bad", lambda message, context: results.pop()):
        for _ in range(2):
            with pytest.raises(HandlerFailed):
                caller.request("name:bad", timeout=SECONDS)


def test_up_to_concurrency_handlers_run_at_once(broker: Served, caller: MessageHub) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("name:gate", gate, concurrency=3), ThreadPoolExecutor(5) as threads:
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
    assert has_nothing_open(caller)


def test_streams_at_once_are_never_mixed(worker: Callable[..., WorkerProcess], caller: MessageHub) -> None:
    worker("service:stream", concurrency=8)

    def read(name: int) -> bool:
        items = [[name, n] for n in range(200)]
        return list(caller.stream("service:stream", {"stream": items}, timeout=SECONDS)) == items

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(16)))
    assert has_nothing_open(caller)


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
    streamed = caller.stream("service:stream", {"stream": [1], "until": str(gate)}, timeout=4.0)
    assert next(streamed) == 1
    with pytest.raises(RequestTimeout):
        next(streamed)
    gate.touch()
    eventually(lambda: metrics(caller)["late_replies"] == 1)
    assert has_nothing_open(caller)
