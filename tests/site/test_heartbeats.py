"""Heartbeats of a follower's clients: they share requests to the leader, and each gets its own answer."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from messagehub.broker.site.forwarding import ForwardedRequests
from messagehub.broker.site.heartbeats import MOST_GATHERED, GatheredHeartbeats, renew
from messagehub.broker.site.link import Answered
from registry.registry import Registry
from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import Peer, eventually, producer
from tests.site.hosts import Site, site

LEASES = 40


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which heartbeats are gathered: it stands still, on however loaded a machine."""
    now = [100.0]
    monkeypatch.setattr("messagehub.broker.site.heartbeats.monotonic", lambda: now[0])
    return now


def test_heartbeats_share_a_request_and_each_gets_its_own_answer(clock: list[float]) -> None:
    forwarded, gathered = ForwardedRequests(), GatheredHeartbeats()
    waiting = [forwarded.add("heartbeats", b"", user="", lease=f"lease{n}") for n in range(3)]
    for each in waiting:
        each.sent_to = 7
        gathered.add(each, interval_seconds=5.0)
    assert gathered.take() is None  # others may come
    clock[0] += 0.2
    first, body = eventually(gathered.take)
    assert first is waiting[0]
    assert msgspec.msgpack.decode(body) == ["lease0", "lease1", "lease2"]
    payload = msgspec.msgpack.encode([b"a", b"b", b"c"])
    assert forwarded.answered(Answered(first.number, "done", 5, payload)) is None
    answers = [(each.lease, answer.payload) for each, answer in forwarded.reached(5)]
    assert answers == [("lease0", b"a"), ("lease1", b"b"), ("lease2", b"c")]


def test_a_heartbeat_is_sent_long_before_its_client_gives_up_waiting_for_the_answer(clock: list[float]) -> None:
    forwarded, gathered = ForwardedRequests(), GatheredHeartbeats()
    for interval, most in ((0.1, 0.025), (5.0, 0.2)):
        gathered.add(forwarded.add("heartbeats", b"", user="", lease="lease"), interval_seconds=interval)
        assert most / 2 < gathered.seconds_to_send() <= most + 1e-9
        clock[0] += 2 * most
        eventually(gathered.take)


def test_heartbeats_that_a_hub_sends_back_are_sent_to_the_next_leader() -> None:
    forwarded, gathered = ForwardedRequests(), GatheredHeartbeats()
    waiting = [forwarded.add("heartbeats", b"", user="", lease=f"lease{n}") for n in range(MOST_GATHERED + 1)]
    for each in waiting:
        each.sent_to = 7
        gathered.add(each, interval_seconds=5.0)
    first, _ = eventually(gathered.take)  # a full request does not wait
    assert len(first.gathered) == MOST_GATHERED
    assert forwarded.answered(Answered(first.number, "not_leader", 0, b"")) is first
    assert forwarded.unsent() == waiting[:MOST_GATHERED]
    assert eventually(gathered.take)[0] is waiting[-1]


def test_a_lease_that_nobody_has_is_told_so() -> None:
    payload, happened = renew(msgspec.msgpack.encode(["nobody's"]), Registry(), now=1.0)
    (reply,) = msgspec.msgpack.decode(payload, type=list[bytes])
    assert not msgspec.json.decode(reply)["known"]
    assert happened == []


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with etcd(1) as members:
        (member,) = members
        assert isinstance(member, EtcdMember)
        with site(Path(tmp_path_factory.mktemp("site")), member.url, "one", "two") as started:
            yield started


def test_many_clients_of_a_follower_renew_their_leases(hosts: Site) -> None:
    follower = hosts["two"]
    with Peer(follower.endpoint) as peer:
        eventually(lambda: peer.ask(producer("first"))["type"] == "PRODUCER_REGISTER_ACK")
        leases = [peer.ask(producer(f"c{number}"))["lease"] for number in range(LEASES)]
    peers = [Peer(follower.endpoint) for _ in range(LEASES + 1)]
    try:
        for peer, lease in zip(peers, [*leases, "nobody"], strict=True):
            peer.send({"type": "HEARTBEAT", "lease": lease})
        answers = [peer.receive() for peer in peers]
    finally:
        for peer in peers:
            peer.close()
    assert [answer["known"] for answer in answers] == [True] * LEASES + [False]
    own = follower.ask({"type": "PING"})["broker_id"]
    assert {answer["broker_id"] for answer in answers} == {own}  # clients compare it with the hub that they talk to
