"""Retained topics between real processes through a real broker: stored, replayed, then live."""

import asyncio
import datetime
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messagehub import Keep, MessageHub
from messagehub.client.connection import Connection
from messagehub.client.heartbeats import Heartbeats
from messagehub.errors import (
    BrokerRequired,
    ConfigurationError,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    ReceiveTimeout,
    SendTimeout,
    TopicAlreadyExists,
    TopicLimitExceeded,
    TopicNotFound,
)
from messagehub.runtime.background import BackgroundThreads
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Subscription
from messagehub.topics.topics import Topics
from registry import commands, replies
from tests import preloaded
from tests.conftest import QUICK
from tests.integration.harness import ROOT, AnyBroker, Peer, Served, clean_environment, eventually, hub_of

SECONDS = 30.0


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    """A broker with a database, which can be killed and started again."""
    return served(**QUICK)


def read(subscription: Subscription, count: int) -> list[Message]:
    return [subscription.receive(SECONDS) for _ in range(count)]


def read_and_close(subscription: Subscription, count: int) -> list[Message]:
    with subscription:
        return read(subscription, count)


def payloads(messages: list[Message]) -> list[object]:
    return [message.payload for message in messages]


def is_silent(subscription: Subscription) -> bool:
    with pytest.raises(ReceiveTimeout):
        subscription.receive(0.2)
    return True


# -- stored and replayed ---------------------------------------------------------------------------------------


def test_a_late_subscriber_replays_and_then_goes_live_without_a_gap_or_a_double(broker: AnyBroker) -> None:
    with hub_of(broker) as publisher, hub_of(broker) as late:
        topic = publisher.topic("orders", keep=1000)
        assert [topic.publish({"n": n}, headers={"trace": f"t{n}"}) for n in range(5)] == [1, 2, 3, 4, 5]
        with late.subscribe("orders", since=0) as subscription:
            for n in range(5, 10):
                publisher.publish("orders", {"n": n}, headers={"trace": f"t{n}"})
            messages = read(subscription, 10)
            assert payloads(messages) == [{"n": n} for n in range(10)]
            assert [message.headers for message in messages] == [{"trace": f"t{n}"} for n in range(10)]
            assert [message.offset for message in messages] == list(range(1, 11))
            assert all(message.is_retained for message in messages)
            with pytest.warns(DeprecationWarning, match="is_retained"):
                assert messages[0].is_kept
            assert is_silent(subscription)
            assert subscription.lost == 0


def test_what_is_published_while_a_subscriber_replays_comes_once(broker: AnyBroker) -> None:
    """Replay meets the live edge under load, again and again."""
    with hub_of(broker) as publisher, hub_of(broker) as reader:
        topic = publisher.topic("busy", keep=100_000)
        is_done = threading.Event()

        def publish() -> None:
            for n in range(0, 3000, 3):
                topic.publish_all([n, n + 1, n + 2])
            is_done.set()

        thread = threading.Thread(target=publish)
        thread.start()
        subscriptions = [reader.subscribe("busy", since=0, buffer=7 + 50 * k) for k in range(4)]
        while not is_done.is_set() and len(subscriptions) < 20:
            subscriptions.append(reader.subscribe("busy", since=0))
        for subscription in subscriptions:
            assert payloads(read(subscription, 3000)) == list(range(3000))
            assert subscription.lost == 0
        thread.join(SECONDS)


