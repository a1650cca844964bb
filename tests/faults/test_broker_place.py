"""One broker per directory and endpoint, private places only, and a clean end."""

import contextlib
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from messagehub import MessageHub, embedded_broker
from messagehub.client.broker_file import is_held
from messagehub.errors import BrokerAlreadyRunning, ConfigurationError
from tests.conftest import QUICK
from tests.integration.harness import (
    REGISTER,
    Embedded,
    Peer,
    Served,
    checked_broker,
    eventually,
    launch,
    refused,
)
from tests.ports import own_endpoint

pytestmark = pytest.mark.usefixtures("no_leaks")


def assert_refused(directory: Path, *arguments: str, saying: str) -> None:
    code, complaint = refused(directory, *arguments)
    assert code == 1, complaint
    assert saying in complaint
    assert "Traceback" not in complaint
    assert len(complaint.strip().splitlines()) == 1


def assert_goes_on(server: Served) -> None:
    with Peer(server.endpoint) as peer:
        assert peer.ask(REGISTER)["type"] == "PRODUCER_REGISTER_ACK"


def test_a_second_broker_on_the_same_directory_is_refused(served: Callable[..., Served]) -> None:
    first = served(**QUICK)
    assert_refused(first.dir, saying=f"another broker holds directory {first.dir}")
    assert_refused(first.dir, "--endpoint", own_endpoint(), saying="another broker holds directory")
    assert_goes_on(first)
    first.kill()
    first.start()
    assert_goes_on(first)


def test_a_second_broker_on_the_same_tcp_endpoint_is_refused(served: Callable[..., Served], tmp_path: Path) -> None:
    endpoint = own_endpoint()
    first = served("--endpoint", endpoint, **QUICK)
    assert first.endpoint == endpoint
    assert_refused(tmp_path / "other", "--endpoint", endpoint, saying=f"{endpoint} is in use")
    assert_goes_on(first)


def test_a_second_broker_on_the_same_ipc_endpoint_is_refused(served: Callable[..., Served], tmp_path: Path) -> None:
    """An ipc bind would take the socket away without a word."""
    place = tmp_path / "sockets"
    place.mkdir(mode=0o700)
    endpoint = f"ipc://{place}/hub.sock"
    first = served("--endpoint", endpoint, **QUICK)
    assert_refused(tmp_path / "other", "--endpoint", endpoint, saying=f"another broker holds endpoint {endpoint}")
    around = f"ipc://{place}/../sockets/hub.sock"
    assert_refused(tmp_path / "other", "--endpoint", around, saying="another broker holds endpoint")
    assert_goes_on(first)


def test_a_broker_elsewhere_cannot_take_the_socket_in_anothers_directory(
    served: Callable[..., Served], tmp_path: Path
) -> None:
    first = served(**QUICK)
    assert_refused(tmp_path / "other", "--endpoint", first.endpoint, saying="another broker holds endpoint")
    assert_refused(
        tmp_path / "other",
        "--events-endpoint",
        first.endpoint.replace("broker.sock", "broker-events.sock"),
        saying="another broker holds endpoint",
    )
    assert_goes_on(first)


def test_an_embedded_broker_is_refused_the_same_way(embedded: Callable[..., Embedded], tmp_path: Path) -> None:
    embedded(dir=tmp_path / "hub", **QUICK)
    with pytest.raises(BrokerAlreadyRunning), embedded_broker(dir=tmp_path / "hub"):
        pytest.fail("two brokers in one directory")


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "192.0.2.1", "eth0", "[::]", "example.com"])
def test_an_endpoint_beyond_this_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="loopback"), embedded_broker(endpoint=f"tcp://{host}:5570"):
        pytest.fail("it must not start")


def test_serve_refuses_an_endpoint_beyond_this_host(tmp_path: Path) -> None:
    assert_refused(tmp_path / "hub", "--endpoint", "tcp://0.0.0.0:5570", saying="loopback")
    assert_refused(tmp_path / "hub", "--events-endpoint", "tcp://0.0.0.0:5571", saying="loopback")
    assert_refused(tmp_path / "hub", "--endpoint", "udp://127.0.0.1:1", saying="ipc:// or tcp://")


