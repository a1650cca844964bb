"""One contract, three ways to the registry: in memory, through a broker, and over the directory with no broker.

Every way gives the same answers and the same refusals to the same commands, whichever process asks.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messagehub.client.connection import Connection
from messagehub.discovery import RegistryAccess
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_directory import ViaFiles
from messagehub.errors import (
    BrokerRequired,
    ChannelNotFound,
    ChannelNotReady,
    ConsumerAlreadyRegistered,
    InvalidName,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    ProducerAlreadyRegistered,
    SchemaMismatch,
)
from messagehub.settings import Settings
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.identity import ProcessIdentity
from registry import commands, replies
from registry.registry import Registry
from tests.integration.block_processes import place_in
from tests.integration.harness import checked_broker

ME = ProcessIdentity.current()
OWNER: dict[str, Any] = {"host": ME.host, "pid": ME.pid, "start_time": ME.start_time, "boot_id": ME.boot_id}
CONFIG = {"policy": "RingBuffer", "capacity": 10, "page_size": 4096}


class InMemory:
    """The rules themselves, in this process: what the other ways are measured by."""

    def __init__(self) -> None:
        self._registry = Registry()

    def ask(self, command: commands.Command, *, timeout: float) -> replies.Reply:
        return self._registry.apply(command, now=time.time()).reply


@pytest.fixture(params=["memory", "broker", "files"])
def accesses(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], RegistryAccess]]:
    """Makes accesses of one kind to one hub: each is another process's as far as the hub can tell."""
    domain = f"c{os.getpid()}"
    with place_in(tmp_path / "hub", domain):
        if request.param == "memory":
            access = InMemory()
            yield lambda: access
        elif request.param == "files":
            made: list[ViaFiles] = []

            def files() -> RegistryAccess:
                made.append(ViaFiles(Directory(domain), shm_prefix="pylabhub_"))
                return made[-1]

            yield files
            for each in made:
                each.close()
        else:
            with checked_broker(domain=domain) as endpoint:
                settings = Settings.load(endpoint=endpoint, dir=tmp_path / "client", domain=domain)
                connections: list[Connection] = []

                def broker() -> RegistryAccess:
                    connections.append(Connection(settings, name=f"c{len(connections)}"))
                    return ViaBroker(connections[-1])

                yield broker
                for connection in connections:
                    connection.close()


@pytest.fixture
def ask(accesses: Callable[[], RegistryAccess]) -> Callable[[commands.Command], Any]:
    """One client of the hub."""
    access = accesses()
    return lambda command: access.ask(command, timeout=30.0)


@pytest.fixture
def other(accesses: Callable[[], RegistryAccess]) -> Callable[[commands.Command], Any]:
    """Another one."""
    access = accesses()
    return lambda command: access.ask(command, timeout=30.0)


def producer(channel: str = "sensor_data", **fields: Any) -> commands.RegisterProducer:
    said = {"schema_hash": "abc", "schema_version": "1.0.0", "config": CONFIG, "lease": "first", **OWNER} | fields
    return commands.RegisterProducer(channel=channel, **said)


def consumer(consumer_id: str = "reader", **fields: Any) -> commands.RegisterConsumer:
    said = {"channel": "sensor_data", "lease": "first", **OWNER} | fields
    return commands.RegisterConsumer(consumer_id=consumer_id, **said)


def found(ask: Callable[[commands.Command], Any], channel: str = "sensor_data") -> replies.Discovered:
    reply: replies.Discovered = ask(commands.Discover(channel=channel))
    return reply


def test_a_registration_is_found_with_all_that_was_said(ask: Any, other: Any) -> None:
    ack = ask(producer(metadata={"room": 7}, priority="high"))
    assert (ack.channel, ack.producer_id, ack.shm_name) == (
        "sensor_data",
        "sensor_data/default",
        "/pylabhub_sensor_data",
    )
    seen = found(other)
    assert (seen.shm_name, seen.schema_hash, seen.schema_version, seen.status) == (
        "/pylabhub_sensor_data",
        "abc",
        "1.0.0",
        "active",
    )
    assert seen.producers[0].metadata == {"room": 7}
    assert seen.producers[0].config == CONFIG
    assert seen.producers[0].pid == ME.pid
    assert (seen.access, seen.priority, seen.consumer_count) == ("exclusive", "high", 0)


def test_an_unknown_channel_is_not_found_and_a_bad_name_is_refused(ask: Any) -> None:
    with pytest.raises(ChannelNotFound):
        found(ask, "nobody")
    with pytest.raises(InvalidName):
        found(ask, "9 lives")
    with pytest.raises(InvalidName):
        ask(producer("hub.mine"))


def test_a_display_name_finds_the_logical_channel(ask: Any) -> None:
    ask(producer())
    assert found(ask, "sensor_data | pid:12-0").channel == "sensor_data"


