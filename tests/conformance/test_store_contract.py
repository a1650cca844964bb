"""The store's contract, over every implementation: what was written is what is loaded."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messagehub.store import Saved, Store, StoredTopicReader
from messagehub.store.commit import GroupCommit
from messagehub.store.memory import MemoryStore
from messagehub.store.sqlite import SQLiteStore
from registry import commands
from registry.events import AnyEvent, TopicRetained
from registry.records import Keep, RetainedMessage, RetainedTopic, SchemaConfig
from registry.registry import Registry
from registry.topics.positions import SavedPosition
from tests.etcd_server import etcd
from tests.registry.driving import digest_of
from tests.site.stores import leading_store

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module", params=["memory", "sqlite", "etcd"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """`memory`, `sqlite` or the address of an etcd."""
    if request.param != "etcd":
        yield request.param
        return
    with etcd() as (member,):
        yield member.url


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[Store]:
    if kind in ("memory", "sqlite"):
        opened: Store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "registry.db")
        yield opened
        opened.close()
    else:
        with leading_store(kind, tmp_path / "registry.db") as leading:
            yield leading


class Writer:
    """A registry whose every event goes to the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.registry = Registry()

    def apply(self, command: commands.Command, *, now: float = 1.0) -> None:
        self.keep(self.registry.apply(command, now=now).events)

    def keep(self, happened: list[AnyEvent]) -> None:
        if happened:
            rows = [row for event in happened for row in self.store.rows(event)]
            durable = any(event.durable for event in happened)
            self.store.write(rows, revision=happened[-1].revision, durable=durable)


def essence(channels: Any) -> dict[str, Any]:
    """Channel records without what a store need not keep: stalls, the revision of the last departure, and what a
    declared channel took over from producers that have all left."""
    found = msgspec.to_builtins({channel.name: channel for channel in channels})
    for channel in found.values():
        del channel["revision"], channel["groups"]  # groups are dealt anew
        if not channel["producers"] and not channel["binds_schema"]:
            for name in ("schema", "schema_hash", "schema_version", "schema_type", "schema_id", "access"):
                del channel[name]
        for member in [*channel["producers"].values(), *channel["consumers"].values()]:
            del member["status"]
    return dict(found)


def assert_same(saved: Saved, registry: Registry) -> None:
    assert saved.revision == registry.revision
    assert essence(saved.channels) == essence(registry.channels.values())
    again = Registry()
    again.schemas.restore(
        saved.schemas,
        last_id=saved.last_schema_id,
        configs=saved.configs,
        modes=saved.modes,
        revision=saved.revision,
    )
    again.topics.restore(saved.topics)
    assert {one.topic.name: one for one in again.topics.every()} == {
        one.topic.name: one for one in registry.topics.every()
    }
    again.positions.restore(saved.positions, now=2.0)
    assert by_name(again) == by_name(registry)
    again.restore(saved.channels, revision=saved.revision, now=2.0)
    assert (again.schemas.configs, again.schemas.modes) == (registry.schemas.configs, registry.schemas.modes)
    for schema_id in range(1, len(registry.schemas) + 1):
        asked = commands.RequestSchema(schema_id=schema_id)
        assert again.apply(asked, now=2.0) == registry.apply(asked, now=2.0)
    assert len(again.schemas) == len(registry.schemas)


def by_name(registry: Registry) -> dict[tuple[str, str], SavedPosition]:
    return {(one.position.topic, one.position.name): one for one in registry.positions.every()}


def producer(channel: str, **fields: Any) -> commands.RegisterProducer:
    return commands.RegisterProducer(channel=channel, **{"schema_hash": "h"} | fields)


