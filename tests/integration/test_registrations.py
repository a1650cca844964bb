"""Registrations as others see them: what is closed is gone, what ends cleanly is released, many cost as one does."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from messagehub import MessageHub
from messagehub.errors import BrokerUnavailable
from tests import preloaded
from tests.conftest import QUICK
from tests.faults.sick_peers import HELLO_ACK, SickBroker, after_hello
from tests.integration.harness import (
    PATIENCE_SECONDS,
    ROOT,
    Embedded,
    Listener,
    Message,
    Peer,
    Served,
    clean_environment,
    eventually,
    hub_of,
    run_script,
)
from tests.integration.invariants import gauge
from tests.integration.other_host import OtherHost

pytestmark = pytest.mark.usefixtures("no_leaks")


def reasons(listener: Listener, count: int, kind: str = "PRODUCER_UNREGISTERED") -> list[str]:
    found: list[str] = []
    while len(found) < count:
        _, event = listener.event()
        if event["type"] == kind:
            found.append(event["reason"])
    return found


def test_a_clean_close_is_released_for_watchers(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with hub_of(broker) as hub, Listener(broker.endpoint, b"channel/") as listener, Peer(broker.endpoint) as peer:
        for number in range(15):
            hub.producer(f"ring{number}").close()
        for number in range(15):
            hub.producer(f"shared{number}", access="shared").close()
        for number in range(15):
            hub.register_producer(f"plain{number}", schema_hash="h").close()
        assert reasons(listener, 45) == ["released"] * 45
        stats = peer.stats()
        assert [name for name in stats["counters"] if name.startswith("refused_")] == []
        assert stats["counters"]["not_found"] == 0
        assert [stats["requests"]["PRODUCER_UNREGISTER"][name] for name in ("count", "errors")] == [45, 0]
        assert stats["requests"]["PRODUCER_REGISTER"]["count"] == 45


def test_what_the_directory_showed_and_shows_no_more_is_released(served: Callable[..., Served]) -> None:
    """By an owner who has no word with this broker."""
    server = served(**QUICK)
    with (
        MessageHub(endpoint="ipc:///tmp/nobody-listens-here") as hub,
        Listener(server.endpoint, b"channel/") as listener,
        Peer(server.endpoint) as peer,
    ):
        held = [hub.producer("ring"), hub.register_producer("plain", schema_hash="h")]
        eventually(lambda: set(peer.snapshot()) == {"ring", "plain"})
        for each in held:
            each.close()
        assert reasons(listener, 2) == ["released"] * 2
        eventually(lambda: peer.snapshot() == {})


def test_a_killed_process_has_died(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    script = (
        "import os, signal, sys\nfrom messagehub import MessageHub\n"
        "hub = MessageHub(endpoint=sys.argv[1])\nkept = hub.producer('a')\n"
        "hub.register_producer('b', schema_hash='h')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with Listener(server.endpoint, b"channel/") as listener:
        preloaded.run(
            [sys.executable, "-c", script, server.endpoint], env=clean_environment(), cwd=ROOT, timeout=PATIENCE_SECONDS
        )
        assert reasons(listener, 2) == ["died"] * 2


def test_a_process_that_ends_without_closing_says_goodbye(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    script = (
        "import sys\nfrom messagehub import MessageHub\n"
        "hub = MessageHub(endpoint=sys.argv[1])\nkept = hub.producer('a')\n"
        "hub.register_producer('b', schema_hash='h')\nhub.register_consumer('b')\n"
        "assert hub.discover('b').source == 'broker'\n"
    )
    with Listener(server.endpoint, b"channel/") as listener, Peer(server.endpoint) as peer:
        raises = script + "raise SystemExit(0)\n"
        for program in (script, raises):
            run_script(program, server.endpoint)
            assert reasons(listener, 2) == ["released"] * 2
            eventually(lambda: peer.snapshot() == {})


def test_a_process_of_another_host_that_ends_without_closing_says_goodbye(tmp_path: Path) -> None:
    """Nobody here could see that it ended: without its goodbye, it would be there until its lease ends, in an hour."""
    hour = {"heartbeat_seconds": 600.0, "stall_seconds": 1800.0, "lease_seconds": 3600.0}
    text = """
    kept = [hub.producer("a"), hub.register_producer("b", schema_hash="h", required=True)]
    hub.register_consumer("b", required=True)
    """
    with (
        Served(tmp_path / "hub", "--endpoint", "tcp://127.0.0.1:0", **hour) as server,
        Listener(server.endpoint, b"channel/") as listener,
        Peer(server.endpoint) as peer,
        closing(OtherHost({"endpoint": server.endpoint, "dir": str(tmp_path / "there")}, text)) as there,
    ):
        there.finish()
        assert reasons(listener, 2) == ["released"] * 2
        eventually(lambda: peer.snapshot() == {})
        eventually(lambda: gauge(peer, "watched_processes") == 0)


CHILDREN = """
import multiprocessing, sys
from messagehub import MessageHub

