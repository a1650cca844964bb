"""The wall clock may be set forward or back: whoever lives stays registered, and what is there stays readable."""

import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.integration.harness import Embedded, Peer, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")

DAY = 86_400.0
QUICK_LEASES = {"heartbeat_seconds": 0.5, "stall_seconds": 6.0, "lease_seconds": 7.0, "beacon_seconds": 0.1}


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "back"])
def test_nobody_is_lost_when_the_clock_jumps(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    broker = embedded(**QUICK_LEASES)
    real = time.time
    with (
        hub_of(broker, hello_timeout_seconds=5.0) as hub,
        hub.watch() as watch,
        Peer(broker.endpoint) as peer,
        hub.producer("ring") as producer,
        hub.consumer("ring", start="oldest") as consumer,
        hub.producer("shared", capacity=8) as sharing,
        hub.consumer("shared", group="crew", start="oldest") as member,
    ):
        sharing.write(b"1")
        assert bytes(member.read(timeout=30.0)) == b"1"
        hub.publish_table("table", pa.table({"x": [1, 2]}))
        hub.topic("kept", keep=10)
        hub.publish("kept", b"before")
        hub.serve("service:echo", lambda message, _: message.payload)
        producer.write(b"before")
        assert watch.wait_current(30.0)
        revision = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "ring"})["revision"]
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        beats = _beats(peer)
        eventually(lambda: _beats(peer) > beats + 15)  # longer than a lease
        found = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "ring"})
        assert (found["status"], found["revision"], found["consumer_count"]) == ("active", revision, 1)
        producer.write(b"after")
        assert [bytes(consumer.read(timeout=30.0)) for _ in range(2)] == [b"before", b"after"]
        sharing.write(b"2")
        assert bytes(member.read(timeout=30.0)) == b"2", "it has its share of the group still"
        assert len(hub.consumers("shared")) == 1
        with hub.consumer("table", start="oldest") as reader:
            assert reader.read(timeout=30.0)["x"].to_pylist() == [1, 2]
        hub.publish("kept", b"after")
        with hub.subscribe("kept", since="oldest") as subscription:
            assert [subscription.receive(30.0).payload for _ in range(2)] == [b"before", b"after"]
        assert hub.request("service:echo", b"x", timeout=30.0) == b"x"


def _beats(peer: Peer) -> int:
    count: int = peer.stats()["requests"].get("HEARTBEAT", {"count": 0})["count"]
    return count
