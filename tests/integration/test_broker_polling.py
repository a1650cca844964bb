"""The broker's loop sleeps only if nothing waits, although the descriptor of a ZeroMQ socket may say nothing."""

import select
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from messagehub.broker.event_publisher import FRAMES_PER_TURN, Publisher
from messagehub.broker.loop import RECEIVED_PER_TURN
from messagehub.broker.polling import Polling
from messagehub.broker.request_queue import COUNTERS, UNKNOWN, RequestQueue
from messagehub.broker.tracing import TraceRing
from messagehub.broker.transports.router import Router
from messagehub.protocol import COMMANDS_BY_TYPE
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.metrics import Metrics
from registry.registry import Registry
from tests.integration.harness import PATIENCE_SECONDS, Peer, Served

Context = zmq.Context[zmq.Socket[bytes]]
PING = b'{"type":"PING"}'


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as opened:
        yield opened


@pytest.fixture
def polling() -> Iterator[Polling]:
    opened = Polling()
    yield opened
    opened.close()


def has_signal(fd: int) -> bool:
    return bool(wait_readable([fd], 0.0))


def connected(context: Context, kind: int, bound: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = 0  # or else subscriptions are dropped here
    socket.connect(bound.last_endpoint.decode())
    return socket


def requests_of(router: Router) -> RequestQueue:
    metrics = Metrics([*COMMANDS_BY_TYPE, UNKNOWN], list(COUNTERS))
    return RequestQueue(router.send, None, metrics, TraceRing(8, wall_offset=0.0))


def test_what_is_left_of_a_bounded_receive_is_announced_without_a_signal(context: Context, polling: Polling) -> None:
    router = Router(context, None, Metrics([], list(COUNTERS)))
    router.socket.bind("tcp://127.0.0.1:*")
    polling.add_socket(router.polled)
    with connected(context, zmq.DEALER, router.socket) as client, router.socket:
        for _ in range(3):
            client.send_multipart([b"", PING])
        requests = requests_of(router)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while requests.backlog < 3:
            ready = polling.wait(PATIENCE_SECONDS)
            assert ready == [(router.polled.fd, select.EPOLLIN)], "the loop sleeps while requests wait"
            router.receive(1, requests, Registry())
            assert time.monotonic() < deadline
        assert polling.wait(0.0) == []


def test_a_request_that_came_before_a_reply_was_sent_is_announced(context: Context, polling: Polling) -> None:
    """Sending takes in what came, and with it the signal. That is what a turn does in which a reply was released."""
    router = Router(context, None, Metrics([], list(COUNTERS)))
    router.socket.bind("tcp://127.0.0.1:*")
    polling.add_socket(router.polled)
    with connected(context, zmq.DEALER, router.socket) as client, router.socket:
        client.send_multipart([b"", PING])
        requests = requests_of(router)
        while not requests.backlog:
            assert polling.wait(PATIENCE_SECONDS)
            router.receive(8, requests, Registry())
        path = requests.normal[0][0]
        while polling.wait(0.0):
            router.receive(8, requests, Registry())
        client.send_multipart([b"", PING])
        assert wait_readable([router.polled.fd], PATIENCE_SECONDS)
        lose_signal(router.polled.fd, lambda: router.send(path, b"{}"))
        assert polling.wait(PATIENCE_SECONDS) == [(router.polled.fd, select.EPOLLIN)]


def test_a_subscription_that_came_before_an_event_was_sent_is_announced(context: Context, polling: Polling) -> None:
    publisher, registry = Publisher(context, broker_id="b", beacon_seconds=1.0), Registry()
    publisher.socket.bind("tcp://127.0.0.1:*")
    polling.add_socket(publisher.polled)
    with connected(context, zmq.SUB, publisher.socket) as client:
        client.subscribe(b"channel/a/")
        while not publisher.subscriptions:
            assert polling.wait(PATIENCE_SECONDS)
            publisher.read_subscriptions(registry)
        while polling.wait(0.0):
            publisher.read_subscriptions(registry)
        client.subscribe(b"channel/b/")
        assert wait_readable([publisher.polled.fd], PATIENCE_SECONDS)
        times = iter(range(1, 10_000))
        lose_signal(publisher.polled.fd, lambda: publisher.beacons(registry, now=10.0 * next(times)))
        assert polling.wait(PATIENCE_SECONDS) == [(publisher.polled.fd, select.EPOLLIN)]
    publisher.close()


def lose_signal(fd: int, use: Callable[[], object]) -> None:
    """Use a socket until that took in its signal: libzmq looks for one only so often."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while has_signal(fd):
        use()
        assert time.monotonic() < deadline


def test_more_requests_than_a_turn_receives_are_all_answered(served: Callable[..., Served]) -> None:
    count = 3 * RECEIVED_PER_TURN
    with Peer(served().endpoint, zmq.DEALER) as client:
        for _ in range(count):
            client.send(PING)
        for _ in range(count):
            assert client.receive()["type"] == "PONG"


def test_more_subscriptions_than_a_turn_reads_are_all_confirmed(served: Callable[..., Served]) -> None:
    with Peer(served().endpoint) as asking:
        events = asking.ask({"type": "HELLO"})["endpoints"]["events"]
    topics = {b"channel/c%d/" % number for number in range(4 * FRAMES_PER_TURN)}
    with Peer(events, zmq.SUB, RCVTIMEO=int(PATIENCE_SECONDS * 1000), SNDHWM=0) as client:
        for topic in topics:
            client.socket.subscribe(topic)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while topics:
            topics.discard(client.socket.recv_multipart()[0])
            assert time.monotonic() < deadline, f"{len(topics)} subscriptions are not read"
