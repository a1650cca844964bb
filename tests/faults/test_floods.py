"""One peer floods a socket of the broker: the others are served."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from messagehub.broker.access.access_control import AccessControl
from tests import preloaded
from tests.access.shared import SharedHub
from tests.conftest import QUICK
from tests.integration.harness import (
    PATIENCE_SECONDS,
    ROOT,
    Embedded,
    Listener,
    Peer,
    Served,
    clean_environment,
    eventually,
    hub_of,
)
from tests.integration.invariants import gauge
from tests.integration.local_peer import LocalPeer, local_path

pytestmark = pytest.mark.usefixtures("no_leaks")

SLOW = {"subscriptions_per_peer": 200, "requests_per_second": 200}
"""So many a second are read of a flood on any machine."""
FLOOD = """
import sys, zmq
endpoint, *keys = sys.argv[1:]
context = zmq.Context()
flooding = context.socket(zmq.XSUB)
flooding.setsockopt(zmq.LINGER, 0)
if keys:
    flooding.curve_serverkey, flooding.curve_publickey, flooding.curve_secretkey = (key.encode() for key in keys)
flooding.connect(endpoint)
print("floods", flush=True)
while True:
    for number in range(1000):
        flooding.send(b"\\x01channel/c%d/" % number)
        flooding.send(b"\\x00channel/c%d/" % number)
"""


@contextmanager
def flooding(endpoint: str, *keys: str, program: str = FLOOD) -> Iterator[None]:
    """While the block runs, another process floods: it subscribes and unsubscribes as fast as it can."""
    process = preloaded.Popen(
        [sys.executable, "-c", program, endpoint, *keys],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment(),
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "floods\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def assert_serves(peer: Peer, count: int = 100) -> None:
    for number in range(count):
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": f"c{number}"}, timeout=10)["type"] == "ERROR"


def events_of(peer: Peer) -> str:
    return str(peer.ask({"type": "HELLO"})["endpoints"]["events"])


def test_a_peer_that_subscribes_without_end_is_cut_off_and_the_others_are_served(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(**SLOW) as shared, shared.local() as local:
        with shared.peer("watcher") as peer:
            endpoint = events_of(peer)
        pair = shared.keys["watcher"]
        with flooding(endpoint, shared.server_key, pair.public, pair.secret), shared.peer("reader") as other:
            eventually(lambda: local.counter("hung_up") > 0)
            assert_serves(other)
        eventually(lambda: any(entry.get("socket") == "events" for entry in shared.audit()))
        with shared.peer("boss", zmq.SUB, endpoint=endpoint) as watcher:
            watcher.socket.subscribe(b"channel/")
            assert watcher.socket.poll(30_000), "subscriptions of others are taken"
        with shared.peer("watcher", zmq.SUB, endpoint=endpoint) as again:  # while it is still silenced
            again.socket.subscribe(b"channel/")
            assert again.socket.poll(30_000), "who was cut off may come back"


def test_a_flood_that_stays_within_its_limit_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A peer may send more in a second than is read of it: that waits at the sender."""
    with SharedHub(tmp_path / "hub").running(subscriptions_per_peer=1_000_000) as shared:
        with shared.peer("watcher") as peer:
            endpoint = events_of(peer)
        pair = shared.keys["watcher"]
        with (
            flooding(endpoint, shared.server_key, pair.public, pair.secret),
            shared.peer("reader") as other,
            shared.peer("boss", zmq.SUB, endpoint=endpoint) as watcher,
        ):
            assert_serves(other)
            for number in range(3):
                topic = f"channel/mine{number}/".encode()
                watcher.socket.subscribe(topic)
                eventually(lambda topic=topic: watcher.socket.recv_multipart()[0] == topic)


def test_frames_of_one_that_floods_wait_at_the_sender_not_in_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine where each frame takes long to check, its connection is ended late; few frames are there by then."""
    check, name = AccessControl.may_say_more, AccessControl.name_of
    taken_in = []

    def check_slowly(control: AccessControl, user: str) -> bool:
        time.sleep(0.0002)
        return check(control, user)

    def count(control: AccessControl, known_as: str) -> str:
        taken_in.append(known_as)
        return name(control, known_as)

    monkeypatch.setattr(AccessControl, "may_say_more", check_slowly)
    monkeypatch.setattr(AccessControl, "name_of", count)
    with SharedHub(tmp_path / "hub").running(**SLOW) as shared, shared.local() as local:
        with shared.peer("watcher") as peer:
            endpoint = events_of(peer)
        pair = shared.keys["watcher"]
        with flooding(endpoint, shared.server_key, pair.public, pair.secret):
            eventually(lambda: local.counter("hung_up") > 0)
        with shared.peer("boss", zmq.SUB, endpoint=endpoint) as watcher:
            watcher.socket.subscribe(b"channel/")
            assert watcher.socket.poll(30_000)
    assert len(taken_in) < 200_000  # of many millions that were sent


def test_a_flood_of_subscriptions_at_a_private_hub_does_not_stop_it(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        with flooding(events_of(peer)):
            assert_serves(peer)
        with Listener(broker.endpoint, b"channel/") as listener:
            assert listener.echo[1]["type"] == "BEACON"


PUSH = """
import sys, zmq
pushing = zmq.Context().socket(zmq.PUSH)
pushing.setsockopt(zmq.LINGER, 0)
pushing.connect(sys.argv[1])
print("floods", flush=True)
while True:
    pushing.send(b"flood\\0" + b"x" * 100)
