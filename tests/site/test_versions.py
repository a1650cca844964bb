"""Hubs of two versions in one site: an upgrade of one host at a time, and what a hub that is too old does.

A newer hub is a process in which the version of the records that it writes, or the name of an event, is changed before
it begins; what the older one makes of it is what it does with a real one.
"""

import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from messagehub.store.etcd.head import FORMAT
from tests.etcd_server import EtcdMember
from tests.integration.harness import ROOT, Message, Peer, eventually
from tests.site.hosts import SiteHub, site

NEWER_RECORDS = """
import messagehub.store.etcd.head as head
import messagehub.store.etcd.store as store
from messagehub.cli import main

class NewerHead(head.Head, kw_only=True):
    format: int = head.FORMAT + 1

head.FORMAT += 1
store.Head = NewerHead
main()
"""
NEWER_EVENTS = """
import messagehub.store.etcd.rows as rows
import messagehub.store.etcd.store as store
from messagehub.cli import main

usual = rows.changes

def changes(event):
    made = usual(event)
    return made._replace(event=made.event.replace(b"CHANNEL_DECLARED", b"CHANNEL_OF_TOMORROW"))

rows.changes = changes
main()
"""
NEEDS_UPDATE = f"made by a newer MessageHub; this one knows up to {FORMAT}: update this hub"
PREVIOUS = "1c758fc"
"""An earlier version that runs beside this one in a site."""


def declare(hub: SiteHub, name: str) -> Message:
    return hub.ask({"type": "CHANNEL_CREATE", "channel": name})


def has(hub: SiteHub, *names: str) -> bool:
    with Peer(hub.endpoint) as peer:
        return set(names) <= peer.snapshot().keys()


def declared(hub: SiteHub, name: str) -> None:
    """Declare a channel, as often as it takes: a hub that is about to lead, or leads no more, says to try again."""

    def is_done() -> bool:
        said = declare(hub, name)
        assert said["type"] == "CHANNEL_CREATE_ACK" or said["retryable"], said
        return said["type"] == "CHANNEL_CREATE_ACK"

    eventually(is_done)


def test_hosts_are_updated_one_at_a_time_to_a_version_with_other_records(member: EtcdMember, tmp_path: Path) -> None:
    """The leader last: its records are what all others know. What is too old then does not start."""
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        declared(beta, "before")
        assert beta.stop() == 0
        beta.program = NEWER_RECORDS
        beta.start()
        assert has(beta, "before")
        declared(beta, "beside.newer")
        declared(alpha, "beside.older")
        assert has(alpha, "beside.newer")
        eventually(has, beta, "beside.older")
        assert alpha.stop() == 0
        eventually(beta.is_leader)
        declared(beta, "by.newer")
        with pytest.raises(AssertionError, match=NEEDS_UPDATE):
            alpha.start()
        alpha.program = NEWER_RECORDS
        alpha.start()
        assert has(alpha, "before", "beside.older", "beside.newer", "by.newer")
        declared(alpha, "after")


def test_a_hub_that_is_too_old_reads_on_says_so_and_stands_in_nobodys_way(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "gamma") as hosts:
        alpha, gamma = hosts["alpha"], hosts["gamma"]
        declared(gamma, "before")
        beta = hosts.add("beta", program=NEWER_RECORDS)
        gamma.signal(signal.SIGSTOP)
        alpha.kill()
        eventually(beta.is_leader)
        declared(beta, "by.newer")
        gamma.signal(signal.SIGCONT)
        needs_update = f"format {FORMAT + 1}, {NEEDS_UPDATE}"  # before it finds out, it may say that nobody leads
        eventually(lambda: needs_update in str(gamma.ask({"type": "PING"}).get("problems")))
        assert has(gamma, "before")
        assert not has(gamma, "by.newer")
        refused = declare(gamma, "by.older")
        assert (refused["code"], refused["retryable"]) == ("STORE_READ_ONLY", True)
        assert "update this hub" in refused["message"]
        beta.kill()
        beta.start()  # while it was away, the older one did not take what it could not give back
        eventually(beta.is_leader)
        declared(beta, "by.newer.again")
        assert not gamma.is_leader()
        assert not has(beta, "by.older")


def test_an_event_that_an_older_hub_does_not_know_is_loaded_with_the_records(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url) as hosts:
        newer = hosts.add("newer", program=NEWER_EVENTS)
        eventually(newer.is_leader)
        older = hosts.add("older")
        for number in range(3):
            declared(older, f"at.older.n{number}")
            assert has(older, f"at.older.n{number}")
            declared(newer, f"at.newer.n{number}")
        eventually(has, older, "at.newer.n0", "at.newer.n1", "at.newer.n2")
        counters = older.ask({"type": "STATS_REQUEST"})["counters"]
        assert counters["site_loads"] >= 1
        assert (counters["threads_restarted"], counters["internal_errors"]) == (0, 0)


@pytest.mark.slow
def test_this_version_and_the_one_before_lead_each_other(member: EtcdMember, tmp_path: Path) -> None:
    """Whoever leads, commands of the other one's clients are carried out, and its processes are seen."""
    if subprocess.run(["git", "cat-file", "-e", PREVIOUS], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip(f"this copy of the repository does not have {PREVIOUS}")
    archive, previous = tmp_path / "previous.tar", tmp_path / "previous"
    subprocess.run(["git", "archive", "-o", str(archive), PREVIOUS], cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(previous, filter="data")
    older = f"""
import sys
for name in [name for name in sys.modules if name.split(".")[0] in ("messagehub", "registry")]:
    del sys.modules[name]
sys.path.insert(0, {str(previous)!r})
import messagehub
assert messagehub.__file__.startswith({str(previous)!r}), messagehub.__file__
from messagehub.cli import main
main()
"""
    with site(tmp_path, member.url) as hosts:
        before = hosts.add("before", program=older, makes_site=False)
        eventually(before.is_leader)
        now = hosts.add("now")
        for round_number in range(2):
            for hub in (before, now):
                declared(hub, f"round{round_number}.{hub.name}")
            for hub in (before, now):
                eventually(has, hub, f"round{round_number}.before", f"round{round_number}.now")
            if round_number == 0:
                before.kill()
                eventually(now.is_leader)
                before.start()
        assert now.is_leader()
        now.kill()
        eventually(before.is_leader)
        now.start()
        declared(now, "last")
        assert has(now, "round0.now", "round1.before", "last")
    shutil.rmtree(previous)
    assert not os.path.exists(previous)