def test_a_producer_that_is_not_ready_is_pending(ask: Any, other: Any) -> None:
    ask(producer(ready=False))
    assert found(other).status == "pending"
    with pytest.raises(ChannelNotReady):
        other(consumer(required=True))
    ask(producer(ready=True))
    assert found(other).status == "active"


def test_the_same_owner_may_say_it_again(ask: Any) -> None:
    first, again = ask(producer()), ask(producer())
    assert first.shm_name == again.shm_name
    assert len(found(ask).producers) == 1


def test_a_second_producer_of_an_exclusive_channel_is_refused(ask: Any, other: Any) -> None:
    ask(producer())
    with pytest.raises(ProducerAlreadyRegistered) as refused:
        other(producer(lease="second"))
    assert refused.value.details["pid"] == ME.pid
    with pytest.raises(ProducerAlreadyRegistered):
        other(producer(lease="second", producer_id="another"))


def test_producers_share_a_channel_if_they_agree(ask: Any, other: Any) -> None:
    ask(producer(access="shared", producer_id="left"))
    other(producer(access="shared", producer_id="right", lease="second"))
    assert {each.producer_id for each in found(ask).producers} == {"left", "right"}
    assert found(ask).blocks_total == 2
    with pytest.raises(SchemaMismatch):
        other(producer(access="shared", producer_id="third", lease="second", schema_hash="other"))
    with pytest.raises(PolicyMismatch):
        other(producer(access="shared", producer_id="third", lease="second", config={"policy": "Single"}))
    with pytest.raises(PolicyMismatch):
        other(producer(producer_id="third", lease="second"))
    assert len(found(other).producers) == 2


def test_an_unregistered_producer_is_gone_and_its_place_free(ask: Any, other: Any) -> None:
    ask(producer())
    ask(commands.UnregisterProducer(channel="sensor_data", lease="first"))
    with pytest.raises(ChannelNotFound):
        found(other)
    other(producer(lease="second", schema_hash="new"))
    assert found(ask).schema_hash == "new"


def test_only_the_owner_may_unregister(ask: Any, other: Any) -> None:
    ask(producer())
    with pytest.raises(NotOwner):
        other(commands.UnregisterProducer(channel="sensor_data", lease="second"))
    with pytest.raises(NotRegistered):
        ask(commands.UnregisterProducer(channel="sensor_data", producer_id="nobody", lease="first"))
    assert found(other).status == "active"


def test_consumers_are_listed_until_they_leave(ask: Any, other: Any) -> None:
    ask(producer())
    ack = other(consumer(expected_schema_hash="abc", lease="second"))
    assert (ack.shm_name, ack.schema_hash, ack.status) == ("/pylabhub_sensor_data", "abc", "active")
    listed = ask(commands.ListConsumers(channel="sensor_data")).consumers
    assert [each.consumer_id for each in listed] == ["reader"]
    assert found(ask).consumer_count == 1
    other(commands.UnregisterConsumer(channel="sensor_data", consumer_id="reader", lease="second"))
    assert ask(commands.ListConsumers(channel="sensor_data")).consumers == []


def test_a_consumer_is_refused_for_the_wrong_schema_or_a_taken_name(ask: Any, other: Any) -> None:
    ask(producer())
    with pytest.raises(SchemaMismatch):
        other(consumer(expected_schema_hash="wrong"))
    other(consumer(lease="second"))
    with pytest.raises(ConsumerAlreadyRegistered):
        ask(consumer(lease="first"))
    with pytest.raises(ChannelNotFound):
        ask(consumer(channel="nobody"))


def test_channels_are_listed_in_pages_by_prefix(ask: Any) -> None:
    for name in ("a.one", "a.two", "b.one"):
        ask(producer(name))
    page = ask(commands.ListChannels(prefix="a.", limit=1))
    assert [each.channel for each in page.channels] == ["a.one"]
    rest = ask(commands.ListChannels(prefix="a.", after=page.next))
    assert [each.channel for each in rest.channels] == ["a.two"]
    assert rest.next is None
    assert len(ask(commands.ListChannels()).channels) == 3


def test_a_channel_is_described(ask: Any) -> None:
    ask(producer())
    described = ask(commands.DescribeChannel(channel="sensor_data"))
    assert described.status == "active"
    assert list(described.channel.producers) == ["sensor_data/default"]
    assert msgspec.json.encode(described)


@pytest.mark.parametrize(
    "command",
    [
        commands.CreateChannel(channel="x"),
        commands.DestroyChannel(channel="x"),
        commands.RegisterSchema(subject="x", schema={"type": "object"}),
        commands.ListSchemas(),
        commands.RegisterConsumer(channel="x", consumer_id="c", group="g"),
        commands.Heartbeat(lease="x"),
        commands.RequestSnapshot(),
    ],
    ids=lambda command: str(command.__struct_config__.tag),
)
def test_what_needs_one_authority_needs_the_broker(command: commands.Command) -> None:
    with pytest.raises(BrokerRequired):
        ViaFiles(Directory("nowhere"), shm_prefix="pylabhub_").ask(command, timeout=1.0)
