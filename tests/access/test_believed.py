"""What a peer says of itself is shown, not believed: which process it is, and for how long it is there."""

import os
from pathlib import Path
from typing import Any

import pytest

from messagehub.shm.identity import ProcessIdentity
from tests.access.shared import SharedHub
from tests.integration.harness import Listener, Peer, eventually, producer
from tests.integration.invariants import gauge

pytestmark = pytest.mark.usefixtures("no_leaks")

SHORT: dict[str, Any] = {"heartbeat_seconds": 0.1, "stall_seconds": 0.2, "lease_seconds": 0.4}


def is_found(peer: Peer, channel: str) -> bool:
    return peer.ask({"type": "DISCOVERY_REQUEST", "channel": channel})["type"] == "DISCOVERY_RESPONSE"


def claims() -> dict[str, Any]:
    """A process that lives longer than the peer that names it."""
    named = ProcessIdentity.of(os.getpid())
    assert named is not None
    return named._asdict()


def test_a_peer_with_a_key_cannot_keep_its_registrations_by_naming_a_process_of_the_hubs_host(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(**SHORT) as shared, shared.local() as local:
        with shared.peer("writer") as peer:
            assert peer.ask(producer("c", lease="L", **claims()))["type"] == "PRODUCER_REGISTER_ACK"
        assert gauge(local, "watched_processes") == 0
        eventually(lambda: not is_found(local, "c"))
        assert local.ask(producer("own", lease="M", **claims()))["type"] == "PRODUCER_REGISTER_ACK"
        eventually(lambda: gauge(local, "watched_processes") == 1)  # whoever runs the hub is known by the kernel


def test_what_a_key_registered_ends_with_it(shared: SharedHub) -> None:
    with shared.local() as local, shared.peer("writer") as writer, shared.peer("boss") as boss:
        writer.ask(producer("withdrawn", lease="L"))
        boss.ask(producer("stays", lease="B"))
        with Listener(f"ipc://{shared.dir}/broker.sock", b"channel/") as listener:
            shared.revoke("writer")
            _, event = listener.event()
            assert (event["type"], event["reason"]) == ("PRODUCER_UNREGISTERED", "expired")
        assert not is_found(local, "withdrawn")
        assert is_found(local, "stays")
        eventually(lambda: gauge(local, "lease_owners") == 1)
