"""What is dropped is gone: from memory, from the registry, and it does not come back."""

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import ChannelHasTable, ChannelNotFound, TableNotFound
from messagehub.shm.tables.tables import TableStore
from registry import events
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served, eventually

TABLE = pa.table({"x": [1, 2, 3]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("dropped") / "hub", f"dropped{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def hub(place: Place) -> Iterator[MessageHub]:
    os.environ["MESSAGEHUB_DOMAIN"] = place.domain
    server = Served(place.dir)
    with MessageHub(**place.arguments) as opened:
        yield opened
    server.close()


def files(place: Place, channel: str) -> list[str]:
    path = place.directory.tables_path(channel)
    return [name for name in os.listdir(path) if name != "commit.lock"] if os.path.isdir(path) else []


def test_a_dropped_table_is_gone_and_stays_gone(hub: MessageHub, place: Place) -> None:
    hub.publish_table("gone", TABLE)
    hub.publish_table("gone", TABLE)
    with hub.watch("gone") as watch:
        assert watch.wait_current(30.0)
        dropped = hub.drop_table("gone")
        assert (dropped.channel, dropped.table.generation) == ("gone", 2)
        assert files(place, "gone") == []
        told = [watch.get(30.0), watch.get(30.0)]
        assert [type(event) for event in told] == [events.TableCommitted, events.ChannelEnded]
        hub.publish_table("gone", TABLE)
        happened = []
        while not happened or not isinstance(happened[-1], events.TableCommitted):
            happened.append(watch.get(30.0))
        assert [type(event) for event in happened] == [events.ChannelCreated, events.TableCommitted]
    # while the broker takes its time, `discover` says what is in the directory
    found = eventually(lambda: (it := hub.discover("gone")) is not None and it.source == "broker" and it)
    assert (found.generation, found.schema_version) == (3, "1")  # never the same generation twice
    hub.drop_table("gone")
    assert hub.discover("gone") is None
    with pytest.raises(TableNotFound):
        hub.drop_table("gone")


def test_a_table_that_is_being_read_is_dropped_and_its_memory_freed_afterwards(hub: MessageHub, place: Place) -> None:
    hub.publish_table("read", TABLE)
    store = TableStore(place.directory.tables_path("read"))
    with store.open() as snapshot:
        hub.drop_table("read")
        assert store.generations() == []
        assert hub.discover("read") is None
        assert snapshot.table().equals(TABLE)
        store.sweep(now=0.0)
        assert snapshot.table().equals(TABLE)
    store.sweep(now=0.0)
    assert files(place, "read") == []


def test_a_channel_is_destroyed_with_its_table_or_not_at_all(hub: MessageHub, place: Place) -> None:
    hub.create_channel("whole")
    hub.publish_table("whole", TABLE)
    with pytest.raises(ChannelHasTable, match=r"data=True, --data"):
        hub.destroy_channel("whole")
    found = hub.discover("whole")
    assert found is not None
    assert found.status == "active"
    with hub.watch("whole") as watch:
        assert watch.wait_current(30.0)
        revision = hub.destroy_channel("whole", data=True).revision
        assert files(place, "whole") == []
        assert isinstance(watch.get(30.0), events.ChannelDestroyed)
        hub.publish_table("after", TABLE)  # the broker has looked since
        stats = hub.stats()
        assert stats is not None
        assert stats.revision > revision
        assert watch.get(1.0) is None
    assert hub.discover("whole") is None


def test_a_table_that_outlives_its_channel_is_a_conflict(hub: MessageHub, place: Place) -> None:
    """Somebody destroyed the channel with its data, as a plain request, and did not remove the data."""
    from registry import commands

    hub.publish_table("left", TABLE)
    hub.ask(commands.DestroyChannel(channel="left", data=True))

    def conflict() -> str | None:
        with MessageHub(**place.arguments) as other:
            found = other.discover("left")
        return found.conflict if found is not None and found.source == "broker" else None

    assert "messagehub tables drop left" in eventually(conflict)
    hub.drop_table("left")
    eventually(lambda: _is_unknown(place, "left"))


def test_tables_are_listed_with_a_broker_and_without(hub: MessageHub, tmp_path_factory: pytest.TempPathFactory) -> None:
    hub.publish_table("listed.one", TABLE)
    hub.publish_table("listed.two", TABLE)
    assert [one.channel for one in hub.tables("listed.")] == ["listed.one", "listed.two"]
    with MessageHub(dir=tmp_path_factory.mktemp("nobody"), domain=hub.settings.domain) as alone:
        listed = alone.tables("listed.")
        assert [(one.channel, one.table.rows, one.table.pid) for one in listed] == [
            ("listed.one", 3, os.getpid()),
            ("listed.two", 3, os.getpid()),
        ]
        alone.drop_table("listed.one")
    eventually(lambda: [one.channel for one in hub.tables("listed.")] == ["listed.two"])


def test_dropping_what_nobody_knows_is_refused(hub: MessageHub) -> None:
    with pytest.raises(TableNotFound):
        hub.drop_table("nobody")
    with pytest.raises(ChannelNotFound):
        hub.drop_table("nobody", forget=True)


def _is_unknown(place: Place, channel: str) -> bool:
    with MessageHub(**place.arguments) as other:
        return other.discover(channel) is None