HISTORY: dict[str, list[commands.Command]] = {
    "nothing": [],
    "a producer": [producer("a", config={"policy": "RingBuffer"}, metadata={"n": [1, None, {"é": 2.5}]})],
    "odd values": [producer("a", metadata={"big": 10**30, "nul": "\0", "astral": "😀"})],
    "members in order": [
        producer("a", access="shared", producer_id="z"),
        producer("a", access="shared", producer_id="b"),
        commands.RegisterConsumer(channel="a", consumer_id="late", group="g"),
        commands.RegisterConsumer(channel="a", consumer_id="early"),
        commands.UnregisterProducer(channel="a", producer_id="b", lease="b"),
    ],
    "said again": [producer("a"), producer("a", config={"policy": "Other"})],
    "declared over members": [
        producer("a"),
        commands.CreateChannel(channel="a", schema_hash="h", priority="high", metadata={"k": "v"}),
        commands.RegisterConsumer(channel="a", consumer_id="c"),
    ],
    "declared and left": [
        commands.CreateChannel(channel="a", config={"x": 1}),
        producer("a"),
        commands.UnregisterProducer(channel="a"),
    ],
    "ended": [producer("a"), producer("b"), commands.UnregisterProducer(channel="a")],
    "destroyed": [
        commands.CreateChannel(channel="a"),
        producer("a"),
        commands.RegisterConsumer(channel="a", consumer_id="c"),
        commands.DestroyChannel(channel="a"),
    ],
    "destroyed and made again": [
        producer("a"),
        commands.DestroyChannel(channel="a"),
        producer("a", schema_hash="other"),
    ],
    "schemas": [
        commands.RegisterSchema(subject="s", schema={"type": "object"}),
        commands.ConfigureSchemas(subject="s", config=SchemaConfig(compatibility="NONE")),
        commands.RegisterSchema(subject="s", schema={"type": "string"}),
        commands.RegisterSchema(subject="t", schema={"type": "object"}),
        commands.RegisterSchema(subject="s", schema={"type": "object"}),
        commands.DeleteSchema(subject="s", version=1),
        commands.SetSchemaMode(subject="t", mode="READONLY"),
        commands.RegisterSchema(subject="nul \0 and é", schema='"int"', schema_type="AVRO"),
    ],
    "schemas across subjects out of name order": [
        commands.RegisterSchema(subject="z", schema={"title": "first"}),
        commands.RegisterSchema(subject="a", schema={"title": "second"}),
        commands.RegisterSchema(subject="m", schema={"title": "first"}),
    ],
    "retained topics": [
        commands.KeepTopic(topic="t", keep=Keep(messages=3, seconds=5.0)),
        commands.PublishMessages(topic="t", messages=[RetainedMessage(payload=b"a")] * 5, publisher="p", number=1),
        commands.KeepTopic(topic="u"),
        commands.KeepTopic(topic="t", keep=Keep(messages=4), replace=True),
        commands.PublishMessages(topic="t", messages=[RetainedMessage(payload=b"b", headers={"h": 1})], publisher="q"),
        commands.DeleteTopic(topic="u"),
        commands.KeepTopic(topic="u"),
        commands.PublishMessages(topic="u", messages=[RetainedMessage(payload=b"")]),
    ],
    "positions": [
        commands.KeepTopic(topic="t"),
        commands.PublishMessages(topic="t", messages=[RetainedMessage(payload=b"a")] * 9),
        commands.RegisterSubscriber(kind="position", name="p", patterns=["t"], member_id="m", lease="l"),
        commands.OpenPosition(topic="t", position="p", start=2, max_deliveries=3),
        commands.OpenPosition(topic="t", position="q"),
        commands.OpenPosition(topic="t", position="gone"),
        commands.FetchMessages(topic="t", position="p", incarnation=1, member_id="m", lease="l", limit=5),
        commands.AcknowledgeMessages(topic="t", position="p", incarnation=1, offsets=[3, 5]),
        commands.FetchMessages(topic="t", position="p", incarnation=1, member_id="m", lease="l", first_offset=4),
        commands.FetchMessages(topic="t", position="q", incarnation=1, member_id="m", lease="l", limit=5),
        commands.FetchMessages(topic="t", position="gone", incarnation=1, member_id="m", lease="l", limit=5),
        commands.ResetPosition(topic="t", position="q", offset=3),
        commands.DeletePosition(topic="t", position="gone"),
        commands.KeepTopic(topic="u"),
        commands.OpenPosition(topic="u", position="p"),
        commands.DeleteTopic(topic="u"),
        commands.KeepTopic(topic="u"),
    ],
    "a schema with a producer": [producer("a", schema={"type": "object"}, schema_hash="")],
}


@pytest.mark.parametrize("history", HISTORY)
def test_what_was_written_is_loaded(store: Store, history: str) -> None:
    writer = Writer(store)
    for command in HISTORY[history]:
        if isinstance(command, commands.RegisterProducer) and command.schema is not None:
            command.schema_hash = digest_of(command.schema)
        writer.apply(command)
    assert_same(store.load(), writer.registry)


def test_members_come_back_in_the_order_in_which_they_came(store: Store) -> None:
    writer = Writer(store)
    for name in ("z", "m", "a"):
        writer.apply(producer("c", access="shared", producer_id=name))
    (channel,) = store.load().channels
    assert list(channel.producers) == ["z", "m", "a"]
    assert channel.lead() == writer.registry.channels["c"].lead()


