"""The broker's threads and processes fail: each is logged, counted and started again, and starts and ends are clean."""

import contextlib
import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from messagehub import embedded_broker
from messagehub.broker import loop, parts
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.host_watcher import cleaner
from messagehub.broker.loop import Broker
from messagehub.broker.schema_worker import checker
from messagehub.broker.topics import retained
from messagehub.cli.http_process import HttpProcess
from messagehub.cli.reload import Reloading
from messagehub.runtime.supervision import Supervisor
from messagehub.settings import Settings
from messagehub.store.memory import MemoryStore
from tests.access.shared import SharedHub
from tests.conftest import QUICK
from tests.faults.chaos.storm import command_line, descendants
from tests.faults.test_schema_worker_killed import schema_workers
from tests.integration.harness import (
    PATIENCE_SECONDS,
    ROOT,
    Embedded,
    Peer,
    Served,
    clean_environment,
    eventually,
    hub_of,
    refused,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_threads_of_http_and_of_reloading_that_fail_are_counted_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no known way to break them from outside: the break is made here, once each."""
    answered, reloaded, failed = threading.Event(), threading.Event(), threading.Event()

    def answer() -> None:
        answered.set()
        raise ZeroDivisionError

    def load(**arguments: Any) -> Settings:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        reloaded.set()
        return settings

    settings = Settings.load(dir=tmp_path / "hub", http="127.0.0.1:0")
    with contextlib.ExitStack() as ending:
        broker = Broker(settings, MemoryStore)
        ending.callback(broker.close)
        running = threading.Thread(target=broker.run)
        running.start()
        ending.callback(running.join)
        ending.callback(broker.stop)
        web = HttpProcess(
            settings,
            endpoint=broker.local_endpoint,
            is_open=True,
            supervisor=broker.supervisor,
            on_answer=answer,
            on_failure=pytest.fail,
            on_problem=lambda _: None,
        )
        ending.callback(web.stop)
        monkeypatch.setattr(Settings, "load", load)
        reloading = Reloading(settings, {}, broker=broker, web=web, gateway=None, is_open=True)
        ending.callback(reloading.close)
        reloading.ask()
        assert failed.wait(PATIENCE_SECONDS)
        assert answered.wait(PATIENCE_SECONDS)
        with Peer(broker.local_endpoint) as peer:
            eventually(lambda: peer.counter("threads_restarted") == 2)
        reloading.ask()
        assert reloaded.wait(PATIENCE_SECONDS)
        with urllib.request.urlopen(f"{web.url}/healthz", timeout=PATIENCE_SECONDS) as reply:
            assert reply.status == 200


def schema(number: int) -> dict[str, Any]:
    return {"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"title": str(number)}}


def test_a_thread_that_fails_is_logged_counted_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    done = threading.Event()
    calls: list[int] = []

    def run() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ZeroDivisionError
        done.set()

    thread = supervisor.start("some-thread", run)
    assert done.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)
    assert (supervisor.restarts, len(calls)) == (2, 3)
    assert caplog.text.count("the thread some-thread failed and is started again") == 2
    assert "ZeroDivisionError" in caplog.text


class BrokenStore(MemoryStore):
    """Its next write meets a defect."""

    is_broken = False

    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError
        super().write(rows, revision=revision, durable=durable)


def test_a_defect_in_the_store_is_a_failed_write_and_no_end(embedded: Callable[..., Embedded]) -> None:
    store = BrokenStore()
    broker = embedded(store=store, **QUICK)
    with Peer(broker.endpoint) as peer:
        assert peer.ask({"type": "CHANNEL_CREATE", "channel": "before"})["type"] == "CHANNEL_CREATE_ACK"
        store.is_broken = True
        assert peer.ask({"type": "CHANNEL_CREATE", "channel": "lost"})["code"] == "STORE_READ_ONLY"
        later = {"type": "CHANNEL_CREATE", "channel": "later"}
        eventually(lambda: peer.ask(later)["type"] == "CHANNEL_CREATE_ACK")
        assert set(peer.snapshot()) == {"before", "later"}


def test_a_cleaner_that_fails_cleans_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def broken(*_: object, **__: object) -> object:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(cleaner, "CLEAN_SECONDS", 0.01)
    monkeypatch.setattr(cleaner, "clean", broken)
    with embedded_broker(**QUICK) as endpoint, Peer(endpoint) as peer:
        eventually(lambda: len(calls) > 2)
        assert peer.counter("threads_restarted") >= 2


def failing_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """The real function, after a first call that meets a defect."""
    calls = itertools.count()  # threads may call at once, and only one of them is the first

    def call(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 0:
            raise ZeroDivisionError
        return real(*arguments, **options)

    return call


def test_a_defect_at_the_authentication_of_one_peer_keeps_no_other_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(AccessControl, "identify", failing_once(AccessControl.identify))
    with SharedHub(tmp_path / "hub").running() as shared:
        with shared.peer("watcher") as peer:
            assert peer.ask({"type": "HELLO"})["type"] == "HELLO_ACK"
        with shared.peer("reader") as other:
            assert other.ask({"type": "HELLO"})["type"] == "HELLO_ACK"
    assert caplog.text.count("cannot be authenticated") == 1


def test_a_proxy_of_topics_that_fails_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "proxy", failing_once(zmq.proxy))
    with embedded_broker(**QUICK) as endpoint, Peer(endpoint) as peer, hub_of(endpoint) as hub:
        hub.topic("kept", keep=10)
        with hub.subscribe("plain") as plain, hub.subscribe("kept") as kept:
            for topic, subscription in (("plain", plain), ("kept", kept)):
                hub.publish(topic, b"1", timeout=PATIENCE_SECONDS)
                assert subscription.receive(timeout=PATIENCE_SECONDS).payload == b"1"
        assert peer.counter("threads_restarted") == 1


def test_a_defect_in_the_reading_of_a_retained_topic_is_the_answer_of_one(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    # private: nothing public makes the reading of a whole store fail once
    monkeypatch.setattr(retained, "_read", failing_once(retained._read))
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer, hub_of(broker) as hub:
        hub.topic("kept", keep=10)
        asked = {"type": "TOPIC_DESCRIBE_REQUEST", "topic": "kept"}
        assert peer.ask(asked)["code"] == "STORE_ERROR"
        assert peer.ask(asked)["topic"]["name"] == "kept"


def test_a_schema_worker_that_cannot_be_started_once_is_started_later(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    failing = [OSError("no process left"), OSError("no process left")]

    def start(*arguments: Any, **options: Any) -> Any:
        if failing:
            raise failing.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(checker.subprocess, "Popen", start)
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        assert peer.ask(schema(1))["type"] == "SCHEMA_REGISTER_ACK"


def test_a_schema_worker_that_cannot_be_started_at_the_start_is_started_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = subprocess.Popen
    failing = [OSError("no process left")]

    def start(*arguments: Any, **options: Any) -> Any:
        if failing:
            raise failing.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(checker.subprocess, "Popen", start)
    broker = Broker(Settings.load(dir=tmp_path / "hub"), MemoryStore)
    broker.warm_up()
    eventually(lambda: not failing)
    thread = threading.Thread(target=broker.run)
    thread.start()
    try:
        with Peer(broker.endpoint) as peer:
            assert peer.ask(schema(1))["type"] == "SCHEMA_REGISTER_ACK"
    finally:
        broker.stop()
        thread.join(PATIENCE_SECONDS)


def test_schemas_are_refused_as_retryable_while_no_schema_worker_can_be_started(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:

        def none(*_: object, **__: object) -> object:
            raise OSError("no process left")

        without.setattr(checker.subprocess, "Popen", none)
        broker = embedded(**QUICK)
        with Peer(broker.endpoint) as peer:
            answer = peer.ask(schema(1))
            assert (answer["code"], answer["retryable"]) == ("RATE_LIMITED", True)
    with Peer(broker.endpoint) as peer:
        assert peer.ask(schema(1))["type"] == "SCHEMA_REGISTER_ACK"


def test_a_broker_that_says_ready_has_a_schema_worker_that_is_ready(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    assert len(schema_workers(server)) == 1
    with Peer(server.endpoint) as peer:
        assert peer.ask(schema(1))["type"] == "SCHEMA_REGISTER_ACK"
    assert server.stop() == 0
    assert "stopped" in server.log()


HELD = """
import sys
from messagehub.broker.schema_worker import checker
gate = sys.argv.pop(1)
start = checker.module_command
checker.module_command = lambda *module: ["sh", "-c", 'read -r _ < "$0" && exec "$@"', gate, *start(*module)]
from messagehub.cli import app
app()
"""


def test_ready_is_not_said_before_the_schema_worker_has_said_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    serve = ["serve", "--dir", str(tmp_path / "hub"), "--no-http"]
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(gate), *serve],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment(),
    ) as process:
        try:
            assert process.stdout is not None
            eventually(lambda: [pid for pid in descendants(process.pid) if str(gate) in command_line(pid)])
            assert select.select([process.stdout], [], [], 0.5)[0] == []
            gate.write_text("go\n")
            assert " ready: " in process.stdout.readline()
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    "part", ["SchemaChecker", "HostWatcher", "Publisher", "RequestQueue", "RetainedTopics", "BrokerStats"]
)
def test_a_start_that_fails_anywhere_leaves_nothing(part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`no_leaks` sees threads, descriptors and sockets; the next start sees locks."""
    settings = Settings.load(dir=tmp_path / "hub")
    with monkeypatch.context() as broken:

        def none(*_: object, **__: object) -> object:
            raise ZeroDivisionError

        broken.setattr(parts, part, none)
        with pytest.raises(ZeroDivisionError):
            Broker(settings, MemoryStore)
    broker = Broker(settings, MemoryStore)
    broker.close()
    broker.close()
    assert list((tmp_path / "hub").glob("*.sock")) == []


SERVE = (sys.executable, "-m", "messagehub", "serve")
MAKE_RUN = ("make", "--no-print-directory", "run")
has_make = pytest.mark.skipif(
    not (ROOT / ".venv").exists() or (ROOT / ".venv").is_symlink() or shutil.which("make") is None,
    reason="`make run` would build an environment first, or have another checkout's lead here",
)


@contextlib.contextmanager
def in_a_terminal(directory: Path, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """A hub as the shell starts it: Ctrl-C goes to its whole process group."""
    directory.mkdir(mode=0o700)
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command],  # who runs the tests may ignore it, as a shell has `make test &` do
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment() | {"MESSAGEHUB_DIR": str(directory), "MESSAGEHUB_HTTP": "127.0.0.1:0"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("command", [*[SERVE] * 4, pytest.param(MAKE_RUN, marks=has_make)])
def test_ctrl_c_ends_without_a_traceback_and_says_so(tmp_path: Path, command: tuple[str, ...]) -> None:
    with in_a_terminal(tmp_path / "hub", *command) as process:
        assert process.stdout is not None
        while "ready" not in (line := process.stdout.readline()):
            assert line.startswith("setup: "), line  # of `make run`, in an environment that is not up to date
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == (-signal.SIGINT if command == MAKE_RUN else 0), said  # make ends as it was told to
        assert "Traceback" not in said
        assert "stopped" in said


def test_a_start_that_fails_because_the_http_port_is_taken_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("PYTHONWARNINGS", "error")
        code, said = refused(tmp_path / "hub", "--http", address, with_http=True)
    assert (code, f"cannot serve HTTP on {address}" in said) == (1, True), said
    assert "Traceback" not in said
    left = sorted(path.name for path in (tmp_path / "hub").iterdir())
    assert not [name for name in left if name.endswith((".sock", ".json"))], left


def test_an_embedded_broker_that_fails_says_so_at_the_end_of_its_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(loop, "apply_changes", broken)
    with pytest.raises(ZeroDivisionError), embedded_broker():
        eventually(lambda: "the embedded broker failed" in caplog.text)
