"""kill -9 of the broker under load, again and again: nothing acknowledged is lost and everybody comes back."""

import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from messagehub import MessageHub, Registration, Watch
from messagehub.errors import BrokerUnavailable
from tests.integration.harness import Peer, Served, eventually, hub_of
from tests.levels import STORM_SECONDS

pytestmark = pytest.mark.usefixtures("no_leaks")

HEARTBEAT_SECONDS = 30.0
"""So long, at most, they would take to come back if they only noticed at a heartbeat."""
TERMS = {
    "heartbeat_seconds": HEARTBEAT_SECONDS,
    "stall_seconds": 90.0,
    "lease_seconds": 180.0,
    "beacon_seconds": 0.1,
}
CLIENT = {"reconnect_max_seconds": 0.3, "request_timeout_seconds": 30.0, "hello_timeout_seconds": 5.0}
MEMBERS = 20
KILLS = max(4, int(STORM_SECONDS / 3))
"""About as many as fit into the time that `make soak` gives."""


class Load:
    """Threads that write durable things as fast as they are acknowledged, and remember what was."""

    def __init__(self, hub: MessageHub, threads: int = 3) -> None:
        self.channels: dict[str, dict[str, Any]] = {}
        self.schemas: dict[str, tuple[int, str]] = {}
        self.destroyed: set[str] = set()
        self._hub = hub
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self._write(next(self._numbers))
        except BaseException as error:  # noqa: BLE001  raised again by `stop`
            self._failures.append(error)

    def _write(self, number: int) -> None:
        name = f"kept{number}"
        try:
            self._hub.create_channel(name, metadata={"n": number})
            self.channels[name] = {"n": number}
            schema = self._hub.register_schema(name, {"title": name})
            self.schemas[name] = (schema.schema_id, schema.schema_hash)
            if number % 5 == 0:
                del self.channels[name]  # from here on it may be there or not
                self._hub.destroy_channel(name)
                self.destroyed.add(name)
        except BrokerUnavailable:
            self._is_over.wait(0.01)  # between attempts while the broker is away

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        if self._failures:
            raise self._failures[0]

    def assert_kept(self, peer: Peer) -> None:
        found = peer.snapshot()
        assert {name: found[name]["metadata"] for name in self.channels} == self.channels
        assert not self.destroyed & set(found)
        for name, (schema_id, schema_hash) in self.schemas.items():
            reply = peer.ask({"type": "SCHEMA_REQUEST", "schema_id": schema_id})
            assert reply["schema"]["schema_hash"] == schema_hash, name
            assert peer.ask({"type": "SCHEMA_REQUEST", "subject": name})["schema"]["schema_id"] == schema_id


