"""Health, metrics and tracing, on both sides."""

import time
from collections.abc import Callable

import pytest

from messagehub import MessageHub
from messagehub.errors import ChannelNotFound, InvalidName
from tests.conftest import QUICK
from tests.integration.harness import REGISTER, AnyBroker, Peer, Served, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_health_is_healthy_or_unavailable_within_the_stated_time(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with MessageHub(dir=server.dir) as hub:
        healthy = hub.health(timeout=30.0)
        assert healthy["status"] == "healthy"
        assert healthy["read_only"] is False
        assert healthy["seconds"] < 30.0
        with Peer(server.endpoint) as peer:
            assert healthy["broker_id"] == peer.ask({"type": "PING"})["broker_id"]
        server.kill()
        started = time.monotonic()
        states = [hub.health(timeout=1.0)["status"] for _ in range(5)]
        assert time.monotonic() - started < 15.0  # five times one second, and a loaded machine
        assert set(states) == {"unavailable"}
        assert hub.health()["reason"]


def test_what_is_no_request_is_counted_as_refused_too(peer: Peer) -> None:
    for _ in range(3):
        assert peer.ask({"type": "NONSENSE"})["type"] == "ERROR"
    for _ in range(2):
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "bad name!"})["type"] == "ERROR"
    requests = peer.ask({"type": "STATS_REQUEST"})["requests"]
    assert sum(each["errors"] for each in requests.values()) == 5
    assert requests["unknown"]["errors"] == requests["unknown"]["count"] == 3


def test_both_sides_count_the_same_requests_and_errors_exactly(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        for number in range(7):
            hub.create_channel(f"c{number}")
        for _ in range(3):
            with pytest.raises(ChannelNotFound):
                hub.describe("nobody")
        with pytest.raises(InvalidName):
            hub.create_channel("1")
        hub.channels()
        stats = hub.stats()
        assert stats is not None
        ours = hub.metrics()["requests"]
        for requests in (stats.requests, ours):
            counted = {name: (it["count"], it["errors"]) for name, it in requests.items() if name != "STATS_REQUEST"}
            counted.pop("HELLO", None)
            counted.pop("PING", None)  # asked of a broker that takes its time
            assert counted == {
                "CHANNEL_CREATE": (8, 1),
                "CHANNEL_DESCRIBE_REQUEST": (3, 0),  # not found is an answer
                "CHANNEL_LIST_REQUEST": (1, 0),
            }
            for histogram in requests.values():
                assert sum(histogram["buckets"].values()) == histogram["count"]
                assert histogram["total_seconds"] >= 0
                assert 0 < histogram["p50_seconds"] <= histogram["p99_seconds"]
        assert (stats.channels, stats.producers, stats.schemas) == (7, 0, 0)
        metrics = hub.metrics()
        assert {name: metrics[name] for name in ("timeouts", "connects", "disconnects", "reconnects")} == {
            "timeouts": 0,
            "connects": 1,
            "disconnects": 0,
            "reconnects": 0,
        }


def test_reconnects_are_counted(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with hub_of(server, reconnect_max_seconds=0.2) as hub:
        hub.register_producer("a", schema_hash="h")
        for count in (1, 2):
            server.kill()
            server.start()
            eventually(lambda wanted: hub.metrics()["reconnects"] == wanted, count)
        assert hub.metrics()["disconnects"] == 2


def test_one_correlation_id_shows_both_sides_of_an_exchange(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        hub.create_channel("a")
        with pytest.raises(ChannelNotFound):
            hub.describe("nobody")
        newest = {exchange["request"]: exchange for exchange in hub.trace() if exchange["side"] == "client"}
        for request, theirs, ours in (
            ("CHANNEL_CREATE", "CHANNEL_CREATE_ACK", "ok"),
            ("CHANNEL_DESCRIBE_REQUEST", "CHANNEL_NOT_FOUND", "CHANNEL_NOT_FOUND"),
        ):
            correlation_id = newest[request]["correlation_id"]
            both = hub.trace(correlation_id)
            assert {exchange["correlation_id"] for exchange in both} == {correlation_id}
            assert {exchange["side"]: exchange["answer"] for exchange in both} == {"client": ours, "broker": theirs}
            assert {exchange["request"] for exchange in both} == {request}
            assert all(exchange["seconds"] > 0 for exchange in both)


def test_a_script_traces_its_own_ids_also_of_refused_bytes(peer: Peer) -> None:
    peer.ask(REGISTER | {"id": "mine"})
    peer.ask({"type": "DISCOVERY_REQUEST", "id": "broken"})
    (good,) = peer.ask({"type": "TRACE_REQUEST", "correlation_id": "mine"})["exchanges"]
    assert (good["request"], good["answer"]) == ("PRODUCER_REGISTER", "PRODUCER_REGISTER_ACK")
    (bad,) = peer.ask({"type": "TRACE_REQUEST", "correlation_id": "broken"})["exchanges"]
    assert (bad["request"], bad["answer"]) == ("?", "INVALID_REQUEST")
    assert len(peer.ask({"type": "TRACE_REQUEST", "limit": 1})["exchanges"]) == 1


def test_the_trace_is_bounded(start_broker: Callable[..., AnyBroker]) -> None:
    broker = start_broker(trace_size=10, **QUICK)
    with Peer(broker.endpoint) as peer:
        for number in range(50):
            peer.ask({"type": "PING", "id": str(number)})
        kept = peer.ask({"type": "TRACE_REQUEST"})["exchanges"]
        assert [exchange["correlation_id"] for exchange in kept] == [str(number) for number in range(49, 39, -1)]
