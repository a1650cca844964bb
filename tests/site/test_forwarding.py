"""What a follower forwards: when its reply may be handed on, and what becomes of it when leaders change."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from messagehub.broker.site.forwarding import FORWARD_SECONDS, ForwardedRequests
from messagehub.broker.site.link import Answered
from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import Peer, eventually, producer
from tests.site.hosts import SiteHub, site


def test_a_reply_waits_until_the_copy_has_reached_its_revision() -> None:
    forwarded = ForwardedRequests()
    first = forwarded.add("command", b"{}", user="")
    first.sent_to = 7
    assert forwarded.answered(Answered(first.number, "done", 5, b"reply")) is None
    assert list(forwarded.reached(4)) == []
    assert [each.number for each, _ in forwarded.reached(5)] == [first.number]
    assert len(forwarded) == 0


def test_what_another_leader_took_is_refused_and_what_nobody_took_is_sent_to_the_next() -> None:
    forwarded = ForwardedRequests()
    taken, sent_back, unsent, answered = (forwarded.add("command", b"{}", user="") for _ in range(4))
    taken.sent_to = sent_back.sent_to = answered.sent_to = 7
    forwarded.answered(Answered(sent_back.number, "not_leader", 0, b""))
    forwarded.answered(Answered(answered.number, "done", 9, b"reply"))
    assert forwarded.of_others(8) == [taken]
    assert forwarded.unsent() == [sent_back, unsent]
    assert [each for each, _ in forwarded.reached(9)] == [answered]
    assert forwarded.take_unsent() == [sent_back, unsent]
    assert len(forwarded) == 0


def test_what_waits_too_long_is_overdue_oldest_first() -> None:
    forwarded = ForwardedRequests()
    late, later = (forwarded.add("command", b"{}", user="") for _ in range(2))
    assert forwarded.overdue() == []
    late.deadline -= FORWARD_SECONDS
    assert forwarded.seconds_to_deadline() == 0.0
    assert forwarded.overdue() == [late]
    assert forwarded.answered(Answered(late.number, "done", 1, b"too late")) is None
    assert list(forwarded.reached(1)) == []
    assert forwarded.take_all() == [later]


@pytest.fixture
def members() -> Iterator[list[EtcdMember]]:
    with etcd(3) as started:
        yield started


def test_a_follower_that_is_behind_hands_nothing_on_that_it_does_not_show(
    members: list[EtcdMember], tmp_path: Path
) -> None:
    """Its member of etcd is paused, the others are a quorum: the leader answers, and the copy comes later."""
    *quorum, paused = sorted(members, key=EtcdMember.leads, reverse=True)  # pausing the leader would stop all of etcd
    of_leader = ",".join(member.url for member in quorum)
    with (
        site(tmp_path, of_leader, "alpha") as hosts,
        closing(SiteHub(tmp_path, paused.url, hosts.name, "beta", host_lease_seconds=20)) as beta,
        Peer(beta.endpoint) as peer,
    ):
        eventually(lambda: peer.ask(producer("before"))["type"] == "PRODUCER_REGISTER_ACK")
        paused.pause()
        peer.send(producer("behind"))

        def is_carried_out() -> bool:
            if not peer.hears_nothing(0.05):  # a busy machine took longer than a command may wait
                assert peer.receive()["retryable"]
                peer.send(producer("behind"))
            return "status" in hosts["alpha"].ask({"type": "DISCOVERY_REQUEST", "channel": "behind"})

        eventually(is_carried_out)
        assert peer.hears_nothing(0.5)
        paused.go_on()
        said = peer.receive()
        shown = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "behind"})
        if said["type"] == "ERROR":
            assert said["retryable"]
        else:
            assert (said["type"], shown["status"]) == ("PRODUCER_REGISTER_ACK", "active")
