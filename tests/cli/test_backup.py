"""`messagehub backup` while the hub runs and is written to, and a hub that goes on from the copy."""

import contextlib
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.cli.program import Program
from tests.integration.harness import Served, eventually, hub_of


def test_a_copy_of_a_running_hub_is_one_moment_of_it(served: Callable[..., Served], tmp_path: Path) -> None:
    server, program = served(), Program(tmp_path)
    copies = tmp_path / "copies"
    copies.mkdir()
    with hub_of(server) as hub:
        hub.topic("kept", keep=10_000)
        hub.create_channel("declared")
        is_over = threading.Event()
        written: list[int] = []

        def write() -> None:
            while not is_over.is_set():
                hub.publish("kept", len(written), timeout=30.0)
                hub.register_schema(f"subject{len(written)}", {"title": str(len(written))})
                written.append(len(written))

        writing = threading.Thread(target=write)
        writing.start()
        try:
            eventually(lambda: bool(written))
            for number in range(3):
                before = len(written)
                copy = copies / f"copy{number}"
                made = program.call_json("backup", str(copy), "--dir", str(server.dir))
                assert (made["path"], made["topics"], made["channels"]) == (str(copy), 1, 1)
                assert before <= made["schemas"] <= len(written) + 1
                assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        finally:
            is_over.set()
            writing.join()
    assert sorted(os.listdir(copies)) == ["copy0", "copy1", "copy2"]

    restored = tmp_path / "restored"
    restored.mkdir(mode=0o700)
    shutil.copy(copies / "copy2", restored / "registry.db")
    with hub_of(served(dir=restored)) as hub:
        assert len(hub.subjects()) == made["schemas"]
        assert [one.channel for one in hub.channels()] == ["declared"]
        with hub.subscribe("kept", since="oldest") as subscription:
            assert subscription.receive(timeout=30.0).payload == 0
        assert hub.register_schema("another", {"title": "new"}).schema_id == made["schemas"] + 1


@pytest.mark.parametrize("is_json", [False, True])
def test_what_cannot_be_copied_is_refused_and_leaves_nothing(alone: Program, is_json: bool) -> None:
    said = "--json" if is_json else "--"
    options = [said] if is_json else []

    def complaint(*arguments: str) -> str:
        done = alone.call("backup", *arguments, *options, code=1)
        return str(done.stdout if is_json else done.stderr)

    copy = alone.place / "copy"
    assert "there is no registry database" in complaint(str(copy))
    alone.dir.mkdir(mode=0o700)
    with contextlib.closing(sqlite3.connect(alone.dir / "registry.db")) as foreign, foreign:
        foreign.execute("CREATE TABLE t (a)")
    assert "is a database of another program" in complaint(str(copy))
    (alone.dir / "registry.db").unlink()
    with alone.serve() as broker:
        assert broker.end() == 0
    copy.write_text("mine")
    assert f"{copy} exists already" in complaint(str(copy))
    assert copy.read_text() == "mine"
    assert "cannot write to" in complaint(str(alone.place / "nowhere" / "copy"))
    for directory in (str(alone.place), ".", "/"):
        assert "is a directory" in complaint(directory)
    (alone.place / "link").symlink_to(alone.place / "elsewhere")
    assert "exists already" in complaint(str(alone.place / "link"))
    assert "cannot copy" in complaint(str(alone.place / ("x" * 300)))
    assert not [name for name in os.listdir(alone.place) if name.startswith(".")]


def test_backup_as_a_program(alone: Program) -> None:
    with alone.serve() as broker:
        shown = alone.run("backup", str(alone.place / "copy")).stdout
        assert broker.end() == 0
    assert shown.endswith("0 schema versions, 0 channels, 0 retained topics, revision 0\n")


def test_a_stopped_hub_goes_back_to_a_copy_and_keeps_what_it_had(alone: Program) -> None:
    copy = alone.place / "monday.db"
    with alone.serve() as broker, MessageHub(dir=alone.dir) as hub:
        hub.create_channel("monday")
        alone.call("backup", str(copy))
        hub.create_channel("tuesday")
        assert "another broker holds directory" in alone.call("restore", str(copy), "--yes", code=1).stderr
        assert broker.end() == 0
    alone.call("restore", str(copy), code=1, stdin="n\n")
    said = alone.call_json("restore", str(copy), "--yes")
    assert said["restored"]["channels"] == 1
    assert channels_of(alone) == ["monday"]
    assert alone.call_json("restore", said["before"], "--yes")["restored"]["channels"] == 2
    assert channels_of(alone) == ["monday", "tuesday"]
    alone.call("purge", "--yes")
    assert list(alone.dir.glob("*")) == []


@pytest.mark.parametrize("has_log", [False, True])
def test_a_damaged_database_is_replaced_and_kept(alone: Program, has_log: bool) -> None:
    copy, database = alone.place / "copy.db", alone.dir / "registry.db"
    with alone.serve() as broker, MessageHub(dir=alone.dir) as hub:
        hub.create_channel("here")
        alone.call("backup", str(copy))
        assert broker.end() == 0
    database.write_bytes(b"nonsense" * 1000)
    if has_log:
        database.with_name("registry.db-wal").write_bytes(b"more nonsense")
        database.with_name("registry.db-wal").chmod(0o600)
    said = alone.run("restore", str(copy), "--yes").stdout
    assert "1 channel, 0 retained topics" in said
    (kept,) = alone.dir.glob("registry.db.before-*[0-9]")
    assert kept.read_bytes() == b"nonsense" * 1000
    assert channels_of(alone) == ["here"]


@pytest.mark.parametrize("content", [b"nonsense" * 1000, b"", None])
def test_what_is_no_copy_is_refused_and_changes_nothing(alone: Program, content: bytes | None) -> None:
    copy = alone.place / "copy.db"
    with alone.serve() as broker, MessageHub(dir=alone.dir) as hub:
        hub.create_channel("here")
        assert broker.end() == 0
    if content is not None:
        copy.write_bytes(content)
    before = sorted(path.name for path in alone.dir.iterdir())
    assert str(copy) in alone.call("restore", str(copy), "--yes", code=1).stderr
    assert sorted(path.name for path in alone.dir.iterdir()) == before
    assert channels_of(alone) == ["here"]


def channels_of(program: Program) -> list[str]:
    with program.serve() as broker:
        names = [each["channel"] for each in program.call_json("channels")]
        assert broker.end() == 0
    return names
