"""The unix socket for clients of this host: who uses it, what each connection may take, and what ends with it."""

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from messagehub import MessageHub
from messagehub.broker.transports import local_connection
from messagehub.client import opening, zmq_session
from messagehub.client.local_session import LocalSession
from messagehub.errors import BrokerUnavailable
from messagehub.settings import local_socket_of
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Listener, Peer, Served, eventually, hub_of, producer, run_script
from tests.integration.invariants import gauge
from tests.integration.local_peer import LocalPeer, framed, local_path

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    return served(**QUICK)


@pytest.fixture
def peer(server: Served) -> Iterator[Peer]:
    with Peer(server.endpoint) as connected:
        yield connected


# -- who uses it -------------------------------------------------------------------------------------------


def test_a_client_of_this_host_uses_the_local_socket_for_requests_and_events(server: Served, peer: Peer) -> None:
    with hub_of(server) as hub, hub.watch() as watch:
        assert hub.register_producer("a", schema_hash="h", required=True)
        eventually(lambda: "a" in watch.channels)
        assert hub.discover("a", required=True)
        assert gauge(peer, "local_connections") == 1
        assert gauge(peer, "subscriptions") >= 1
    eventually(lambda: gauge(peer, "local_connections") == 0)
    eventually(lambda: gauge(peer, "subscriptions") == 0)


def test_a_client_that_is_told_so_uses_zeromq(server: Served, peer: Peer) -> None:
    with hub_of(server, transport="zmq") as hub, hub.watch() as watch:
        assert hub.register_producer("a", schema_hash="h", required=True)
        eventually(lambda: "a" in watch.channels)
        assert gauge(peer, "local_connections") == 0


@pytest.mark.parametrize("is_left", [False, True], ids=["no socket", "a socket that an ended broker left"])
def test_a_hub_without_the_local_socket_is_reached_by_zeromq(server: Served, peer: Peer, is_left: bool) -> None:
    path = local_path(server)
    path.unlink()
    if is_left:
        with zmq.Context() as context, context.socket(zmq.PAIR) as left:
            left.bind(f"ipc://{path}.other")
            os.rename(f"{path}.other", path)
    with hub_of(server) as hub:
        assert hub.register_producer("a", schema_hash="h", required=True)
        assert gauge(peer, "local_connections") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_socket_that_another_user_serves_is_not_used(server: Served, peer: Peer) -> None:
    os.chown(server.endpoint.removeprefix("ipc://"), 12345, -1)
    with hub_of(server) as hub:
        assert hub.register_producer("a", schema_hash="h", required=True)
        assert gauge(peer, "local_connections") == 0


def test_the_socket_is_private_and_ends_with_its_broker(server: Served) -> None:
    path = local_path(server)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert server.stop() == 0
    assert not path.exists()


def test_a_path_that_is_too_long_for_a_socket_has_none() -> None:
    assert local_socket_of("ipc:///" + "x" * 100 + "/b.sock") is None
    assert local_socket_of("tcp://127.0.0.1:5570") is None
    assert local_socket_of("ipc://relative.sock") is None
    assert local_socket_of("ipc:///run/broker.sock") == Path("/run/broker-local.sock")