def test_stalls_and_expiry_are_survived(store: Store) -> None:
    writer = Writer(store)
    writer.apply(producer("a"), now=0.0)
    writer.apply(commands.RegisterConsumer(channel="a", consumer_id="c"), now=0.0)
    writer.keep(writer.registry.expire(now=20.0))
    assert_same(store.load(), writer.registry)
    writer.keep(writer.registry.expire(now=60.0))
    saved = store.load()
    assert saved.channels == []
    assert saved.revision == writer.registry.revision


def test_loading_gives_copies_that_later_writes_do_not_change(store: Store) -> None:
    writer = Writer(store)
    writer.apply(producer("a"))
    before = store.load()
    writer.apply(commands.RegisterConsumer(channel="a", consumer_id="c"))
    assert before.channels[0].consumers == {}
    before.channels[0].producers.clear()
    assert store.load().channels[0].producers


# -- retained topics ---------------------------------------------------------------------------------------


def kept(writer: Writer, topic: str, count: int, *, now: float, size: int = 10) -> None:
    messages = [RetainedMessage(payload=bytes([n % 256]) * size, headers={"n": n}) for n in range(count)]
    writer.apply(commands.PublishMessages(topic=topic, messages=messages), now=now)


def offsets(
    reader: StoredTopicReader, topic: RetainedTopic, offset: int, limit: int = 1000, max_bytes: int = 10**6
) -> list[int]:
    return [found.offset for found in reader.page(topic, offset=offset, limit=limit, max_bytes=max_bytes)]


