"""Which hosts a site has, seen from outside: those that left, those that are lost, and those that do not come back."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import Message, eventually, producer
from tests.site.hosts import Site, SiteHub, await_known, bind, process_on, run_on, site


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd() as (started,):
        yield started


def seen(hub: SiteHub, name: str) -> Message:
    unknown = {"health": "", "revision": None}
    return next((each for each in hub.hosts()["hosts"] if each["host"] == name), unknown)


def health(hub: SiteHub, name: str) -> str:
    return str(seen(hub, name)["health"])


def over_http(hub: SiteHub, path: str) -> Any:
    with urllib.request.urlopen(hub.http + path, timeout=10) as answer:
        return json.load(answer)


def test_a_host_whose_hub_stops_has_left_at_once_and_its_members_stay_until_its_lease_ends(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha", host_lease_seconds=60) as hosts:
        alpha, beta = hosts["alpha"], hosts.add("beta")
        await_known(alpha, "beta")
        assert beta.ask(producer("stays", host="beta", lease_seconds=600))["type"] == "PRODUCER_REGISTER_ACK"
        eventually(lambda: seen(alpha, "beta")["revision"])
        assert beta.stop() == 0
        eventually(lambda: health(alpha, "beta") == "left")
        said = seen(alpha, "beta")
        assert "its hub was stopped" in said["reason"]
        assert said["revision"] > 0
        assert (said["lag"], said["gateway"], said["endpoint"]) == (None, "", "")
        assert alpha.ask({"type": "DISCOVERY_REQUEST", "channel": "stays"})["status"] in ("active", "stalled")
        _, doctor = run_on(alpha, "doctor")
        assert "host beta is left: its hub was stopped" in doctor
        beta.start()
        eventually(lambda: health(alpha, "beta") == "healthy")
        assert seen(alpha, "beta")["reason"] == ""


def test_a_lost_host_has_the_revision_that_it_said_last_or_none(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url) as hosts:
        alpha = hosts.add("alpha", "--http", "127.0.0.1:0", "--no-gateway")
        beta = hosts.add("beta")
        bind(beta)
        eventually(lambda: seen(alpha, "beta")["revision"])
        revision = seen(alpha, "beta")["revision"]
        beta.kill()
        eventually(lambda: health(alpha, "beta") == "lost")
        eventually(lambda: "host beta is lost" in alpha.log())
        assert (seen(alpha, "beta")["revision"], seen(alpha, "beta")["lag"]) == (revision, None)
        assert "nothing was heard of its hub until its lease was over" in seen(alpha, "beta")["reason"]
        alpha.stop()
        alpha.start()
        listed = {each["host"]: each for each in over_http(alpha, "/api/v1/hosts")["hosts"]}
        assert (listed["beta"]["health"], listed["beta"]["revision"], listed["beta"]["lag"]) == ("lost", None, None)
        assert "since this hub was started" in listed["beta"]["reason"]
        assert listed["alpha"]["lag"] == 0
        code, said = run_on(alpha, "hosts")
        assert code == 0
        row = next(line.split() for line in said.splitlines() if line.startswith("beta "))
        assert row[1:5] == ["lost", "-", "-", "-"]
        assert "beta is lost: its lease is over" in said
        assert f"messagehub site forget HOST --site {hosts.name} --etcd" in said
        _, doctor = run_on(alpha, "doctor")
        assert f"messagehub site forget beta --site {hosts.name} --etcd" in doctor


@pytest.fixture(scope="module")
def pair(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("pair"), member.url, "alpha", "beta") as hosts:
        yield hosts


def test_top_lists_the_hosts_of_the_site_that_have_no_members(pair: Site) -> None:
    alpha = pair["alpha"]
    eventually(lambda: health(alpha, "beta") == "healthy")
    code, said = run_on(alpha, "top", "--json", "--every", "0.2")
    assert code == 0, said
    lines = [(one["host"], one["health"], one["role"], one["channels"]) for one in json.loads(said)["hosts"]]
    assert lines == [("alpha", "healthy", "leader", 0), ("beta", "healthy", "follower", 0)]
    code, said = run_on(alpha, "top", "--once", "--every", "0.2")
    assert code == 0
    assert any(line.split()[:3] == ["beta", "healthy", "follower"] for line in said.splitlines()), said


def test_a_host_that_will_not_come_back_is_forgotten_once_nothing_of_it_is_left(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        of_site = ("--site", hosts.name, "--etcd", member.url)
        code, said = run_on(alpha, "site", "forget", "nobody", *of_site)
        assert (code, "has no host 'nobody'" in said) == (1, True)
        code, said = run_on(alpha, "site", "forget", "beta", *of_site)
        assert (code, "its hub runs" in said) == (1, True)
        eventually(lambda: health(alpha, "beta") == "healthy")
        kept = {"type": "TOPIC_KEEP", "topic": "of.beta", "home": "beta"}
        eventually(lambda: beta.ask(kept)["type"] == "TOPIC_KEEP_ACK")
        with process_on(beta) as there:
            there.do('hub.publish_table("rows.of_beta", pa.table({"x": [1]}))')
            beta.kill()
        eventually(lambda: health(alpha, "beta") == "lost")
        code, said = run_on(alpha, "site", "forget", "beta", *of_site)
        assert (code, "the retained topic of.beta" in said, "the table rows.of_beta" in said) == (1, True, True)
        code, said = run_on(alpha, "tables", "drop", "rows.of_beta", "--forget", "--yes")
        assert code == 0, said
        code, said = run_on(alpha, "topics", "delete", "of.beta", "--yes")
        assert code == 0, said
        code, said = run_on(alpha, "site", "forget", "beta", *of_site)
        assert code == 0, said
        eventually(lambda: [each["host"] for each in alpha.hosts()["hosts"]] == ["alpha"])
        beta.start()
        eventually(lambda: "host beta is there" in alpha.log().rsplit("host beta is lost")[-1])
        eventually(lambda: health(alpha, "beta") == "healthy")
