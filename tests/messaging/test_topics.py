"""Topics between real processes through a real broker: section B of the features."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import zmq

from messagehub import MessageHub
from messagehub.errors import (
    BrokerRequired,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    NotInitialised,
    ReceiveTimeout,
    SendTimeout,
    SubscriberTooSlow,
    SubscriptionClosed,
)
from messagehub.topics import subscriptions
from messagehub.topics.messages import Message
from messagehub.topics.receiver import TopicReceiver
from messagehub.topics.subscriptions import Subscription
from tests import preloaded
from tests.conftest import QUICK
from tests.integration.harness import ROOT, Peer, Served, clean_environment, eventually, hub_of, run_script

PUBLISHER = """
import sys
from messagehub import MessageHub
endpoint, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with MessageHub(endpoint=endpoint) as hub:
    for number in range(count):
        hub.publish(topic, {"n": number}, headers={"trace": f"t{number}"})
"""
SECONDS = 20.0


@pytest.fixture
def broker(served: Callable[..., Served]) -> Served:
    return served("--no-http", **QUICK)


def read(subscription: Subscription, count: int) -> list[Message]:
    return [subscription.receive(SECONDS) for _ in range(count)]


def numbers(messages: list[Message]) -> list[int]:
    return [message.payload["n"] for message in messages]


def is_silent(subscription: Subscription) -> bool:
    with pytest.raises(ReceiveTimeout):
        subscription.receive(0.1)
    return True


# -- publish, subscribe ----------------------------------------------------------------------------------------


def test_three_subscribers_each_get_one_copy_in_order_with_headers(broker: Served) -> None:
    with hub_of(broker) as one, hub_of(broker) as two:
        subscriptions = [hub.subscribe("orders.eu", buffer=1000) for hub in (one, one, two)]
        run_script(PUBLISHER, broker.endpoint, "orders.eu", "300")
        for subscription in subscriptions:
            messages = read(subscription, 300)
            assert numbers(messages) == list(range(300))
            assert [message.headers for message in messages] == [{"trace": f"t{n}"} for n in range(300)]
            assert {message.topic for message in messages} == {"orders.eu"}
            assert is_silent(subscription)
            assert subscription.lost == 0


def test_what_is_published_right_after_subscribing_is_heard_from_a_fresh_client(broker: Served) -> None:
    with hub_of(broker) as subscriber:
        for round_number in range(20):
            with hub_of(broker) as publisher, subscriber.subscribe(f"fresh.{round_number}") as subscription:
                publisher.publish(f"fresh.{round_number}", b"first")
                assert subscription.receive(SECONDS).payload == b"first"


def test_payloads_arrive_as_what_they_were(broker: Served) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]})
    payloads = [b"", b"\x00\xff", {"a": [1, None, "ü"]}, "text", None, 3.5, batch, pa.table({"a": [1]})]
    with hub_of(broker) as hub, hub.subscribe("kinds") as subscription:
        for payload in [*payloads, bytearray(b"ab"), memoryview(b"cd")]:
            hub.publish("kinds", payload)
        received = [message.payload for message in read(subscription, len(payloads) + 2)]
    assert received[: len(payloads)] == payloads
    assert received[len(payloads) :] == [b"ab", b"cd"]


def test_what_cannot_be_sent_is_refused(broker: Served) -> None:
    with hub_of(broker) as hub:
        with pytest.raises(MessageTooLarge):
            hub.publish("large", b"x" * (2**20 + 1))
        for unusable in (object(), pa.array([1])):
            with pytest.raises(InvalidRequest):
                hub.publish("odd", unusable)
        with pytest.raises(InvalidRequest):
            hub.publish("odd", b"", headers={"a": object()})


def test_frames_that_are_no_messages_are_counted_and_harm_nobody(broker: Served) -> None:
    with hub_of(broker) as hub, hub.subscribe(">") as subscription, Peer(broker.endpoint) as peer:
        hub.publish("good", b"1")
        with Peer(peer.ask({"type": "HELLO"})["endpoints"]["topics_in"], zmq.PUSH) as raw:
            for frame in (b"", b"x", b"good\0", b"good\0" + b"\xff" * 40, b"b d\0" + bytes(29), b"\xff\0" + bytes(29)):
                raw.socket.send(frame)
            raw.socket.send_multipart([b"two", b"frames"])
            eventually(lambda: hub.metrics()["topics"]["malformed"] == 8)
        hub.publish("good", b"2")
        assert [message.payload for message in read(subscription, 2)] == [b"1", b"2"]


# -- isolation and wildcards -----------------------------------------------------------------------------------


def test_patterns_select_what_is_documented(broker: Served) -> None:
    topics = ["sensors", "sensors.a", "sensors.a.b", "sensors.a.c", "sensors.x.c", "sensorsx.a", "other"]
    expected = {
        "sensors": ["sensors"],
        "sensors.*": ["sensors.a"],
        "sensors.>": ["sensors.a", "sensors.a.b", "sensors.a.c", "sensors.x.c"],
        "sensors.*.c": ["sensors.a.c", "sensors.x.c"],
        "*.a": ["sensors.a", "sensorsx.a"],
        "*": ["sensors", "other"],
        ">": topics,
        "sensors.a": ["sensors.a"],
    }
    with hub_of(broker) as subscriber, hub_of(broker) as publisher:
        subscriptions = {pattern: subscriber.subscribe(pattern) for pattern in expected}
        for topic in topics:
            publisher.publish(topic, topic)
        for pattern, wanted in expected.items():
            assert [message.topic for message in read(subscriptions[pattern], len(wanted))] == wanted, pattern
        assert all(is_silent(subscription) for subscription in subscriptions.values())
        assert not any(subscription.lost for subscription in subscriptions.values())


@pytest.mark.parametrize("pattern", ["", ".", "a..b", "a.>.b", "a*", "a b", "ü", "a" * 201, ">.a", "a.b>"])
def test_a_bad_pattern_is_refused_with_the_rule(pattern: str) -> None:
    with MessageHub(endpoint="ipc:///nowhere") as hub, pytest.raises(InvalidName) as refused:
        hub.subscribe(pattern)
    assert "components" in refused.value.details["rule"]


@pytest.mark.parametrize("topic", ["", "a.*", ">", "a..b", "a\0b"])
def test_a_bad_topic_is_refused(topic: str) -> None:
    with MessageHub(endpoint="ipc:///nowhere") as hub, pytest.raises(InvalidName):
        hub.publish(topic, b"")


# -- unsubscribing ---------------------------------------------------------------------------------------------


def test_unsubscribing_ends_only_that_subscription_and_its_iterator(broker: Served) -> None:
    with hub_of(broker) as hub:
        ended, other = hub.subscribe("t"), hub.subscribe("t")
        seen: list[bytes] = []
        reader = threading.Thread(target=lambda: seen.extend(message.payload for message in ended))
        reader.start()
        hub.publish("t", b"1")
        eventually(lambda: seen == [b"1"])
        ended.close()
        ended.close()
        reader.join(SECONDS)
        assert not reader.is_alive()
        hub.publish("t", b"2")
        assert [message.payload for message in read(other, 2)] == [b"1", b"2"]
        with pytest.raises(SubscriptionClosed):
            ended.receive(1.0)
        again = hub.subscribe("t")
        hub.publish("t", b"3")
        assert again.receive(SECONDS).payload == b"3"
        assert again.lost == 0, "what was published while it was not subscribed is not lost"


@pytest.mark.timeout(30)
def test_a_reader_of_quick_messages_ends_with_its_subscription(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It receives by itself, so that nobody has to tell it."""
    monkeypatch.setattr(subscriptions, "HOT_SECONDS", 60.0)  # after any shorter wait the reader receives by itself
    with hub_of(broker) as hub:
        quick = hub.subscribe("t")
        with pytest.raises(ReceiveTimeout):
            quick.receive(0)
        quick.close()
        with pytest.raises(SubscriptionClosed):
            quick.receive()