def inherited():
    MessageHub.get_instance(endpoint=sys.argv[1]).register_producer("inherited", schema_hash="h", required=True)

def own():
    global kept
    kept = MessageHub(endpoint=sys.argv[1])
    kept.register_producer("own", schema_hash="h", required=True)

if __name__ == "__main__":
    MessageHub.get_instance(endpoint=sys.argv[1]).connect(required=True)
    context = multiprocessing.get_context(sys.argv[2])
    for work in (inherited, own):
        child = context.Process(target=work)
        child.start()
        child.join(60)
        assert child.exitcode == 0, child.exitcode
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_that_ends_says_goodbye(
    served: Callable[..., Served], tmp_path: Path, method: str
) -> None:
    server = served(**QUICK)
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    with Listener(server.endpoint, b"channel/") as listener, Peer(server.endpoint) as peer:
        done = subprocess.run(
            [sys.executable, str(program), server.endpoint, method],
            env=clean_environment(),
            cwd=ROOT,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0
        assert reasons(listener, 2) == ["released"] * 2
        eventually(lambda: peer.snapshot() == {})


def test_a_process_ends_although_its_broker_is_paused(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    script = (
        "import os, signal, sys\nfrom messagehub import MessageHub\n"
        "hub = MessageHub(endpoint=sys.argv[1])\nkept = hub.producer('a')\n"
        "os.kill(int(sys.argv[2]), signal.SIGSTOP)\n"
    )
    try:
        run_script(script, server.endpoint, str(server.pid), timeout=30.0)
    finally:
        server.signal(signal.SIGCONT)
    with Peer(server.endpoint) as peer:
        eventually(lambda: peer.snapshot() == {})


def test_not_found_is_an_answer(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer, hub_of(broker) as hub:
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "nobody"})["code"] == "CHANNEL_NOT_FOUND"
        assert hub.discover("nobody") is None
        stats = peer.stats()
        assert stats["requests"]["DISCOVERY_REQUEST"]["errors"] == 0
        assert stats["counters"]["not_found"] == 2
        others = (
            {"type": "CHANNEL_DESCRIBE_REQUEST", "channel": "nobody"},
            {"type": "SCHEMA_REQUEST", "subject": "nothing"},
            {"type": "TOPIC_DESCRIBE_REQUEST", "topic": "nothing"},
            {"type": "SERVICE_RESOLVE_REQUEST", "address": "service:nobody"},
            {"type": "TABLE_DROP", "channel": "nobody"},
        )
        for number, asked in enumerate(others, 3):
            assert peer.ask(asked)["code"].endswith("_NOT_FOUND"), asked
            assert peer.counter("not_found") == number, asked
        assert [name for name in peer.stats()["counters"] if name.startswith("refused_")] == []
        assert hub.metrics()["requests"]["DISCOVERY_REQUEST"]["errors"] == 0
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "no name"})["code"] == "INVALID_NAME"
        assert peer.counter("refused_invalid_name") == 1


@pytest.mark.parametrize("required", [False, True])
def test_a_registration_that_timed_out_and_was_closed_does_not_stay(
    required: bool, served: Callable[..., Served]
) -> None:
    server = served(**QUICK)
    with hub_of(server) as hub, hub_of(server) as other, Peer(server.endpoint) as peer:
        hub.connect(required=True)
        server.signal(signal.SIGSTOP)
        try:
            if required:
                with pytest.raises(BrokerUnavailable):
                    hub.register_producer("a", schema_hash="h", timeout=0.2, required=True)
            else:
                hub.register_producer("a", schema_hash="h", timeout=0.2).close()
        finally:
            server.signal(signal.SIGCONT)
        eventually(lambda: (first := attempt(other)) and first.source == "broker")
        eventually(lambda: peer.snapshot()["a"]["producers"]["a/default"]["lease"] == other.lease)


def attempt(hub: MessageHub) -> Any:
    from messagehub.errors import ProducerAlreadyRegistered

    try:
        return hub.register_producer("a", schema_hash="h", required=True)
    except ProducerAlreadyRegistered:
        return None


