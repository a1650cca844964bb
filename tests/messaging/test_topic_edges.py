"""Topics at their edges: hostile frames, coming and going, forks, and threads that publish together."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from messagehub import MessageHub
from messagehub.broker.loop import Broker
from messagehub.errors import BrokerRequired, DataLost, InvalidRequest, SendTimeout, SubscriptionClosed
from messagehub.protocol.topic_frames import ARROW_TABLE, HEAD, IN_BLOCK
from messagehub.settings import Settings
from messagehub.store.memory import MemoryStore
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Subscription
from registry.records import Keep
from registry.topics.patterns import END
from tests.integration.harness import Peer, Served, eventually, hub_of

SECONDS = 20.0


def together(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
        assert not thread.is_alive()


def test_a_reference_nested_without_end_harms_no_other_message(broker: Served) -> None:
    nested = b'{"x":' + b"[" * 15_000 + b"]" * 15_000 + b"}"
    frame = b"a.b" + END + HEAD.pack(b"stranger", 1, 0.0, 0, ARROW_TABLE | IN_BLOCK) + nested
    with hub_of(broker) as hub, hub.subscribe("a.b") as subscription, Peer(broker.endpoint) as peer:
        incoming = peer.ask({"type": "HELLO"})["endpoints"]["topics_in"]
        with Peer(incoming, zmq.PUSH) as stranger:
            stranger.socket.send(frame)
            with pytest.raises(DataLost):
                subscription.receive(SECONDS).payload  # noqa: B018  looking is what raises
        hub.publish("a.b", b"after it")
        assert subscription.receive(SECONDS).payload == b"after it"


def test_a_burst_to_a_subscription_that_nobody_reads_yet_arrives_whole(broker: Served) -> None:
    """With the buffer that a subscription has by default."""
    count = 20_000
    with hub_of(broker) as publisher, hub_of(broker) as hub, hub.subscribe("burst") as subscription:
        for number in range(count):
            publisher.publish("burst", number)
        assert [subscription.receive(SECONDS).payload for _ in range(count)] == list(range(count))
        assert subscription.lost == 0


def test_who_comes_and_goes_while_others_publish_is_told_of_no_loss(broker: Served) -> None:
    is_over = threading.Event()

    def publish() -> None:
        with hub_of(broker) as publisher:
            while not is_over.wait(0.001):
                for _ in range(10):  # no more than the queues hold while a receiver is held up
                    publisher.publish("busy.topic", b"x")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        with hub_of(broker) as hub:
            for _ in range(40):
                with hub.subscribe("busy.topic", buffer=100_000) as subscription:
                    numbers = [subscription.receive(SECONDS).number for _ in range(200)]
                assert subscription.lost == 0
                assert numbers == list(range(numbers[0], numbers[0] + 200))
    finally:
        is_over.set()
        thread.join()


def test_subscribing_does_not_wait_for_a_thread_that_publishes(broker: Served) -> None:
    with hub_of(broker) as hub:
        hub.publish("warm", b"")
        held = hub._parts.publisher._sending  # private: with a stopped broker `subscribe` never comes to this lock
        assert held.acquire(timeout=SECONDS)  # as a publisher holds it whom the broker keeps waiting
        try:
            with hub.subscribe("a.b", timeout=SECONDS), pytest.raises(SendTimeout):
                hub.publish("a.b", b"x", timeout=0.1)
        finally:
            held.release()
        with hub.subscribe("a.b") as subscription:
            hub.publish("a.b", b"x")
            assert subscription.receive(SECONDS).payload == b"x"


def test_a_forked_child_may_close_its_parents_subscription_whatever_the_parent_was_doing(
    broker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_held, is_over = threading.Event(), threading.Event()
    with hub_of(broker) as hub, hub.subscribe("a.b") as subscription:
        offer = subscription.offer

        def hold(message: Message) -> bool:
            """On the receiving thread, with the locks that it holds while it delivers."""
            is_held.set()
            is_over.wait(SECONDS)
            return offer(message)

        monkeypatch.setattr(subscription, "offer", hold)
        hub.publish("a.b", b"held")
        try:
            assert is_held.wait(SECONDS)
            pid = _forked(lambda: _close(subscription))
        finally:
            is_over.set()
        assert _exit_code(pid) == 0
        hub.publish("a.b", b"x")
        assert [subscription.receive(SECONDS).payload for _ in range(2)] == [b"held", b"x"]


def _close(subscription: Subscription) -> None:
    subscription.close()
    with pytest.raises(SubscriptionClosed):
        subscription.receive(1.0)


# -- threads that publish to one retained topic -----------------------------------------------------------------


def test_many_headers_at_once_are_not_too_large_for_one_request(broker: Served) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("kept", keep=100)
        headers = {"trace": "x" * 200_000}
        together(*[lambda: topic.publish(b"", headers=headers, timeout=SECONDS)] * 16)
        assert topic.describe().messages == 16


def test_nobody_is_refused_for_what_another_thread_publishes(broker: Served) -> None:
    refused: list[bytes] = []
    with hub_of(broker) as hub:
        topic = hub.topic("kept", keep=Keep(size_bytes=1000))

        def publish(payload: bytes) -> None:
            try:
                topic.publish(payload, timeout=SECONDS)
            except InvalidRequest:
                refused.append(payload)

        for _ in range(20):
            together(*[lambda: publish(b"x")] * 7, lambda: publish(b"y" * 2000), *[lambda: publish(b"x")] * 8)
        assert refused == [b"y" * 2000] * 20
        assert topic.describe().topic.next_offset == 20 * 15 + 1


def test_a_page_is_bounded_in_headers_too(broker: Served) -> None:
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer:
        topic = hub.topic("kept", keep=100)
        for _ in range(4):
            topic.publish(b"", headers={"trace": "x" * 200_000})
        page = peer.ask({"type": "TOPIC_READ_REQUEST", "topic": "kept"})
        assert len(page["messages"]) == 1
        with topic.subscribe(since=0) as subscription:
            assert [subscription.receive(SECONDS).offset for _ in range(4)] == [1, 2, 3, 4]


def test_what_is_kept_after_the_host_slept_is_as_young_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time
    with monkeypatch.context() as patched:
        patched.setattr(
            time, "time", lambda: wall() - 7200.0
        )  # then two hours of sleep: a monotonic clock stands still
        broker = Broker(Settings.load(dir=tmp_path / "hub"), MemoryStore)
    thread = threading.Thread(target=broker.run)
    thread.start()
    try:
        with hub_of(broker.endpoint) as hub:
            topic = hub.topic("kept", keep=Keep(seconds=3600.0))
            began_at = time.time()
            topic.publish(b"x")
            assert topic.describe().messages == 1
            with topic.subscribe(since=began_at) as subscription:
                assert subscription.receive(SECONDS).sent_at >= began_at
    finally:
        broker.stop()
        thread.join(SECONDS)


def _forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return pid


def _exit_code(pid: int) -> int:
    """Fails, and ends the child, when that hangs."""

    def ended() -> tuple[int, int] | None:
        found = os.waitpid(pid, os.WNOHANG)
        return found if found[0] else None

    try:
        return os.waitstatus_to_exitcode(eventually(ended, timeout=SECONDS)[1])
    except AssertionError:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise


def test_without_a_broker_all_that_needs_one_raises_the_same(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path / "nobody") as hub:
        for call in (
            hub.topics,
            hub.services,
            hub.dead_letters,
            hub.topic("t").describe,
            hub.topic("t").delete,
            lambda: hub.remove_pool("pool:p"),
            lambda: hub.publish("t", 1),
            lambda: hub.subscribe("t"),
            lambda: hub.subscribe("t", since=0),
            lambda: hub.request("service:s"),
            lambda: hub.serve("service:s", lambda message, context: None),
        ):
            with pytest.raises(BrokerRequired):
                call()
