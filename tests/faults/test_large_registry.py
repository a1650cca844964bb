"""Starting from a large database, and paging through it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub.store.sqlite import SQLiteStore
from registry.events import AnyEvent, ChannelDeclared, ProducerRegistered, SchemaRegistered
from registry.records import Channel, Producer, SchemaVersion
from tests.conftest import QUICK
from tests.integration.harness import Peer, Served, eventually, hub_of, producer

pytestmark = pytest.mark.usefixtures("no_leaks")

COUNT = 100_000


def history(count: int) -> Iterator[AnyEvent]:
    """So many declared channels, every tenth with a producer, and as many schemas."""
    revision = 0
    for number in range(count):
        name = f"c{number:06}"
        revision += 1
        record = Channel(name=name, declared=True, metadata={"n": number}, created_at=1.0, revision=revision)
        yield ChannelDeclared(channel=name, record=record, revision=revision, at=1.0)
        if number % 10 == 0:
            revision += 1
            made = Producer(
                producer_id=f"{name}/default",
                lease=f"{name}/default",
                shm_name=f"/pylabhub_{name}",
                schema_hash="h",
                registered_at=1.0,
                revision=revision,
            )
            yield ProducerRegistered(channel=name, producer=made, revision=revision, previous=revision - 1, at=1.0)
        revision += 1
        schema = SchemaVersion(
            subject=name,
            version=1,
            schema_id=number + 1,
            schema_type="JSON",
            schema_hash=f"{number:064x}",
            schema=f'{{"title":"{name}"}}',
        )
        yield SchemaRegistered(schema=schema, revision=revision, at=1.0)


def build(path: Path, count: int) -> int:
    store = SQLiteStore(path, sync="off")
    rows: list[Any] = []
    revision = 0
    for event in history(count):
        rows += store.rows(event)
        revision = event.revision
    store.write(rows, revision=revision, durable=False)
    store.close()
    return revision


def test_a_broker_starts_from_a_hundred_thousand_channels_and_schemas(
    tmp_path: Path, served: Callable[..., Served], record_property: Callable[[str, object], None]
) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    revision = build(directory / "registry.db", COUNT)
    started = time.monotonic()
    server = served(dir=directory, **QUICK)
    seconds = time.monotonic() - started
    record_property("start_seconds", round(seconds, 2))
    print(f"started from {COUNT} channels and {COUNT} schemas in {seconds:.2f} s")
    with Peer(server.endpoint) as peer:
        stats = peer.stats()
        assert (stats["channels"], stats["schemas"], stats["producers"]) == (COUNT, COUNT, COUNT // 10)
        assert stats["revision"] == revision
        found = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "c099990"})
        assert (found["status"], found["shm_name"]) == ("active", "/pylabhub_c099990")
        assert peer.ask({"type": "SCHEMA_REQUEST", "schema_id": COUNT})["schema"]["schema"] == '{"title":"c099999"}'
        assert peer.ask(producer("new"))["revision"] > revision
        again = peer.ask({"type": "SCHEMA_REGISTER", "subject": "c000007", "schema": {"title": "other"}})
        assert (again["version"], again["schema_id"]) == (2, COUNT + 1)
        with hub_of(server, request_timeout_seconds=30.0) as hub, hub.watch() as watch:
            eventually(lambda: watch.is_current)
            assert len(watch.channels) == COUNT + 1
            peer.ask(producer("newer"))
            eventually(lambda: "newer" in watch.channels)