# -- bounded buffers -------------------------------------------------------------------------------------------


def test_the_overflow_policy_decides_what_stays_and_every_loss_is_counted(broker: Served) -> None:
    with hub_of(broker) as hub, hub_of(broker) as publisher:
        oldest, newest = hub.subscribe("t", buffer=100), hub.subscribe("t", buffer=10, overflow="drop_newest")
        ending = hub.subscribe("t", buffer=10, overflow="disconnect")
        last = hub.subscribe("done")
        for number in range(1000):
            publisher.publish("t", {"n": number})
        publisher.publish("done", b"")
        last.receive(SECONDS)
        assert (oldest.lost_in_buffer, newest.lost_in_buffer) == (900, 990)
        assert numbers(read(oldest, 100)) == list(range(900, 1000))
        assert numbers(read(newest, 10)) == list(range(10))
        assert numbers(read(ending, 10)) == list(range(10))
        with pytest.raises(SubscriberTooSlow):
            ending.receive(SECONDS)
        with pytest.raises(SubscriberTooSlow):
            next(iter(ending))
        assert ending.is_closed
        publisher.publish("t", {"n": 1000})
        assert numbers(read(oldest, 1)) == [1000]
        assert (oldest.received, oldest.lost) == (101, 900)


def test_one_slow_subscriber_holds_up_nobody(broker: Served) -> None:
    with hub_of(broker) as hub, hub_of(broker) as publisher:
        release = threading.Event()
        slow = hub.subscribe("t", lambda _: release.wait(SECONDS), buffer=5)
        quick = hub.subscribe("t", buffer=5000)
        started = time.monotonic()
        for number in range(3000):
            publisher.publish("t", {"n": number})
        assert numbers(read(quick, 3000)) == list(range(3000))
        assert time.monotonic() - started < 10
        assert slow.lost > 2900
        release.set()


