"""`messagehub purge`: nothing is left of a hub, and nothing of anybody else is touched."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from messagehub import MessageHub
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.domain_lock import take_domain
from tests import preloaded
from tests.cli.program import DEADLINE_SECONDS, Program, until
from tests.integration.harness import end_at_once


def shared_memory(domain: str) -> list[str]:
    directory = Directory(domain)
    found = [name for name in os.listdir(directory.root) if name.endswith(f"@{domain}")]
    return found + ([directory.path] if os.path.exists(os.path.dirname(directory.path)) else [])


def test_a_stopped_hub_is_removed_on_disk_and_in_shared_memory(alone: Program) -> None:
    domain = alone.environment["MESSAGEHUB_DOMAIN"]
    alone.configure()
    with alone.serve() as broker:
        with MessageHub(dir=alone.dir, domain=domain) as hub:
            hub.publish_table("t", pa.table({"a": [1]}))
            hub.register_schema("s", {"type": "object"})
            with hub.producer("ring") as producer:
                producer.write(b"1")
        assert "messagehub stop" in alone.call("purge", "--yes", code=1).stderr
        assert broker.end() == 0
    with MessageHub(dir=alone.dir, domain=domain) as hub, hub.producer("alive"):
        assert f"pid {os.getpid()}" in alone.call("purge", "--yes", code=1).stderr
    (alone.dir / "own.txt").write_text("the user's")
    before = shared_memory(domain)
    assert before
    assert alone.call("purge", stdin="n\n", code=1)
    assert shared_memory(domain) == before
    done = json.loads(alone.call("purge", "--yes", "--json").stdout)
    assert done["size_bytes"] > 0
    assert shared_memory(domain) == []
    assert sorted(path.name for path in alone.dir.iterdir()) == ["messagehub.toml", "own.txt"]
    assert "nothing is left" in alone.call("purge").stdout


def test_a_directory_that_never_was_is_nothing(alone: Program, tmp_path: Path) -> None:
    assert "nothing is left" in alone.call("purge", "--dir", str(tmp_path / "never")).stdout
    assert not (tmp_path / "never").exists()


def test_what_another_running_hub_of_the_domain_uses_stays(alone: Program, tmp_path: Path) -> None:
    domain = alone.environment["MESSAGEHUB_DOMAIN"]
    other = tmp_path / "other"
    with alone.serve() as running:
        with MessageHub(dir=alone.dir, domain=domain) as hub:
            hub.publish_table("prices", pa.table({"a": [1]}))
        with alone.serve("--dir", str(other)) as second:
            second.tells(f"another broker serves domain {domain!r}")
            found = {each["check"]: each for each in alone.json("doctor", code=1)["findings"]}
            assert f"another broker serves domain {domain!r}" in found["domain"]["message"]
            assert second.end() == 0
        assert "domain" not in {each["check"] for each in alone.json("doctor", code=0)["findings"]}
        done = alone.run("purge", "--yes", "--dir", str(other))
        assert f"another hub runs with domain {domain!r}" in done.stderr
        assert not other.exists()
        with MessageHub(dir=alone.dir, domain=domain) as hub:
            assert [table.channel for table in hub.tables()] == ["prices"]
        assert any((Path(Directory(domain).tables_path("prices"))).iterdir())
        assert running.end() == 0
    assert "another broker" not in running.err
    alone.run("purge", "--yes")
    assert shared_memory(domain) == []


def test_the_domain_that_the_hub_ran_with_is_removed_and_no_other(alone: Program) -> None:
    domain = alone.environment["MESSAGEHUB_DOMAIN"]
    alone.configure()
    with alone.serve() as running:
        with MessageHub(dir=alone.dir, domain=domain) as hub:
            hub.publish_table("prices", pa.table({"a": [1]}))
        assert running.end() == 0
    elsewhere = f"{domain}-elsewhere"
    for refused in (
        alone.run("purge", "--yes", code=1, MESSAGEHUB_DOMAIN=elsewhere),
        alone.run("purge", "--yes", "--domain", elsewhere, code=1),
    ):
        assert f"ran with domain {domain!r}" in refused.stderr
        assert f"--domain {domain}" in refused.stderr
    assert shared_memory(domain)
    assert (alone.dir / "registry.db").exists()
    alone.run("purge", "--yes", MESSAGEHUB_DOMAIN="")
    assert shared_memory(domain) == []


@contextmanager
def asked(program: Program) -> Iterator["subprocess.Popen[str]"]:
    """A purge that waits for the answer to its question."""
    complaints = program.place / "purge.err"
    with complaints.open("w") as err:
        process = preloaded.Popen(
            [sys.executable, "-m", "messagehub", "purge"],
            env=program.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    try:
        until(lambda: "?" in complaints.read_text(), "the question")
        yield process
    finally:
        if process.poll() is None:
            end_at_once(process)
        process.communicate(timeout=DEADLINE_SECONDS)


def test_who_comes_while_the_question_stands_is_seen(alone: Program) -> None:
    domain = alone.environment["MESSAGEHUB_DOMAIN"]
    alone.configure()
    with alone.serve() as running:
        assert running.end() == 0
    with asked(alone) as process, MessageHub(dir=alone.dir, domain=domain) as hub, hub.producer("alive"):
        process.communicate("y\n", timeout=DEADLINE_SECONDS)
        assert process.returncode == 1
        assert "channel 'alive' has a living producer" in (alone.place / "purge.err").read_text()
    assert (alone.dir / "registry.db").exists()
    with asked(alone) as process, alone.serve() as running:
        process.communicate("y\n", timeout=DEADLINE_SECONDS)
        assert process.returncode == 1
        assert "a hub runs in" in (alone.place / "purge.err").read_text()
        assert running.end() == 0
    alone.run("purge", "--yes")
    assert shared_memory(domain) == []


def test_no_hub_begins_in_a_domain_that_is_being_removed(alone: Program) -> None:
    domain = alone.environment["MESSAGEHUB_DOMAIN"]
    alone.configure()
    directory = Directory(domain)
    directory.make()
    lock = take_domain(directory)
    assert lock is not None
    try:
        refused = alone.run("serve", code=1)
        assert f"domain {domain!r} is being removed by `messagehub purge`" in refused.stderr
    finally:
        lock.close()
    with alone.serve() as running:
        assert running.end() == 0
