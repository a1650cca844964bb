"""A broker whose registry is in etcd, to its clients: the same as any other, and a full etcd is a full disk."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub import embedded_broker
from tests.etcd_server import EtcdMember, etcd, free
from tests.integration.harness import Message, Peer, eventually, producer
from tests.site.stores import leading_store

SCHEMA: Message = {"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"type": "object"}}


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd(1, "--quota-backend-bytes", str(4 << 20)) as (started,):
        yield started


def test_what_was_acknowledged_is_there_for_the_next_broker(member: EtcdMember, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    given: list[Message] = []
    for run in range(2):
        with leading_store(member.url, tmp_path / f"{run}.db", site) as store, embedded_broker(store) as endpoint:
            peer = Peer(endpoint)
            assert peer.ask(producer(f"c{run}"))["type"] == "PRODUCER_REGISTER_ACK"
            given.append(peer.ask(SCHEMA | {"subject": f"s{run}", "schema": {"title": f"t{run}"}}))
            channels = peer.ask({"type": "CHANNEL_LIST_REQUEST"})["channels"]
            assert {found["channel"] for found in channels} == {f"c{number}" for number in range(run + 1)}
            peer.close()
    assert given[0]["schema_id"] < given[1]["schema_id"]
    assert given[0]["revision"] < given[1]["revision"]


def test_a_full_etcd_leaves_a_hub_that_serves_reads_until_there_is_room(member: EtcdMember, tmp_path: Path) -> None:
    with leading_store(member.url, tmp_path / "a.db") as store, embedded_broker(store) as endpoint:
        peer = Peer(endpoint)
        assert peer.ask(producer("before"))["type"] == "PRODUCER_REGISTER_ACK"
        created = {"type": "CHANNEL_CREATE", "channel": "c", "metadata": {"x": "y" * 90_000}}
        destroyed = {"type": "CHANNEL_DESTROY", "channel": "c"}  # so that compaction makes room
        replies = (peer.ask(message) for _ in range(400) for message in (created, destroyed))
        refused = next(reply for reply in replies if reply["type"] == "ERROR")
        assert (refused["code"], refused["retryable"]) == ("STORE_READ_ONLY", True)
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "before"})["status"] == "active"
        assert peer.ask({"type": "PING"})["read_only"]
        free(member)

        def stored() -> bool:
            return peer.ask(producer("after"))["type"] == "PRODUCER_REGISTER_ACK"

        eventually(stored)
        assert not peer.ask({"type": "PING"})["read_only"]
        peer.close()


def test_an_etcd_that_does_not_answer_leaves_reads_and_ends_no_broker(tmp_path: Path) -> None:
    with (
        etcd() as (member,),
        leading_store(member.url, tmp_path / "a.db", request_seconds=2.0) as store,
        embedded_broker(store) as endpoint,
    ):
        peer = Peer(endpoint)
        assert peer.ask(producer("before"))["type"] == "PRODUCER_REGISTER_ACK"
        member.pause()
        for _ in range(2):  # the first one finds out
            refused = peer.ask({"type": "CHANNEL_CREATE", "channel": "unsure"})
            assert (refused["code"], refused["retryable"]) == ("STORE_READ_ONLY", True)
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "before"})["status"] == "active"
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "unsure"})["code"] == "STORE_READ_ONLY"
        member.go_on()
        eventually(lambda: peer.ask(producer("after"))["type"] == "PRODUCER_REGISTER_ACK")
        revisions = [peer.ask(producer(f"c{number}"))["revision"] for number in range(3)]
        assert revisions == sorted(set(revisions))
        peer.close()
