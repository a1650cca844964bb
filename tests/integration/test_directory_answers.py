"""Without a broker, nobody's registration and no file in the directory makes the directory useless for others."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.discovery.via_directory import ViaFiles
from messagehub.errors import ChannelNotFound, ConfigurationError, InvalidRequest, NotOwner
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.mapped_file import replace_file
from registry import commands
from tests.integration.block_processes import Place, place_in
from tests.registry.driving import digest_of


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"d{os.getpid()}") as made:
        yield made


def names(hub: MessageHub) -> list[str]:
    return [each.channel for each in hub.channels()]


def test_old_expectation_of_one_consumer_harms_nobody(place: Place) -> None:
    """It was right when it registered; the producer's successor writes another schema."""
    producer = place.hub()
    first = producer.register_producer("sensor", schema_hash="old")
    reader = place.process(
        'say(held=bool(hub.register_consumer("sensor", expected_schema_hash="old"))); sys.stdin.read()'
    )
    assert reader.hear() == {"held": True}
    first.close()
    assert producer.register_producer("sensor", schema_hash="new")
    producer.register_producer("other", schema_hash="h")
    hub = place.hub()
    assert names(hub) == ["other", "sensor"]
    found = hub.discover("sensor")
    assert found is not None
    assert (found.status, found.schema_hash, found.consumer_count) == ("active", "new", 1)
    described = hub.describe("sensor")
    assert described is not None
    assert [each.expected_schema_hash for each in described.channel.consumers.values()] == ["old"]
    assert len(hub.consumers("sensor")) == 1
    assert hub.register_consumer("sensor", expected_schema_hash="new")


def test_consumer_that_required_a_producer_stays_when_that_is_not_ready_any_more(place: Place) -> None:
    hub, other = place.hub(), place.hub()
    hub.register_producer("sensor", schema_hash="h")
    files = ViaFiles(Directory(place.domain), shm_prefix="pylabhub_")
    files.ask(commands.RegisterConsumer(channel="sensor", consumer_id="reader", required=True), timeout=5.0)
    hub.register_producer("sensor", schema_hash="h", ready=False)
    found = other.discover("sensor")
    assert found is not None
    assert (found.status, found.consumer_count) == ("pending", 1)
    files.close()


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'"text"',
        b'{"registered_at":1.0,"command":{"type":"CONSUMER_REGISTER","channel":"other","consumer_id":"odd"}}',
        b'{"registered_at":1.0,"command":{"type":"CONSUMER_REGISTER","channel":"sensor","consumer_id":"else"}}',
        b'{"registered_at":1e999,"command":{"type":"CONSUMER_REGISTER","channel":"sensor","consumer_id":"odd"}}',
        b'{"registered_at":1.0,"command":{"type":"CONSUMER_REGISTER","channel":"sensor","consumer_id":"o\\ud800"}}',
        b'{"registered_at":1.0,"command":{"type":"CONSUMER_REGISTER","channel":"sensor","consumer_id":"odd",'
        b'"group":"crew"}}',
        b'{"registered_at":1.0,"command":{"metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}}",
    ],
    ids=["cut", "text", "other channel", "other id", "endless", "surrogate", "group", "deep"],
)
def test_consumer_file_that_says_nothing_true_is_passed_over(place: Place, content: bytes) -> None:
    hub = place.hub()
    hub.register_producer("sensor", schema_hash="h")
    files = ViaFiles(Directory(place.domain), shm_prefix="pylabhub_")
    files.ask(commands.RegisterConsumer(channel="sensor", consumer_id="odd"), timeout=5.0)
    files.ask(commands.RegisterConsumer(channel="sensor", consumer_id="fine"), timeout=5.0)
    replace_file(os.path.join(place.directory.channel_path("sensor"), "consumers", "odd.json"), content)
    assert names(hub) == ["sensor"]
    assert [each.consumer_id for each in hub.consumers("sensor")] == ["fine"]
    files.close()


@pytest.mark.parametrize("at", ["Infinity", "NaN", "-1", "1e300"])
def test_producer_of_no_time_is_passed_over(place: Place, at: str) -> None:
    hub = place.hub()
    hub.register_producer("odd", schema_hash="h")
    hub.register_producer("fine", schema_hash="h")
    path = os.path.join(place.directory.channel_path("odd"), "_default.json")
    entry = json.loads(Path(path).read_bytes())
    replace_file(path, json.dumps(entry).replace(str(entry["registered_at"]), at).encode())
    assert names(hub) == ["fine"]


