"""What one peer may take of a shared hub, each limit with its error and its number."""

import re
from pathlib import Path

import pytest
import zmq

from messagehub.admin.authentication import counters
from messagehub.errors import BY_CODE, TooManyRegistrations
from messagehub.security.rate_limits import TokenBuckets
from tests.access.shared import SharedHub
from tests.integration.harness import eventually, producer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
pytestmark = pytest.mark.usefixtures("no_leaks")


def worker(number: int) -> dict[str, str]:
    names = {"address": f"service:s{number}", "worker_id": f"w{number}", "lease": "mine"}
    return {"type": "SERVICE_REGISTER", "endpoint": "unix:@x", "key": "k", **names}


def test_a_bucket_gives_a_seconds_worth_and_refills() -> None:
    buckets = TokenBuckets(10)
    assert [buckets.take("a", 0.0) for _ in range(11)] == [True] * 10 + [False]
    assert buckets.take("b", 0.0)
    assert [buckets.take("a", 0.25) for _ in range(3)] == [True, True, False]
    assert sum(buckets.take("a", 100.0) for _ in range(100)) == 10
    assert all(TokenBuckets(0).take("a", 0.0) for _ in range(100))


def test_a_flooding_peer_is_limited_and_the_others_are_served(tmp_path: Path) -> None:
    count = 5000
    with SharedHub(tmp_path / "hub").running(requests_per_second=120) as shared, shared.local() as local:
        with shared.peer("writer", zmq.DEALER, SNDHWM=0, RCVHWM=0) as flooder, shared.peer("watcher") as other:
            local.ask(producer("sensors.a"))
            other.ask({"type": "PING"})
            for index in range(count):
                flooder.send({"type": "PING", "id": str(index)})
            for _ in range(100):
                assert other.ask({"type": "DISCOVERY_REQUEST", "channel": "sensors.a"})["status"] == "active"
            answers = [flooder.receive() for _ in range(count)]
        codes = [answer.get("code", "served") for answer in answers]
        assert {answer["id"] for answer in answers} == {str(index) for index in range(count)}
        assert codes.count("RATE_LIMITED") > count // 2
        assert codes.count("served") >= 120
        assert all(answer["retryable"] for answer in answers if "code" in answer)
        assert local.counter("refused_rate_limited") == codes.count("RATE_LIMITED")
        noted = [entry for entry in shared.audit() if entry.get("code") == "RATE_LIMITED"]
        assert 0 < len(noted) < 60  # now and then, not each


