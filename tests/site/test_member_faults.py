"""Hubs of a site that are killed, paused or cut off while clients write at others."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from messagehub import MessageHub
from tests import preloaded
from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import Listener, Message, Peer, eventually, producer
from tests.site.hosts import SiteHub, site


class Writer:
    """A client of one hub that writes, tries again what is refused as retryable, and reads what it wrote."""

    def __init__(self, hub: SiteHub) -> None:
        self.hub = hub
        self.acknowledged: list[Message] = []
        self.refused = 0
        self.wrong: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        newest = 0
        with Peer(self.hub.endpoint) as peer:
            for number in itertools.count():
                if self._is_over.is_set():
                    return
                subject = f"{self.hub.name}_{number}"
                said = peer.ask({"type": "SCHEMA_REGISTER", "subject": subject, "schema": {"title": subject}})
                if said["type"] == "ERROR":
                    if not said["retryable"]:
                        self.wrong.append(f"{subject}: {said}")
                    self.refused += 1
                else:
                    self.acknowledged.append(said | {"subject": subject})
                    found = peer.ask({"type": "SCHEMA_REQUEST", "subject": subject})
                    if found["type"] == "ERROR" and not found.get("retryable"):
                        self.wrong.append(f"{subject} was acknowledged and is not to be read: {found}")
                seen = peer.ask({"type": "SNAPSHOT_REQUEST", "after": ""}).get("revision", newest)
                if seen < newest:
                    self.wrong.append(f"reads went back from {newest} to {seen}")
                newest = seen

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def check(writers: list[Writer], hubs: list[SiteHub]) -> None:
    """Nothing acknowledged is lost, no id and no revision was given twice, and all hubs agree."""
    assert [wrong for writer in writers for wrong in writer.wrong] == []
    given = [said for writer in writers for said in writer.acknowledged]
    for field in ("schema_id", "revision"):
        values = [said[field] for said in given]
        assert len(values) == len(set(values)), field
    newest = {"type": "SCHEMA_REQUEST", "subject": max(given, key=lambda said: said["revision"])["subject"]}
    for hub in hubs:
        with Peer(hub.endpoint) as peer:
            eventually(lambda peer=peer: "schema" in peer.ask(newest))  # a copy follows in the order of revisions
            for said in given:
                found = peer.ask({"type": "SCHEMA_REQUEST", "subject": said["subject"]})
                assert found["schema"]["schema_id"] == said["schema_id"]


def one_leads(hubs: list[SiteHub]) -> SiteHub | None:
    leading = [hub for hub in hubs if hub.is_leader()]
    return leading[0] if len(leading) == 1 else None


def has_written(writer: Writer, more: int) -> bool:
    return len(writer.acknowledged) >= more


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta", "gamma") as hosts:
        others = [hosts["beta"], hosts["gamma"]]
        writers = [Writer(hub) for hub in others]
        for writer in writers:
            eventually(has_written, writer, 10)
        hosts["alpha"].kill()
        eventually(one_leads, others)
        for writer in writers:
            eventually(has_written, writer, len(writer.acknowledged) + 10)
        hosts["alpha"].start()
        for writer in writers:
            writer.end()
        eventually(lambda: hosts["alpha"].hosts()["role"] == "follower")
        check(writers, [hosts["alpha"], *others])


@pytest.mark.slow
def test_a_paused_leader_finds_out_that_another_hub_leads(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta", "gamma") as hosts:
        others = [hosts["beta"], hosts["gamma"]]
        writers = [Writer(hub) for hub in hosts.hubs.values()]
        for writer in writers:
            eventually(has_written, writer, 10)
        hosts["alpha"].signal(signal.SIGSTOP)
        eventually(one_leads, others)
        for writer in writers[1:]:
            eventually(has_written, writer, len(writer.acknowledged) + 10)
        hosts["alpha"].signal(signal.SIGCONT)
        eventually(has_written, writers[0], len(writers[0].acknowledged) + 10)
        for writer in writers:
            writer.end()
        assert not hosts["alpha"].is_leader()
        check(writers, list(hosts.hubs.values()))


def test_hosts_are_listed_while_a_change_waits_for_etcd(member: EtcdMember, tmp_path: Path) -> None:
    """It is when people ask; and which hosts there are shows nothing of the change."""
    with site(tmp_path, member.url, "alpha") as hosts:
        alpha = hosts["alpha"]
        member.pause()
        try:
            with Peer(alpha.endpoint, zmq.DEALER) as writer:
                writer.send({"type": "CHANNEL_CREATE", "channel": "waits"})
                with Peer(alpha.endpoint) as peer:
                    eventually(lambda: peer.ask({"type": "PING"})["revision"] > 0)
                    assert [each["host"] for each in peer.ask({"type": "HOST_LIST_REQUEST"}, 5.0)["hosts"]] == ["alpha"]
                assert writer.hears_nothing(0.0)
        finally:
            member.go_on()


@pytest.mark.slow
def test_reads_go_on_without_a_leader_and_commands_are_refused_as_retryable(tmp_path: Path) -> None:
    with etcd() as (alone,), site(tmp_path, alone.url, "alpha", "beta") as hosts:
        beta = hosts["beta"]
        assert beta.ask(producer("before", lease="kept"))["type"] == "PRODUCER_REGISTER_ACK"
        alone.pause()
        refused = beta.ask(producer("unsure"))
        assert (refused["code"], refused["retryable"]) == ("STORE_READ_ONLY", True)
        assert beta.ask({"type": "HEARTBEAT", "lease": "kept"})["known"]
        for hub in hosts.hubs.values():
            assert hub.ask({"type": "DISCOVERY_REQUEST", "channel": "before"})["status"] == "active"
        for hub in hosts.hubs.values():
            said = eventually(lambda hub=hub: hub.ask({"type": "PING"}).get("problems"))
            assert "site" in said[0]
            assert hub.ask({"type": "PING"})["type"] == "PONG"
        eventually(lambda: beta.hosts()["age_seconds"] > 5)
        eventually(lambda: all("etcd does not confirm" in hub.log() for hub in hosts.hubs.values()))
        alone.go_on()
        eventually(lambda: beta.ask(producer("after"))["type"] == "PRODUCER_REGISTER_ACK")
        eventually(lambda: all("problems" not in hub.ask({"type": "PING"}) for hub in hosts.hubs.values()))
        assert all("all is well again" in hub.log() for hub in hosts.hubs.values())


def test_the_hub_that_led_answers_every_read_though_a_change_is_in_doubt(tmp_path: Path) -> None:
    """Also reads of what was being changed, and lists: with what was stored before."""
    consumer = {"type": "CONSUMER_REGISTER", "channel": "before", "consumer_id": "in_doubt"}
    changes = [consumer, {"type": "CHANNEL_CREATE", "channel": "new"}]
    with (
        etcd() as (alone,),
        site(tmp_path, alone.url, "alpha") as hosts,
        Peer(hosts["alpha"].endpoint, zmq.DEALER) as writer,
        Peer(hosts["alpha"].endpoint) as reader,
    ):
        alpha = hosts["alpha"]
        eventually(lambda: reader.ask({"type": "STATS_REQUEST"})["counters"]["site_loads"])  # what is stored is known
        assert reader.ask(producer("before"))["type"] == "PRODUCER_REGISTER_ACK"
        alone.pause()
        try:
            for change in changes:
                writer.send(change)
            for _ in changes:
                refused = writer.receive(30.0)
                assert (refused["code"], refused["retryable"]) == ("STORE_READ_ONLY", True)
            assert not alpha.is_leader()
            assert reader.ask({"type": "DISCOVERY_REQUEST", "channel": "before"})["status"] == "active"
            assert {name: [*found["consumers"]] for name, found in reader.snapshot().items()} == {"before": []}
            assert reader.ask({"type": "DISCOVERY_REQUEST", "channel": "new"})["code"] == "CHANNEL_NOT_FOUND"
        finally:
            alone.go_on()
        eventually(lambda: reader.ask(consumer).get("type") == "CONSUMER_REGISTER_ACK")
        assert [*reader.snapshot()["before"]["consumers"]] == ["in_doubt"]


PROGRAM = """
import sys
from messagehub import MessageHub
hub = MessageHub(dir=sys.argv[1])
assert hub.register_producer("made_by_a_process", schema_hash="h", schema_version="1.0.0")
print("registered", flush=True)
sys.stdin.read()
"""


@contextmanager
def producing(hub: SiteHub) -> Iterator["subprocess.Popen[bytes]"]:
    """A process on the host of a hub that has registered a producer, and is killed at the end if it still lives."""
    with preloaded.Popen(
        [sys.executable, "-c", PROGRAM, str(hub.dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=hub.environment,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_the_death_of_a_process_at_a_follower_is_told_to_watchers_at_the_leader(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        beta = hosts["beta"]
        with producing(beta) as process, Listener(hosts["alpha"].endpoint, b"channel/made_by_a_process/") as heard:
            record = hosts["alpha"].ask({"type": "SNAPSHOT_REQUEST", "channel": "made_by_a_process"})["channels"][0]
            assert [each["host"] for each in record["producers"].values()] == ["beta"]
            process.kill()
            ended = eventually(lambda: _ended(heard))
            assert ended["reason"] == "died"


QUICK = {"heartbeat_seconds": 0.2, "stall_seconds": 0.6, "lease_seconds": 1.2}


@pytest.mark.slow
def test_a_paused_process_at_a_follower_stalls_and_keeps_its_members_whoever_leads(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha", "beta", **QUICK) as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]

        def statuses(hub: SiteHub) -> list[str]:
            found = hub.ask({"type": "SNAPSHOT_REQUEST", "channel": "made_by_a_process"})["channels"]
            return [each["status"] for channel in found for each in channel["producers"].values()]

        with producing(beta) as process:
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: statuses(alpha) == ["stalled"])
            with Listener(alpha.endpoint, b"channel/made_by_a_process/") as heard:
                lasts_until = time.monotonic() + 3 * QUICK["lease_seconds"]
                eventually(lambda: heard.next() and time.monotonic() > lasts_until)
                assert statuses(alpha) == ["stalled"]
            alpha.stop()
            eventually(beta.is_leader)
            process.send_signal(signal.SIGCONT)
            eventually(lambda: statuses(beta) == ["active"])
            alpha.start()
            process.kill()
            eventually(lambda: statuses(alpha) == [])


def _ended(heard: Listener) -> Message | None:
    _, event = heard.event()
    return event if event["type"] == "PRODUCER_UNREGISTERED" else None


@pytest.mark.slow
def test_the_members_of_a_lost_host_end_with_its_lease(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        beta = hosts["beta"]
        for mine in (producer("of_beta", host="beta"), producer("of_nobody_known", host="a_container")):
            assert beta.ask(mine)["type"] == "PRODUCER_REGISTER_ACK"
        with Listener(hosts["alpha"].endpoint, b"channel/of_beta/") as heard:
            beta.kill()
            assert eventually(lambda: _ended(heard))["reason"] == "host_lost"
        others = hosts["alpha"].ask({"type": "DISCOVERY_REQUEST", "channel": "of_nobody_known"})
        assert others["status"] == "active"
        health = {each["host"]: each["health"] for each in hosts["alpha"].hosts()["hosts"]}
        assert health == {"alpha": "healthy", "beta": "lost"}
        beta.start()
        eventually(lambda: {each["health"] for each in hosts["alpha"].hosts()["hosts"]} == {"healthy"})


@pytest.mark.slow
def test_members_stay_while_the_hub_of_their_host_is_replaced(member: EtcdMember, tmp_path: Path) -> None:
    terms = {"stall_seconds": 60.0, "lease_seconds": 120.0}  # it says nothing of itself
    with site(tmp_path, member.url, "alpha", "beta", host_lease_seconds=8, **terms) as hosts:
        beta = hosts["beta"]
        assert beta.ask(producer("stays", host="beta"))["type"] == "PRODUCER_REGISTER_ACK"
        for end in (beta.kill, beta.stop):
            end()
            beta.start()
            assert beta.ask({"type": "DISCOVERY_REQUEST", "channel": "stays"})["status"] == "active"
        time_out = time.monotonic() + 9  # longer than the lease of a host
        eventually(lambda: time.monotonic() > time_out)
        assert beta.ask({"type": "DISCOVERY_REQUEST", "channel": "stays"})["status"] == "active"


def test_a_leader_that_stops_hands_over_at_once(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        writer = Writer(hosts["beta"])
        eventually(has_written, writer, 5)
        assert hosts["alpha"].stop() == 0
        eventually(hosts["beta"].is_leader)
        eventually(has_written, writer, len(writer.acknowledged) + 5)
        writer.end()
        check([writer], [hosts["beta"]])
        assert json.loads((hosts["alpha"].dir / "site.json").read_text())["site"] == hosts.name


def test_a_producer_that_came_while_no_hub_ran_on_its_host_is_known_in_the_site(
    member: EtcdMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        beta.stop()
        for name in ("MESSAGEHUB_HOST", "MESSAGEHUB_DOMAIN"):
            monkeypatch.setenv(name, beta.environment[name])
        with MessageHub(dir=beta.dir) as hub, hub.producer("adopted", capacity=4, page_size=64) as ring:
            ring.write(b"x")
            beta.start()
            found = eventually(lambda: _found(alpha, "adopted"))
            assert found["blocks"][0]["host"] == "beta"
        eventually(lambda: alpha.ask({"type": "DISCOVERY_REQUEST", "channel": "adopted"})["type"] == "ERROR")


def test_a_conflict_on_one_host_is_shown_everywhere_and_ended_by_that_host_alone(
    member: EtcdMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        assert alpha.ask(producer("clashing", schema_hash="another"))["type"] == "PRODUCER_REGISTER_ACK"
        beta.stop()
        for name in ("MESSAGEHUB_HOST", "MESSAGEHUB_DOMAIN"):
            monkeypatch.setenv(name, beta.environment[name])
        with MessageHub(dir=beta.dir) as hub, hub.producer("clashing", capacity=4, page_size=64):
            beta.start()
            for hub_of_site in (alpha, beta):
                eventually(lambda hub=hub_of_site: (_conflict(hub) or "").startswith("beta: "))
        eventually(lambda: _conflict(alpha) is None)


def _found(hub: SiteHub, channel: str) -> Message | None:
    said = hub.ask({"type": "DISCOVERY_REQUEST", "channel": channel})
    return said if said.get("status") == "active" else None


def _conflict(hub: SiteHub) -> str | None:
    found = hub.ask({"type": "SNAPSHOT_REQUEST", "channel": "clashing"})["channels"]
    conflict: str | None = found[0]["conflict"]
    return conflict