def test_retained_messages_are_read_in_pages_as_they_were(store: Store) -> None:
    writer, reader = Writer(store), store.topic_reader()
    writer.apply(commands.KeepTopic(topic="t"))
    writer.apply(commands.KeepTopic(topic="other"))
    kept(writer, "t", 30, now=5.0)
    kept(writer, "other", 2, now=5.0)
    topic = writer.registry.topics.get("t")
    assert offsets(reader, topic, 1) == list(range(1, 31))
    assert offsets(reader, topic, 7, limit=3) == [7, 8, 9]
    assert offsets(reader, topic, 7, max_bytes=40) == [7, 8]
    assert offsets(reader, topic, 7, max_bytes=1) == [7], "at least one, however large"
    assert offsets(reader, topic, 31) == []
    (found,) = reader.page(topic, offset=4, limit=1, max_bytes=1)
    assert (found.at, found.kind, found.payload, found.headers) == (5.0, "bytes", b"\x03" * 10, {"n": 3})
    reader.close()


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_bounds_hold_at_once_and_trimming_changes_nothing_that_is_seen(store: Store, is_trimmed: bool) -> None:
    writer, reader = Writer(store), store.topic_reader()
    bounds = {
        "messages": (Keep(messages=4), 4),
        "bytes": (Keep(size_bytes=70), 7),
        "seconds": (Keep(seconds=5.0), 10),
        "all": (Keep(messages=9, size_bytes=55, seconds=5.0), 5),
    }
    header_bytes = len(b'{"n":0}')
    for name, (keep, _) in bounds.items():
        scaled = msgspec.structs.replace(keep, size_bytes=keep.size_bytes // 10 * (10 + header_bytes))
        writer.apply(commands.KeepTopic(topic=name, keep=scaled))
        for at in (1.0, 10.0, 20.0):
            kept(writer, name, 10, now=at)
    if is_trimmed:
        while store.trim(now=24.0):
            pass
    for name, (_, count) in bounds.items():
        extent = reader.extent(writer.registry.topics.get(name), now=24.0)
        assert (extent.first_offset, extent.next_offset) == (31 - count, 31), name
        assert extent.oldest_at == 20.0
        assert extent.size_bytes == count * (10 + header_bytes)
    aged = writer.registry.topics.get("seconds")
    assert reader.extent(aged, now=26.0) == (31, 31, 0, None), "nothing is left, and offsets go on"
    reader.close()


def test_a_time_is_found(store: Store) -> None:
    writer, reader = Writer(store), store.topic_reader()
    writer.apply(commands.KeepTopic(topic="t", keep=Keep(messages=25)))
    for at in (1.0, 2.0, 3.0):
        kept(writer, "t", 10, now=at)
    topic = writer.registry.topics.get("t")
    extent = reader.extent(topic, now=9.0)
    times = {0.0: 6, 1.0: 6, 1.5: 11, 2.0: 11, 2.1: 21, 3.0: 21, 3.5: 31}
    assert {at: reader.offset_at(topic, at, extent) for at in times} == times
    reader.close()


def test_what_is_read_is_only_what_was_written(store: Store) -> None:
    writer, reader = Writer(store), store.topic_reader()
    unwritten = Registry()
    (event,) = unwritten.apply(commands.KeepTopic(topic="t"), now=1.0).events
    assert isinstance(event, TopicRetained)
    assert reader.written(event.record.incarnation) is None
    assert offsets(reader, event.record, 1) == []
    writer.apply(commands.KeepTopic(topic="t"))
    kept(writer, "t", 1, now=1.0)
    assert reader.written(event.record.incarnation) == writer.registry.topics.get("t")
    assert offsets(reader, event.record, 1) == [1]
    writer.apply(commands.DeleteTopic(topic="t"))
    assert reader.written(event.record.incarnation) is None
    while store.trim(now=1.0):
        pass
    assert offsets(reader, event.record, 1) == []
    reader.close()


def test_a_great_deal_is_trimmed_little_by_little(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "registry.db", sync="off")
    writer = Writer(store)
    for name in ("bounded", "deleted"):
        writer.apply(commands.KeepTopic(topic=name))
        for _ in range(6):
            kept(writer, name, 1000, now=1.0)
    store.trim(now=1.0)
    writer.apply(commands.KeepTopic(topic="bounded", keep=Keep(messages=10), replace=True))
    writer.apply(commands.DeleteTopic(topic="deleted"))
    left = []
    database = sqlite3.connect(tmp_path / "registry.db")
    while True:
        has_more = store.trim(now=1.0)
        left.append(database.execute("SELECT count(*) FROM topic_messages").fetchone()[0])
        if not has_more:
            break
    database.close()
    steps = [before - after for before, after in zip([12_000, *left], left, strict=False)]
    assert left[-1] == 10
    assert max(steps) <= 4000
    assert len(steps) >= 3
    store.close()


def test_a_probe_changes_nothing(store: Store) -> None:
    writer = Writer(store)
    writer.apply(producer("a"))
    store.probe()
    assert_same(store.load(), writer.registry)


def test_the_store_may_be_loaded_from_any_thread(store: Store) -> None:
    Writer(store).apply(producer("a"))
    loaded: list[Saved] = []
    thread = threading.Thread(target=lambda: loaded.append(store.load()))
    thread.start()
    thread.join(30)
    assert [channel.name for channel in loaded[0].channels] == ["a"]


def test_group_commit_writes_many_batches_in_one_transaction(store: Store) -> None:
    """While one transaction is written the next batches gather."""
    gate = Gate(store)
    commit = GroupCommit(gate, written=0)
    registry = Registry()
    try:
        for number in range(200):
            commit.submit(registry.apply(commands.CreateChannel(channel=f"c{number}"), now=1.0).events)
            if number == 0:
                commit.write_submitted()
                assert gate.entered.wait(30)
        gate.opened.set()
        assert commit.flush(registry.revision, timeout=30)
        assert commit.transactions == 2
        assert_same(store.load(), registry)
    finally:
        gate.opened.set()
        commit.close(timeout=30)


class Gate:
    """A store whose writes wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.load, self.rows, self.probe, self.close = store.load, store.rows, store.probe, store.close
        self.trim, self.topic_reader = store.trim, store.topic_reader
        self.entered = threading.Event()
        self.opened = threading.Event()

    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        self.entered.set()
        assert self.opened.wait(60)
        self._store.write(rows, revision=revision, durable=durable)


def test_after_a_failure_nothing_is_written_until_resumed_and_then_everything_is(store: Store) -> None:
    failing = Failing(store)
    commit = GroupCommit(failing, written=0)
    registry = Registry()
    try:
        commit.submit(registry.apply(commands.CreateChannel(channel="kept"), now=1.0).events)
        assert commit.flush(1, timeout=30)
        failing.fails = True
        commit.submit(registry.apply(commands.CreateChannel(channel="lost"), now=1.0).events)
        assert commit.flush(2, timeout=30)
        assert commit.failure
        assert commit.written == 1
        failing.fails = False
        assert failing.probed.wait(30)
        for _ in range(3):  # resumed with an empty queue, more than once
            commit.resume(written=1)
        again = Registry()
        saved = store.load()
        again.restore(saved.channels, revision=saved.revision, now=1.0)
        commit.submit(again.apply(commands.CreateChannel(channel="after"), now=1.0).events)
        assert commit.flush(2, timeout=30)
        assert {channel.name for channel in store.load().channels} == {"after", "kept"}
    finally:
        commit.close(timeout=30)


class Failing:
    """A store whose disk is full now and then."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.load, self.rows, self.close = store.load, store.rows, store.close
        self.trim, self.topic_reader = store.trim, store.topic_reader
        self.fails = False
        self.probed = threading.Event()

    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self._store.write(rows, revision=revision, durable=durable)

    def probe(self) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self._store.probe()
        self.probed.set()
