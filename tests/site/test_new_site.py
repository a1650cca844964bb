"""How a site begins, what a typing mistake in its name does, and how a directory gets out of a site again."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etcd_server import EtcdMember, enable_authentication, etcd, put
from tests.integration.harness import Peer, Served, eventually
from tests.site.hosts import SiteHub, bind, run_on, site
from tests.site.test_site_settings import run

START = ("--no-http", "--no-gateway", "--site-endpoint", "tcp://127.0.0.1:0")


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd() as (started,):
        yield started


def test_a_name_that_etcd_does_not_have_is_refused_with_the_names_that_it_has(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha") as hosts:
        bind(hosts["alpha"])
        directory = tmp_path / "beta"
        code, said = run("serve", "--dir", str(directory), "--site", "tpyo", "--etcd", member.url, *START)
        assert code == 1
        assert "there is no site 'tpyo'" in said
        assert repr(hosts.name) in said
        assert "--new-site" in said
        assert not (directory / "site.json").exists()
        beta = hosts.add("beta")
        eventually(lambda: len(beta.hosts()["hosts"]) == 2)
        assert "is new" not in beta.log()


def test_a_new_site_beside_others_is_made_when_that_is_asked_for_and_seen(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path / "one", member.url, "alpha") as first, site(tmp_path / "two", member.url) as second:
        hub = second.add("alpha")  # with --new-site
        assert f"site {second.name} is new" in hub.log()
        assert repr(first.name) in hub.log()
        assert hub.ready.endswith(f" site={second.name} new_site=yes\n")
        eventually(hub.is_leader)
        hub.stop()
        hub.start()
        assert hub.ready.endswith(f" site={second.name}\n")


def test_the_first_host_of_an_etcd_makes_its_site_without_being_asked_and_a_mistake_does_not_bind_it(
    tmp_path: Path,
) -> None:
    with etcd() as (alone,):
        mistaken = SiteHub(tmp_path, alone.url, "tpyo", "alpha")
        assert "site tpyo is new" in mistaken.log()
        assert "no other site is in this etcd" in mistaken.log()
        eventually(mistaken.is_leader)
        assert mistaken.stop() == 0
        with Served(mistaken.dir) as hub, Peer(hub.endpoint) as peer:
            assert peer.snapshot() == {}
        (mistaken.dir / "registry.db").unlink()
        meant = SiteHub(tmp_path, alone.url, "lab", "alpha", makes_site=True)
        try:
            bind(meant)
        finally:
            meant.close()
        code, said = run("serve", "--no-http", "--dir", str(meant.dir))
        assert (code, "'lab'" in said, "messagehub site leave" in said) == (1, True, True)


def test_of_many_sites_some_are_named(tmp_path: Path) -> None:
    with etcd() as (alone,):
        for number in range(25):
            put(alone, f"/messagehub/site{number:02}/head", b"{}")
            put(alone, f"/messagehub/site{number:02}/members/a", b"a")
        code, said = run("serve", "--dir", str(tmp_path), "--site", "site0", "--etcd", alone.url, *START)
        assert code == 1
        assert ["site00" in said, "site19" in said, "site20" in said, "and more" in said] == [True, True, False, True]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--etcd", "http://127.0.0.1:1"),
        ("--site-endpoint", "tcp://192.0.2.1:5575"),
        ("--endpoint", "taken"),
    ],
)
def test_a_start_that_failed_binds_nothing_and_leaves_nothing_in_the_site(
    wrong: tuple[str, str], member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path / "site", member.url, "alpha") as hosts, socket.create_server(("127.0.0.1", 0)) as taken:
        bind(hosts["alpha"])
        option, value = wrong
        value = value.replace("taken", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        given = {"--site": hosts.name, "--etcd": member.url, "--site-endpoint": "tcp://127.0.0.1:0", option: value}
        arguments = [text for pair in given.items() for text in pair]
        directory = tmp_path / "hub"
        code, said = run("serve", "--no-http", "--no-gateway", "--dir", str(directory), *arguments)
        assert code == 1, said
        assert len(hosts["alpha"].hosts()["hosts"]) == 1
        with Served(directory) as hub, Peer(hub.endpoint) as peer:
            assert peer.snapshot() == {}


def test_a_start_with_a_wrong_password_binds_nothing(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong\n")
    with etcd() as (locked,):
        enable_authentication(locked, "hubs", "secret", "/messagehub/lab/")
        given = ("--etcd-user", "hubs", "--etcd-password-file", str(password), "--site", "lab", "--etcd", locked.url)
        code, said = run("serve", "--dir", str(tmp_path / "hub"), *START, *given)
        assert (code, "refuses the user or the password" in said) == (1, True)
    with Served(tmp_path / "hub") as hub, Peer(hub.endpoint) as peer:
        assert peer.snapshot() == {}


def test_a_user_who_may_read_one_site_alone_makes_it_and_no_other_one(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    given = ("--etcd-user", "hubs", "--etcd-password-file", str(password))
    with etcd() as (locked,):
        put(locked, "/messagehub/other/head", b"{}")
        enable_authentication(locked, "hubs", "secret", "/messagehub/lab/")
        code, said = run("serve", "--dir", str(tmp_path / "x"), "--site", "la", "--etcd", locked.url, *START, *given)
        assert (code, "may not read and write the keys of the site" in said) == (1, True)
        hub = SiteHub(tmp_path, locked.url, "lab", "alpha", "--no-http", "--no-gateway", *given)
        try:
            assert "its user may not read them" in hub.log()
        finally:
            hub.close()


def test_a_directory_leaves_its_site_and_is_that_of_a_hub_on_its_own(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha") as hosts:
        alpha = hosts["alpha"]
        bind(alpha)
        code, said = run("site", "leave", "--dir", str(alpha.dir))
        assert (code, "another broker holds" in said) == (1, True)
        assert alpha.ask({"type": "TOPIC_KEEP", "topic": "orders.eu"})["type"] == "TOPIC_KEEP_ACK"
        alpha.stop()
        code, said = run("site", "leave", "--dir", str(alpha.dir))
        assert (code, "orders.eu" in said) == (1, True)
        alpha.start()
        eventually(alpha.is_leader)
        code, said = run("topics", "delete", "orders.eu", "--yes", "--dir", str(alpha.dir))
        assert code == 0, said
        alpha.stop()
        code, said = run("site", "leave", "--dir", str(alpha.dir), "--json")
        assert (code, json.loads(said)) == (0, {"left": hosts.name})
        code, said = run("site", "leave", "--dir", str(alpha.dir))
        assert (code, "belongs to no site" in said) == (1, True)
        with Served(alpha.dir) as hub, Peer(hub.endpoint) as peer:
            assert peer.snapshot() == {}


def test_nothing_of_a_member_is_left_in_its_directory_once_it_is_purged(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url) as hosts:
        alpha = hosts.add("alpha", "--http", "127.0.0.1:0")  # with a gateway
        bind(alpha)
        eventually(lambda: alpha.ask({"type": "TOPIC_KEEP", "topic": "orders.eu"})["type"] == "TOPIC_KEEP_ACK")
        assert alpha.stop() == 0
        assert {"site.json", "retained.db", "gateway.secret"} <= {path.name for path in alpha.dir.iterdir()}
        code, said = run_on(alpha, "purge", "--yes")
        assert code == 0, said
        assert f"messagehub site forget alpha --site {hosts.name} --etcd URL" in said
        (alpha.dir / "serve.log").unlink()  # of this test
        assert [path.name for path in alpha.dir.iterdir()] == ["messagehub.toml"]


def test_asking_for_a_new_site_takes_a_site(tmp_path: Path) -> None:
    code, said = run("serve", "--no-http", "--dir", str(tmp_path / "hub"), "--new-site")
    assert (code, "goes with --site" in said) == (2, True)
