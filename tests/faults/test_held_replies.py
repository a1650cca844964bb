"""While the store writes: what would reveal an unwritten change waits, everything else goes on."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from messagehub.broker.topics import retained as retained_topics
from messagehub.errors import ReceiveTimeout
from messagehub.store.memory import MemoryStore
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Listener, Message, Peer, eventually, hub_of, producer

pytestmark = pytest.mark.usefixtures("no_leaks")

SILENCE_SECONDS = 0.3


class SlowStore(MemoryStore):
    """Writes wait while the gate is closed, as an fsync does on a busy disk."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.is_waiting = threading.Event()

    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        if not self.gate.is_set():
            self.is_waiting.set()
        assert self.gate.wait(60)
        super().write(rows, revision=revision, durable=durable)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def slow(store: SlowStore, embedded: Callable[..., Embedded]) -> Iterator[Embedded]:
    broker = embedded(store=store, **QUICK)
    yield broker
    store.gate.set()


@pytest.fixture
def writer(slow: Embedded) -> Iterator[Peer]:
    with Peer(slow.endpoint, zmq.DEALER) as peer:
        yield peer


@pytest.fixture
def reader(slow: Embedded) -> Iterator[Peer]:
    with Peer(slow.endpoint, zmq.DEALER) as peer:
        yield peer


def test_discovery_of_others_goes_on_while_a_durable_change_waits(store: SlowStore, writer: Peer, reader: Peer) -> None:
    writer.ask(producer("other"))
    store.gate.clear()
    writer.send({"type": "CHANNEL_CREATE", "channel": "durable", "id": "w"})
    assert store.is_waiting.wait(30)
    for _ in range(100):
        assert reader.ask({"type": "DISCOVERY_REQUEST", "channel": "other"})["status"] == "active"
        assert reader.ask({"type": "DISCOVERY_REQUEST", "channel": "missing"})["code"] == "CHANNEL_NOT_FOUND"
        assert reader.ask({"type": "HEARTBEAT", "lease": "other/default"})["known"] is True
    assert writer.hears_nothing(SILENCE_SECONDS)
    store.gate.set()
    assert writer.receive()["id"] == "w"


READS: list[Message] = [
    {"type": "DISCOVERY_REQUEST", "channel": "durable"},
    {"type": "DISCOVERY_REQUEST", "channel": "durable | pid:1-0"},
    {"type": "CHANNEL_DESCRIBE_REQUEST", "channel": "durable"},
    {"type": "CHANNEL_LIST_REQUEST"},
    {"type": "CONSUMER_LIST_REQUEST", "channel": "durable"},
    {"type": "SNAPSHOT_REQUEST"},
    {"type": "SNAPSHOT_REQUEST", "channel": "durable"},
    {"type": "CHANNEL_CREATE", "channel": "durable"},
    {"type": "CHANNEL_CREATE", "channel": "durable", "access": "shared"},
    {"type": "SCHEMA_REQUEST", "subject": "durable"},
    {"type": "SCHEMA_REQUEST", "schema_id": 1},
    {"type": "SCHEMA_REQUEST", "schema_id": 1, "subject": "elsewhere"},
    {"type": "SCHEMA_LIST_REQUEST"},
    {"type": "SCHEMA_LIST_REQUEST", "subject": "durable"},
    {"type": "SCHEMA_REGISTER", "subject": "durable", "schema": {"title": "t"}},
]


def test_every_read_of_an_unwritten_record_waits(store: SlowStore, writer: Peer, reader: Peer) -> None:
    writer.ask(producer("other"))
    store.gate.clear()
    writer.send({"type": "SCHEMA_REGISTER", "subject": "durable", "schema": {"title": "t"}, "id": "schema"})
    assert store.is_waiting.wait(30)  # checked, decided, and on its way to the disk
    writer.send({"type": "CHANNEL_CREATE", "channel": "durable", "id": "channel"})
    writer.send({"type": "PING", "id": "p"})
    assert writer.receive()["id"] == "p"  # so the broker has received what was sent before it
    for number, read in enumerate(READS):
        reader.send(read | {"id": str(number)})
    assert reader.hears_nothing(SILENCE_SECONDS)
    store.gate.set()
    assert {reader.receive()["id"] for _ in READS} == {str(number) for number in range(len(READS))}
    assert [writer.receive()["id"] for _ in range(2)] == ["schema", "channel"]