"""


@pytest.mark.parametrize(
    ("socket", "program"), [("topics_in", PUSH), ("topics_out", FLOOD), ("topics_retained", FLOOD)]
)
def test_a_flood_at_a_socket_of_topics_stops_nobody(
    embedded: Callable[..., Embedded], socket: str, program: str
) -> None:
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        endpoint = str(peer.ask({"type": "HELLO"})["endpoints"][socket])
        with flooding(endpoint, program=program), hub_of(broker) as publishing, hub_of(broker) as reading:
            publishing.topic("kept", keep=1000)
            with reading.subscribe("plain") as plain, reading.subscribe("kept") as kept:
                for number in range(20):
                    for subscription, topic in ((plain, "plain"), (kept, "kept")):
                        publishing.publish(topic, number, timeout=PATIENCE_SECONDS)
                        assert subscription.receive(timeout=PATIENCE_SECONDS).payload == number
            assert_serves(peer)


def test_a_message_of_very_many_frames_does_not_hold_up_others(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer, Peer(broker.endpoint, zmq.DEALER) as hostile:
        for frames in (9, 10, 2000, 200_000):
            hostile.socket.send_multipart([b"x"] * frames)
        assert_serves(peer, 20)
        assert eventually(lambda: peer.counter("bad_frames") == 4)
    with Peer(broker.endpoint, zmq.DEALER) as peer:
        assert peer.ask({"type": "PING"})["type"] == "PONG"


MALFORMED = """
import sys, zmq
flooding = zmq.Context().socket(zmq.DEALER)
flooding.setsockopt(zmq.LINGER, 0)
flooding.connect(sys.argv[1])
print("floods", flush=True)
while True:
    for _ in range(1000):
        flooding.send(b"", zmq.SNDMORE)
        flooding.send(b"no request")
"""


def test_a_flood_of_refused_requests_does_not_keep_a_hub_from_stopping(served: Callable[..., Served]) -> None:
    server = served()
    with ExitStack() as floods, Peer(server.endpoint) as peer:
        for _ in range(3):
            floods.enter_context(flooding(server.endpoint, program=MALFORMED))
        eventually(
            lambda: peer.ask({"type": "STATS_REQUEST"}, timeout=PATIENCE_SECONDS)["counters"]["malformed"] > 1000
        )
        assert server.stop() == 0


LOCAL = """
import socket, struct, sys
said = {
    "requests": struct.pack("<IB", 11, 0) + b"no request",
    "subscriptions": b"".join(struct.pack("<IB", 11, kind) + b"channel/a/" for kind in (1, 2)),
    "nonsense": struct.pack("<IB", 3, 9) + b"??",
    "lengths": struct.pack("<I", 2**22),
}[sys.argv[2]] * 1000
print("floods", flush=True)
while True:
    with socket.socket(socket.AF_UNIX) as flooding:
        flooding.connect(sys.argv[1])
        try:
            while True:
                flooding.sendall(said)
        except OSError:
            pass  # hung up on: once more
"""


@pytest.mark.parametrize("what", ["requests", "subscriptions", "nonsense", "lengths"])
def test_a_flood_at_the_local_socket_stops_nobody(served: Callable[..., Served], what: str) -> None:
    """Of somebody who reads nothing."""
    server = served(**QUICK)
    with (
        flooding(str(local_path(server)), what, program=LOCAL),
        Peer(server.endpoint) as peer,
        LocalPeer(server) as local,
        hub_of(server) as hub,
    ):
        hub.register_producer("mine", schema_hash="h", required=True)
        with hub.watch("mine") as watch:
            assert watch.wait_current(PATIENCE_SECONDS)
        assert_serves(peer)
        for _ in range(100):
            assert local.ask({"type": "PING"})["type"] == "PONG"
        assert peer.counter("internal_errors") == 0
    assert server.stop() == 0


def test_the_places_of_one_peer_are_not_freed_by_another(tmp_path: Path) -> None:
    """The limit is a hard one: what a connection watched ends with that connection only."""
    with SharedHub(tmp_path / "hub").running(subscriptions_per_peer=3) as shared, shared.local() as local:
        with shared.peer("watcher") as peer:
            endpoint = events_of(peer)
        topics = [f"channel/c{number}/".encode() for number in range(4)]
        with shared.peer("watcher", zmq.SUB, endpoint=endpoint) as watcher:
            for topic in topics[:3]:
                watcher.socket.subscribe(topic)
                eventually(lambda topic=topic: watcher.socket.recv_multipart()[0] == topic)
            with shared.peer("boss", zmq.SUB, endpoint=endpoint) as other:
                for topic in topics[:3]:
                    other.socket.subscribe(topic)
                assert other.socket.poll(30_000)
            eventually(lambda: gauge(local, "subscriptions") == 3)
            watcher.socket.subscribe(topics[3])
            eventually(lambda: local.counter("refused_too_many_subscriptions") == 1)
        eventually(lambda: gauge(local, "subscriptions") == 0)
        with shared.peer("watcher", zmq.SUB, endpoint=endpoint) as watcher:
            watcher.socket.subscribe(topics[3])
            assert watcher.socket.poll(30_000), "a place is free again when its connection has ended"