def test_replay_begins_at_an_offset_a_time_or_an_offset_for_each_topic(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        for name in ("a.x", "a.y"):
            hub.topic(name, keep=100).publish_all([f"{name}{n}" for n in range(1, 6)])
        newest = read_and_close(hub.topic("a.x").subscribe(since=5), 1)[0]
        eventually(lambda: time.time() > newest.sent_at + 0.05)
        between = datetime.datetime.now(datetime.UTC)
        hub.publish("a.x", "late")
        assert payloads(read_and_close(hub.subscribe("a.x", since=4), 3)) == ["a.x4", "a.x5", "late"]
        assert payloads(read_and_close(hub.subscribe("a.*", since=between), 1)) == ["late"]
        assert payloads(read_and_close(hub.subscribe("a.>", since=between.timestamp()), 1)) == ["late"]
        by_topic = hub.subscribe("a.>", since={"a.x": 6, "a.y": 5})
        assert sorted(payloads(read(by_topic, 2))) == ["a.y5", "late"]
        assert {topic: at["offset"] for topic, at in by_topic.positions.items()} == {"a.x": 7, "a.y": 6}
        with hub.subscribe("a.>", since=by_topic.positions) as again:
            assert is_silent(again)


def test_wildcards_hear_all_retained_topics_that_match_and_those_that_come_later(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        for name in ("s.a", "s.b", "t.a"):
            hub.topic(name, keep=100).publish_all([f"{name}.{n}" for n in range(3)])
        hub.publish("s.plain", "not kept")
        with hub.subscribe("s.>", since=0) as subscription:
            hub.topic("s.c.new", keep=10).publish("first")
            hub.publish("s.plain", "not kept")
            found = payloads(read(subscription, 7))
            for name in ("s.a", "s.b"):
                assert [text for text in found if str(text).startswith(name)] == [f"{name}.{n}" for n in range(3)]
            assert "first" in found
            assert is_silent(subscription)


def test_plain_subscribers_hear_retained_topics_too(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub.subscribe("orders.>") as plain:
        topic = hub.topic("orders.eu", keep=10)
        topic.publish(b"a")
        topic.publish(b"b")
        assert [(m.payload, m.offset) for m in read(plain, 2)] == [(b"a", 1), (b"b", 2)]
        assert plain.lost == 0


def test_every_kind_of_payload_comes_back_as_it_was(broker: AnyBroker) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    sent = [b"", b"\x00\xff", {"a": [1, None, "ü"]}, "text", None, 3.5, batch, pa.table({"a": [1]})]
    with hub_of(broker) as hub:
        topic = hub.topic("kinds", keep=100)
        for payload in sent:
            topic.publish(payload, headers={"ü": [1, {"big": 2**70}]})
        live = hub.subscribe("kinds", overflow="block")
        for payload in sent:
            topic.publish(payload, headers={"ü": [1, {"big": 2**70}]})
        for subscription in (hub.subscribe("kinds", since=0), live):
            messages = read_and_close(subscription, len(sent))
            assert payloads(messages) == sent
            assert all(message.headers == {"ü": [1, {"big": 2**70}]} for message in messages)


def test_threads_of_one_client_publish_in_turn_and_nothing_is_lost(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub.topic("many", keep=100_000).subscribe(since=0, buffer=5000) as subscription:
        offsets: list[int] = []

        def publish(name: str) -> None:
            for n in range(50):
                offsets.append(hub.publish("many", {"who": name, "n": n}))

        threads = [threading.Thread(target=publish, args=(f"t{k}",)) for k in range(16)]
        for thread in threads:
            thread.start()
        messages = read(subscription, 800)
        for thread in threads:
            thread.join(SECONDS)
        assert sorted(offsets) == list(range(1, 801))
        for k in range(16):
            assert [m.payload["n"] for m in messages if m.payload["who"] == f"t{k}"] == list(range(50))


def test_threads_whose_first_message_is_at_the_same_time_do_not_take_each_other_for_a_repetition(
    broker: AnyBroker,
) -> None:
    for round_number in range(10):
        topic = f"first.{round_number}"
        with hub_of(broker) as hub, hub_of(broker) as other:
            other.topic(topic, keep=100)
            hub.connect()
            assert sorted(published_together(hub, topic, 8)) == list(range(1, 9))
            assert sorted(payloads(read_and_close(other.subscribe(topic, since=0), 8))) == list(range(8))


def published_together(hub: MessageHub, topic: str, count: int) -> list[int]:
    """The offsets of messages that as many threads publish at the same moment."""
    together = threading.Barrier(count)
    offsets: list[int] = []

    def publish(n: int) -> None:
        together.wait(SECONDS)
        offsets.append(hub.publish(topic, n))

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return offsets


# -- block: the reader's own pace ------------------------------------------------------------------------------


def test_a_slow_reader_loses_nothing_while_retention_holds_it(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub_of(broker) as other:
        topic = hub.topic("slow", keep=10_000)
        with other.subscribe("slow", overflow="block", buffer=5) as slow, other.subscribe("slow", since=0) as quick:
            for start in range(0, 2000, 100):
                topic.publish_all(list(range(start, start + 100)))
            assert payloads(read(quick, 2000)) == list(range(2000)), "a slow one never holds up the others"
            assert slow.buffered <= 5
            assert payloads(read(slow, 2000)) == list(range(2000))
            assert (slow.lost, quick.lost) == (0, 0)


def test_what_retention_removed_before_it_was_read_is_counted(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("short", keep=50)
        with topic.subscribe(overflow="block", buffer=10) as slow, hub.subscribe("short", buffer=300) as later:
            topic.publish_all(list(range(10)))
            eventually(lambda: slow.buffered == 10)
            topic.publish_all(list(range(10, 300)))
            read(later, 300)  # it hears of each after the slow one: all of it was announced to a full buffer
            assert payloads(read(slow, 10)) == list(range(10))
            assert payloads(read(slow, 50)) == list(range(250, 300))
            assert slow.lost == 240
        with topic.subscribe(since=201) as late:
            assert late.receive(SECONDS).offset == 251
            assert late.lost == 50
        with topic.subscribe(since=0) as oldest:
            assert oldest.receive(SECONDS).offset == 251
            assert oldest.lost == 0, "the oldest there is was asked for"


def test_a_buffer_is_bounded_in_bytes_too(broker: AnyBroker) -> None:
    with (
        hub_of(broker) as hub,
        closing(Connection(hub.settings, name="bytes")) as connection,
        closing(BackgroundThreads()) as background,
        closing(
            Topics(
                connection,
                Heartbeats(connection, lease="bytes", when_alone=print),
                owner={"lease": "bytes", "host": "here", "pid": os.getpid()},
                background=background,
            )
        ) as topics,
    ):
        topic = hub.topic("bytes", keep=1000)
        kept = topics.subscribe(
            "bytes", buffer=1000, buffer_bytes=10_000, overflow="block", timeout=SECONDS, is_local=False
        )
        plain = topics.subscribe(
            "bytes", buffer=1000, buffer_bytes=10_000, overflow="drop_oldest", timeout=SECONDS, is_local=False
        )
        for n in range(40):
            topic.publish(bytes([n]) * 1000)
        assert [p[0] for p in (m.payload for m in read(kept, 40))] == list(range(40))
        eventually(lambda: plain.lost_in_buffer + plain.buffered == 40)
        assert plain.buffered <= 11
        plain.close()
        assert [message.payload[0] for message in plain][-1] == 39


# -- retention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "kept"),
    [(Keep(messages=7), 7), (Keep(size_bytes=5_500), 5), (Keep(messages=100, size_bytes=3_000), 3)],
)
def test_bounds_hold_exactly(broker: AnyBroker, keep: Keep, kept: int) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("bounded", keep=keep)
        for _ in range(4):
            topic.publish_all([b"x" * 1000] * 50)
            about = topic.describe()
            newest = about.topic.next_offset
            assert (about.first_offset, about.messages, about.size_bytes) == (newest - kept, kept, kept * 1000)
        with topic.subscribe(since=0) as subscription:
            assert [m.offset for m in read(subscription, kept)] == list(range(201 - kept, 201))
            assert is_silent(subscription)


def test_what_is_too_old_is_gone(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("aged", keep=Keep(seconds=0.5))
        topic.publish_all([b"old"] * 3)
        eventually(lambda: topic.describe().messages == 0)
        assert topic.describe().oldest_at is None
        assert topic.publish(b"new") == 4, "offsets go on"
        with topic.subscribe(since=1) as subscription:
            assert subscription.receive(SECONDS).payload == b"new"
            assert subscription.lost == 3


def test_what_is_beyond_the_bounds_leaves_the_database(server: Served) -> None:
    with hub_of(server) as hub:
        hub.topic("trimmed", keep=10).publish_all([b"x" * 100] * 5000)
        hub.topic("deleted", keep=10_000).publish_all([b"x" * 100] * 5000)
        hub.topic("deleted").delete()

        def rows() -> int:
            with sqlite3.connect(server.dir / "registry.db") as connection:
                found = connection.execute("SELECT count(*) FROM topic_messages").fetchone()[0]
            connection.close()
            return int(found)

        eventually(lambda: rows() == 10)


# -- definitions -----------------------------------------------------------------------------------------------


def test_saying_the_same_again_is_harmless_and_a_conflicting_definition_is_refused(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        hub.topic("orders", keep=100).publish(b"1")
        assert hub.topic("orders", keep=100).describe().messages == 1
        with pytest.raises(TopicAlreadyExists):
            hub.topic("orders", keep=5)
        assert hub.topic("orders").describe().topic.keep.messages == 100
        about = hub.topic("orders", keep=5, replace=True).describe()
        assert (about.topic.keep.messages, about.messages) == (5, 1), "what is kept stays"
        for name in ("", "a..b", "a.*", "x" * 201):
            with pytest.raises(InvalidName):
                hub.topic(name, keep=5)


def test_retained_topics_are_read_by_callbacks_and_in_asyncio_too(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("orders", keep=100)
        topic.publish_all([1, 2])
        called: list[object] = []
        by_callback = hub.subscribe("orders", lambda message: called.append(message.payload), since=0)
        in_asyncio = hub.subscribe("orders", since=0)
        topic.publish(3)

        async def collect() -> list[object]:
            found: list[object] = []
            async for message in in_asyncio:
                found.append(message.payload)
                if len(found) == 3:
                    break
            return found

        assert asyncio.run(asyncio.wait_for(collect(), SECONDS)) == [1, 2, 3]
        eventually(lambda: called == [1, 2, 3])
        topic.delete()
        eventually(lambda: isinstance(by_callback.failure, TopicNotFound))
        by_callback.close()


def test_a_topic_object_outlives_a_disconnect_and_works_in_a_forked_child(server: Served) -> None:
    with hub_of(server) as hub:
        topic = hub.topic("orders", keep=100)
        topic.publish("before")
        hub.disconnect()
        topic.publish("after")
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if topic.publish("in the child") == 3 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        topic.publish("and in the parent")
        expected = ["before", "after", "in the child", "and in the parent"]
        assert payloads(read_and_close(topic.subscribe(since=0), 4)) == expected


def test_topics_are_listed_and_deleted_and_readers_are_told(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        for name in ("a.x", "a.y", "b"):
            hub.topic(name, keep=100)
        assert [topic.name for topic in hub.topics()] == ["a.x", "a.y", "b"]
        assert [topic.name for topic in hub.topics("a.*")] == ["a.x", "a.y"]
        topic = hub.topic("b")
        with topic.subscribe(since=0) as exact, hub.subscribe(">", since=0) as wild:
            topic.publish("last")
            assert exact.receive(SECONDS).payload == wild.receive(SECONDS).payload == "last"
            topic.delete()
            with pytest.raises(TopicNotFound):
                exact.receive(SECONDS)
            with pytest.raises(TopicNotFound):
                topic.delete()
            with pytest.raises(TopicNotFound):
                topic.publish("to nobody")
            assert topic.publish("plain again") == 1, "it is a plain topic now"
            again = hub.topic("b", keep=5)
            assert again.publish_all(["new"] * 3) == 1, "a topic of the same name begins anew"
            assert payloads(read(wild, 3)) == ["new", "new", "new"]


def test_all_topics_together_keep_no_more_than_the_hub_allows(served: Callable[..., Served]) -> None:
    with hub_of(served(**QUICK, kept_limit_bytes=1_000_000)) as hub:
        hub.topic("a", keep=Keep(size_bytes=600_000))
        with pytest.raises(TopicLimitExceeded) as refused:
            hub.topic("b", keep=Keep(size_bytes=600_000))
        assert refused.value.details["limit_bytes"] == 1_000_000
        assert [topic.name for topic in hub.topics()] == ["a"]
        hub.topic("a", keep=Keep(size_bytes=300_000), replace=True)
        hub.topic("b", keep=Keep(size_bytes=600_000))


def test_what_cannot_be_kept_or_read_is_refused(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("small", keep=Keep(size_bytes=2_000))
        with pytest.raises(InvalidRequest):
            topic.publish(b"x" * 2_001)
        with pytest.raises(MessageTooLarge):
            hub.topic("large", keep=5).publish(b"x" * (700 * 1024 + 1))
        assert hub.topic("large").publish(b"x" * (700 * 1024)) == 1
        assert read_and_close(hub.topic("large").subscribe(since=0), 1)[0].size_bytes == 700 * 1024
        with pytest.raises(TopicNotFound):
            hub.subscribe("not.kept", since=0)
        with pytest.raises(TopicNotFound):
            hub.topic("not.kept").publish_all([1])
        with pytest.raises(InvalidRequest, match=r"payloads\[1\]"):
            topic.publish_all([1, {1, 2}])
        with pytest.raises(MessageTooLarge, match=r"payloads\[2\]"):
            topic.publish_all([1, 2, b"x" * (700 * 1024 + 1)])
        assert topic.publish_all([]) == 0
        with pytest.raises(ConfigurationError, match='keep=100 for so many messages, or keep="100s"'):
            hub.topic("unit", keep="100")
        for overflow in ("drop_oldest", "drop_newest", "disconnect"):
            with pytest.raises(ConfigurationError):
                hub.subscribe("small", since=0, overflow=overflow)
        for since in (-1, "yesterday", None.__class__, True):
            with pytest.raises(ConfigurationError):
                hub.subscribe("small", since=since)
        with pytest.raises(ConfigurationError):
            hub.subscribe("small", overflow="block", local=True)
        assert topic.describe().messages == 0


def test_without_a_broker_it_says_so_at_once(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path / "nobody") as hub:
        for attempt in (
            lambda: hub.topic("orders", keep=5),
            hub.topics,
            lambda: hub.publish("orders", b""),
            lambda: hub.subscribe("orders", since=0),
            lambda: hub.topic("orders").publish_all([b""]),
        ):
            started = time.monotonic()
            with pytest.raises(BrokerRequired):
                attempt()
            assert time.monotonic() - started < 4.0  # no timeout was paid


# -- idempotence -----------------------------------------------------------------------------------------------


def test_a_request_that_comes_again_is_stored_once_and_gets_the_same_answer(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer:
        topic = hub.topic("orders", keep=100)
        said = {"type": "TOPIC_PUBLISH", "topic": "orders", "publisher": "me", "number": 7}
        said |= {"messages": [{"payload": "YQ=="}, {"payload": "Yg=="}]}
        first = peer.ask(said)
        assert (first["offset"], first["count"], first["duplicate"]) == (1, 2, False)
        assert peer.ask(said) == first | {"duplicate": True}
        assert peer.ask(said | {"number": 8})["code"] == "INVALID_REQUEST", "numbers go up"
        assert peer.ask(said | {"number": 9})["offset"] == 3
        assert peer.ask(said | {"publisher": "other"})["offset"] == 5
        assert payloads(read_and_close(topic.subscribe(since=0), 6)) == [b"a", b"b"] * 3


def test_a_broker_that_was_killed_remembers_what_it_had_stored(server: Served) -> None:
    with hub_of(server) as hub:
        hub.topic("orders", keep=1)
        said = {"type": "TOPIC_PUBLISH", "topic": "orders", "publisher": "me", "number": 1}
        with Peer(server.endpoint) as peer:
            first = peer.ask(said | {"messages": [{"payload": "YQ=="}]})
            hub.publish("orders", b"b")
        server.kill()
        server.start()
        with Peer(server.endpoint) as peer:
            again = peer.ask(said | {"messages": [{"payload": "YQ=="}]})
        assert (again["offset"], again["duplicate"]) == (first["offset"], True)
        eventually(lambda: hub.connect(timeout=1.0))
        assert hub.topic("orders").describe().topic.next_offset == 3


# -- restarts --------------------------------------------------------------------------------------------------


def test_retained_messages_definitions_and_offsets_survive_a_restart(server: Served) -> None:
    with hub_of(server) as hub:
        hub.topic("orders", keep=100).publish_all([{"n": n} for n in range(5)])
        server.stop()
        server.start()
        eventually(lambda: hub.connect(timeout=1.0))
        assert hub.topic("orders", keep=100).publish({"n": 5}) == 6
        assert payloads(read_and_close(hub.subscribe("orders", since=0), 6)) == [{"n": n} for n in range(6)]


PUBLISHER = """
import sys
from messagehub import Keep, MessageHub
endpoint, name, path = sys.argv[1:4]
hub = MessageHub(endpoint=endpoint, hello_timeout_seconds=5)
with open(path, "w") as acknowledged:
    n = 0
    while True:
        offset = hub.publish("load", {"who": name, "n": n}, timeout=60)
        acknowledged.write(f"{n} {offset}\\n")
        acknowledged.flush()
        n += 1
"""


@pytest.fixture
def publishers(tmp_path: Path) -> Iterator[Callable[[Served, int], list[Path]]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(server: Served, count: int) -> list[Path]:
        paths = [tmp_path / f"acknowledged-{k}" for k in range(count)]
        for k, path in enumerate(paths):
            command = [sys.executable, "-c", PUBLISHER, server.endpoint, f"p{k}", str(path)]
            processes.append(preloaded.Popen(command, cwd=ROOT, env=clean_environment()))
        return paths

    yield start
    for process in processes:
        process.kill()
        process.wait(SECONDS)


def acknowledged(path: Path) -> list[tuple[int, int]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(n), int(offset)) for n, offset in (line.split() for line in lines if line.count(" ") == 1)]


def test_no_acknowledged_message_is_lost_or_doubled_when_the_broker_is_killed_under_load(
    server: Served, publishers: Callable[[Served, int], list[Path]]
) -> None:
    """kill -9, five times, while four processes publish and two subscribers read; nothing is configured for it."""
    with hub_of(server) as hub:
        hub.topic("load", keep=1_000_000)
        live = hub.subscribe("load", since=0, buffer=100)
        slow = hub.subscribe("load", since=0, buffer=3)
        paths = publishers(server, 4)
        heard: list[Message] = []
        for _ in range(5):
            before = [len(acknowledged(path)) for path in paths]
            eventually(
                lambda before=before: all(len(acknowledged(p)) > b + 20 for p, b in zip(paths, before, strict=True))
            )
            server.kill()
            heard += drained(live)
            server.start()
        before = [len(acknowledged(path)) for path in paths]
        eventually(lambda: all(len(acknowledged(p)) > b + 20 for p, b in zip(paths, before, strict=True)))
        promised = {k: acknowledged(path) for k, path in enumerate(paths)}
        newest = max(offset for list_ in promised.values() for _, offset in list_)
        while not heard or (heard[-1].offset or 0) < newest:
            heard.append(live.receive(SECONDS))
        assert [message.offset for message in heard] == list(range(1, len(heard) + 1)), "no gap and no double"
        stored = {message.offset: message.payload for message in heard}
        for k, list_ in promised.items():
            assert [n for n, _ in list_] == list(range(len(list_)))
            for n, offset in list_:
                assert stored[offset] == {"who": f"p{k}", "n": n}, "what was acknowledged is where it was said to be"
            mine = [message.payload["n"] for message in heard if message.payload["who"] == f"p{k}"]
            assert mine == list(range(len(mine))), "each once, in the publisher's order"
        assert [slow.receive(SECONDS).offset for _ in range(newest)] == list(range(1, newest + 1))
        assert (live.lost, slow.lost) == (0, 0)


def drained(subscription: Subscription) -> list[Message]:
    found = []
    while True:
        try:
            found.append(subscription.receive(0.05))
        except ReceiveTimeout:
            return found


def test_a_publisher_waits_for_a_broker_that_comes_back_and_gives_up_at_its_deadline(server: Served) -> None:
    with hub_of(server) as hub:
        topic = hub.topic("orders", keep=100)
        topic.publish("before")
        server.kill()
        started = time.monotonic()
        with pytest.raises(SendTimeout):
            topic.publish("given up", timeout=0.5)
        assert 0.4 < time.monotonic() - started < 5.0
        back = threading.Timer(0.3, server.start)
        back.start()
        assert topic.publish("after", timeout=SECONDS) in (2, 3)
        back.join()
        assert payloads(read_and_close(topic.subscribe(since=0), 2))[0] == "before"


def test_a_stopped_broker_makes_publishers_raise_at_their_timeout_and_stores_each_once(server: Served) -> None:
    with hub_of(server) as hub:
        topic = hub.topic("orders", keep=100)
        topic.publish(0)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(SendTimeout):
                topic.publish(1, timeout=0.5)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        topic.publish(2, timeout=SECONDS)
        stored = payloads(read_and_close(topic.subscribe(since=0), topic.describe().messages))
        assert stored in ([0, 1, 2], [0, 2])


# -- the wire --------------------------------------------------------------------------------------------------


def test_any_language_can_keep_publish_and_read(broker: AnyBroker) -> None:
    with Peer(broker.endpoint) as peer:
        kept = peer.ask({"type": "TOPIC_KEEP", "topic": "orders", "keep": {"messages": 10}})
        assert (kept["type"], kept["topic"]["next_offset"]) == ("TOPIC_KEEP_ACK", 1)
        message = {"payload": "eyJhIjoxfQ==", "kind": "json", "headers": {"h": 1}}
        assert peer.ask({"type": "TOPIC_PUBLISH", "topic": "orders", "messages": [message]})["offset"] == 1
        page = peer.ask({"type": "TOPIC_READ_REQUEST", "topic": "orders"})
        (found,) = page["messages"]
        assert {name: found[name] for name in message} == message
        assert peer.ask({"type": "TOPIC_READ_REQUEST", "topic": "x"})["code"] == "TOPIC_NOT_FOUND"
        assert peer.ask({"type": "TOPIC_PUBLISH", "topic": "x", "messages": [message]})["code"] == "TOPIC_NOT_FOUND"
        bad = {"type": "TOPIC_PUBLISH", "topic": "orders", "messages": [{"payload": "not base64!"}]}
        assert peer.ask(bad)["code"] == "INVALID_REQUEST"
        counters = peer.stats()["counters"]
        assert counters["kept"] == 1
        assert counters["kept_reads"] >= 1


def test_pages_follow_each_other_and_are_bounded(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        hub.topic("pages", keep=10_000).publish_all([b"x" * 10_000] * 100)
        offset, sizes = 1, []
        while offset <= 100:
            page = hub.ask(commands.ReadTopic(topic="pages", offset=offset))
            assert isinstance(page, replies.TopicPage)
            assert [m.offset for m in page.messages] == list(range(offset, offset + len(page.messages)))
            sizes.append(len(page.messages))
            offset += len(page.messages)
        assert max(sizes) <= 27


@pytest.mark.parametrize("one", [{"id": 7}, "abc", b"abc", bytearray(b"abc")])
def test_one_message_is_not_taken_for_many(broker: AnyBroker, one: Any) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("jobs", keep=10)
        with pytest.raises(InvalidRequest, match="payloads is a list of messages"):
            topic.publish_all(one)
        assert topic.publish_all([one]) == 1
