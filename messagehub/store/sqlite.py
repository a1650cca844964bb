"""A store in SQLite, in WAL mode. It is the default of a broker with a directory.

Rule 1: a file that is not ours, is damaged, or was made by a newer version is refused and never written to. One that
was made by an earlier version is brought to this one's format (`sqlite_migrations`).
Rule 2: a durable transaction is synced before `write` returns (synchronous=FULL); others only reach the kernel
(NORMAL), which survives kill -9 of the broker but not a power cut.
"""

import errno
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from messagehub.errors import StoreError
from messagehub.security.private_files import user_name
from messagehub.store import Saved, sqlite_positions, sqlite_topics
from messagehub.store.sqlite_migrations import FORMAT, TABLES_OF_2, copies, migrate, sync_directory
from registry import events
from registry.channels.state import restored
from registry.events import AnyEvent
from registry.records import Channel, Consumer, Mode, Producer, SchemaConfig, SchemaVersion, Table

APPLICATION_ID = 0x4D484231  # "MHB1"
BUSY_TIMEOUT_SECONDS = 5.0
PROBE_BYTES = 128 << 10
"""More than SQLite needs to open a database that is in order."""

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE channels (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE producers (channel TEXT, producer_id TEXT, record TEXT NOT NULL, PRIMARY KEY (channel, producer_id))
    WITHOUT ROWID;
CREATE TABLE consumers (channel TEXT, consumer_id TEXT, record TEXT NOT NULL, PRIMARY KEY (channel, consumer_id))
    WITHOUT ROWID;
CREATE TABLE schemas (subject TEXT, version INTEGER, record TEXT NOT NULL, PRIMARY KEY (subject, version))
    WITHOUT ROWID;
CREATE TABLE schema_settings (kind TEXT, subject TEXT, record TEXT NOT NULL, PRIMARY KEY (kind, subject))
    WITHOUT ROWID;
INSERT INTO meta VALUES ('revision', 0), ('probe', 0), ('last_schema_id', 0);
"""
_PUT_CHANNEL = "INSERT OR REPLACE INTO channels VALUES (?, ?)"
_PUT_PRODUCER = "INSERT OR REPLACE INTO producers VALUES (?, ?, ?)"
_PUT_CONSUMER = "INSERT OR REPLACE INTO consumers VALUES (?, ?, ?)"
_PUT_SCHEMA = "INSERT INTO schemas VALUES (?, ?, ?)"
_RAISE_SCHEMA_ID = "UPDATE meta SET value = max(value, ?) WHERE key = 'last_schema_id'"
_HIDE_SCHEMA = (
    "UPDATE schemas SET record = json_set(record, '$.is_deleted', json('true')) WHERE subject = ? AND version = ?"
)
_DELETE_SCHEMA = "DELETE FROM schemas WHERE subject = ? AND version = ?"
_PUT_SETTING = "INSERT OR REPLACE INTO schema_settings VALUES (?, ?, ?)"
_DELETE_SETTING = "DELETE FROM schema_settings WHERE kind = ? AND subject = ?"
_DELETE_PRODUCER = "DELETE FROM producers WHERE channel = ? AND producer_id = ?"
_DELETE_CONSUMER = "DELETE FROM consumers WHERE channel = ? AND consumer_id = ?"
_PUT_TABLE = "INSERT OR REPLACE INTO committed_tables VALUES (?, ?)"
_DELETE_TABLE = "DELETE FROM committed_tables WHERE channel = ?"
_DELETE_CHANNEL = (
    "DELETE FROM channels WHERE name = ?",
    "DELETE FROM producers WHERE channel = ?",
    "DELETE FROM consumers WHERE channel = ?",
    _DELETE_TABLE,
)

Row = tuple[str, tuple[Any, ...]]
_encode = msgspec.json.Encoder().encode
_channel_decoder: msgspec.json.Decoder[Channel] = msgspec.json.Decoder(Channel)
_producer_decoder: msgspec.json.Decoder[Producer] = msgspec.json.Decoder(Producer)
_consumer_decoder: msgspec.json.Decoder[Consumer] = msgspec.json.Decoder(Consumer)
_table_decoder: msgspec.json.Decoder[Table] = msgspec.json.Decoder(Table)
_schema_decoder: msgspec.json.Decoder[SchemaVersion] = msgspec.json.Decoder(SchemaVersion)
_config_decoder: msgspec.json.Decoder[SchemaConfig] = msgspec.json.Decoder(SchemaConfig)
_mode_decoder: msgspec.json.Decoder[Mode] = msgspec.json.Decoder(Mode)


class SQLiteStore:
    def __init__(self, path: Path, *, sync: str = "full", keeps_copy: bool = True) -> None:
        """`keeps_copy`: before the database is brought to a newer format. Without that it is a copy itself."""
        self._path = path
        self._keeps_copy = keeps_copy
        self._durable_mode = "FULL" if sync == "full" else "OFF"
        self._plain_mode = "NORMAL" if sync == "full" else "OFF"
        self._mode = ""
        self._retention = sqlite_topics.TopicRetention()
        check_database(path)
        try:
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            _refuse_full_disk(path, error)
            raise StoreError(f"cannot open the registry database {path}: {error}", path=str(path)) from error

    def load(self) -> Saved:
        try:
            connection = _connect(self._path)
            try:
                return _load(connection)
            finally:
                connection.close()
        except (sqlite3.Error, msgspec.DecodeError, KeyError, TypeError) as error:  # KeyError, TypeError: a row misses
            _refuse_full_disk(self._path, error)
            raise StoreError(
                f"the registry database {self._path} is damaged ({error!r}): restore it from a backup,"
                " or move it away to start empty",
                path=str(self._path),
            ) from error

    def rows(self, event: AnyEvent) -> Sequence[Row]:
        return _ROWS[type(event)](event)

    def write(self, rows: Sequence[Row], *, revision: int, durable: bool) -> None:
        self._transact([*rows, ("UPDATE meta SET value = ? WHERE key = 'revision'", (revision,))], durable=durable)
        self._retention.note(rows)

    def trim(self, *, now: float) -> bool:
        try:
            rows = self._retention.rows(self._connection, now=now)
        except sqlite3.Error as error:
            raise StoreError(f"the registry database cannot be read: {error}", path=str(self._path)) from error
        if rows:
            self._transact(rows, durable=False)
        return self._retention.has_more

    def topic_reader(self) -> sqlite_topics.SQLiteTopicReader:
        return sqlite_topics.SQLiteTopicReader(_connect(self._path))

    def probe(self) -> None:
        self._transact([("UPDATE meta SET value = value + 1 WHERE key = 'probe'", ())], durable=True)

    def close(self) -> None:
        self._connection.close()

    def _transact(self, rows: Sequence[Row], *, durable: bool) -> None:
        execute = self._connection.execute
        try:
            mode = self._durable_mode if durable else self._plain_mode
            if mode != self._mode:
                execute(f"PRAGMA synchronous = {mode}")
                self._mode = mode
            execute("BEGIN IMMEDIATE")
            for statement, values in rows:
                execute(statement, values)
            execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise StoreError(f"the registry database cannot be written: {error}", path=str(self._path)) from error

    def _open(self) -> sqlite3.Connection:
        if not _has_content(self._path):
            _create(self._path)
        connection = _connect(self._path)
        try:
            migrate(self._path, connection, keeps_copy=self._keeps_copy)
        except BaseException:
            connection.close()
            raise
        return connection


def _create(path: Path) -> None:
    """Make a new database. It gets its name when it is whole, so that a broker that is killed meanwhile leaves none."""
    unfinished = path.with_name(path.name + ".new")
    for suffix in ("", "-journal", "-wal", "-shm"):
        unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    connection = _connect(unfinished)
    try:
        connection.executescript(
            f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; {_TABLES} {TABLES_OF_2}"
            "COMMIT; PRAGMA journal_mode = WAL;"
        )
    finally:
        connection.close()
    os.rename(unfinished, path)
    sync_directory(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    # The connection is made in one thread and used in another, by one at a time.
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def check_database(path: Path) -> None:
    """Refuse, without touching it, what is not a registry database of a version we know."""
    advice = "it was not changed; move it away or point --dir somewhere else"
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link, which is not followed: {advice}", path=str(path))
    if not _has_content(path):
        _check_nothing_was_there(path)
        return
    if not os.access(path, os.R_OK):
        owner = user_name(path.stat().st_uid)
        said = f"permission denied for {path}: only {owner}, whose it is, may do this (sudo -u '{owner}' messagehub …)"
        raise StoreError(said, path=str(path))
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_SECONDS)
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        _refuse_full_disk(path, error)
        raise StoreError(f"{path} is not a usable registry database ({error}): {advice}", path=str(path)) from error
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: {advice}", path=str(path))
    if version > FORMAT:
        kept = copies(path)
        back = f" (to go back: messagehub restore {kept[-1]}, which is as it was before the newer one)" if kept else ""
        raise StoreError(
            f"{path} has format {version}, made by a newer MessageHub; this one knows up to {FORMAT}: start the newer"
            f" one{back}; {advice}",
            path=str(path),
        )


def _check_nothing_was_there(path: Path) -> None:
    """Refuse to begin an empty registry in the place of one that was lost: we never leave an empty file."""
    empty = f"restore {path} from a backup; or, to begin with an empty registry,"
    log = path.with_name(f"{path.name}-wal")
    if _has_content(log):
        raise StoreError(
            f"{log} holds changes of a database that is {'empty' if path.exists() else 'gone'}: {empty} move"
            f" {path.name}* away",
            path=str(path),
        )
    if path.exists():
        raise StoreError(
            f"the registry database {path} is empty (0 bytes), so what was in it is lost: {empty} remove it",
            path=str(path),
        )


def _refuse_full_disk(path: Path, error: Exception) -> None:
    """Raise what is really wrong when the disk is full: SQLite then says anything from I/O errors to damage."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as reason:
        if reason.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"the disk that holds {path} is full ({reason.strerror}): free some space on it (df -h {path.parent})"
                " and start again; the database was not changed",
                path=str(path),
            ) from error


