"""The client's life: lazy, idempotent, one per process, nothing left behind, also across forks."""

import contextlib
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import messagehub
from messagehub import HubError, MessageHub, Watch
from messagehub.errors import NotInitialised
from tests.conftest import QUICK
from tests.integration.harness import AnyBroker, Embedded, Held, Peer, Served, eventually, hub_of, run_script

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def broker(embedded: Callable[..., Embedded]) -> Embedded:
    """The client's own life is the same whatever broker answers."""
    return embedded(**QUICK)


def test_nothing_is_opened_before_the_first_call(broker: AnyBroker) -> None:
    before = Held()
    hub = MessageHub(endpoint=broker.endpoint)
    assert before.leaked_since() == []
    assert not hub.is_connected
    hub.metrics()
    hub.notices()
    assert before.leaked_since() == []
    assert hub.connect()
    assert before.leaked_since() != []
    hub.close()
    eventually(lambda: before.leaked_since() == [])


def test_importing_opens_nothing() -> None:
    script = (
        "import os, threading\nimport messagehub\nprint(len(os.listdir('/proc/self/fd')), threading.active_count())"
    )
    bare = "import os, threading\nprint(len(os.listdir('/proc/self/fd')), threading.active_count())"
    assert run_script(script) == run_script(bare)


def test_connect_disconnect_and_close_twice_are_harmless(broker: AnyBroker) -> None:
    hub = MessageHub(endpoint=broker.endpoint)
    hub.disconnect()
    for _ in range(3):
        assert hub.connect()
        assert hub.connect()
        assert hub.is_connected
        hub.disconnect()
        hub.disconnect()
        assert not hub.is_connected
    registration = hub.register_producer("a", schema_hash="h")
    assert registration
    registration.close()
    registration.close()
    assert not registration
    watch = hub.watch()
    watch.close()
    watch.close()
    hub.close()
    hub.close()
    hub.disconnect()
    registration.close()
    with pytest.raises(NotInitialised):
        hub.connect()


def test_a_hub_registers_again_after_a_disconnect(broker: AnyBroker, peer: Peer) -> None:
    with hub_of(broker) as hub:
        assert hub.register_producer("a", schema_hash="h")
        hub.disconnect()
        assert peer.snapshot() == {}
        assert hub.register_producer("a", schema_hash="other")
        assert peer.snapshot()["a"]["schema_hash"] == "other"


def test_closing_ends_what_other_threads_wait_for(broker: AnyBroker) -> None:
    hub = MessageHub(endpoint=broker.endpoint)
    hub.connect()
    watch = hub.watch()
    ended: list[str] = []

    def iterate() -> None:
        list(watch)
        ended.append("watch")

    def ask() -> None:
        with contextlib.suppress(NotInitialised):
            while hub.connect():
                pass
        ended.append("ask")

    threads = [threading.Thread(target=work, daemon=True) for work in (iterate, ask, ask, ask)]
    for thread in threads:
        thread.start()
    assert hub.discover("never") is None
    hub.close()
    for thread in threads:
        thread.join(30)
    assert sorted(ended) == ["ask", "ask", "ask", "watch"]


