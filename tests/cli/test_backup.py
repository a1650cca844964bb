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

from tests.cli.program import Program
from tests.integration.harness import Served, hub_of


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