class Recorder:
    """A watcher that takes every event and keeps its revision."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.revisions: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.revisions += (event.revision for event in self.watch)

    def stop(self) -> list[int]:
        self.watch.close()
        self._thread.join(30)
        return self.revisions


def view(watch: Watch) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(watch.channels)
    return shown


def assert_view_is_the_brokers_state(watch: Watch, peer: Peer) -> None:
    def is_equal() -> bool:
        state = peer.snapshot()
        if watch.channel is not None:
            state = {name: channel for name, channel in state.items() if name == watch.channel}
        return watch.is_current and view(watch) == state

    eventually(is_equal)


def kill_and_restart(server: Served, kills: int) -> None:
    with (
        hub_of(server, **CLIENT) as writer,
        hub_of(server, **CLIENT) as members,
        hub_of(server, **CLIENT) as reader,
        hub_of(server, **CLIENT) as watcher,
    ):
        names = [f"live{number}" for number in range(MEMBERS)]
        registrations = [members.register_producer(name, schema_hash=f"h-{name}", required=True) for name in names]
        registrations += [members.register_consumer(name, required=True) for name in names]
        shm_names = {name: found.shm_name for name in names if (found := reader.discover(name)) is not None}
        assert len(shm_names) == MEMBERS
        everything, one = Recorder(watcher.watch()), Recorder(watcher.watch("live0"))
        assert everything.watch.wait_current(30)
        for _ in range(kills):
            load = Load(writer)
            threading.Event().wait(random.uniform(0.2, 0.5))
            server.kill()
            assert eventually(lambda: not members.is_connected)
            server.start()
            ready_at = time.monotonic()
            for name in names:
                eventually(is_found, reader, name, shm_names[name])
            assert time.monotonic() - ready_at < HEARTBEAT_SECONDS / 2
            eventually(lambda: all(registrations) and members.is_connected)
            load.stop()
            with Peer(server.endpoint) as peer:
                eventually(asked_again, peer)
                load.assert_kept(peer)
                assert peer.ask({"type": "PING"})["read_only"] is False
                for recorder in (everything, one):
                    assert_view_is_the_brokers_state(recorder.watch, peer)
                assert {name: channel["shm_name"] for name, channel in discovered(peer, names).items()} == shm_names
        for recorder in (everything, one):
            revisions = recorder.stop()
            assert recorder.watch.missed == 0
            assert revisions == sorted(set(revisions))
        assert watcher.metrics()["reconnects"] >= kills


def is_found(hub: MessageHub, name: str, shm_name: str | None) -> bool:
    found = hub.discover(name)
    return found is not None and found.is_active and found.shm_name == shm_name


def asked_again(peer: Peer) -> bool:
    """The clients have said everything anew; nobody told them to."""
    requests = peer.stats()["requests"]
    counts = [requests.get(name, {"count": 0})["count"] for name in ("PRODUCER_REGISTER", "CONSUMER_REGISTER")]
    return counts == [MEMBERS, MEMBERS]


def discovered(peer: Peer, names: list[str]) -> dict[str, Any]:
    return {name: peer.ask({"type": "DISCOVERY_REQUEST", "channel": name}) for name in names}


@pytest.mark.soak
@pytest.mark.timeout(60 * KILLS + 120)
def test_a_broker_killed_under_load_loses_nothing_and_everybody_comes_back(served: Callable[..., Served]) -> None:
    kill_and_restart(served(**TERMS), kills=KILLS)


def test_registrations_are_rebuilt_by_the_clients_alone_when_the_database_is_gone(
    served: Callable[..., Served],
) -> None:
    server = served(**TERMS)
    with hub_of(server, **CLIENT) as hub, hub_of(server, **CLIENT) as reader, reader.watch() as watch:
        registrations = [hub.register_producer(f"c{number}", schema_hash="h", required=True) for number in range(3000)]
        assert reader.discover("c7") is not None
        server.kill()
        for path in server.dir.glob("registry.db*"):
            path.unlink()
        server.start()
        with Peer(server.endpoint) as peer:
            eventually(lambda: len(peer.snapshot()) == 3000)
            assert all(registrations)
            eventually(lambda: is_found(reader, "c7", "/pylabhub_c7"))
            assert_view_is_the_brokers_state(watch, peer)
        assert (hub.metrics()["reconnects"], hub.metrics()["timeouts"]) == (1, 0)  # no answer of thousands was lost


def test_a_replaced_answer_is_not_taken_for_the_old_one(served: Callable[..., Served]) -> None:
    """Another broker may give the same revision to something else: what was cached is asked for again."""
    server = served(**TERMS)
    with hub_of(server, **CLIENT) as reader:
        with Peer(server.endpoint) as peer:
            peer.ask({"type": "PRODUCER_REGISTER", "channel": "a", "schema_hash": "old"})
        for _ in range(3):
            eventually(lambda: (found := reader.discover("a")) is not None and found.schema_hash == "old")
        server.kill()
        for path in server.dir.glob("registry.db*"):
            path.unlink()
        server.start()
        with Peer(server.endpoint) as peer:
            peer.ask({"type": "PRODUCER_REGISTER", "channel": "a", "schema_hash": "new"})
            eventually(lambda: (found := reader.discover("a")) is not None and found.schema_hash == "new")
            for _ in range(200):
                found = reader.discover("a")
                assert found is not None
                assert found.schema_hash == "new"


def close_all(registrations: list[Registration]) -> None:
    for registration in registrations:
        registration.close()


def test_a_registration_closed_while_the_broker_is_away_does_not_come_back(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server, **CLIENT) as hub:
        kept = hub.register_producer("kept", schema_hash="h", required=True)
        gone = [hub.register_producer(f"gone{number}", schema_hash="h", required=True) for number in range(50)]
        server.kill()
        close_all(gone[:25])
        closing = threading.Thread(target=close_all, args=(gone[25:],))
        closing.start()  # while the broker comes back
        server.start()
        closing.join(60)
        assert not any(gone)
        with Peer(server.endpoint) as peer:
            eventually(lambda: set(peer.snapshot()) == {"kept"})
        assert kept