def test_a_tcp_endpoint_without_a_port_takes_free_ones() -> None:
    with checked_broker(endpoint="tcp://127.0.0.1:0") as endpoint, MessageHub(endpoint=endpoint) as hub:
        assert not endpoint.endswith(":0")
        assert hub.register_producer("a", schema_hash="h")
        with hub.watch() as watch:
            assert watch.wait_current(30)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o777])
def test_a_directory_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "hub"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 700"), embedded_broker(dir=directory):
        pytest.fail("it must not start")
    assert list(directory.iterdir()) == []


def test_serve_makes_its_directory_private_and_refuses_an_open_one(tmp_path: Path) -> None:
    open_one = tmp_path / "open"
    open_one.mkdir()
    open_one.chmod(0o755)
    assert_refused(open_one, saying="chmod 700")
    with Served(tmp_path / "new" / "below", **QUICK) as server:
        assert stat.S_IMODE(server.dir.stat().st_mode) == 0o700
        assert stat.S_IMODE((server.dir / "registry.db").stat().st_mode) == 0o600
        assert_goes_on(server)


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    os.chown(directory, 65534, 65534)
    with pytest.raises(ConfigurationError, match="another user"), embedded_broker(dir=directory):
        pytest.fail("it must not start")


def test_a_directory_too_long_for_a_socket_works(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60) / ("y" * 60)
    with Served(long, **QUICK) as server:
        assert_goes_on(server)
        with MessageHub(dir=long) as hub:
            eventually(hub.connect)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_broker_answers_what_has_arrived_and_ends_with_zero(
    served: Callable[..., Served], number: int
) -> None:
    """All answers are here, none twice, and what was acknowledged is there after the next start."""
    server = served(**QUICK)
    count = 2000
    with Peer(server.endpoint, zmq.DEALER, SNDHWM=0, RCVHWM=0) as peer:
        peer.ask({"type": "PING"})
        server.signal(signal.SIGSTOP)
        for index in range(count):
            peer.send({"type": "CHANNEL_CREATE", "channel": f"c{index}", "id": f"c{index}"})
        peer.send({"type": "PING", "id": "behind"})
        server.signal(number)
        server.signal(signal.SIGCONT)
        assert server.process is not None
        assert server.process.wait(30) == 0
        answered = [peer.receive()]
        while peer.socket.poll(200):
            answered.append(peer.receive())
    kept = [reply["id"] for reply in answered if reply["type"] == "CHANNEL_CREATE_ACK"]
    assert kept == [f"c{index}" for index in range(len(kept))]
    assert len(kept) > 0
    assert not (server.dir / "broker.json").exists()
    assert not list(server.dir.glob("*.sock"))
    assert not is_held(server.dir / "broker.lock")
    server.close()
    server.start()
    with Peer(server.endpoint) as peer:
        assert set(kept) <= set(peer.snapshot())
        assert "Traceback" not in server.log()


def test_signals_while_stopping_do_no_harm(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    assert server.process is not None
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            server.signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert "Traceback" not in server.log()
    server.close()


def test_a_signal_at_any_moment_of_the_start_leaves_nothing_locked(tmp_path: Path) -> None:
    for attempt in range(3):
        process = launch(tmp_path / "hub")
        try:
            if attempt:
                eventually(lambda: is_held(tmp_path / "hub" / "broker.lock"))
            process.terminate()
            process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait(30)
        assert not is_held(tmp_path / "hub" / "broker.lock")
    with Served(tmp_path / "hub", **QUICK) as server:
        assert_goes_on(server)


def test_a_client_of_the_directory_finds_a_broker_on_tcp(served: Callable[..., Served]) -> None:
    server = served("--endpoint", own_endpoint(), **QUICK)
    with MessageHub(dir=server.dir) as hub:
        eventually(hub.connect)
        server.kill()
        eventually(lambda: not hub.connect())
        server.start()
        eventually(hub.connect)