def test_many_hubs_opened_and_closed_leave_nothing(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    before = Held()
    for number in range(30):
        with hub_of(broker) as hub:
            hub.register_producer(f"c{number}", schema_hash="h")
            hub.discover(f"c{number}")
            with hub.watch() as watch:
                assert watch.wait_current(30)
    eventually(lambda: before.leaked_since() == [])


# -- without a broker --------------------------------------------------------------------------------------


def test_watches_and_discoveries_begun_by_many_threads_at_once_all_count(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        watches: list[Watch] = []
        barrier = threading.Barrier(32)

        def work(number: int) -> None:
            hub.register_producer(f"c{number}", schema_hash="h")
            barrier.wait(30)
            watches.append(hub.watch(f"c{number}"))
            hub.discover(f"c{number}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert all(watch.wait_current(30) for watch in watches)

        def asked() -> int:
            return int(hub.metrics()["requests"]["DISCOVERY_REQUEST"]["count"])

        def all_from_memory() -> bool:
            before = asked()
            return all(hub.discover(f"c{number}") for number in range(32)) and asked() == before

        eventually(all_from_memory)


@pytest.mark.parametrize("kind", ["directory", "dead socket", "tcp"])
def test_without_a_broker_calls_return_at_once_and_warn_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    if kind == "tcp":
        hub = MessageHub(dir=directory, endpoint="tcp://127.0.0.1:1")
    elif kind == "dead socket":
        (directory / "gone.sock").touch()
        hub = MessageHub(dir=directory, endpoint=f"ipc://{directory}/gone.sock")
    else:
        hub = MessageHub(dir=directory)
    with caplog.at_level(logging.WARNING):
        started = time.monotonic()
        for _ in range(50):
            assert hub.discover("a") is None
            assert hub.channels() == []
            assert hub.connect() is False
            assert hub.stats() is None
            assert hub.health()["status"] == "unavailable"
        assert not hub.register_consumer("a")
        assert hub.register_producer("a", schema_hash="h").source == "files"
        assert hub.register_consumer("a").source == "files"
        elapsed = time.monotonic() - started
    assert elapsed < 60  # 250 calls; the shortest timeout each would be two minutes
    assert len(caplog.records) == 1, [record.getMessage() for record in caplog.records]
    with pytest.raises(HubError):
        hub.register_producer("b", schema_hash="h", required=True)
    with pytest.raises(HubError):
        hub.create_channel("b")
    hub.close()


def test_a_warning_comes_again_after_a_broker_was_there(
    tmp_path: Path, served: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    server = served(**QUICK)
    with MessageHub(dir=server.dir) as hub, caplog.at_level(logging.WARNING):
        assert hub.connect()
        server.kill()
        for _ in range(2):
            eventually(lambda: hub.discover("a") is None and not hub.is_connected)
        assert len(caplog.records) == 1
        server.start()
        eventually(hub.connect)
        server.kill()
        eventually(lambda: not hub.connect())
        assert len(caplog.records) == 2


def test_a_registration_without_a_broker_becomes_true_when_one_comes(tmp_path: Path) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    with MessageHub(dir=directory) as hub:
        producer = hub.register_producer("a", schema_hash="h")
        consumer = hub.register_consumer("a")
        assert producer.source == "files"
        with Served(directory, **QUICK) as server:
            eventually(lambda: producer.source == "broker" and consumer.source == "broker")
            producer.close()
            assert (producer.source, bool(producer)) == (None, False)
            assert producer.shm_name == "/pylabhub_a"
            with Peer(server.endpoint) as peer:
                assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "a"})["consumer_count"] == 1


# -- one per process ---------------------------------------------------------------------------------------


def test_get_instance_gives_one_object_to_all_threads(broker: AnyBroker) -> None:
    found: list[MessageHub] = []
    barrier = threading.Barrier(32)

    def get() -> None:
        barrier.wait(30)
        found.append(MessageHub.get_instance(endpoint=broker.endpoint))

    threads = [threading.Thread(target=get) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({id(hub) for hub in found}) == 1
    assert MessageHub.get_instance() is found[0]
    with pytest.raises(HubError):
        MessageHub.get_instance(endpoint="tcp://127.0.0.1:9")
    ordinary = MessageHub(endpoint=broker.endpoint)
    assert ordinary is not found[0]
    ordinary.close()
    MessageHub.reset_instance()
    assert MessageHub.get_instance(endpoint=broker.endpoint) is not found[0]
    MessageHub.reset_instance()


FORKED = """
import multiprocessing, os, sys
import messagehub
from messagehub import MessageHub

def work(channel, endpoint, queue):
    hub = MessageHub.get_instance(endpoint=endpoint)
    made = hub.register_producer(channel, schema_hash="h", required=True)
    found = hub.discover(channel)
    queue.put((channel, hub.lease, found.producers[0].pid, os.getpid(), bool(made)))
    hub.close()

if __name__ == "__main__":
    endpoint, method = sys.argv[1:]
    hub = MessageHub.get_instance(endpoint=endpoint)
    own = hub.register_producer("own", schema_hash="h", required=True)
    assert hub.discover("own").is_active
    watch = hub.watch()
    assert watch.wait_current(30)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    workers = [context.Process(target=work, args=(f"c{n}", endpoint, queue)) for n in range(4)]
    for worker in workers:
        worker.start()
    seen = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0, worker.exitcode
    leases = {lease for _, lease, *_ in seen} | {hub.lease}
    assert len(leases) == 5, leases
    assert all(registered == pid and made for _, _, registered, pid, made in seen)
    assert own and hub.discover("own").is_active
    assert MessageHub.get_instance() is hub
    MessageHub.reset_instance()
    print("fine")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_have_an_instance_and_a_lease_of_their_own(
    embedded: Callable[..., Embedded], tmp_path: Path, method: str
) -> None:
    broker = embedded(**QUICK)
    path = tmp_path / "program.py"
    path.write_text(FORKED)
    script = f"import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path({str(path)!r}, run_name='__main__')"
    if method == "fork":
        assert run_script(script, str(path), broker.endpoint, method).strip() == "fine"
    else:  # a spawned child imports the program by its path
        import subprocess
        import sys

        from tests.integration.harness import ROOT, clean_environment

        done = subprocess.run(
            [sys.executable, str(path), broker.endpoint, method],
            capture_output=True,
            text=True,
            timeout=90,
            env=clean_environment(),
            cwd=ROOT,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


def in_child(work: Callable[[], bool]) -> None:
    """Run in a forked child that ends without cleaning up anything of its parent's."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            traceback.print_exc()
            os._exit(2)
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail("the child hung")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_leaves_its_parents_connection_alone(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with hub_of(server) as hub, Peer(server.endpoint) as peer:
        registration = hub.register_producer("parent", schema_hash="h")
        watch = hub.watch()
        assert watch.wait_current(30)
        hub.discover("parent")

        def child() -> bool:
            assert not registration
            registration.close()
            list(watch)  # ends
            assert hub.discover("parent") is not None
            mine = hub.register_producer("child", schema_hash="h", required=True)
            hub.close()
            return not mine

        for _ in range(3):
            in_child(child)
        assert registration
        assert hub.discover("parent") is not None
        assert set(peer.snapshot()) == {"parent"}
        assert peer.stats()["leases"] >= 1
        assert hub.lease in peer.snapshot()["parent"]["producers"]["parent/default"]["lease"]


def test_a_child_forked_after_close_touches_no_descriptor_that_was_used_again(broker: AnyBroker) -> None:
    hub = MessageHub(endpoint=broker.endpoint)
    hub.connect()
    hub.close()
    reader, writer = os.pipe()  # these take the numbers that the hub had
    more = [os.dup(reader) for _ in range(30)]
    try:

        def child() -> bool:
            for fd in [reader, writer, *more]:
                os.fstat(fd)
            with pytest.raises(NotInitialised):
                hub.discover("a")
            return True

        in_child(child)
    finally:
        for fd in [reader, writer, *more]:
            os.close(fd)


def test_a_child_forked_while_threads_work_is_not_stuck(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with hub_of(server) as hub:
        hub.register_producer("parent", schema_hash="h")
        is_over = threading.Event()

        def load(number: int) -> None:
            while not is_over.is_set():
                hub.channels()
                hub.discover(f"missing{number}")

        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                in_child(lambda: [it.channel for it in hub.channels(timeout=30)] == ["parent"])
        finally:
            is_over.set()
            for thread in threads:
                thread.join(30)
        assert hub.health(timeout=30)["status"] == "healthy"


def test_a_forked_child_of_a_broker_does_not_keep_its_directory(
    embedded: Callable[..., Embedded], tmp_path: Path
) -> None:
    """The child outlives the broker; another broker may take the place."""
    directory = tmp_path / "hub"
    broker = embedded(dir=directory, **QUICK)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        os.close(reader)
        broker.close()
        embedded(dir=directory, **QUICK)
    finally:
        os.close(writer)
        os.waitpid(pid, 0)


def test_the_package_says_its_version() -> None:
    assert messagehub.__version__
