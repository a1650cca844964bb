"""What `serve --site` refuses before it starts, and how a registry moves into a site and out again."""

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.etcd_server import EtcdMember, enable_authentication, etcd, put
from tests.integration.harness import PATIENCE_SECONDS, Peer, Served, eventually, producer
from tests.site.hosts import bind, site


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd() as (started,):
        yield started


def run(*arguments: str) -> tuple[int, str]:
    """Exit code, and what the command said."""
    ran = preloaded.Popen(
        [sys.executable, "-m", "messagehub", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )
    said, _ = ran.communicate(timeout=PATIENCE_SECONDS)
    return ran.returncode, str(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--site", "lab"], "site = 'lab' is set and etcd is not: say --etcd too"),
        (["--etcd", "http://127.0.0.1:1"], "is set and site is not: say --site too"),
        (["--etcd-user", "me"], "member of no site"),
        (["--site", "a b", "--etcd", "http://127.0.0.1:1"], "site = 'a b' is not"),
        (["--site", "lab", "--etcd", "http://127.0.0.1:1"], "needs an address for the other hubs"),
        (["--site", "lab", "--etcd", "nowhere", "--site-endpoint", "tcp://127.0.0.1:0"], "is no address of etcd"),
        (["--site", "lab", "--etcd", "http://127.0.0.1:1", "--site-endpoint", "ipc:///x"], "must be tcp://HOST:PORT"),
        (
            ["--site", "lab", "--etcd", "http://127.0.0.1:1", "--site-endpoint", "tcp://0.0.0.0:5575"],
            "site_endpoint = 'tcp://0.0.0.0:5575' stands for all addresses",
        ),
        (
            ["--site", "lab", "--etcd", "http://127.0.0.1:1", "--site-endpoint", "tcp://127.0.0.1:65534"],
            "topics take the one two above it",
        ),
        (
            ["--site", "lab", "--etcd", "http://127.0.0.1:1", "--endpoint", "tcp://*:5570", "--curve"],
            "endpoint = 'tcp://*:5570' stands for all addresses",
        ),
        (
            ["--site", "lab", "--etcd", "http://127.0.0.1:1", "--etcd-user", "me", "--site-endpoint", "tcp://[::1]:0"],
            "only one is given",
        ),
        (
            [
                *("--site", "lab", "--etcd", "http://127.0.0.1:1", "--etcd-user", "me", "--site-endpoint"),
                *("tcp://127.0.0.1:0", "--etcd-password-file", "/nowhere"),
            ],
            "cannot be read from /nowhere",
        ),
        pytest.param(
            ["--site", "lab", "--etcd", "http://127.0.0.1:1", "--site-endpoint", "tcp://127.0.0.1:0"],
            "no member of etcd",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    code, complaint = run("serve", "--no-http", "--dir", str(tmp_path / "hub"), *arguments)
    assert code == 1
    assert said in complaint


def test_a_setting_that_only_a_hub_on_its_own_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEHUB_STORE_SYNC", "off")
    of_site = ["--site", "lab", "--etcd", "http://127.0.0.1:1", "--site-endpoint", "tcp://127.0.0.1:0"]
    code, complaint = run("serve", "--no-http", "--dir", str(tmp_path / "hub"), *of_site)
    assert (code, "no effect in a member of a site" in complaint) == (1, True)


def test_a_start_that_failed_does_not_bind_the_directory_to_its_site(member: EtcdMember, tmp_path: Path) -> None:
    unreachable = ["--site", "tpyo", "--etcd", "http://127.0.0.1:1", "--site-endpoint", "tcp://127.0.0.1:0"]
    code, complaint = run("serve", "--no-http", "--dir", str(tmp_path / "alpha"), *unreachable)
    assert (code, "no member of etcd answers" in complaint) == (1, True)
    with site(tmp_path, member.url, "alpha") as hosts:
        assert hosts["alpha"].is_leader()


def test_a_directory_belongs_to_a_site_or_to_a_hub_on_its_own(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha") as hosts:
        bind(hosts["alpha"])
        assert hosts["alpha"].stop() == 0
        code, complaint = run("serve", "--no-http", "--dir", str(hosts["alpha"].dir))
        assert (code, "is a member of a site" in complaint) == (1, True)
        of_site = ["--etcd", member.url, "--site-endpoint", "tcp://127.0.0.1:0"]
        code, complaint = run("serve", "--no-http", "--dir", str(hosts["alpha"].dir), "--site", "other", *of_site)
        assert (code, "is a member of site" in complaint) == (1, True)
        hosts["alpha"].start()
    with Served(tmp_path / "alone"):
        pass
    code, complaint = run("serve", "--no-http", "--dir", str(tmp_path / "alone"), "--site", uuid.uuid4().hex, *of_site)
    assert (code, "messagehub site import" in complaint) == (1, True)


def test_a_directory_that_has_left_its_site_joins_again_by_what_the_refusal_says(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        beta = hosts["beta"]
        bind(hosts["alpha"])
        bind(beta)
        assert beta.stop() == 0
        assert run("site", "leave", "--dir", str(beta.dir))[0] == 0
        with Served(beta.dir):
            pass
        of_site = ["--site", hosts.name, "--etcd", member.url]
        start = ["serve", "--no-http", "--site-endpoint", "tcp://127.0.0.1:0", "--dir", str(beta.dir)]
        code, said = run(*start, *of_site)
        assert (code, "move registry.db* out of this one" in " ".join(said.split())) == (1, True), said
        for each in beta.dir.glob("registry.db*"):
            each.rename(tmp_path / each.name)
        eventually(lambda: hosts["alpha"].hosts()["hosts"][1]["health"] == "lost")  # or else its name is taken
        beta.start()
        assert beta.ask({"type": "DISCOVERY_REQUEST", "channel": "of_the_site"})["type"] != "ERROR"


def test_a_site_with_a_registry_is_refused_before_anything_has_to_be_stopped(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha") as hosts, Served(tmp_path / "alone"):
        bind(hosts["alpha"])
        moving = ["--site", hosts.name, "--etcd", member.url, "--dir", str(tmp_path / "alone")]
        code, said = run("site", "import", *moving)
        assert (code, "has a registry already" in said, "stop" in said) == (1, True, False), said


@pytest.mark.slow
def test_a_site_that_was_replaced_is_refused(tmp_path: Path) -> None:
    with etcd() as (first,), site(tmp_path, first.url, "alpha") as hosts:
        name = hosts.name
        bind(hosts["alpha"])
        hosts["alpha"].stop()
        with etcd() as (second,):
            of_site = ["--site", name, "--etcd", second.url, "--site-endpoint", "tcp://127.0.0.1:0"]
            code, complaint = run("serve", "--no-http", "--dir", str(hosts["alpha"].dir), *of_site)
        assert (code, "there is no site" in complaint) == (1, True)
        hosts["alpha"].start()


def test_a_registry_moves_into_a_site_and_out_again(member: EtcdMember, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    with Served(tmp_path / "alone") as alone, Peer(alone.endpoint) as peer:
        given = []
        for number in range(5):
            asked = {"type": "SCHEMA_REGISTER", "subject": f"s{number}", "schema": {"title": f"t{number}"}}
            given.append(peer.ask(asked)["schema_id"])
        peer.ask({"type": "SCHEMA_DELETE", "subject": "s0", "version": 1})
        for permanent in (False, True):
            peer.ask({"type": "SCHEMA_DELETE", "subject": "s4", "version": 1, "permanent": permanent})
        peer.ask({"type": "SCHEMA_CONFIG_SET", "subject": "s1", "compatibility": "FULL"})
        peer.ask({"type": "CHANNEL_CREATE", "channel": "declared", "metadata": {"a": 1}})
        assert peer.ask(producer("live"))["type"] == "PRODUCER_REGISTER_ACK"
        before = peer.snapshot()
    moving = ["--site", name, "--etcd", member.url]
    code, said = run("site", "import", *moving, "--dir", str(tmp_path / "alone"), "--json")
    assert code == 0, said
    code, said = run("site", "import", *moving, "--dir", str(tmp_path / "alone"))
    assert (code, "has a registry already" in said) == (1, True)
    with site(tmp_path / "site", member.url) as hosts:
        hosts.name = name
        hub = hosts.add("alpha")
        eventually(hub.is_leader)
        with Peer(hub.endpoint) as peer:
            assert peer.snapshot() == before
            again = peer.ask({"type": "SCHEMA_REGISTER", "subject": "s3", "schema": {"title": "t3"}})
            assert again["schema_id"] == given[3]
            new = peer.ask({"type": "SCHEMA_REGISTER", "subject": "new", "schema": {"title": "new"}})
            assert new["schema_id"] > max(given)
            before = peer.snapshot()
    code, said = run("site", "export", *moving, "--dir", str(tmp_path / "out"))
    assert code == 0, said
    with Served(tmp_path / "out") as out, Peer(out.endpoint) as peer:
        assert peer.snapshot() == before
        assert peer.ask({"type": "SCHEMA_REQUEST", "subject": "new"})["schema"]["schema_id"] == new["schema_id"]
    code, said = run("site", "export", *moving, "--dir", str(tmp_path / "out"))
    assert (code, "is there already" in said) == (1, True)


@pytest.mark.slow
def test_an_import_that_was_cut_short_is_seen_and_begun_anew(member: EtcdMember, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    with Served(tmp_path / "alone") as alone, Peer(alone.endpoint) as peer:
        peer.ask({"type": "CHANNEL_CREATE", "channel": "declared"})
    put(member, f"/messagehub/{name}/importing", b"1")
    put(member, f"/messagehub/{name}/channels/half", b"{}")
    moving = ["--site", name, "--etcd", member.url]
    start = ["serve", "--no-http", "--site-endpoint", "tcp://127.0.0.1:0", "--dir", str(tmp_path / "hub")]
    code, said = run(*start, *moving)
    assert (code, "was cut short" in said) == (1, True)
    code, said = run("site", "import", *moving, "--dir", str(tmp_path / "alone"))
    assert code == 0, said
    with site(tmp_path / "site", member.url) as hosts:
        hosts.name = name
        with Peer(hosts.add("alpha").endpoint) as peer:
            assert peer.snapshot().keys() == {"declared"}


def test_retained_topics_are_not_left_out_in_silence(member: EtcdMember, tmp_path: Path) -> None:
    with Served(tmp_path / "alone") as alone, Peer(alone.endpoint) as peer:
        assert peer.ask({"type": "TOPIC_KEEP", "topic": "orders.eu"})["type"] == "TOPIC_KEEP_ACK"
    moving = ["--site", uuid.uuid4().hex, "--etcd", member.url, "--dir", str(tmp_path / "alone")]
    code, said = run("site", "import", *moving)
    assert (code, "orders.eu" in said) == (1, True)
    code, said = run("site", "import", *moving, "--without-topics")
    assert code == 0, said
    with sqlite3.connect(tmp_path / "alone" / "registry.db") as database:
        assert database.execute("SELECT count(*) FROM topics").fetchone() == (1,)
    database.close()


def test_etcd_with_a_user_and_a_password_from_a_file(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    with etcd() as (locked,):
        with site(tmp_path, locked.url, etcd_user="hubs", etcd_password_file=str(password)) as hosts:
            enable_authentication(locked, "hubs", "secret", f"/messagehub/{hosts.name}/")
            for name in ("alpha", "beta"):
                hosts.add(name)
            eventually(lambda: hosts["beta"].ask(producer("c"))["type"] == "PRODUCER_REGISTER_ACK")
        of_site = ["--site", "lab", "--etcd", locked.url, "--site-endpoint", "tcp://127.0.0.1:0"]
        password.write_text("wrong\n")
        given = ["--etcd-user", "hubs", "--etcd-password-file", str(password)]
        code, complaint = run("serve", "--no-http", "--dir", str(tmp_path / "hub"), *of_site, *given)
        assert (code, "refuses the user or the password" in complaint) == (1, True)


def test_the_audit_logs_of_both_hubs_name_who_changed_what(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta", audit=True) as hosts:
        assert hosts["beta"].ask(producer("audited", lease="mine"))["type"] == "PRODUCER_REGISTER_ACK"
        assert hosts["beta"].ask({"type": "HEARTBEAT", "lease": "mine"})["known"]

        def written(name: str) -> list[str]:
            lines = (hosts[name].dir / "audit.log").read_text().splitlines()
            return [json.loads(line)["who"] for line in lines if "audited" in line]

        assert written("beta") == [f"user:{os.getuid()}"]
        assert written("alpha") == [f"host:beta user:{os.getuid()}"]
        (hosts["alpha"].dir / "access.json").write_text('{"keys": {}}')  # has alpha look at who is listed
        eventually(lambda: hosts["beta"].ask({"type": "HEARTBEAT", "lease": "mine"})["known"])
        assert hosts["alpha"].ask({"type": "DISCOVERY_REQUEST", "channel": "audited"})["status"] == "active"


@pytest.mark.parametrize("command", [["backup"], ["restore", "--yes"]])
def test_backups_are_refused_for_a_member(command: list[str], member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha") as hosts:
        code, complaint = run(*command, str(tmp_path / "copy.db"), "--dir", str(hosts["alpha"].dir))
        assert (code, "is a member of a site" in complaint) == (1, True)


def test_hosts_are_shown_at_the_command_line(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        code, said = run("hosts", "--dir", str(hosts["beta"].dir))
        assert code == 0
        assert f"site {hosts.name}, seen from beta" in said
        assert "this hub is a member of a site" in run("doctor", "--dir", str(hosts["beta"].dir))[1]
        assert [line.split()[:3] for line in said.splitlines()[2:]] == [
            ["alpha", "healthy", "leader"],
            ["beta", "healthy", "follower"],
        ]
    with Served(tmp_path / "alone"):
        assert run("hosts", "--dir", str(tmp_path / "alone")) == (0, "this hub is a member of no site\n")
