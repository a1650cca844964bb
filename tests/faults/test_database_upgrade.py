"""A database of an earlier version is brought forward with a copy kept, and an older version refuses what is newer."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.errors import StoreError
from messagehub.store import sqlite_migrations
from messagehub.store.sqlite import SQLiteStore
from messagehub.store.sqlite_backup import back_up, restore
from messagehub.store.sqlite_migrations import FORMAT, copies
from tests.integration.harness import Served

OLD = Path(__file__).with_name("registry-format-1.sql").read_text()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "hub").mkdir(mode=0o700)
    path = tmp_path / "hub" / "registry.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD)
    path.chmod(0o600)
    return path


def format_of(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def test_a_hub_goes_on_with_the_database_of_an_earlier_version(database: Path, served: Callable[..., Served]) -> None:
    server = served(dir=database.parent)
    with MessageHub(dir=server.dir) as hub:
        assert hub.schema("orders").schema.schema_id == 1
        assert [found.channel for found in hub.channels()] == ["lab.declared"]
        hub.topic("new", keep=10).publish(1)
    (copy,) = copies(database)
    assert (format_of(database), format_of(copy)) == (FORMAT, 1)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert str(copy) in server.log()
    server.stop()
    server.start()
    with MessageHub(dir=server.dir) as hub:
        assert hub.topic("new").describe().messages == 1
    assert copies(database) == [copy]  # nothing was left to do


def test_what_is_newer_is_refused_and_the_copy_leads_back(database: Path) -> None:
    SQLiteStore(database).close()
    (copy,) = copies(database)
    with closing(sqlite3.connect(database)) as newer:
        newer.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = database.read_bytes()
    with pytest.raises(StoreError, match=rf"newer MessageHub.*start the newer one .*restore {copy}"):
        SQLiteStore(database)
    assert database.read_bytes() == before
    restore(copy, database, database.with_name("aside"), lambda _left, _all: None)
    store = SQLiteStore(database)
    assert [schema.subject for schema in store.load().schemas] == ["orders"]
    store.close()


def test_a_step_that_fails_leaves_the_database_as_it_was(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ["CREATE TABLE half (a); SELECT * FROM nothing_of_that_name;"]
    monkeypatch.setattr(sqlite_migrations, "_STEPS", steps)  # private: no released step fails
    with pytest.raises(StoreError, match="cannot open the registry database"):
        SQLiteStore(database)
    assert format_of(database) == 1
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    monkeypatch.undo()
    SQLiteStore(database).close()
    assert format_of(database) == FORMAT


def test_a_copy_that_cannot_be_kept_stops_the_upgrade(database: Path) -> None:
    database.with_name("registry.db.copying").mkdir()  # nothing can be written under that name
    with pytest.raises(StoreError, match="cannot open the registry database"):
        SQLiteStore(database)
    assert format_of(database) == 1


def test_a_backup_of_an_old_database_is_of_this_format_and_leaves_it_alone(database: Path, tmp_path: Path) -> None:
    made = back_up(database, tmp_path / "copy.db", lambda _left, _all: None)
    assert (made.schemas, made.channels) == (1, 1)
    assert (format_of(database), format_of(tmp_path / "copy.db")) == (1, FORMAT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "hub"]