def _load(connection: sqlite3.Connection) -> Saved:
    def records(query: str, decode: Callable[[str], Any]) -> list[Any]:
        return [decode(record) for (record,) in connection.execute(query)]

    connection.execute("BEGIN")
    channels = {c.name: c for c in records("SELECT record FROM channels", _channel_decoder.decode)}
    for channel, record in connection.execute("SELECT channel, record FROM producers"):
        producer = _producer_decoder.decode(record)
        channels[channel].producers[producer.producer_id] = producer
    for channel, record in connection.execute("SELECT channel, record FROM consumers"):
        consumer = _consumer_decoder.decode(record)
        channels[channel].consumers[consumer.consumer_id] = consumer
    for channel, record in connection.execute("SELECT channel, record FROM committed_tables"):
        channels[channel].table = _table_decoder.decode(record)
    for channel in channels.values():
        restored(channel)
    schemas = records("SELECT record FROM schemas ORDER BY subject, version", _schema_decoder.decode)
    topics = sqlite_topics.load(connection)
    positions = sqlite_positions.load(connection)
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    settings: dict[str, dict[str, str]] = {"config": {}, "mode": {}}
    for kind, subject, record in connection.execute("SELECT kind, subject, record FROM schema_settings"):
        settings[kind][subject] = record
    connection.execute("COMMIT")
    return Saved(
        list(channels.values()),
        schemas,
        meta["revision"],
        meta["last_schema_id"],
        {subject: _config_decoder.decode(record) for subject, record in settings["config"].items()},
        {subject: _mode_decoder.decode(record) for subject, record in settings["mode"].items()},
        topics,
        positions,
    )


