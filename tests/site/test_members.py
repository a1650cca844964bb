"""Hubs of one site: what is written at any of them is to be read at all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from messagehub import MessageHub
from messagehub.cli import app
from messagehub.shm.errors import BlockOnOtherHost
from tests.etcd_server import EtcdMember
from tests.integration.harness import Listener, Message, Peer, eventually, producer
from tests.site.hosts import LONG_LEASE_SECONDS, Site, site

SCHEMA: Message = {"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"type": "object"}}


@pytest.fixture(scope="module")
def hosts(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(
        tmp_path_factory.mktemp("site"), member.url, "alpha", "beta", host_lease_seconds=LONG_LEASE_SECONDS
    ) as started:
        yield started


def test_what_is_written_at_a_follower_is_there_at_once_and_at_the_leader(hosts: Site) -> None:
    with Peer(hosts["beta"].endpoint) as here, Peer(hosts["alpha"].endpoint) as there:
        for number in range(20):
            said = here.ask(producer(f"made_{number}"))
            assert said["type"] == "PRODUCER_REGISTER_ACK", said
            assert here.ask({"type": "DISCOVERY_REQUEST", "channel": f"made_{number}"})["status"] == "active"
            assert there.ask({"type": "DISCOVERY_REQUEST", "channel": f"made_{number}"})["status"] == "active"
        given = here.ask(SCHEMA)
        assert given["type"] == "SCHEMA_REGISTER_ACK"
        found = here.ask({"type": "SCHEMA_REQUEST", "schema_id": given["schema_id"]})
        assert found["schema"]["subject"] == "s"
        stats = here.stats()
        assert stats["store"]["written_revision"] == stats["revision"]
        assert hosts["alpha"].is_leader()
        assert not hosts["beta"].is_leader()


def test_what_is_written_at_the_leader_comes_to_watchers_at_a_follower(hosts: Site) -> None:
    with Listener(hosts["beta"].endpoint, b"channel/watched/") as heard:
        hosts["alpha"].ask(producer("watched"))
        topic, event = heard.event()
        assert (topic, event["type"]) == (b"channel/watched/", "CHANNEL_CREATED")
        assert heard.event()[1]["type"] == "PRODUCER_REGISTERED"


def test_a_refusal_of_the_leader_is_the_same_at_a_follower(hosts: Site) -> None:
    assert hosts["alpha"].ask(producer("taken", producer_id="one", lease="one"))["type"] == "PRODUCER_REGISTER_ACK"
    refusals = [hub.ask(producer("taken", producer_id="two", lease="two")) for hub in hosts.hubs.values()]
    assert refusals[0]["code"] == refusals[1]["code"] == "PRODUCER_ALREADY_REGISTERED"
    assert refusals[0]["message"] == refusals[1]["message"]


def test_a_heartbeat_at_a_follower_renews_the_lease_and_names_its_own_hub(hosts: Site) -> None:
    beta = hosts["beta"]
    beta.ask(producer("kept", lease="mine"))
    said = beta.ask({"type": "HEARTBEAT", "lease": "mine"})
    assert said["known"]
    assert said["broker_id"] == beta.ask({"type": "PING"})["broker_id"]
    assert not beta.ask({"type": "HEARTBEAT", "lease": "nobody's"})["known"]


def test_hosts_are_listed_at_every_member(hosts: Site) -> None:
    def listed() -> bool:
        found = [hub.hosts() for hub in hosts.hubs.values()]
        return all(
            [(each["host"], each["is_leader"], each["health"], each["lag"]) for each in one["hosts"]]
            == [("alpha", True, "healthy", 0), ("beta", False, "healthy", 0)]
            for one in found
        )

    eventually(listed)
    assert [hub.hosts()["role"] for hub in hosts.hubs.values()] == ["leader", "follower"]


def test_the_hosts_of_a_new_site_are_at_revision_0(tmp_path: Path, member: EtcdMember) -> None:
    with site(tmp_path, member.url, "alpha") as fresh:
        said = CliRunner().invoke(app, ["hosts", "--dir", str(fresh["alpha"].dir)])
    assert said.exit_code == 0, said.output
    host, health, role, revision, lag = said.output.splitlines()[2].split()[:5]
    assert (host, health, role, revision, lag) == ("alpha", "healthy", "leader", "0", "0")


def test_a_second_host_of_the_same_name_is_refused(hosts: Site, tmp_path: Path, member: EtcdMember) -> None:
    with pytest.raises(AssertionError, match="has a host 'beta' already"):
        Site.add(_beside(hosts, tmp_path, member), "beta")


def _beside(hosts: Site, directory: Path, member: EtcdMember) -> Site:
    """The same site, from other directories."""
    beside = Site(directory, member.url)
    beside.name = hosts.name
    return beside


def test_a_ring_of_another_host_is_found_and_not_taken_for_one_of_this_host(
    hosts: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(name: str) -> MessageHub:
        for key in ("MESSAGEHUB_HOST", "MESSAGEHUB_DOMAIN"):
            monkeypatch.setenv(key, hosts[name].environment[key])
        return MessageHub(dir=hosts[name].dir)

    with on("alpha") as there, there.producer("ring", capacity=4, page_size=64) as ring:
        ring.write(b"x")
        with on("beta") as here:
            found = here.discover("ring", wait=True)
            assert found is not None
            assert {each.host for each in found.producers} == {"alpha"}
            with pytest.raises(BlockOnOtherHost, match="alpha"):
                here.consumer("ring")


def test_workers_and_producers_of_one_process_live_by_one_heartbeat_at_a_follower(hosts: Site) -> None:
    beta = hosts["beta"]
    serving = {"type": "SERVICE_REGISTER", "address": "service:here", "worker_id": "w", "lease": "both"}
    reached = {"endpoint": "unix:@messagehub-0123456789abcdef", "key": "00112233445566778899aabbccddeeff"}
    assert beta.ask(serving | reached)["type"] == "SERVICE_REGISTER_ACK"
    assert beta.ask({"type": "HEARTBEAT", "lease": "both"})["known"]
    assert beta.ask(producer("of_both", lease="both"))["type"] == "PRODUCER_REGISTER_ACK"
    assert beta.ask({"type": "HEARTBEAT", "lease": "both"})["known"]
    assert hosts["alpha"].ask({"type": "CHANNEL_DESTROY", "channel": "of_both"})["type"] == "CHANNEL_DESTROY_ACK"
    eventually(lambda: beta.ask({"type": "DISCOVERY_REQUEST", "channel": "of_both"})["type"] == "ERROR")
    assert beta.ask({"type": "HEARTBEAT", "lease": "both"})["known"]
    addresses = [each["address"] for each in beta.ask({"type": "SERVICE_LIST_REQUEST"})["services"]]
    assert addresses == ["service:here"]
    everywhere = [each["address"] for each in hosts["alpha"].ask({"type": "SERVICE_LIST_REQUEST"})["services"]]
    assert everywhere == ["service:here"]
