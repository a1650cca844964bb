"""Bring a database of an earlier format to the one of this version.

Rule 1: before anything is changed, a whole copy of the database is on disk beside it.
Rule 2: a step and the number of its format are one transaction: a broker that is killed leaves one format or the next.
Rule 3: nothing goes back. An older MessageHub refuses the database (`sqlite.check_database`); the copy is for it.

A new step goes to the end of `_STEPS`; steps that were released are never changed.
"""

import contextlib
import itertools
import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from messagehub.store import sqlite_positions, sqlite_topics

log = logging.getLogger("messagehub.broker")

TABLES_OF_2: Final = f"""
{sqlite_topics.TABLES} {sqlite_positions.TABLES}
CREATE TABLE IF NOT EXISTS committed_tables (channel TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
"""
_STEPS: list[str] = [TABLES_OF_2]
"""The first one takes a database from format 1 to 2, and so on."""
FORMAT: Final = 1 + len(_STEPS)


def migrate(path: Path, connection: sqlite3.Connection, *, keeps_copy: bool) -> None:
    """Take the database that `connection` has open through all steps that it lacks."""
    before: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if before >= FORMAT:
        return
    copy = _copy(path, connection) if keeps_copy else None
    for number, step in enumerate(_STEPS[before - 1 :], before + 1):
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {step} PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise
    if copy is not None:
        log.warning(
            "%s had format %d and has format %d now, which older versions refuse; as it was, it is in %s",
            path,
            before,
            FORMAT,
            copy,
        )


def copies(path: Path) -> list[Path]:
    """Return the copies that migrations of the database left, the oldest first."""
    return sorted(path.parent.glob(f"{path.name}.before-format-*"), key=lambda copy: copy.stat().st_mtime)


def unused_name(path: Path, why: str) -> Path:
    """Return a name beside the database for a copy of it, which says why and when it was made."""
    first = path.with_name(f"{path.name}.{why}-{time.strftime('%Y%m%d-%H%M%S')}")
    name = first
    for number in itertools.count(2):
        if not name.exists():
            break
        name = first.with_name(f"{first.name}-{number}")
    return name


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are on disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _copy(path: Path, connection: sqlite3.Connection) -> Path:
    """Copy the database; under its name the copy is whole and on disk, or it is not there."""
    unfinished = path.with_name(f"{path.name}.copying")  # of one broker: it holds the directory's lock
    unfinished.unlink(missing_ok=True)
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with contextlib.closing(sqlite3.connect(unfinished)) as target:
            connection.backup(target)
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        copy = unused_name(path, f"before-format-{FORMAT}")
        os.rename(unfinished, copy)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
    sync_directory(path.parent)
    return copy
