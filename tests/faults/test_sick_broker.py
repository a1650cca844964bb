"""A broker that cannot help is no broker: one warning, and everything goes on through the directory."""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import BrokerUnavailable, ProducerAlreadyRegistered, SchemaMismatch
from tests.faults.sick_peers import (
    HELLO_ACK,
    FloodingBroker,
    SickBroker,
    SlowRelay,
    Stranger,
    after_hello,
    always,
    error,
)
from tests.faults.test_full_disk import fill, free, small_disk, write_until_refused
from tests.integration.harness import (
    PATIENCE_SECONDS,
    Embedded,
    Listener,
    Peer,
    Served,
    eventually,
    hub_of,
)
from tests.ports import own_endpoint

__all__ = ["small_disk"]
pytestmark = pytest.mark.usefixtures("no_leaks")

QUICK = {"request_timeout_seconds": 1.0}
PATIENT = {"request_timeout_seconds": 30.0, "hello_timeout_seconds": 30.0}
"""For brokers that answer whatever they are asked, on a loaded machine not at once."""
TERMS = {"heartbeat_seconds": 0.2, "stall_seconds": 20.0, "lease_seconds": 40.0, "beacon_seconds": 0.1}
T = TypeVar("T")
TABLE = pa.table({"n": [1, 2, 3]})
GARBAGE = b"\xff\x00 what is this?"
SICK: dict[str, Callable[[], SickBroker | FloodingBroker | Stranger]] = {
    "garbage": lambda: SickBroker(always(GARBAGE)),
    "garbage after HELLO": lambda: SickBroker(after_hello(GARBAGE)),
    "another major version": lambda: SickBroker(always(error("UNSUPPORTED_PROTOCOL"))),
    "a HELLO of another major version": lambda: SickBroker(always(HELLO_ACK | {"version": "2.0"})),
    "a HELLO without terms": lambda: SickBroker(always(HELLO_ACK | {"heartbeat_seconds": 0})),
    "HELLO whatever is asked": lambda: SickBroker(always(HELLO_ACK)),
    "another kind of answer": lambda: SickBroker(after_hello({"type": "PONG", "broker_id": "sick", "revision": 1})),
    "internal errors": lambda: SickBroker(always(error("INTERNAL_ERROR"))),
    "internal errors after HELLO": lambda: SickBroker(after_hello(error("INTERNAL_ERROR"))),
    "rate limits": lambda: SickBroker(always(error("RATE_LIMITED", retryable=True))),
    "rate limits after HELLO": lambda: SickBroker(after_hello(error("RATE_LIMITED", retryable=True))),
    "a full disk": lambda: SickBroker(after_hello(error("STORE_READ_ONLY", retryable=True))),
    "a type it does not know": lambda: SickBroker(after_hello(error("UNKNOWN_TYPE"))),
    "a newer code that passes": lambda: SickBroker(after_hello(error("SOLAR_FLARE", retryable=True))),
    "answers that nobody asked for, without end": lambda: FloodingBroker(says_hello=True),
    "no HELLO, and other answers without end": lambda: FloodingBroker(says_hello=False),
    "nothing": lambda: SickBroker(always(None)),
    "nothing after HELLO": lambda: SickBroker(after_hello(None)),
    "HTTP": lambda: Stranger(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", hangs_up=True),
    "noise without end": lambda: Stranger(bytes(range(256)) * 4, hangs_up=False),
    "silence": lambda: Stranger(b"", hangs_up=False),
}


@contextlib.contextmanager
def warnings_of(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    said: list[str] = []
    with caplog.at_level(logging.WARNING, logger="messagehub"):
        caplog.clear()
        yield said
        said += [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("sickness", SICK)
def test_a_sick_broker_harms_nobody(sickness: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        SICK[sickness]() as sick,
        warnings_of(caplog) as said,
        hub_of(sick.endpoint, **QUICK) as hub,
        hub.producer("rings") as producer,
    ):
        assert producer.source == "files"
        registration = hub.register_producer("plain", schema_hash="h")
        assert registration.source == "files"
        assert hub.register_consumer("plain").source == "files"
        for channel in ("rings", "plain"):
            found = hub.discover(channel)
            assert found is not None, channel
            assert (found.source, found.status) == ("files", "active")
        assert hub.discover("unknown") is None
        assert [each.channel for each in hub.channels()] == ["plain", "rings"]
        assert hub.describe("rings") is not None
        assert hub.health()["status"] == "unavailable" or hub.stats() is None
        with hub.consumer("rings", start="oldest") as consumer:
            producer.write(b"data")
            assert consumer.read(timeout=30.0) == b"data"
        assert hub.publish_table("table", TABLE).rows == 3
        assert [each.channel for each in hub.tables()] == ["table"]
        with hub.consumer("table", start="oldest") as consumer:
            assert consumer.read(timeout=30.0).equals(TABLE)
        assert hub.drop_table("table").table.rows == 3
        assert hub.tables() == []
    assert [text for text in said if "going on without a broker" not in text] == []
    assert len(said) == 1


def test_what_a_sick_broker_did_not_take_is_registered_when_it_is_well(served: Callable[..., Served]) -> None:
    with SickBroker(after_hello(error("INTERNAL_ERROR")), own_endpoint()) as sick:
        hub = MessageHub(endpoint=sick.endpoint, request_timeout_seconds=1.0)
        registration = hub.register_producer("a", schema_hash="h")
        ring = hub.producer("b")
    try:
        assert (registration.source, ring.source) == ("files", "files")
        server = served("--endpoint", sick.endpoint, **TERMS)
        eventually(lambda: (registration.source, ring.source) == ("broker", "broker"))
        with Peer(server.endpoint) as peer:
            assert set(peer.snapshot()) == {"a", "b"}
    finally:
        hub.close()


def test_a_sick_broker_that_recovers_is_asked_again_without_a_reconnect() -> None:
    acknowledged = {
        "type": "PRODUCER_REGISTER_ACK",
        "channel": "a",
        "producer_id": "a/default",
        "shm_name": "/x",
        "schema_id": None,
        "lease": "l",
        "lease_seconds": 40.0,
        "revision": 1,
    }
    with (
        SickBroker(after_hello(error("RATE_LIMITED", retryable=True))) as sick,
        hub_of(sick.endpoint, **PATIENT) as hub,
    ):
        registration = hub.register_producer("a", schema_hash="h")
        assert registration.source == "files"
        sick.answer = after_hello(acknowledged)
        eventually(lambda: registration.source == "broker")
        assert sick.count("HELLO") == 1


@pytest.mark.parametrize("code", ["SCHEMA_MISMATCH", "PRODUCER_ALREADY_REGISTERED", "FORBIDDEN", "INVALID_NAME"])
def test_a_real_refusal_is_raised(code: str) -> None:
    with SickBroker(after_hello(error(code))) as sick, hub_of(sick.endpoint, **PATIENT) as hub:
        for call in (
            lambda: hub.register_producer("a", schema_hash="h"),
            lambda: hub.producer("b"),
            lambda: hub.discover("a"),
            lambda: hub.consumer("a"),
            lambda: hub.publish_table("t", pa.table({"x": [1]})),
            hub.channels,
        ):
            with pytest.raises(Exception, match=f"this peer says {code}") as refused:
                call()
            assert refused.value.code == code  # type: ignore[attr-defined]
        assert hub.health()["status"] == "unavailable"


def test_calls_that_need_a_broker_say_that_it_cannot_be_used() -> None:
    with SickBroker(always(error("UNSUPPORTED_PROTOCOL"))) as sick, hub_of(sick.endpoint, **PATIENT) as hub:
        with pytest.raises(BrokerUnavailable, match="cannot be used: this peer says UNSUPPORTED_PROTOCOL"):
            hub.create_channel("a")
        with pytest.raises(BrokerUnavailable):
            hub.register_producer("a", schema_hash="h", required=True)


def prompt(call: Callable[[], T]) -> T:
    """What the call gives, far before the minute that its own timeout is."""
    given: list[T] = []
    calling = threading.Thread(target=lambda: given.append(call()))
    calling.start()
    calling.join(PATIENCE_SECONDS)
    assert given, "it waits for the broker"
    return given[0]


def test_discovery_does_not_wait_for_a_paused_broker(served: Callable[..., Served], tmp_path: Path) -> None:
    server = served(**TERMS)
    with hub_of(server) as owner, owner.producer("a"):
        server.signal(signal.SIGSTOP)
        try:
            with hub_of(server, request_timeout_seconds=60.0) as fresh:  # which a test does not wait for
                found = prompt(lambda: fresh.discover("a"))
                assert found is not None
                assert found.source == "files"
                assert prompt(lambda: fresh.discover("unknown")) is None
        finally:
            server.signal(signal.SIGCONT)


def test_a_connected_client_finds_in_the_directory_what_a_paused_broker_does_not_say(
    served: Callable[..., Served],
) -> None:
    server = served(**TERMS)
    with (
        hub_of(server) as owner,
        owner.producer("a"),
        owner.producer("b"),
        hub_of(server, request_timeout_seconds=60.0) as hub,
    ):
        hub.connect(required=True)
        server.signal(signal.SIGSTOP)
        try:
            found = prompt(lambda: hub.discover("a"))
            assert found is not None
            assert found.source == "files"
            assert prompt(lambda: hub.discover("unknown")) is None, "it does not shake hands: it is stopped"
        finally:
            server.signal(signal.SIGCONT)
        eventually(lambda: (found := hub.discover("b")) is not None and found.source == "broker")


def test_registering_does_not_wait_for_a_paused_broker(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server, request_timeout_seconds=60.0) as hub, Peer(server.endpoint) as peer:
        hub.connect(required=True)
        server.signal(signal.SIGSTOP)
        try:
            registration = prompt(lambda: hub.register_producer("a", schema_hash="h"))
            assert registration.source == "files"
        finally:
            server.signal(signal.SIGCONT)
        eventually(lambda: registration.source == "broker")
        registration.close()
        eventually(lambda: peer.snapshot() == {})


class Busy:
    """Takes its time for every answer, as on a busy host."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.answers = 0

    def __call__(self, asked: dict[str, object]) -> dict[str, object]:
        time.sleep(self._seconds)
        self.answers += 1
        if asked["type"] == "HELLO":
            return HELLO_ACK
        if asked["type"] == "PING":
            return {"type": "PONG", "broker_id": "sick", "revision": 1, "read_only": False}
        return error("CHANNEL_NOT_FOUND", retryable=True)


def test_a_broker_that_takes_its_time_for_hello_is_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    with (
        SickBroker(Busy(2.5)) as busy,
        warnings_of(caplog) as said,
        hub_of(busy.endpoint, request_timeout_seconds=30.0, hello_timeout_seconds=2.0) as hub,
    ):
        assert hub.connect()
        assert hub.discover("unknown") is None
        assert hub.metrics()["disconnects"] == 0
        assert busy.count("HELLO") == 1
    assert said == []


def test_a_host_that_is_slow_to_shake_hands_is_waited_for_by_who_needs_a_broker_and_found_by_the_others(
    embedded: Callable[..., Embedded],
) -> None:
    broker = embedded(endpoint="tcp://127.0.0.1:0", **TERMS)
    with SlowRelay(broker.endpoint, 0.8) as slow:
        with hub_of(slow.endpoint, request_timeout_seconds=30.0) as hub:
            assert hub.connect(required=True)
        with hub_of(slow.endpoint, request_timeout_seconds=30.0) as hub:
            registration = hub.register_producer("a", schema_hash="h")
            assert registration
            eventually(lambda: registration.source == "broker")


def test_a_full_disk_is_no_broker_and_registrations_follow(small_disk: Path, served: Callable[..., Served]) -> None:
    server = served(dir=small_disk, **TERMS)
    with Peer(server.endpoint) as peer, hub_of(server) as hub:
        fill(small_disk)
        write_until_refused(peer, [], 0)
        registration = hub.register_producer("a", schema_hash="h")
        ring = hub.producer("b")
        assert (registration.source, ring.source) == ("files", "files")
        for channel in ("a", "b"):
            found = hub.discover(channel)
            assert found is not None
            assert found.source == "files"
        free(small_disk)
        eventually(lambda: (registration.source, ring.source) == ("broker", "broker"))


def is_in_files(hub: MessageHub, channel: str, *, consumers: int) -> bool:
    found = hub.discover(channel)
    return found is not None and (found.source, found.consumer_count) == ("files", consumers)


def test_all_registrations_of_a_process_stay_discoverable_without_a_broker(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server) as hub, hub_of(server) as other:
        held = [hub.register_producer(f"c{number}", schema_hash="h", required=True) for number in range(300)]
        held += [hub.register_consumer(f"c{number}") for number in range(3)]
        server.kill()

        def listed() -> bool:
            return all((found := other.discover(each.channel)) is not None and found.is_active for each in held)

        eventually(listed)
        eventually(lambda: is_in_files(other, "c0", consumers=1))
        with pytest.raises(ProducerAlreadyRegistered):
            other.register_producer("c7", schema_hash="h")
        held[7].close()
        assert other.discover("c7") is None
        other.register_producer("c7", schema_hash="h").close()
        with pytest.raises(SchemaMismatch):
            other.register_consumer("c8", expected_schema_hash="another")
        server.start()
        eventually(lambda: hub.is_connected)
    with Peer(server.endpoint) as peer:
        eventually(lambda: peer.snapshot() == {})


def test_a_client_that_asks_for_nothing_notices_at_once_that_its_broker_is_gone(served: Callable[..., Served]) -> None:
    server = served(heartbeat_seconds=100.0, stall_seconds=200.0, lease_seconds=300.0)
    with hub_of(server) as hub, hub_of(server) as other:
        hub.register_producer("a", schema_hash="h", required=True)
        with Listener(server.endpoint, b"channel/a/"):
            server.kill()
            eventually(lambda: (found := other.discover("a")) is not None and found.source == "files")


def test_registrations_without_a_broker_take_one_open_file_for_all(tmp_path: Path) -> None:
    import os

    with MessageHub(dir=tmp_path) as hub:
        assert hub.register_producer("first", schema_hash="h").source == "files"
        before = len(os.listdir("/proc/self/fd"))
        held = [hub.register_producer(f"c{number}", schema_hash="h") for number in range(200)]
        assert all(each.source == "files" for each in held)
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)  # a thread may open one for a moment
        assert len(hub.channels()) == 201
    assert MessageHub(dir=tmp_path).channels() == []


def test_closing_is_quick_whatever_the_broker_does() -> None:
    """Within the deadlines of closing, which are a second or two, not those of every single request."""
    with SickBroker(after_hello(None)) as sick:
        hub = MessageHub(endpoint=sick.endpoint, request_timeout_seconds=0.2)
        for number in range(50):
            hub.register_producer(f"c{number}", schema_hash="h")
        done = threading.Thread(target=hub.close)
        done.start()
        done.join(30.0)
        assert not done.is_alive()