def test_a_broker_that_was_still_starting_is_reached_by_its_local_socket(
    server: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ZeroMQ socket answers, and the other one was not there a moment before."""
    path = local_path(server)
    aside = path.with_suffix(".aside")
    path.rename(aside)

    def connected_late(*arguments: Any, **options: Any) -> Any:
        session = zmq_session.connected(*arguments, **options)
        aside.rename(path)
        return session

    monkeypatch.setattr(opening, "connected", connected_late)
    with hub_of(server) as hub:
        hub.register_producer("a", schema_hash="h", required=True)
        assert gauge(peer, "local_connections") == 1


def test_a_broker_that_was_killed_is_found_again(server: Served) -> None:
    with hub_of(server) as hub, hub.watch() as watch:
        hub.register_producer("a", schema_hash="h", required=True)
        assert watch.wait_current(30.0)
        server.kill()
        eventually(lambda: not watch.is_current)
        server.start()
        assert watch.wait_current(30.0)
        with Peer(server.endpoint) as peer:
            eventually(lambda: gauge(peer, "local_connections") == 1)
            eventually(lambda: peer.ask({"type": "DISCOVERY_REQUEST", "channel": "a"}).get("status") == "active")


def test_a_paused_broker_is_given_up_soon_and_a_busy_one_is_not(server: Served) -> None:
    path, now = local_path(server), time.monotonic
    server.signal(signal.SIGSTOP)
    try:
        started = now()
        with pytest.raises(BrokerUnavailable):
            LocalSession(
                path, server.endpoint, deadline=started + 600, handshake_deadline=started + 0.2, hello_id="hello"
            )
        assert now() < started + 300
    finally:
        server.signal(signal.SIGCONT)
    session = LocalSession(path, server.endpoint, deadline=now() + 30, handshake_deadline=now(), hello_id="hello")
    session.close()


FORK = """
import os, sys, time
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1])
hub.register_producer("parents", schema_hash="h", required=True)
with hub.watch() as watch:
    assert watch.wait_current(30.0)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        hub.register_producer("childs", schema_hash="h", required=True)
        os.write(told, b"x")
        os.closerange(0, 3)  # whoever reads what we print waits for the end
        time.sleep(600)
    os.read(ready, 1)
    assert hub.discover("childs", required=True).source == "broker"
    assert watch.wait_current(30.0)
    print(child, flush=True)
    os._exit(0)  # without closing anything: the child goes on
