"""Leaders that are paused, killed or cut off: two never both succeed, and nothing is lost or given twice."""

import contextlib
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.etcd_server import EtcdMember, etcd, key_values
from tests.integration.harness import ROOT, eventually
from tests.site.stores import leading_store


class Hub:
    def __init__(self, urls: str, site: str, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        command = [sys.executable, "-m", "tests.site.leading_process", urls, site, str(directory)]
        self.process = preloaded.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def acknowledged(self) -> list[list[Any]]:
        """Whole lines only: the last one of a killed process may be torn."""
        try:
            text = (self.directory / "acknowledged").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="module")
def members() -> Iterator[list[EtcdMember]]:
    with etcd(3) as started:
        yield started


@contextlib.contextmanager
def hubs(reaching: list[str], site: str, tmp_path: Path) -> Iterator[list[Hub]]:
    with contextlib.ExitStack() as ending:
        started = []
        for number, urls in enumerate(reaching):
            hub = Hub(urls, site, tmp_path / f"hub{number}")
            ending.callback(hub.close)
            started.append(hub)
        yield started


def leader(members: list[EtcdMember], site: str, started: list[Hub], *, after: Hub | None = None) -> Hub:
    """The hub that leads, another one than `after`, and goes on writing."""

    seen = {hub.directory: len(hub.acknowledged()) for hub in started}

    def found() -> Hub | None:
        with contextlib.suppress(OSError, StopIteration):  # no member of etcd answers, or none has a leader now
            asked = key_values(next(m for m in members if m.is_healthy()), f"/messagehub/{site}/leader")
            name = asked.get(f"/messagehub/{site}/leader", b"").decode()
            leading = next((hub for hub in started if str(hub.directory) == name and hub is not after), None)
            if leading is not None and len(leading.acknowledged()) > seen[leading.directory]:
                return leading
        return None

    return eventually(found)


def grows(hub: Hub) -> None:
    before = len(hub.acknowledged())
    eventually(lambda: len(hub.acknowledged()) > before)


def check(members: list[EtcdMember], site: str, started: list[Hub], tmp_path: Path) -> None:
    """Everything that was acknowledged is there, as it was; no revision and no id was given twice."""
    told = [line for hub in started for line in hub.acknowledged()]
    assert len({revision for revision, _, _ in told}) == len(told)
    assert len({schema_id for _, schema_id, _ in told}) == len(told)
    urls = ",".join(member.url for member in members)
    eventually(lambda: not key_values(members[0], f"/messagehub/{site}/leader"))
    with leading_store(urls, tmp_path / "check.db", site) as store:
        saved = store.load()
    stored = {schema.subject: schema.schema_id for schema in saved.schemas}
    assert {name: schema_id for _, schema_id, name in told}.items() <= stored.items()
    assert len(set(stored.values())) == len(stored)
    assert saved.revision >= max(revision for revision, _, _ in told)


def test_a_leader_that_was_paused_writes_nothing_more(members: list[EtcdMember], tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    urls = ",".join(member.url for member in members)
    with hubs([urls, urls], site, tmp_path) as started:
        for _ in range(2):
            paused = leader(members, site, started)
            paused.process.send_signal(signal.SIGSTOP)
            other = leader(members, site, started, after=paused)
            before = paused.acknowledged()
            paused.process.send_signal(signal.SIGCONT)
            grows(other)
            late = [line for line in paused.acknowledged() if line not in before]
            assert len(late) <= 3, "what was stored before the pause, and is told after it"
    check(members, site, started, tmp_path)


def test_a_killed_leader_is_followed_by_another(members: list[EtcdMember], tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    urls = ",".join(member.url for member in members)
    with hubs([urls, urls, urls], site, tmp_path) as started:
        left = list(started)
        for _ in range(2):
            killed = leader(members, site, left)
            killed.process.kill()
            left.remove(killed)
            grows(leader(members, site, left))
    check(members, site, started, tmp_path)


def test_a_leader_that_is_cut_off_from_the_quorum_steps_down(tmp_path: Path) -> None:
    """Each hub reaches one member of etcd only, so pausing that member is a partition of the two."""
    site = uuid.uuid4().hex
    with etcd(3) as members, hubs([member.url for member in members], site, tmp_path) as started:
        cut_off = leader(members, site, started)
        place = members[started.index(cut_off)]
        others = [member for member in members if member is not place]
        place.pause()
        successor = leader(others, site, started, after=cut_off)
        before = len(cut_off.acknowledged())
        grows(successor)
        place.go_on()
        eventually(place.is_healthy)
        grows(successor)
        assert len(cut_off.acknowledged()) <= before + 3
        for hub in started:
            hub.close()
        check(members, site, started, tmp_path)