def test_a_flood_of_large_requests_is_refused_with_their_ids(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(requests_per_second=2) as shared:
        with shared.peer("writer", zmq.DEALER, SNDHWM=0, RCVHWM=0) as flooder:
            for index in range(20):
                flooder.send({"type": "PING", "id": str(index), "padding": "x" * (1 << 19)})
            answers = [flooder.receive() for _ in range(20)]
        assert {answer["id"] for answer in answers} == {str(index) for index in range(20)}
        assert sum(answer.get("code") == "RATE_LIMITED" for answer in answers) > 10


def test_more_connections_do_not_give_a_peer_more(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(requests_per_second=10) as shared:
        first, second = shared.peer("writer"), shared.peer("writer")
        with first, second:
            codes = [peer.ask({"type": "PING"}).get("code") for _ in range(100) for peer in (first, second)]
        assert "RATE_LIMITED" in codes


def test_registrations_of_one_peer_are_limited_over_all_its_processes(tmp_path: Path) -> None:
    with (
        SharedHub(tmp_path / "hub").running(registrations_per_peer=3) as shared,
        shared.local() as local,
        shared.hub("writer") as one,
        shared.hub("writer") as two,
        shared.hub("boss") as other,
    ):
        held = [hub.register_producer(f"c{n}", schema_hash="h") for n, hub in enumerate((one, two, one))]
        before = local.stats()["revision"]
        with pytest.raises(TooManyRegistrations) as refused:
            two.register_producer("c3", schema_hash="h")
        assert refused.value.details["limit"] == 3
        assert local.stats()["revision"] == before
        assert local.counter("refused_too_many_registrations") == 1
        assert other.register_producer("c4", schema_hash="h")
        held[0].close()
        assert two.register_producer("c3", schema_hash="h")


def test_workers_of_services_are_registrations_too(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(registrations_per_peer=2) as shared, shared.peer("writer") as peer:
        assert [peer.ask(worker(n)).get("code") for n in (1, 2, 2, 3)] == [None, None, None, "TOO_MANY_REGISTRATIONS"]
        assert peer.ask(producer("c"))["code"] == "TOO_MANY_REGISTRATIONS"
        assert peer.ask({"type": "SERVICE_UNREGISTER", "worker_id": "w1", "lease": "mine"})["worker_id"] == "w1"
        assert peer.ask(worker(3))["type"] == "SERVICE_REGISTER_ACK"
        with shared.peer("boss") as other:
            assert other.ask(worker(4) | {"lease": "other"})["type"] == "SERVICE_REGISTER_ACK"


def test_saying_a_registration_again_is_not_one_more(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(registrations_per_peer=1) as shared, shared.peer("writer") as peer:
        for _ in range(3):
            assert peer.ask(producer("c"))["type"] == "PRODUCER_REGISTER_ACK"
        assert peer.ask(producer("d"))["code"] == "TOO_MANY_REGISTRATIONS"


def test_registrations_asked_for_at_once_are_limited_too(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(registrations_per_peer=3) as shared, shared.local() as local:
        with shared.peer("writer", zmq.DEALER) as peer:
            for number in range(100):
                peer.send(producer(f"c{number}"))
            codes = [peer.receive().get("code", "registered") for _ in range(100)]
        assert codes.count("registered") == local.stats()["producers"] == 3
        assert codes.count("TOO_MANY_REGISTRATIONS") == 97


def test_refused_and_expired_registrations_give_their_places_back(tmp_path: Path) -> None:
    terms = {"heartbeat_seconds": 0.5, "stall_seconds": 4.0, "lease_seconds": 8.0}
    hub = SharedHub(tmp_path / "hub")
    with hub.running(registrations_per_peer=2, **terms) as shared, shared.peer("writer") as peer:

        def answer(channel: str) -> str:
            reply = peer.ask(producer(channel))
            return str(reply.get("code", reply["type"]))

        assert [answer(f"no name {number}") for number in range(3)] == ["INVALID_NAME"] * 3
        assert [answer(name) for name in ("a", "b", "a")] == ["PRODUCER_REGISTER_ACK"] * 3
        assert answer("c") == "TOO_MANY_REGISTRATIONS"
        # Nobody renews the first two, so their leases end.
        eventually(lambda: answer("c") == "PRODUCER_REGISTER_ACK", timeout=30)


def test_subscriptions_of_one_peer_are_limited(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(subscriptions_per_peer=3) as shared, shared.local() as local:
        with shared.peer("watcher") as peer:
            endpoint = peer.ask({"type": "HELLO"})["endpoints"]["events"]
        with shared.peer("watcher", zmq.SUB, endpoint=endpoint) as watcher:
            for number in range(10):
                watcher.socket.subscribe(f"channel/c{number}/".encode())
            eventually(lambda: local.counter("refused_too_many_subscriptions") == 7)
            assert {entry["code"] for entry in shared.audit()} == {"TOO_MANY_SUBSCRIPTIONS"}


@pytest.mark.parametrize(
    ("request_", "counter"),
    [
        ({"type": "CHANNEL_CREATE", "channel": "c", "metadata": {"a": "x" * (1 << 20)}}, "refused_message_too_large"),
        ({"type": "CHANNEL_CREATE", "channel": "x" * 201}, "refused_invalid_name"),
        ({"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"pattern": "a" * 100_001}}, "refused_schema_too_large"),
        ({"type": "SCHEMA_REGISTER", "subject": "s", "schema": "[" * 5000 + "]" * 5000}, "refused_schema_too_complex"),
        ({"type": "TOPIC_KEEP", "topic": "t", "keep": {"size_bytes": 2**40}}, "refused_topic_limit_exceeded"),
        ({"type": "TOPIC_KEEP", "topic": "x" * 201}, "refused_invalid_name"),
    ],
)
def test_every_other_limit_has_its_error_and_its_number(
    shared: SharedHub, request_: dict[str, object], counter: str
) -> None:
    with shared.local() as local:
        assert local.ask(request_)["code"] == counter.removeprefix("refused_").upper()
        assert local.counter(counter) == 1


def test_deep_nesting_has_its_error_and_its_number(shared: SharedHub) -> None:
    nested = b'{"type":"CHANNEL_CREATE","channel":"c","metadata":{"a":' + b"[" * 200 + b"]" * 200 + b"}}"
    with shared.local() as local:
        refused = local.ask(nested)
        assert (refused["code"], refused["details"]["limit"]) == ("NESTED_TOO_DEEPLY", 128)
        assert local.counter("refused_nested_too_deeply") == 1


def test_every_limit_is_documented_with_an_error_and_a_counter_that_exist(shared: SharedHub) -> None:
    rows = re.findall(r"^\| .+ \| .+ \| (.+) \| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert len({counter for _, counter in rows}) == len(rows) == 23
    with shared.local() as local:
        known = {*local.stats()["counters"], *counters}
    for said, counter in rows:
        for code in re.findall(r"`([A-Z_]+)`", said):
            assert code in BY_CODE
            assert counter in known or counter == f"refused_{code.lower()}"
        if not said.startswith("`"):
            assert counter in known, counter