def test_a_destroyed_channel_is_there_for_nobody_only_after_that_is_written(
    store: SlowStore, writer: Peer, reader: Peer
) -> None:
    writer.ask({"type": "CHANNEL_CREATE", "channel": "doomed"})
    store.gate.clear()
    writer.send({"type": "CHANNEL_DESTROY", "channel": "doomed"})
    assert store.is_waiting.wait(30)
    reader.send({"type": "DISCOVERY_REQUEST", "channel": "doomed"})
    assert reader.hears_nothing(SILENCE_SECONDS)
    store.gate.set()
    assert reader.receive()["code"] == "CHANNEL_NOT_FOUND"


def test_events_leave_in_revision_order_and_only_once_written(slow: Embedded, store: SlowStore, writer: Peer) -> None:
    with Listener(slow.endpoint, b"") as listener:
        store.gate.clear()
        for number in range(50):
            writer.send(producer(f"live{number}", id=f"live{number}"))
            writer.send({"type": "CHANNEL_CREATE", "channel": f"kept{number}", "id": f"kept{number}"})
        assert store.is_waiting.wait(30)
        with Peer(slow.endpoint) as other:
            before = other.stats()["store"]["written_revision"]
            eventually(lambda: other.stats()["requests"].get("STATS_REQUEST", {}).get("count", 0) > 5)
        for _ in range(3):
            assert listener.beacon()[1]["revision"] <= before
        store.gate.set()
        revisions = [listener.event()[1]["revision"] for _ in range(150)]
        assert revisions == list(range(1, 151))
        assert len({writer.receive()["id"] for _ in range(100)}) == 100


def test_many_writers_share_transactions(store: SlowStore, slow: Embedded, writer: Peer) -> None:
    store.gate.clear()
    writer.send({"type": "CHANNEL_CREATE", "channel": "first"})
    assert store.is_waiting.wait(30)
    for number in range(500):
        writer.send({"type": "CHANNEL_CREATE", "channel": f"c{number}"})
    with Peer(slow.endpoint) as other:
        eventually(lambda: other.stats()["revision"] == 501)
        store.gate.set()
        for _ in range(501):
            assert writer.receive()["type"] == "CHANNEL_CREATE_ACK"
        assert other.stats()["store"]["transactions"] < 10


def test_held_answers_are_counted_when_they_leave_with_the_time_they_took(
    store: SlowStore, slow: Embedded, writer: Peer
) -> None:
    with Peer(slow.endpoint) as other:
        store.gate.clear()
        writer.send({"type": "CHANNEL_CREATE", "channel": "durable", "id": "timed"})
        assert store.is_waiting.wait(30)
        assert writer.hears_nothing(SILENCE_SECONDS)
        stats = other.stats()
        assert stats["counters"]["held"] == 1
        assert "CHANNEL_CREATE" not in stats["requests"]
        store.gate.set()
        writer.receive()
        shown = other.stats()["requests"]["CHANNEL_CREATE"]
        assert (shown["count"], shown["errors"]) == (1, 0)
        assert shown["total_seconds"] >= SILENCE_SECONDS
        (exchange,) = other.ask({"type": "TRACE_REQUEST", "correlation_id": "timed"})["exchanges"]
        assert exchange["seconds"] >= SILENCE_SECONDS


def test_a_broker_that_stops_while_the_store_writes_still_answers(
    store: SlowStore, slow: Embedded, writer: Peer
) -> None:
    store.gate.clear()
    writer.send({"type": "CHANNEL_CREATE", "channel": "durable", "id": "last"})
    assert store.is_waiting.wait(30)
    closing = threading.Thread(target=slow.close)
    closing.start()
    assert writer.hears_nothing(SILENCE_SECONDS)
    store.gate.set()
    assert writer.receive()["id"] == "last"
    closing.join(30)


PUBLISHED: Message = {"type": "TOPIC_PUBLISH", "topic": "kept", "publisher": "p", "messages": [{"payload": "YQ=="}]}