def _put_channel(event: events.ChannelCreated | events.ChannelDeclared) -> Sequence[Row]:
    bare = msgspec.structs.replace(event.record, producers={}, consumers={}, groups={}, table=None, conflict=None)
    return ((_PUT_CHANNEL, (event.channel, _encode(bare).decode())),)


def _delete_channel(event: events.ChannelDestroyed | events.ChannelEnded) -> Sequence[Row]:
    return [(statement, (event.channel,)) for statement in _DELETE_CHANNEL]


def _put_producer(event: events.ProducerRegistered) -> Sequence[Row]:
    producer = event.producer
    return ((_PUT_PRODUCER, (event.channel, producer.producer_id, _encode(producer).decode())),)


def _put_consumer(event: events.ConsumerRegistered) -> Sequence[Row]:
    consumer = event.consumer
    return ((_PUT_CONSUMER, (event.channel, consumer.consumer_id, _encode(consumer).decode())),)


def _put_table(event: events.TableCommitted) -> Sequence[Row]:
    if event.table is None:
        return ((_DELETE_TABLE, (event.channel,)),)
    return ((_PUT_TABLE, (event.channel, _encode(event.table).decode())),)


def _put_schema(event: events.SchemaRegistered) -> Sequence[Row]:
    schema = event.schema
    record = _encode(schema).decode()
    return (
        (_PUT_SCHEMA, (schema.subject, schema.version, record)),
        (_RAISE_SCHEMA_ID, (schema.schema_id,)),
    )


def _delete_schema(event: events.SchemaDeleted) -> Sequence[Row]:
    return ((_DELETE_SCHEMA if event.permanent else _HIDE_SCHEMA, (event.subject, event.version)),)


def _put_setting(kind: str, subject: str, value: SchemaConfig | Mode | None) -> Sequence[Row]:
    if value is None:
        return ((_DELETE_SETTING, (kind, subject)),)
    return ((_PUT_SETTING, (kind, subject, _encode(value).decode())),)


def _nothing(_: AnyEvent) -> Sequence[Row]:
    """Store nothing of stalls, conflicts and shares: a broker that starts finds or makes them anew."""
    return ()


_ROWS: dict[type[events.Event], Callable[[Any], Sequence[Row]]] = {
    events.ChannelCreated: _put_channel,
    events.ChannelDeclared: _put_channel,
    events.ChannelDestroyed: _delete_channel,
    events.ChannelEnded: _delete_channel,
    events.ProducerRegistered: _put_producer,
    events.ProducerUnregistered: lambda e: ((_DELETE_PRODUCER, (e.channel, e.producer_id)),),
    events.ProducerStalled: _nothing,
    events.ProducerRecovered: _nothing,
    events.ConsumerRegistered: _put_consumer,
    events.ConsumerUnregistered: lambda e: ((_DELETE_CONSUMER, (e.channel, e.consumer_id)),),
    events.ConsumerStalled: _nothing,
    events.ConsumerRecovered: _nothing,
    events.ChannelConflicted: _nothing,
    events.TableCommitted: _put_table,
    events.GroupAssigned: _nothing,
    events.SchemaRegistered: _put_schema,
    events.SchemaDeleted: _delete_schema,
    events.SchemaConfigured: lambda e: _put_setting("config", e.subject, e.config),
    events.SchemaModeChanged: lambda e: _put_setting("mode", e.subject, e.mode),
    **sqlite_topics.ROWS,
    **sqlite_positions.ROWS,
}
