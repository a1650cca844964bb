"""Services when brokers and workers are killed, processes fork and strangers call."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from messagehub import MessageHub
from messagehub.errors import (
    BrokerRequired,
    NoResponse,
    ServiceNotFound,
)
from tests import preloaded
from tests.integration.harness import ROOT, Served, clean_environment, eventually
from tests.messaging.service_harness import (
    SECONDS,
    Gate,
    WorkerProcess,
    connections,
    metrics,
    patient_hub,
    pids,
    stranger_to,
    worker_of,
)

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
        with patient_hub(broker) as fresh:  # knows nothing of before
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
    with patient_hub(broker) as hub, hub.serve("name:parent", lambda message, context: os.getpid()) as parent:
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
    with patient_hub(broker) as hub, ThreadPoolExecutor(1) as threads:
        hub.serve("name:gate", gate)
        asked = threads.submit(caller.request, "name:gate", 1, timeout=60)
        assert gate.entered.acquire(timeout=SECONDS)
        caller.close()
        with pytest.raises(NoResponse):
            asked.result(SECONDS)
        gate.opened.set()
    hub.close()


def test_a_thousand_requests_use_one_connection_for_each_worker(broker: Served, caller: MessageHub) -> None:
    with patient_hub(broker) as hub, hub.serve("name:a", lambda m, c: 1), hub.serve("name:b", lambda m, c: 2):
        for _ in range(500):
            assert (caller.request("name:a"), caller.request("name:b")) == (1, 2)
        assert connections(worker_of(hub, "name:a")) == 2  # one for each worker of the process


def test_threads_of_a_closed_service_end(broker: Served) -> None:
    with patient_hub(broker) as hub:
        kept = hub.serve("name:kept", lambda message, context: 1)
        before = threading.active_count()
        for _ in range(5):
            hub.serve("name:passing", lambda message, context: 1, concurrency=8).close()
        eventually(lambda: threading.active_count() <= before)
        assert kept.is_registered


def test_strangers_on_the_socket_harm_nobody(broker: Served, caller: MessageHub) -> None:
    import socket

    with patient_hub(broker) as hub, hub.serve("name:one", lambda message, context: message.payload):
        worker = worker_of(hub, "name:one")
        for said in (b"", b"\x00" * 100, b"\xff" * 100, os.urandom(5000), b"GET / HTTP/1.1\r\n\r\n"):
            with stranger_to(worker) as stranger:
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(SECONDS)
                try:
                    assert stranger.recv(100) == b""
                except ConnectionResetError:
                    pass  # it hung up on what it had not read
        assert caller.request("name:one", 1, timeout=SECONDS) == 1
        eventually(lambda: metrics(hub)["malformed"] >= 3)


def test_a_caller_that_does_not_read_holds_up_nobody(broker: Served, caller: MessageHub) -> None:
    large = b"x" * 2**19
    with (
        patient_hub(broker) as hub,
        patient_hub(broker) as patient,
        hub.serve("name:large", lambda message, context: message.payload, mailbox=1000),
    ):
        pending = [caller.begin_request("name:large", large, timeout=60) for _ in range(20)]  # and reads nothing
        started = time.monotonic()
        for number in range(50):
            assert patient.request("name:large", number, timeout=SECONDS) == number
        assert time.monotonic() - started < SECONDS
        assert all(each.result() == large for each in pending)


def test_a_stopped_caller_holds_up_nobody(broker: Served, caller: MessageHub) -> None:
    flood = """
import os, signal, sys
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5)
pending = [hub.begin_request("name:echo", b"x" * 10_000, timeout=60) for _ in range(100)]
os.kill(os.getpid(), signal.SIGSTOP)
"""
    with patient_hub(broker) as hub, hub.serve("name:echo", lambda message, context: message.payload, mailbox=1000):
        process = preloaded.Popen([sys.executable, "-c", flood, broker.endpoint], env=clean_environment(), cwd=ROOT)
        try:
            eventually(lambda: metrics(hub)["handled"] == 100)
            for number in range(100):
                assert caller.request("name:echo", number, timeout=SECONDS) == number
        finally:
            process.kill()
            process.wait()
        worker = worker_of(hub, "name:echo")
        eventually(lambda: connections(worker) == 1)