class Forgetful:
    """A broker that takes registrations, and whose answers come late, twice or never."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.is_mute = True

    def __call__(self, asked: Message) -> Message | None:
        kind, channel = asked["type"], asked.get("channel", "")
        if kind == "PING":
            return {"type": "PONG", "broker_id": "sick", "revision": 1, "read_only": False}
        if kind == "HEARTBEAT":
            return {"type": "HEARTBEAT_ACK", "known": True, "notices": [], "broker_id": "sick"}
        answer: Message = {"channel": channel, "producer_id": f"{channel}/default", "revision": 1}
        if kind == "PRODUCER_REGISTER":
            self.held.add(channel)
            answer |= {"type": "PRODUCER_REGISTER_ACK", "shm_name": "/x", "schema_id": None, "lease": "l"}
            answer |= {"lease_seconds": 40.0}
        else:
            self.held.discard(channel)
            answer |= {"type": "PRODUCER_UNREGISTER_ACK"}
        return None if self.is_mute else answer


def test_a_registration_whose_answer_was_lost_is_unregistered_in_the_background() -> None:
    broker = Forgetful()

    def answer(asked: Message) -> Message | bytes | None:
        return after_hello(broker(asked) if asked["type"] != "HELLO" else None)(asked)

    with SickBroker(answer) as sick, hub_of(sick.endpoint) as hub:
        hub.connect(timeout=30.0, required=True)
        registration = hub.register_producer("a", schema_hash="h", timeout=1.0)
        eventually(lambda: broker.held == {"a"})
        closing = threading.Thread(target=registration.close)
        closing.start()
        closing.join(30.0)
        assert not registration
        broker.held.add("a")  # the request was on its way still
        broker.is_mute = False
        eventually(lambda: not broker.held)


def test_two_handles_of_one_producer_end_with_the_last(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer:
        first = hub.register_producer("a", schema_hash="h")
        second = hub.register_producer("a", schema_hash="h")
        first.close()
        assert second
        assert set(peer.snapshot()) == {"a"}
        second.close()
        assert peer.snapshot() == {}


def test_thousands_of_registrations_are_kept_told_and_ended(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer:
        held = [hub.register_producer(f"c{number}", schema_hash="h", required=True) for number in range(2000)]
        assert len(peer.snapshot()) == 2000
        peer.ask({"type": "CHANNEL_DESTROY", "channel": "c1999"})
        eventually(lambda: not held[-1])  # told by a heartbeat
        assert all(held[:-1])
        hub.close()
        eventually(lambda: peer.snapshot() == {})


def test_the_work_of_a_registration_does_not_grow_with_their_number() -> None:
    """Counted at the peer's sockets: one request for each, and a bounded number of topics that are heard of at once."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    events = context.socket(zmq.XPUB)
    events.setsockopt(zmq.LINGER, 0)
    events.setsockopt(zmq.XPUB_VERBOSER, 1)
    port = events.bind_to_random_port("tcp://127.0.0.1")
    broker = Forgetful()
    broker.is_mute = False
    hello = HELLO_ACK | {"endpoints": {"events": f"tcp://127.0.0.1:{port}"}, "heartbeat_seconds": 60.0}
    try:
        with SickBroker(lambda asked: hello if asked["type"] == "HELLO" else broker(asked)) as sick:
            with hub_of(sick.endpoint) as hub:
                for number in range(1000):
                    hub.register_producer(f"c{number}", schema_hash="h", required=True)
                assert sick.count("PRODUCER_REGISTER") == 1000
                heard = []
                while events.poll(500):
                    heard.append(events.recv())
                assert len(heard) == len(set(heard)) <= 512
            assert sick.count("PRODUCER_UNREGISTER") == 1000
            assert not broker.held
    finally:
        events.close(0)
        context.term()


@pytest.mark.parametrize("fault", ["paused", "killed"])
def test_a_hub_that_is_closed_while_its_broker_is_away_blocks_nobody(fault: str, served: Callable[..., Served]) -> None:
    """Its process lives on, so nothing but what it left in the directory says that its producers have ended."""
    server = served(**QUICK)
    with hub_of(server) as hub:
        hub.register_producer("before", schema_hash="h", required=True)
        if fault == "killed":
            server.kill()
        else:
            server.signal(signal.SIGSTOP)
        try:
            hub.register_producer("during", schema_hash="h", timeout=0.2)
            hub.close()
        finally:
            if fault == "killed":
                server.start()
            else:
                server.signal(signal.SIGCONT)
    with Peer(server.endpoint) as peer, hub_of(server) as other:
        eventually(lambda: peer.snapshot() == {})
        for channel in ("before", "during"):
            assert other.register_producer(channel, schema_hash="h", required=True)
