"""Who left is forgotten: a broker without members keeps no lease, watches no process and knows no owner."""

import signal
import subprocess
from collections.abc import Callable

import pytest
import zmq

from messagehub.errors import DuplicateRegistration
from messagehub.shm.identity import ProcessIdentity
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Peer, Served, check_broker, eventually, hub_of, producer, run_script
from tests.integration.invariants import gauge, kept_in_vain

pytestmark = pytest.mark.usefixtures("no_leaks")

CLIENT = """
import sys
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1])
kept = [hub.register_producer(f"c{n}", schema_hash="h", required=True) for n in range(3)]
kept.append(hub.register_consumer("c0", consumer_id="r", required=True))
hub.close()
"""


def test_clients_that_leave_cleanly_leave_nothing(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    for _ in range(3):
        run_script(CLIENT, broker.endpoint)
    with Peer(broker.endpoint) as peer:
        stats = peer.stats()
    assert stats["leases"] == 0
    assert stats["gauges"]["watched_processes"] == 0
    check_broker(broker.endpoint)


def test_whatever_ends_a_member_leaves_nothing(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer:
        hub.register_producer("destroyed", schema_hash="h", required=True)
        worker = hub.serve("service:s", lambda message, context: message.payload)
        assert peer.stats()["leases"] == 1
        assert peer.ask({"type": "CHANNEL_DESTROY", "channel": "destroyed"})["type"] == "CHANNEL_DESTROY_ACK"
        worker.close()
        eventually(lambda: peer.stats()["leases"] == 0)
        assert gauge(peer, "watched_processes") == 0
        # A draft client without a process: replaced by another lease once it has stalled, or released.
        first = {"type": "PRODUCER_REGISTER", "channel": "d", "schema_hash": "h", "schema_version": "1"}
        assert peer.ask(first | {"lease": "one"})["type"] == "PRODUCER_REGISTER_ACK"
        assert peer.ask({"type": "PRODUCER_UNREGISTER", "channel": "d", "lease": "one"})["type"].endswith("_ACK")
        assert peer.stats()["leases"] == 0


def test_a_shared_hub_forgets_whose_a_lease_was(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(audit=True, **QUICK)
    with Peer(broker.endpoint) as peer:
        for number in range(5):
            channel = {"channel": f"c{number}", "lease": f"L{number}"}
            peer.ask({"type": "PRODUCER_REGISTER", "schema_hash": "h", "schema_version": "1", **channel})
        assert gauge(peer, "lease_owners") == 5
        for number in range(5):
            peer.ask({"type": "PRODUCER_UNREGISTER", "channel": f"c{number}", "lease": f"L{number}"})
        assert eventually(lambda: gauge(peer, "lease_owners") == 0)
    assert kept_in_vain(broker.endpoint) == []


def test_the_check_passes_over_a_broker_that_ended(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    check_broker(server.endpoint)
    server.kill()
    server.close()


def test_very_many_members_of_a_process_that_ends_do_not_hold_up_others(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    count = 2000
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            named = ProcessIdentity.of(process.pid)
            assert named is not None
            with Peer(broker.endpoint, zmq.DEALER) as peer, Peer(broker.endpoint) as other:
                for number in range(count):
                    peer.send(producer(f"c{number}", lease="L", **named._asdict()))
                assert {peer.receive()["type"] for _ in range(count)} == {"PRODUCER_REGISTER_ACK"}
                assert other.ask(producer("lives", lease="M"))["type"] == "PRODUCER_REGISTER_ACK"
                process.kill()
                eventually(lambda: other.stats()["producers"] == 1)
                assert other.stats()["leases"] == 1
        finally:
            process.kill()
    check_broker(broker.endpoint)


def test_a_consumer_that_was_closed_while_its_broker_was_away_does_not_stay(served: Callable[..., Served]) -> None:
    """This process lives on, so only its silence says that it has no consumer any more."""
    server = served("--no-http", heartbeat_seconds=0.2, stall_seconds=4.0, lease_seconds=6.0, beacon_seconds=0.1)
    with hub_of(server) as living, living.producer("a"), living.consumer("a", group="crew", consumer_id="stays"):
        with hub_of(server) as closed:
            consumer = closed.consumer("a", group="crew", consumer_id="goes")
            server.kill()
        assert consumer.is_closed
        server.start()
        with Peer(server.endpoint) as peer:
            eventually(lambda: set(peer.snapshot()["a"]["consumers"]) == {"stays"})
            (group,) = peer.snapshot()["a"]["groups"].values()
            assert set(group["members"]) == {"stays"}


@pytest.mark.parametrize("fault", ["paused", "killed"])
def test_a_worker_that_was_closed_while_its_broker_was_away_does_not_stay(
    fault: str, served: Callable[..., Served]
) -> None:
    server = served("--no-http", heartbeat_seconds=0.2, stall_seconds=4.0, lease_seconds=6.0, beacon_seconds=0.1)
    with hub_of(server) as caller:
        with hub_of(server) as closed:
            closed.serve("name:scope", lambda *_: "closed")
            assert caller.request("name:scope", timeout=30.0) == "closed"
            server.kill() if fault == "killed" else server.signal(signal.SIGSTOP)
        server.start() if fault == "killed" else server.signal(signal.SIGCONT)
        with hub_of(server) as other:

            def serve() -> bool:
                try:
                    other.serve("name:scope", lambda *_: "other")
                except DuplicateRegistration:
                    return False
                return True

            eventually(serve)
            eventually(lambda: caller.connect(timeout=30.0))  # it backs off for a moment, and fails at once in between
            assert caller.request("name:scope", timeout=30.0, retries=20) == "other"
