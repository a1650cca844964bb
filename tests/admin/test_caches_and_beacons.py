"""Beacons say that nothing happened: what HTTP keeps stays."""

from collections.abc import Callable
from typing import Any

import pytest

from messagehub.admin.broker_client import BrokerClient
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Listener, Peer, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_beacons_do_not_empty_the_caches_and_events_do(embedded: Callable[..., Embedded]) -> None:
    broker = embedded(**QUICK)
    nobody: Any = None
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer, Listener(broker.endpoint, b"schema/") as listener:
        backend = BrokerClient(hub, nobody)
        before = backend.generation
        hub.discover("c")  # connects
        eventually(lambda: backend.generation > before)
        for _ in range(3):
            listener.beacon()
        settled = backend.generation
        for _ in range(10):
            listener.beacon()
        assert backend.generation == settled
        assert peer.ask({"type": "SCHEMA_REGISTER", "subject": "s", "schema": True})["type"] == "SCHEMA_REGISTER_ACK"
        eventually(lambda: backend.generation > settled)