def test_a_kept_message_is_acknowledged_and_announced_only_when_it_is_written(
    slow: Embedded, store: SlowStore, writer: Peer, reader: Peer
) -> None:
    writer.ask({"type": "TOPIC_KEEP", "topic": "kept"})
    writer.ask(producer("other"))
    with hub_of(slow) as hub, hub.subscribe("kept") as plain, hub.subscribe("kept", since=0) as kept:
        store.gate.clear()
        writer.send(PUBLISHED | {"number": 1, "id": "first"})
        assert store.is_waiting.wait(30)
        writer.send(PUBLISHED | {"number": 1, "id": "the same again"})
        assert writer.hears_nothing(SILENCE_SECONDS), "nor is what came again acknowledged before it is written"
        for asked in ("TOPIC_READ_REQUEST", "TOPIC_DESCRIBE_REQUEST"):
            found = reader.ask({"type": asked, "topic": "kept"})
            assert found["messages"] in ([], 0), "reads go on, and show what is written"
        assert reader.ask({"type": "DISCOVERY_REQUEST", "channel": "other"})["status"] == "active"
        for subscription in (plain, kept):
            with pytest.raises(ReceiveTimeout):
                subscription.receive(0)
        store.gate.set()
        replies = [writer.receive() for _ in range(2)]
        assert [(reply["id"], reply["offset"], reply["duplicate"]) for reply in replies] == [
            ("first", 1, False),
            ("the same again", 1, True),
        ]
        assert plain.receive(30).payload == kept.receive(30).payload == b"a"


def test_a_topic_that_is_not_yet_written_is_not_yet_kept_and_a_deleted_one_is_until_then(
    store: SlowStore, writer: Peer, reader: Peer
) -> None:
    writer.ask({"type": "TOPIC_KEEP", "topic": "old"})
    store.gate.clear()
    writer.send({"type": "TOPIC_KEEP", "topic": "new", "id": "w"})
    assert store.is_waiting.wait(30)
    writer.send({"type": "TOPIC_DELETE", "topic": "old", "id": "d"})
    writer.send({"type": "PING", "id": "p"})
    assert writer.receive()["id"] == "p"  # so the broker has received what was sent before it
    assert reader.ask({"type": "TOPIC_DESCRIBE_REQUEST", "topic": "new"})["code"] == "TOPIC_NOT_FOUND"
    reader.send({"type": "TOPIC_DESCRIBE_REQUEST", "topic": "old", "id": "gone"})
    reader.send({"type": "TOPIC_LIST_REQUEST", "id": "list"})
    assert reader.hears_nothing(SILENCE_SECONDS)
    store.gate.set()
    answers = {reply["id"]: reply for reply in (reader.receive() for _ in range(2))}
    assert answers["gone"]["code"] == "TOPIC_NOT_FOUND"
    assert [topic["name"] for topic in answers["list"]["topics"]] == ["new"]


def test_more_than_the_disk_takes_is_refused_as_retryable(
    slow: Embedded, store: SlowStore, writer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_topics, "MAX_WAITING_BYTES", 10_000)
    writer.ask({"type": "TOPIC_KEEP", "topic": "kept"})
    store.gate.clear()
    payload = "YWFh" * 1000
    for number in range(1, 11):
        writer.send(PUBLISHED | {"number": number, "messages": [{"payload": payload}]})
    writer.send({"type": "PING", "id": "p"})
    assert writer.receive()["id"] == "p"  # as above: all ten are there before the gate opens
    assert writer.hears_nothing(SILENCE_SECONDS), "a refusal waits too: it would come again at once"
    with hub_of(slow) as hub:
        waiting = threading.Timer(0.3, store.gate.set)
        waiting.start()
        assert hub.publish("kept", b"waits until there is room", timeout=30) == 5
        waiting.join()
    replies = [writer.receive() for _ in range(10)]
    assert [reply["offset"] for reply in replies if reply["type"] == "TOPIC_PUBLISH_ACK"] == [1, 2, 3, 4]
    refused = [reply for reply in replies if reply["type"] == "ERROR"]
    assert {(reply["code"], reply["retryable"]) for reply in refused} == {("RATE_LIMITED", True)}
