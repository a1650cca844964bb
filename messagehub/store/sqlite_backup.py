"""A copy of the registry's database, taken while the broker goes on writing.

Rule 1: the copy is one moment of the database: it is read in one transaction.
Rule 2: under its name it is whole, checked and on disk, or it is not there.
Rule 3: going back to a copy replaces the database in one step, and what it replaces stays beside it.
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from messagehub.errors import StoreError
from messagehub.store.sqlite import SQLiteStore, check_database
from messagehub.store.sqlite_migrations import sync_directory

PAGES_AT_ONCE = 1024


class Backup(msgspec.Struct, kw_only=True):
    path: str
    size_bytes: int
    revision: int
    channels: int
    schemas: int
    topics: int


def back_up(database: Path, copy: Path, tell: Callable[[int, int], object]) -> Backup:
    """Copy the database to a new file; `tell` is called with the bytes that remain, and with all."""
    if not database.exists():
        raise StoreError(f"there is no registry database {database}: name the hub's directory with --dir")
    check_database(database)
    if not copy.name or os.path.isdir(copy):
        raise StoreError(f"{str(copy)!r} is a directory: name the file of the copy", path=str(copy))
    if os.path.lexists(copy):
        raise _exists(copy)
    unfinished = copy.with_name(f".backup-{secrets.token_hex(8)}")
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise StoreError(f"cannot write to {copy.parent}: {error.strerror}", path=str(copy)) from error
    try:
        _copy(database, unfinished, tell)
        saved = _checked(unfinished)
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        _give_name(unfinished, copy)
        sync_directory(copy.parent)
    except FileExistsError:
        raise _exists(copy) from None
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot copy {database} to {copy}: {error}", path=str(copy)) from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
    return Backup(path=str(copy), size_bytes=copy.stat().st_size, **saved)


def restore(copy: Path, database: Path, before: Path, tell: Callable[[int, int], object]) -> Backup:
    """Put a checked copy of `copy` in the place of the database, which is kept as `before`, where there is one.

    The caller holds the lock of the directory, so that no broker has the database open.
    """
    arriving = database.with_name(f"{database.name}.arriving")
    arriving.unlink(missing_ok=True)  # of a call that was killed
    try:
        made = back_up(copy, arriving, tell)
        if database.exists():
            _empty_log(database, before)
            os.link(database, before)
        os.replace(arriving, database)
        sync_directory(database.parent)
    except OSError as error:
        raise StoreError(f"cannot put {copy} in the place of {database}: {error}", path=str(database)) from error
    finally:
        arriving.unlink(missing_ok=True)
    return msgspec.structs.replace(made, path=str(database))


def _empty_log(database: Path, before: Path) -> None:
    """Have all of the database in its one file; the log of one that is damaged is kept beside it, under its name."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{database}{suffix}", f"{before}{suffix}")


def _exists(copy: Path) -> StoreError:
    return StoreError(f"{copy} exists already: choose another name, or remove it", path=str(copy))


def _give_name(unfinished: Path, copy: Path) -> None:
    """Give the copy its name, but never in the place of another file."""
    try:
        os.link(unfinished, copy)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links; nothing had the name a moment ago
        if os.path.lexists(copy):
            raise FileExistsError(copy) from None
        os.rename(unfinished, copy)


def _copy(database: Path, unfinished: Path, tell: Callable[[int, int], object]) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
        contextlib.closing(sqlite3.connect(unfinished)) as target,
    ):
        page_bytes = source.execute("PRAGMA page_size").fetchone()[0]
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM meta").fetchone()  # from here on it reads this moment
        source.backup(
            target, pages=PAGES_AT_ONCE, progress=lambda _, left, pages: tell(left * page_bytes, pages * page_bytes)
        )


def _checked(unfinished: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(unfinished)) as copied:
        found = copied.execute("PRAGMA quick_check").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(f"the copy is damaged: {found}")
    store = SQLiteStore(unfinished, sync="off", keeps_copy=False)
    try:
        saved = store.load()
    finally:
        store.close()
    counts = {"channels": len(saved.channels), "schemas": len(saved.schemas), "topics": len(saved.topics)}
    return counts | {"revision": saved.revision}