def test_what_a_stopped_process_lost_on_the_way_is_counted(broker: Served) -> None:
    """More than all queues hold is published while the subscriber is stopped; it can tell how much it lost."""
    program = """
import sys
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5)
with hub, hub.subscribe("t", buffer=1_000_000) as subscription:
    print("ready", flush=True)
    for message in subscription:
        if message.payload == b"end":
            print(subscription.received, subscription.lost_in_transit, subscription.lost_in_buffer, flush=True)
            break
"""
    total = 60_000
    child = preloaded.Popen(
        [sys.executable, "-c", program, broker.endpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
        cwd=ROOT,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        with hub_of(broker) as hub:
            for _ in range(total):
                hub.publish("t", b"x" * 100)
            os.kill(child.pid, signal.SIGCONT)
            deadline = time.monotonic() + SECONDS
            while child.poll() is None:
                assert time.monotonic() < deadline
                hub.publish("t", b"end")
                time.sleep(0.05)
        received, lost, lost_in_buffer = map(int, child.stdout.readline().split())
        assert (received - 1) + lost >= total
        assert lost > 0
        assert lost_in_buffer == 0
    finally:
        child.kill()
        child.communicate()


# -- deadlines -------------------------------------------------------------------------------------------------


def test_receiving_raises_at_its_timeout(broker: Served) -> None:
    with hub_of(broker) as hub, hub.subscribe("t") as subscription:
        started = time.monotonic()
        with pytest.raises(ReceiveTimeout):
            subscription.receive(0.2)
        assert 0.2 <= time.monotonic() - started < 5


def fill(hub: MessageHub) -> None:
    """More than the queue and the kernel's buffers hold."""
    for _ in range(30_000):
        hub.publish("t", b"x" * 1000, timeout=0.3)


def test_publishing_raises_at_its_timeout_when_the_broker_takes_nothing(broker: Served) -> None:
    with hub_of(broker) as hub:
        hub.publish("t", b"")
        broker.signal(signal.SIGSTOP)
        try:
            with pytest.raises(SendTimeout):
                fill(hub)
            started = time.monotonic()
            with pytest.raises(SendTimeout):
                hub.publish("t", b"", timeout=0.3)
            assert 0.3 <= time.monotonic() - started < 5
        finally:
            broker.signal(signal.SIGCONT)
        assert hub.publish("t", b"", timeout=SECONDS)


def test_without_a_broker_topics_say_so_at_once(tmp_path: Path, no_leaks: None) -> None:
    with MessageHub(dir=tmp_path) as hub:
        for attempt in (lambda: hub.publish("t", b""), lambda: hub.subscribe("t")):
            started = time.monotonic()
            with pytest.raises(BrokerRequired):
                attempt()
            assert time.monotonic() - started < 4  # no timeout was paid


def test_local_delivery_needs_no_broker(tmp_path: Path, no_leaks: None) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.subscribe("a.>", local=True, buffer=3) as subscription:
        for number in range(5):
            hub.publish("a.b", {"n": number}, headers={"h": 1}, local=True)
        hub.publish("b", b"", local=True)
        assert numbers(read(subscription, 3)) == [2, 3, 4]
        assert subscription.lost == 2


# -- closing ---------------------------------------------------------------------------------------------------


def test_closing_twice_is_harmless_and_what_is_in_flight_arrives(broker: Served) -> None:
    with hub_of(broker) as subscriber:
        subscription = subscriber.subscribe("t", buffer=5000)
        publisher = MessageHub(endpoint=broker.endpoint)
        for number in range(3000):
            publisher.publish("t", {"n": number})
        publisher.close()
        publisher.close()
        with pytest.raises(NotInitialised):
            publisher.publish("t", b"")
        eventually(lambda: subscription.buffered == 3000)
        subscriber.close()
        assert numbers(list(subscription)) == list(range(3000))


# -- connections -----------------------------------------------------------------------------------------------


def test_connections_do_not_grow_with_subscriptions_and_messages(broker: Served) -> None:

    def sockets() -> set[str]:
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{broker.pid}/fd")]
        return {link for link in links if link.startswith("socket:")}

    with hub_of(broker) as hub:
        first = hub.subscribe("t.0", buffer=2000)
        hub.publish("t.0", b"")
        assert len(read(first, 1)) == 1
        before = sockets()
        others = [hub.subscribe(f"t.{number}", buffer=2000) for number in range(1, 51)]
        for _ in range(1000):
            hub.publish("t.0", b"")
        assert len(read(first, 1000)) == 1000
        assert sockets() <= before, "the same connections, none made anew"
        assert not any(other.lost for other in others)


def test_subscriptions_and_publishers_go_on_after_the_broker_was_killed(broker: Served) -> None:
    with hub_of(broker) as subscriber, hub_of(broker) as publisher:
        subscription = subscriber.subscribe("t")
        publisher.publish("t", b"before")
        assert subscription.receive(SECONDS).payload == b"before"
        broker.kill()
        eventually(lambda: _is_refused(publisher))
        broker.start()

        def is_heard() -> bool:
            if not _is_refused(publisher):
                try:
                    return bool(subscription.receive(0.05).payload == b"probe")
                except ReceiveTimeout:
                    return False
            return False

        eventually(is_heard)


def _is_refused(publisher: MessageHub) -> bool:
    try:
        publisher.publish("t", b"probe")
    except BrokerRequired:
        return True
    return False


def test_a_forked_child_has_topics_of_its_own(broker: Served) -> None:
    with hub_of(broker) as hub, hub.subscribe("t") as subscription:
        hub.publish("t", b"parent")
        child = os.fork()
        if child == 0:
            is_right = subscription.is_closed and hub.publish("t", b"child") == 1
            hub.close()
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert [message.payload for message in read(subscription, 2)] == [b"parent", b"child"]
        assert subscription.lost == 0


# -- other ways to read ----------------------------------------------------------------------------------------


def test_a_callback_gets_every_message_and_survives_its_own_defects(
    broker: Served, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def note(message: Message) -> None:
        seen.append(message.payload["n"])
        if message.payload["n"] == 1:
            raise ValueError("a defect")

    with hub_of(broker) as hub:
        subscription = hub.subscribe("t", note)
        for number in range(5):
            hub.publish("t", {"n": number})
        eventually(lambda: len(seen) == 5)
        subscription.close()
        hub.publish("t", {"n": 5})
    assert seen == [0, 1, 2, 3, 4]
    assert "a defect" in caplog.text


def test_async_for_reads_and_ends_with_the_subscription(broker: Served) -> None:
    async def collect(hub: MessageHub) -> list[int]:
        seen = []
        subscription = hub.subscribe("t")
        publishing = threading.Thread(target=run_script, args=(PUBLISHER, broker.endpoint, "t", "50"))
        publishing.start()
        async with asyncio.timeout(SECONDS):
            async for message in subscription:
                seen.append(message.payload["n"])
                if len(seen) == 50:
                    subscription.close()
        await asyncio.to_thread(publishing.join)
        return seen

    with hub_of(broker) as hub:
        assert asyncio.run(collect(hub)) == list(range(50))


def test_a_cancelled_async_reader_loses_nothing(broker: Served) -> None:
    async def read_late(hub: MessageHub, subscription: Subscription) -> bytes:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(aiter(subscription))
        hub.publish("t", b"late")
        async with asyncio.timeout(SECONDS):
            payload = (await anext(aiter(subscription))).payload
        assert isinstance(payload, bytes)
        return payload

    with hub_of(broker) as hub, hub.subscribe("t") as subscription:
        assert asyncio.run(read_late(hub, subscription)) == b"late"


# -- readers that receive by themselves ------------------------------------------------------------------------


def test_a_reader_of_quick_messages_receives_by_itself_and_the_thread_takes_over_when_it_stops(
    broker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "HOT_SECONDS", 60.0)  # messages are quick enough on any machine
    drive = TopicReceiver.drive
    has_come: list[bool] = []

    def watched(receiver: TopicReceiver, is_done: Callable[[], bool], seconds: float, burst: int) -> bool:
        has_come.append(drive(receiver, is_done, seconds, burst))
        return has_come[-1]

    monkeypatch.setattr(TopicReceiver, "drive", watched)
    with hub_of(broker) as hub, hub.subscribe("quick") as quick, hub.subscribe("other") as other:
        for number in range(500):
            hub.publish("quick", number)
            assert quick.receive(SECONDS).payload == number
        assert sum(has_come) > 250, "the reader received most of them by itself"
        hub.publish("other", "heard by the thread")
        eventually(lambda: other.buffered)
        assert quick.lost == other.lost == 0


def test_readers_in_several_threads_each_get_all_of_theirs(broker: Served) -> None:
    with hub_of(broker) as hub, hub_of(broker) as publisher:
        subscriptions = [hub.subscribe(f"many.{n}", buffer=1000) for n in range(4)]
        heard: list[list[int]] = [[] for _ in subscriptions]

        def read_all(n: int) -> None:
            heard[n] += [message.payload for message in read(subscriptions[n], 1000)]

        threads = [threading.Thread(target=read_all, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for number in range(1000):
            for n in range(4):
                publisher.publish(f"many.{n}", number)
        for thread in threads:
            thread.join(60)
        assert heard == [list(range(1000))] * 4
        assert [subscription.lost for subscription in subscriptions] == [0] * 4


def test_closing_ends_a_reader_that_receives_by_itself(broker: Served) -> None:
    with hub_of(broker) as hub:
        subscription = hub.subscribe("quick")
        for _ in range(100):
            hub.publish("quick", b"")
            subscription.receive(SECONDS)
        ended = threading.Event()

        def read_on() -> None:
            for _ in subscription:
                continue
            ended.set()

        thread = threading.Thread(target=read_on)
        thread.start()
        for _ in range(100):
            hub.publish("quick", b"")
        subscription.close()
        assert ended.wait(SECONDS)
        thread.join(SECONDS)


def test_a_waiting_reader_uses_no_processor(broker: Served) -> None:
    with hub_of(broker) as hub:
        subscription = hub.subscribe("quick")
        for _ in range(200):
            hub.publish("quick", b"")
            subscription.receive(SECONDS)
        with pytest.raises(ReceiveTimeout):
            subscription.receive(0.1)
        before = time.process_time()
        with pytest.raises(ReceiveTimeout):
            subscription.receive(1.0)
        assert time.process_time() - before < 0.2