def test_consumer_lock_that_is_no_file_is_passed_over(place: Place) -> None:
    hub = place.hub()
    hub.register_producer("sensor", schema_hash="h")
    consumers = Path(place.directory.channel_path("sensor"), "consumers")
    consumers.mkdir(mode=0o700)
    (consumers / "odd.json").write_text(json.dumps({}))
    (consumers / "odd.lock").symlink_to("/dev/null")
    assert names(hub) == ["sensor"]
    assert hub.consumers("sensor") == []


def test_channel_that_cannot_be_read_hides_no_other(place: Place) -> None:
    hub = place.hub()
    for channel in ("a", "b", "c"):
        hub.register_producer(channel, schema_hash="h")
    lock = Path(place.directory.channel_path("b"), "_default.lock")
    lock.unlink()
    lock.symlink_to("/dev/null")
    assert names(hub) == ["a", "c"]
    assert hub.describe("b") is None


def test_what_nobody_registered_leaves_no_directory(place: Place) -> None:
    files = ViaFiles(Directory(place.domain), shm_prefix="pylabhub_")
    for command in (
        commands.RegisterConsumer(channel="nobody", consumer_id="reader"),
        commands.UnregisterConsumer(channel="nobody", consumer_id="reader"),
        commands.UnregisterProducer(channel="nobody"),
    ):
        with pytest.raises(ChannelNotFound):
            files.ask(command, timeout=5.0)
    assert place.directory.channels() == []


@pytest.mark.parametrize(
    "wrong",
    [{"schema_hash": ""}, {"schema_hash": "h" * 300}, {"access": "sharred"}, {"priority": "urgent"}, {"metadata": 5}],
    ids=["empty", "long", "access", "priority", "metadata"],
)
def test_what_a_broker_would_refuse_is_refused_without_one(place: Place, wrong: dict[str, Any]) -> None:
    """An entry of it would be one that nobody can read."""
    hub = place.hub()
    files = ViaFiles(Directory(place.domain), shm_prefix="pylabhub_")
    with pytest.raises(InvalidRequest) as refused:
        files.ask(commands.RegisterProducer(**{"channel": "sensor", "schema_hash": "h"} | wrong), timeout=5.0)
    assert refused.value.details["field"] == next(iter(wrong))
    with pytest.raises((InvalidRequest, ConfigurationError), match=next(iter(wrong))):
        hub.register_producer("sensor", **{"schema_hash": "h"} | wrong)
    with pytest.raises(InvalidRequest):
        hub.producer("sensor", schema_version="v" * 2000)
    assert place.directory.channels() == []
    assert place.blocks() == []


def test_only_who_holds_a_registration_can_end_it(place: Place) -> None:
    """Whoever names its lease is told so, instead of that it has ended."""
    ours, theirs = (ViaFiles(Directory(place.domain), shm_prefix="pylabhub_") for _ in range(2))
    ours.ask(commands.RegisterProducer(channel="sensor", schema_hash="h", lease="known"), timeout=5.0)
    ours.ask(commands.RegisterConsumer(channel="sensor", consumer_id="reader", lease="known"), timeout=5.0)
    for command in (
        commands.UnregisterConsumer(channel="sensor", consumer_id="reader", lease="known"),
        commands.UnregisterProducer(channel="sensor", lease="known"),
    ):
        with pytest.raises(NotOwner):
            theirs.ask(command, timeout=5.0)
        ours.ask(command, timeout=5.0)
    assert theirs.discover("sensor") is None


def test_no_id_is_given_without_a_broker_and_times_are_those_of_the_registration(place: Place) -> None:
    files = ViaFiles(Directory(place.domain), shm_prefix="pylabhub_")
    schema = {"type": "object"}
    reply = files.ask(
        commands.RegisterProducer(channel="sensor", schema_hash=digest_of(schema), schema=schema), timeout=5.0
    )
    assert reply.schema_id is None  # type: ignore[attr-defined]
    first, again = (files.ask(commands.DescribeChannel(channel="sensor"), timeout=5.0) for _ in range(2))
    assert first == again
    files.close()
