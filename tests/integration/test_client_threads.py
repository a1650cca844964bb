"""No listener, no callback and nothing that a broker sends ends a background thread of a client."""

import asyncio
import json
import logging
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from messagehub import MessageHub
from messagehub.client.connection import Connection
from messagehub.settings import Settings
from messagehub.topics.subscriptions import Subscription
from registry import commands
from tests.conftest import QUICK
from tests.faults.sick_peers import HELLO_ACK, SickBroker
from tests.integration.harness import Embedded, Peer, Served, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def endpoint(embedded: Callable[..., Embedded]) -> str:
    return embedded(**QUICK | {"stall_seconds": 1.5, "lease_seconds": 3.0}).endpoint


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def fail(*_: object) -> None:
    raise ValueError("a defect of the user")


def leave(*_: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize("callback", [fail, leave])
def test_a_tap_that_raises_harms_nobody(endpoint: str, callback: Callable[..., None]) -> None:
    with hub_of(endpoint) as hub, Peer(endpoint) as peer, hub.watch() as watch:
        heard: list[bytes | None] = []
        hub.tap(b"channel/", callback)
        hub.tap(b"channel/", heard.append)
        registration = hub.register_producer("a", schema_hash="h", required=True)
        assert watch.wait_current(30.0)
        hub.register_producer("b", schema_hash="h", required=True)
        eventually(lambda: any(payload and b'"b"' in payload for payload in heard))
        beats = peer.stats()["requests"].get("HEARTBEAT", {"count": 0})["count"]
        eventually(lambda: peer.stats()["requests"].get("HEARTBEAT", {"count": 0})["count"] > beats + 5)
        eventually(lambda: peer.ask({"type": "DISCOVERY_REQUEST", "channel": "a"}).get("status") == "active")
        eventually(lambda: registration)
        eventually(lambda: set(watch.channels) == {"a", "b"})
        assert hub.metrics()["defects"] >= 1


@pytest.fixture
def babbler() -> Iterator[tuple[SickBroker, "zmq.Socket[bytes]"]]:
    """A peer that answers sensibly, and whose events are what a test sends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    events = context.socket(zmq.XPUB)
    events.setsockopt(zmq.LINGER, 0)
    port = events.bind_to_random_port("tcp://127.0.0.1")

    def answer(asked: dict[str, object]) -> dict[str, object]:
        if asked["type"] == "HELLO":
            return HELLO_ACK | {"endpoints": {"events": f"tcp://127.0.0.1:{port}"}}
        if asked["type"] == "HEARTBEAT":
            return {"type": "HEARTBEAT_ACK", "known": True, "notices": [], "broker_id": "sick"}
        if asked["type"] == "PING":
            return {"type": "PONG", "broker_id": "sick", "revision": 1, "read_only": False}
        return {
            "type": "PRODUCER_REGISTER_ACK",
            "channel": asked.get("channel", "a"),
            "producer_id": "p",
            "shm_name": "/x",
            "schema_id": None,
            "lease": "l",
            "lease_seconds": 40.0,
            "revision": 1,
        }

    with SickBroker(answer) as broker:  # type: ignore[arg-type]
        yield broker, events
    events.close(0)
    context.term()


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"{}", b'{"type":"NO_SUCH_EVENT"}', b"[" * 5000, b'{"revision":"x"}']
)
def test_events_that_make_no_sense_end_nothing(babbler: "tuple[SickBroker, zmq.Socket[bytes]]", payload: bytes) -> None:
    broker, events = babbler
    with hub_of(broker.endpoint) as hub, hub.watch() as watch:
        heard: list[bytes | None] = []
        hub.tap(b"channel/", heard.append)
        hub.register_producer("a", schema_hash="h", required=True)
        subscribed = {events.recv() for _ in range(2) if events.poll(30_000)}
        assert b"\x01channel/" in subscribed
        events.send_multipart([b"channel/a/", payload])
        eventually(lambda: payload in heard)
        beats = broker.count("HEARTBEAT")
        eventually(lambda: broker.count("HEARTBEAT") > beats + 2)
        beacon = json.dumps({"type": "BEACON", "revision": 1, "broker_id": "sick"}).encode()
        events.send_multipart([b"channel/", beacon])
        eventually(lambda: beacon in heard and broker.count("SNAPSHOT_REQUEST") > 0)
        assert not watch.is_current


def test_requests_that_end_with_their_connection_end_once(served: Callable[..., Served], tmp_path: Path) -> None:
    """The broker is paused, and does not say in time that it is there: that ends the connection, in the same turn in
    which the time of other requests runs out."""
    server = served(**QUICK)
    connection = Connection(Settings.load(endpoint=server.endpoint, dir=tmp_path, hello_timeout_seconds=0.5), name="c")
    try:
        connection.ask_hello(timeout=30.0)
        server.signal(signal.SIGSTOP)
        ended: Counter[int] = Counter()
        began = time.monotonic()
        connection.suspect()
        for number in range(1000):  # so that some run out when the question does, and were sent after it
            timeout = began + 0.5 + number * 0.00004 - time.monotonic()
            connection.submit(commands.Stats(), lambda *_, number=number: ended.update([number]), timeout=timeout)
        connection.wake()
        eventually(lambda: len(ended) == 1000)
        assert set(ended.values()) == {1}
        assert connection.metrics.counters["defects"] == 0
    finally:
        server.signal(signal.SIGCONT)
        connection.close()


@pytest.mark.parametrize("callback", [fail, leave])
def test_a_callback_of_a_subscription_that_raises_hears_the_next_message(
    endpoint: str, callback: Callable[..., None]
) -> None:
    with hub_of(endpoint) as hub:
        heard: list[object] = []

        def on_message(message: object) -> None:
            heard.append(message)
            callback(message)

        with hub.subscribe("a") as subscription:
            subscription.call(on_message)
            for _ in range(3):
                hub.publish("a", b"x")
            eventually(lambda: len(heard) == 3)


@pytest.mark.parametrize("callback", [fail, leave])
def test_a_callback_of_a_request_that_raises_harms_no_other(endpoint: str, callback: Callable[..., None]) -> None:
    with hub_of(endpoint) as hub, hub_of(endpoint) as caller:
        hub.serve("service:echo", lambda message, _: message.payload)
        for number in range(3):
            answered = threading.Event()
            pending = caller.begin_request("service:echo", number, timeout=30.0)
            pending.add_done_callback(callback)
            pending.add_done_callback(lambda _, answered=answered: answered.set())
            assert answered.wait(30.0)
            assert pending.result() == number


def test_a_thread_of_callbacks_outlives_a_defect_of_the_subscription(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no known way to break it from outside: the break is made here, once."""
    receive, broken = Subscription.receive, threading.Event()

    def break_once(subscription: Subscription, timeout: float | None = None) -> object:
        if not broken.is_set():
            broken.set()
            raise ValueError("a defect of ours")
        return receive(subscription, timeout)

    monkeypatch.setattr(Subscription, "receive", break_once)
    with hub_of(endpoint) as hub, hub.subscribe("a") as subscription:
        heard: list[object] = []
        subscription.call(heard.append)
        assert broken.wait(30.0)
        hub.publish("a", b"x")
        eventually(lambda: len(heard) == 1)


@pytest.mark.parametrize("has_loop", [True, False], ids=["in the user's event loop", "in a thread"])
def test_an_async_callback_outlives_a_defect_of_the_subscription(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, has_loop: bool
) -> None:
    """There is no known way to break it from outside: the break is made here, once."""
    receive, broken = Subscription.receive_async, threading.Event()

    async def break_once(subscription: Subscription, timeout: float | None = None) -> object:
        if not broken.is_set():
            broken.set()
            raise ValueError("a defect of ours")
        return await receive(subscription, timeout)

    monkeypatch.setattr(Subscription, "receive_async", break_once)
    heard = threading.Event()

    async def callback(_: object) -> None:
        heard.set()

    async def calls_in_this_loop(hub: MessageHub) -> None:
        async with await hub.subscribe_async("a", callback):
            await asyncio.to_thread(publish, hub)

    def publish(hub: MessageHub) -> None:
        assert broken.wait(30.0)
        hub.publish("a", b"x")
        assert heard.wait(30.0)

    with hub_of(endpoint) as hub:
        if has_loop:
            asyncio.run(calls_in_this_loop(hub))
        else:
            with hub.subscribe("a", callback):
                publish(hub)


def test_a_thread_of_services_outlives_a_caller_that_breaks_it(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no known way to break it from outside: the break is made here, once."""
    from messagehub.services.server import ServiceServer

    with hub_of(endpoint, hello_timeout_seconds=5.0) as hub, hub_of(endpoint, hello_timeout_seconds=5.0) as caller:
        hub.serve("service:echo", lambda message, _: message.payload)
        assert caller.request("service:echo", b"1", timeout=30.0) == b"1"
        # private: there is no known way to break it from outside
        admit, broken = ServiceServer._admit_held, threading.Event()

        def break_once(*arguments: object) -> object:
            if not broken.is_set():
                broken.set()
                raise ValueError("a defect of ours")
            return admit(*arguments)  # type: ignore[arg-type]

        # private: as above, the break is made here
        monkeypatch.setattr(ServiceServer, "_admit_held", break_once)
        for _ in range(3):
            reply = caller.request("service:echo", b"2", timeout=30.0, idempotent=True, retries=3)
            assert reply == b"2"
        assert broken.is_set()
        assert hub.metrics()["defects"] == 1


def test_a_hub_whose_listener_fails_closes_as_usual(endpoint: str) -> None:
    hub = MessageHub(endpoint=endpoint)
    hub.tap(b"", fail)
    hub.register_producer("a", schema_hash="h", required=True)
    eventually(lambda: hub.metrics()["defects"] > 0)
    hub.close()


def test_the_thread_of_topics_outlives_a_turn_that_fails(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with services, the break is made here, once."""
    from messagehub.topics.routes import TopicRoutes

    with hub_of(endpoint) as hub, hub.subscribe("a") as subscription:
        hub.publish("a", b"1")
        assert subscription.receive(30.0).payload == b"1"
        wake, broken = TopicRoutes.wake, threading.Event()

        def break_once(routes: TopicRoutes) -> None:
            if not broken.is_set():
                broken.set()
                raise ValueError("a defect of ours")
            wake(routes)

        monkeypatch.setattr(TopicRoutes, "wake", break_once)
        heard: list[bytes] = []
        subscription.call(lambda message: heard.append(message.payload))
        hub.publish("a", b"2")
        eventually(broken.is_set)
        hub.publish("a", b"3")
        eventually(lambda: heard == [b"2", b"3"])
        eventually(lambda: hub.metrics()["defects"] == 1)


def test_the_thread_of_answers_outlives_a_connection_that_breaks_it(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from messagehub.services.connection import ServiceConnection

    with hub_of(endpoint) as hub, hub_of(endpoint) as caller:
        hub.serve("service:echo", lambda message, _: message.payload)
        read_once, broken = ServiceConnection.read_once, threading.Event()

        def break_once(connection: ServiceConnection) -> object:
            if not broken.is_set():
                broken.set()
                raise ValueError("a defect of ours")
            return read_once(connection)

        monkeypatch.setattr(ServiceConnection, "read_once", break_once)
        pending = caller.begin_request("service:echo", b"1", timeout=30.0, retries=3, idempotent=True)
        answered = threading.Event()
        pending.add_done_callback(lambda _: answered.set())  # so that the thread reads, and not who waits
        eventually(answered.is_set)
        assert pending.result() == b"1"
        assert broken.is_set()
        eventually(lambda: caller.metrics()["defects"] == 1)


FETCHING = {
    "retained": (commands.ReadTopic, {"since": "oldest"}),
    "durable": (commands.FetchMessages, {"durable": "reader"}),
    "group": (commands.RegisterSubscriber, {"group": "workers"}),
}


@pytest.mark.parametrize("kind", FETCHING)
def test_the_thread_of_a_subscription_outlives_a_question_that_fails(
    endpoint: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with services, the break is made here, once."""
    asked, options = FETCHING[kind]
    with hub_of(endpoint) as hub, hub_of(endpoint) as publisher:
        if kind != "group":
            publisher.topic("a", keep=100)
            publisher.publish("a", b"1")
        ask, broken = Connection.ask, threading.Event()

        def break_once(connection: Connection, command: commands.Command, *given: object, **named: object) -> object:
            if isinstance(command, asked) and not broken.is_set() and threading.current_thread().name in THREADS:
                broken.set()
                raise ValueError("a defect of ours")
            return ask(connection, command, *given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(Connection, "ask", break_once)
        with hub.subscribe("a", **options) as subscription:  # type: ignore[arg-type]
            eventually(broken.is_set)
            publisher.publish("a", b"2")
            awaited = [b"2"] if kind == "group" else [b"1", b"2"]
            assert [subscription.receive(30.0).payload for _ in awaited] == awaited
            eventually(lambda: hub.metrics()["defects"] == 1)


THREADS = ("messagehub-retained", "messagehub-durable", "messagehub-group")
