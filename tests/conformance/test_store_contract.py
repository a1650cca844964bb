"""The store's contract, over every implementation: what was written is what is loaded."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messagehub.store import Saved, Store
from messagehub.store.commit import GroupCommit
from messagehub.store.memory import MemoryStore
from messagehub.store.sqlite import SQLiteStore
from registry import commands
from registry.events import AnyEvent
from registry.records import SchemaConfig
from registry.registry import Registry
from tests.registry.driving import digest_of

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "registry.db")
    yield opened
    opened.close()


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
    again.restore(saved.channels, revision=saved.revision, now=2.0)
    assert (again.schemas.configs, again.schemas.modes) == (registry.schemas.configs, registry.schemas.modes)
    for schema_id in range(1, len(registry.schemas) + 1):
        asked = commands.RequestSchema(schema_id=schema_id)
        assert again.apply(asked, now=2.0) == registry.apply(asked, now=2.0)
    assert len(again.schemas) == len(registry.schemas)


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
