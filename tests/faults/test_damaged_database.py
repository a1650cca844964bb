"""A database that is damaged, foreign or newer is refused with a clear message and stays as it is, byte for byte."""

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub.errors import StoreError
from messagehub.security.credentials import new_token
from messagehub.security.private_files import write_private
from messagehub.store.sqlite import SQLiteStore
from registry import commands
from registry.registry import Registry
from tests.integration.harness import Served, refused
from tests.shm.children import fork, wait

pytestmark = pytest.mark.usefixtures("no_leaks")


def good(path: Path, channels: int = 300) -> None:
    store = SQLiteStore(path)
    registry = Registry()
    for number in range(channels):
        for command in (
            commands.CreateChannel(channel=f"c{number}", metadata={"text": "x" * 100}),
            commands.RegisterProducer(channel=f"c{number}", schema_hash="h"),
            commands.RegisterSchema(subject=f"s{number}", schema={"title": str(number)}),
        ):
            happened = registry.apply(command, now=1.0).events
            rows = [row for event in happened for row in store.rows(event)]
            store.write(rows, revision=registry.revision, durable=False)
    store.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database, and somebody may miss it\n" * 100)


def short(path: Path) -> None:
    path.write_bytes(b"x")


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
        connection.execute("INSERT INTO photos VALUES ('holiday')")
    connection.close()


def foreign_application(path: Path) -> None:
    foreign(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id = 1234")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def newer(path: Path) -> None:
    good(path, 3)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def truncated(path: Path) -> None:
    good(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def truncated_header(path: Path) -> None:
    good(path)
    with path.open("r+b") as file:
        file.truncate(60)


def overwritten_middle(path: Path) -> None:
    good(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(4096, size - 4096, 4096):
            file.seek(place)
            file.write(b"\xa5" * 2048)


def altered(statement: str) -> Callable[[Path], None]:
    def alter(path: Path) -> None:
        good(path, 3)
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()  # the last one moves the log into the file

    return alter


KINDS: dict[str, Callable[[Path], None]] = {
    "garbage": garbage,
    "one byte": short,
    "foreign": foreign,
    "of another application": foreign_application,
    "newer": newer,
    "truncated": truncated,
    "header only": truncated_header,
    "overwritten": overwritten_middle,
    "a record that is no JSON": altered("UPDATE channels SET record = '{'"),
    "a record of another shape": altered("UPDATE producers SET record = '{\"a\":1}'"),
    "a producer without its channel": altered("DELETE FROM channels WHERE name = 'c1'"),
    "no revision": altered("DELETE FROM meta"),
    "a table gone": altered("DROP TABLE schemas"),
    "without tables": altered("DROP TABLE meta"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unusable_database_is_refused_and_not_changed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "registry.db"
    KINDS[kind](path)
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        open_and_load(path)
    assert str(path) in caught.value.message
    assert path.read_bytes() == before
    assert path.stat().st_size == len(before)


def open_and_load(path: Path) -> None:
    store = SQLiteStore(path)
    try:
        store.load()
    finally:
        store.close()


@pytest.mark.parametrize("kind", ["garbage", "foreign", "newer", "truncated", "a producer without its channel"])
def test_serve_refuses_an_unusable_database_with_exit_code_one(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    path = directory / "registry.db"
    KINDS[kind](path)
    before = path.read_bytes()
    code, complaint = refused(directory)
    assert code == 1
    assert str(path) in complaint
    assert "Traceback" not in complaint
    assert path.read_bytes() == before


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / "registry.db").symlink_to(target)
    with pytest.raises((StoreError, OSError)):
        SQLiteStore(tmp_path / "registry.db")
    assert not target.exists()


def test_an_empty_database_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """We never leave one: what was in it is lost, and whoever runs the hub should know."""
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    path = directory / "registry.db"
    path.touch(mode=0o600)
    write_private(directory / "http.token", new_token().encode())
    code, complaint = refused(directory)
    assert code == 1
    assert f"{path} is empty (0 bytes)" in complaint
    assert "backup" in complaint
    assert path.stat().st_size == 0
    path.unlink()
    with Served(directory) as server:
        assert "is gone, though a hub ran there before: beginning with an empty registry" in server.log()
    with Served(tmp_path / "fresh") as server:
        assert "is gone" not in server.log()


@pytest.mark.parametrize("is_empty", [True, False])
def test_the_log_of_a_lost_database_is_not_played_into_a_new_one(tmp_path: Path, is_empty: bool) -> None:
    path = tmp_path / "registry.db"
    store = SQLiteStore(path)
    channel = Registry().apply(commands.CreateChannel(channel="old"), now=1.0).events
    store.write([row for event in channel for row in store.rows(event)], revision=1, durable=True)
    log = (tmp_path / "registry.db-wal").read_bytes()
    store.close()
    assert len(log) > 0
    path.unlink()
    (tmp_path / "registry.db-wal").write_bytes(log)
    if is_empty:
        path.touch()
    with pytest.raises(StoreError, match="holds changes of a database that is"):
        SQLiteStore(path)
    assert (tmp_path / "registry.db-wal").read_bytes() == log


def test_a_broker_killed_while_it_makes_its_database_leaves_nothing_foreign(tmp_path: Path) -> None:
    """Killed later and later, wherever that is, until one gets to the end."""
    killed = 0
    for delay in range(1, 100_000):
        path = tmp_path / f"{delay}" / "registry.db"
        path.parent.mkdir()
        if wait(fork(lambda: made_within(path, delay * 50e-6))) == 0:  # noqa: B023  over before the loop goes on
            break
        killed += 1
        SQLiteStore(path).close()
        assert SQLiteStore(path).load().revision == 0
    assert killed > 5


def made_within(path: Path, seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    SQLiteStore(path).close()
    signal.setitimer(signal.ITIMER_REAL, 0)
