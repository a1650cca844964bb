"""`messagehub purge`: nothing is left of a hub, and nothing of anybody else is touched."""

import json
import os
from pathlib import Path

import pyarrow as pa

from messagehub import MessageHub
from messagehub.shm.directory import Directory
from tests.cli.program import Program


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
