"""A worker that is told to end handles what it has in hand, and closing works from inside a handler."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import AddressNotFound, ConfigurationError, MailboxClosed
from messagehub.services.context import ServiceContext, ServiceMessage
from tests import preloaded
from tests.integration.harness import ROOT, Served, clean_environment, eventually
from tests.messaging.service_harness import SECONDS, patient_hub

Start = Callable[..., "subprocess.Popen[str]"]


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


def held_by_worker(caller: MessageHub) -> int:
    """How many messages its only worker has taken and not answered, as of its last heartbeat."""
    ((worker,),) = (service.workers for service in caller.services("service:work"))
    return 0 if worker.mailbox is None else worker.mailbox.queued + worker.mailbox.busy


@pytest.fixture
def start(broker: Served) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*options: str) -> "subprocess.Popen[str]":
        process = preloaded.Popen(
            [sys.executable, "-W", "error", "-m", "tests.messaging.draining_process", broker.endpoint, *options],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            cwd=ROOT,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        eventually(lambda: catches(process.pid, signal.SIGTERM))  # it waits for a signal from here on
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("way", ["served", "hub"])
@pytest.mark.parametrize("is_async", ["async", "plain"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_has_a_worker_finish_what_it_has_taken(
    number: int, is_async: str, way: str, start: Start, caller: MessageHub, tmp_path: Path
) -> None:
    process = start(way, is_async, "60")
    jobs = [
        {"name": name, "begun": str(tmp_path / f"begun-{name}"), "until": str(tmp_path / "go")} for name in ("a", "b")
    ]
    pending = [caller.begin_request("service:work", job, timeout=60) for job in jobs]
    eventually((tmp_path / "begun-a").exists)
    eventually(lambda: held_by_worker(caller) == 2)  # in hand, and in the mailbox
    process.send_signal(number)
    eventually(lambda: not caller.services("service:work"))  # nobody is sent there any more
    assert process.poll() is None
    (tmp_path / "go").touch()
    assert [each.result() for each in pending] == ["a", "b"]
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"
    assert process.wait(SECONDS) == 0


def test_a_worker_waits_no_longer_than_it_was_told(start: Start, caller: MessageHub, tmp_path: Path) -> None:
    process = start("served", "async", "0.1")
    job = {"name": "a", "begun": str(tmp_path / "begun"), "until": str(tmp_path / "never")}
    caller.begin_request("service:work", job, timeout=60)
    eventually((tmp_path / "begun").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


@pytest.mark.parametrize("is_async", ["async", "plain"])
def test_a_signal_after_a_while_ends_a_worker_at_once(
    is_async: str, start: Start, caller: MessageHub, tmp_path: Path
) -> None:
    process = start("served", is_async, "60")
    job = {"name": "a", "begun": str(tmp_path / "begun"), "until": str(tmp_path / "never")}
    caller.begin_request("service:work", job, timeout=60)
    eventually((tmp_path / "begun").exists)
    process.send_signal(signal.SIGTERM)
    eventually(lambda: not caller.services("service:work"))

    def is_impatient() -> bool:
        process.send_signal(signal.SIGTERM)
        return process.poll() is not None

    eventually(is_impatient)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("way", ["served", "hub"])
@pytest.mark.parametrize("is_async", ["async", "plain"])
def test_two_signals_at_once_are_one(is_async: str, way: str, start: Start, caller: MessageHub, tmp_path: Path) -> None:
    """`timeout` of coreutils signals the process, and then the group that it is in."""
    process = start(way, is_async, "60")
    job = {"name": "a", "begun": str(tmp_path / "begun"), "until": str(tmp_path / "go")}
    pending = caller.begin_request("service:work", job, timeout=60)
    eventually((tmp_path / "begun").exists)
    process.send_signal(signal.SIGSTOP)  # so that it hears of both in the same moment, by any of its threads
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    eventually(lambda: not caller.services("service:work"))
    (tmp_path / "go").touch()
    assert pending.result() == "a"
    assert process.wait(SECONDS) == 0


def test_only_the_main_thread_can_wait_for_signals(caller: MessageHub) -> None:
    refused: list[BaseException] = []

    def run() -> None:
        try:
            caller.run_forever()
        except ConfigurationError as error:
            refused.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(SECONDS)
    assert len(refused) == 1


def test_the_handlers_of_signals_are_the_earlier_ones_afterwards(broker: Served) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with patient_hub(broker) as hub:
        hub.serve("service:one", lambda message, context: 1, timeout=SECONDS)

        def end() -> None:
            eventually(lambda: signal.getsignal(signal.SIGTERM) != before[0])
            os.kill(os.getpid(), signal.SIGTERM)

        ending = threading.Thread(target=end)
        ending.start()
        hub.run_forever()
        ending.join()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# -- closing from inside ---------------------------------------------------------------------------------------


def test_a_handler_that_closes_its_own_service_does_not_wait_for_itself(broker: Served, caller: MessageHub) -> None:
    def end(message: ServiceMessage, context: ServiceContext) -> str:
        served[0].close(timeout=600)
        return "closed"

    with patient_hub(broker) as hub:
        served = [hub.serve("service:end", end, timeout=SECONDS)]
        assert caller.request("service:end", timeout=SECONDS) == "closed"  # and not a timeout
        with pytest.raises((AddressNotFound, MailboxClosed)):
            caller.request("service:end", timeout=SECONDS)


def test_an_asynchronous_handler_can_close_its_own_service(broker: Served, caller: MessageHub) -> None:
    async def end(message: ServiceMessage, context: ServiceContext) -> str:
        await served[0].close_async(timeout=600)
        return "closed"

    with patient_hub(broker) as hub:
        served = [hub.serve("service:end", end, timeout=SECONDS)]
        assert caller.request("service:end", timeout=SECONDS) == "closed"


def test_a_handler_that_closes_waits_for_the_others(broker: Served, caller: MessageHub) -> None:
    opened, entered = threading.Event(), threading.Event()
    order: list[str] = []

    def handle(message: ServiceMessage, context: ServiceContext) -> None:
        if message.payload == "end":
            served[0].close(timeout=600)
            order.append("closed")
            return
        entered.set()
        assert opened.wait(SECONDS)
        order.append("handled")

    with patient_hub(broker) as hub:
        served = [hub.serve("service:end", handle, concurrency=2, timeout=SECONDS)]
        other = caller.begin_request("service:end", "other", timeout=SECONDS)
        assert entered.wait(SECONDS)
        ending = caller.begin_request("service:end", "end", timeout=SECONDS)
        eventually(lambda: not caller.services("service:end"))
        opened.set()
        assert [other.result(), ending.result()] == [None, None]
    assert order == ["handled", "closed"]


def test_a_handler_can_ask_others_while_its_hub_closes(broker: Served, caller: MessageHub) -> None:
    entered, opened = threading.Event(), threading.Event()

    def ask(message: ServiceMessage, context: ServiceContext) -> Any:
        entered.set()
        assert opened.wait(SECONDS)
        return context.request("service:other", 7)

    with patient_hub(broker) as other, other.serve("service:other", lambda message, context: message.payload):
        with patient_hub(broker) as hub:
            hub.serve("service:ask", ask, timeout=SECONDS)
            pending = caller.begin_request("service:ask", timeout=SECONDS)
            assert entered.wait(SECONDS)
            closing = threading.Thread(target=hub.close)
            closing.start()
            eventually(lambda: not caller.services("service:ask"))
            opened.set()
            closing.join(SECONDS)
        assert pending.result() == 7