"""


def test_the_session_of_a_process_ends_with_it_though_its_child_lives(server: Served, peer: Peer) -> None:
    child = int(run_script(FORK, server.endpoint))
    try:
        eventually(lambda: gauge(peer, "local_connections") == 1)
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "childs"})["status"] == "active"
    finally:
        os.kill(child, signal.SIGKILL)
    eventually(lambda: gauge(peer, "local_connections") == 0)


# -- what it says ------------------------------------------------------------------------------------------


def test_replies_are_the_same_by_both_transports(server: Served, peer: Peer) -> None:
    with LocalPeer(server) as local:
        assert local.ask(producer("a", id="1"))["type"] == "PRODUCER_REGISTER_ACK"
        for message in (
            {"type": "DISCOVERY_REQUEST", "channel": "a", "id": "x"},
            {"type": "DISCOVERY_REQUEST", "channel": "b", "id": "y"},
            {"type": "CHANNEL_LIST_REQUEST"},
            {"type": "HELLO"},
            {"type": "NONSENSE", "id": "z"},
        ):
            assert local.ask(message) == peer.ask(message)
        assert local.ask(b"no request")["code"] == peer.ask(b"no request")["code"] == "INVALID_REQUEST"


def test_a_subscription_is_echoed_and_events_come_as_by_zeromq(server: Served, peer: Peer) -> None:
    with LocalPeer(server) as local, Listener(server.endpoint, b"channel/") as listener:
        local.subscribe(b"channel/")
        local.subscribe(b"channel/a/")
        echoes = dict([local.event(), local.event()])
        assert {said["type"] for said in echoes.values()} == {"BEACON"}
        assert echoes.keys() == {b"channel/", b"channel/a/"}
        assert peer.ask(producer("a"))["type"] == "PRODUCER_REGISTER_ACK"
        heard, event = listener.event(), local.event()
        while event[1]["type"] == "BEACON":
            event = local.event()
        assert event == heard  # once, though two subscriptions match
        local.unsubscribe(b"channel/")
        local.unsubscribe(b"channel/a/")
        assert local.ask({"type": "PING"})["type"] == "PONG"
        assert gauge(peer, "subscriptions") == 1


def test_many_requests_in_flight_are_each_answered_in_turn(server: Served) -> None:
    count = 20 * local_connection.MOST_WAITING
    with LocalPeer(server) as local:
        local.socket.settimeout(60)
        sent = b"".join(framed(0, b'{"type":"PING","id":"%d"}' % number) for number in range(count))
        view, asked = memoryview(sent), 0
        while asked < len(sent):  # as much as it takes, then what it has answered: so it is never stuck
            asked += local.socket.send(view[asked : asked + 2**15])
        assert [local.reply()["id"] for _ in range(count)] == [str(number) for number in range(count)]


def test_high_priority_overtakes_what_the_same_connection_has_sent_before(server: Served) -> None:
    with LocalPeer(server) as local:
        low = b"".join(framed(0, b'{"type":"PING","id":"low","priority":"low"}') for _ in range(200))
        local.socket.sendall(low + framed(0, b'{"type":"PING","id":"high","priority":"high"}'))
        order = [local.reply()["id"] for _ in range(201)]
        assert order.index("high") < 200


def test_what_is_too_large_is_refused_and_what_is_far_too_large_ends_the_connection(server: Served, peer: Peer) -> None:
    with LocalPeer(server) as local:
        refused = local.ask(b'{"type":"PING","id":"big","echo":"%s"}' % (b"x" * (1 << 20)))
        assert (refused["code"], refused["id"]) == ("MESSAGE_TOO_LARGE", "big")
        local.socket.sendall((5 << 20).to_bytes(4, "little"))
        assert local.is_hung_up_on()
    eventually(lambda: gauge(peer, "local_connections") == 0)
    assert peer.counter("bad_frames") == 1


@pytest.mark.parametrize(
    "said", [framed(3, b"x"), framed(255, b""), framed(1, b"t" * 1025), b"\0\0\0\0", b"\xff\xff\xff\xff"]
)
def test_what_is_no_frame_ends_its_connection_and_no_other(server: Served, peer: Peer, said: bytes) -> None:
    with LocalPeer(server) as other, LocalPeer(server) as local:
        local.socket.sendall(said)
        assert local.is_hung_up_on()
        assert other.ask({"type": "PING"})["type"] == "PONG"
    assert peer.counter("bad_frames") == 1


# -- what one connection may take --------------------------------------------------------------------------


def test_who_does_not_take_its_events_is_hung_up_on_and_the_others_hear_them(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "MOST_UNTAKEN_BYTES", 2**16)
    broker = embedded(**QUICK)
    with LocalPeer(broker) as silent, Peer(broker.endpoint) as peer, hub_of(broker) as hub, hub.watch() as watch:
        silent.subscribe(b"channel/")
        eventually(lambda: gauge(peer, "subscriptions") == 2)
        number = 0
        while not peer.counter("hung_up_locally"):
            number += 1
            assert number < 10_000
            peer.ask(producer(f"c{number}", metadata={"a": "x" * 10_000}))
        eventually(lambda: gauge(peer, "subscriptions") == 1)
        eventually(lambda: len(watch.channels) == number)
        assert silent.is_hung_up_on()


def test_who_does_not_take_its_replies_is_hung_up_on(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_connection, "MOST_UNTAKEN_BYTES", 2**16)
    broker = embedded(**QUICK)
    with LocalPeer(broker) as silent, Peer(broker.endpoint) as peer:
        peer.ask(producer("a", metadata={"a": "x" * 100_000}))
        silent.socket.sendall(framed(0, b'{"type":"DISCOVERY_REQUEST","channel":"a"}') * 500)
        eventually(lambda: peer.counter("hung_up_locally") == 1)
        assert silent.is_hung_up_on()
        assert peer.counter("internal_errors") == 0


def test_a_hub_that_stops_answers_what_it_has_received(server: Served) -> None:
    with LocalPeer(server) as local:
        local.ask({"type": "PING"})
        local.socket.sendall(framed(0, b'{"type":"PING"}') * 100)
        server.signal(signal.SIGTERM)
        assert [local.reply()["type"] for _ in range(100)] == ["PONG"] * 100
        assert local.is_hung_up_on()


def test_many_clients_come_and_go(server: Served, peer: Peer) -> None:
    peers = [LocalPeer(server) for _ in range(300)]
    for local in peers:
        local.send({"type": "PING"})
    assert all(local.reply()["type"] == "PONG" for local in peers)
    assert gauge(peer, "local_connections") == 300
    for local in peers:
        local.close()
    eventually(lambda: gauge(peer, "local_connections") == 0)


def test_an_embedded_broker_is_reached_in_its_own_process(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with MessageHub(endpoint=broker.endpoint) as hub, Peer(broker.endpoint) as peer:
        assert hub.register_producer("a", schema_hash="h", required=True)
        assert gauge(peer, "local_connections") == 1
