"""Retained topics on a path of their own, and queues that are bounded in bytes: with raw sockets beside real hubs."""

import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from messagehub import MessageHub
from messagehub.errors import SubscriptionClosed
from messagehub.protocol.topic_frames import (
    HEAD,
    MAX_FRAME_BYTES,
    PIECE,
    PIECE_BYTES,
    PLACE,
    frames_of,
    incarnation_bytes,
)
from messagehub.topics import pieces as topic_pieces
from messagehub.topics import routes as topic_routes
from messagehub.topics.pieces import Pieces
from messagehub.topics.routes import TopicRoutes
from messagehub.topics.subscriptions import Subscription
from registry.topics.patterns import Patterns
from tests.conftest import QUICK
from tests.faults.test_fuzz import resident_bytes
from tests.integration.block_processes import Process
from tests.integration.harness import Peer, Served, eventually
from tests.integration.invariants import connections
from tests.messaging.service_harness import SECONDS, patient_hub

KEPT_FLAG = 0x80
"""What marked a frame of a retained topic when both kinds came on one socket."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    broker = Served(tmp_path_factory.mktemp("broker") / "hub", "--no-http", **QUICK)
    yield broker
    broker.close()


@pytest.fixture
def hub(served: Served) -> Iterator[MessageHub]:
    with patient_hub(served) as connected:
        yield connected


def endpoints(served: Served) -> dict[str, str]:
    with Peer(served.endpoint) as peer:
        found: dict[str, str] = peer.ask({"type": "HELLO"})["endpoints"]
        return found


@pytest.fixture
def stranger(served: Served) -> Iterator[Peer]:
    """Somebody who reaches the socket of publishers."""
    with Peer(endpoints(served)["topics_in"], zmq.PUSH) as peer:
        yield peer


def payloads(subscription: Subscription, count: int) -> list[object]:
    return [subscription.receive(SECONDS).payload for _ in range(count)]


# -- nobody but the broker speaks for a retained topic ------------------------------------------------------------


def test_a_frame_that_a_publisher_forged_never_passes_for_one_of_a_retained_topic(
    hub: MessageHub, stranger: Peer
) -> None:
    topic = hub.topic("forged.retained", keep=100)
    topic.publish(b"1")
    incarnation = incarnation_bytes(topic.describe().topic.incarnation)
    with hub.subscribe("forged.>") as plain, hub.subscribe("forged.retained", since="now") as positioned:
        for number in (2, 3, 2**63):
            for kind in (0, KEPT_FLAG):
                head = HEAD.pack(incarnation, number, time.time(), 0, kind)
                stranger.socket.send(b"forged.retained\0" + head + b"forged")
        stranger.socket.send(b"forged.end\0" + HEAD.pack(b"stranger", 1, 0.0, 0, 0) + b"end")
        heard = []
        while not heard or heard[-1].topic != "forged.end":
            heard.append(plain.receive(SECONDS))
        assert all(message.offset is None for message in heard)  # what anybody may publish, and nothing else
        assert topic.publish(b"2") == 2
        message = positioned.receive(SECONDS)
        assert (message.payload, message.offset) == (b"2", 2)
        message = plain.receive(SECONDS)
        assert (message.payload, message.offset) == (b"2", 2)
        assert topic.publish(b"3") == 3
        assert positioned.receive(SECONDS).payload == b"3"
        assert positioned.lost == 0


def test_subscribing_hears_plain_and_retained_messages_from_its_return_on(hub: MessageHub) -> None:
    hub.topic("both.retained", keep=10_000)
    for turn in range(20):
        with hub.subscribe("both.>") as subscription:
            hub.publish("both.retained", f"retained {turn}")
            hub.publish("both.plain", f"plain {turn}")
            assert set(payloads(subscription, 2)) == {f"retained {turn}", f"plain {turn}"}


def test_subscribing_does_not_wait_for_whoever_publishes(hub: MessageHub, served: Served) -> None:
    is_over = threading.Event()

    def publish() -> None:
        with patient_hub(served) as publisher:
            while not is_over.wait(0.001):
                publisher.publish("busy", b"x" * 1000)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(10):
            with hub.subscribe("busy") as subscription:
                assert subscription.receive(SECONDS).payload == b"x" * 1000
    finally:
        is_over.set()
        thread.join()


# -- no frame is larger than a piece ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 2**20])
def test_a_payload_of_any_size_arrives_whole(hub: MessageHub, size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    payload = payload[:size]
    topic = hub.topic("sizes.retained", keep=100)
    with hub.subscribe("sizes.>") as subscription:
        hub.publish("sizes.plain", payload, headers={} if size == 2**20 else {"n": size})
        message = subscription.receive(SECONDS)
        assert message.payload == payload
        assert message.headers == ({} if size == 2**20 else {"n": size})
        if size < 700_000:
            topic.publish(payload, headers={"n": size})
            message = subscription.receive(SECONDS)
            assert (message.payload, message.headers, message.is_retained) == (payload, {"n": size}, True)
        assert subscription.lost == 0


def test_what_subscribers_queue_is_bounded_in_bytes(hub: MessageHub, served: Served) -> None:
    hub.topic("bounded.retained", keep=100)
    found = endpoints(served)
    with Peer(found["topics_out"], zmq.SUB) as plain, Peer(found["topics_retained"], zmq.SUB) as retained:
        for peer in (plain, retained):
            peer.socket.subscribe(b"bounded.")
        with hub.subscribe("bounded.>") as settled:
            for topic, peer in (("bounded.plain", plain), ("bounded.retained", retained)):
                size = 0
                while size < 600_000:
                    hub.publish(topic, b"x" * 600_000)
                    settled.receive(SECONDS)
                    while peer.socket.poll(200 if size == 0 else 0):
                        frame = peer.socket.recv()
                        assert len(frame) <= MAX_FRAME_BYTES
                        size += len(frame)


@pytest.mark.slow
def test_subscribers_that_stopped_are_hung_up_on_and_their_queues_are_freed(tmp_path: Path) -> None:
    """The allocator keeps what was freed, so the queue of the second takes the room that the first one's had."""
    text = """
    with hub.subscribe("much") as subscription:
        say(ready=True)
        sys.stdin.readline()
    """
    sizes = []
    with Served(tmp_path / "hub", "--no-http", **QUICK) as broker, patient_hub(broker) as hub:
        there = endpoints(broker)["topics_out"]
        hub.publish("much", b"x", timeout=SECONDS)
        for _ in range(2):
            with closing(Process({"endpoint": broker.endpoint, "dir": str(tmp_path / "there")}, text)) as stopped:
                stopped.hear()
                connected = connections(there)
                assert connected
                stopped.signal(signal.SIGSTOP)
                before = resident_bytes(broker.pid)
                for _ in range(3000):
                    hub.publish("much", b"x" * 60_000)
                if not sizes:
                    eventually(lambda: resident_bytes(broker.pid) > before + 100 * 2**20)  # noqa: B023
                eventually(lambda: connections(there) == connected - 1, timeout=60.0)  # noqa: B023
                sizes.append(resident_bytes(broker.pid))
    assert sizes[1] < sizes[0] + 60 * 2**20, sizes


def test_whoever_pushes_a_larger_frame_loses_its_connection(hub: MessageHub, stranger: Peer, served: Served) -> None:
    with hub.subscribe("pushed") as subscription:
        head = b"pushed\0" + HEAD.pack(b"stranger", 1, 0.0, 0, 0)
        stranger.socket.send(head + b"x" * (MAX_FRAME_BYTES + 1))
        with Peer(endpoints(served)["topics_in"], zmq.PUSH) as other:
            other.socket.send(head + b"small")
            assert subscription.receive(SECONDS).payload == b"small"


# -- pieces, without sockets -----------------------------------------------------------------------------------

START = b"t\0publishr"


def pieces(number: int, payload: bytes, headers: bytes = b"") -> list[bytes]:
    return frames_of(START, number, 0.0, 0, headers, payload)


def delivered(frames: list[bytes]) -> tuple[list[object], int, int]:
    """Payloads, messages that were missed, malformed frames."""
    routes = TopicRoutes()
    subscription = Subscription(Patterns("t"), buffer=1000, overflow="drop_oldest", on_close=lambda _: None)
    routes.add(subscription)
    for frame in frames:
        routes.deliver(frame)
    subscription.end()
    found: list[object] = []
    try:
        while True:
            found.append(subscription.receive(0).payload)
    except SubscriptionClosed:
        return found, subscription.lost_in_transit, routes.malformed


def test_a_lost_piece_loses_its_message_and_is_counted() -> None:
    large = b"y" * (3 * PIECE_BYTES)
    one, two, three = pieces(1, large), pieces(2, large), pieces(3, b"small")
    assert delivered([*one, *two, *three]) == ([large, large, b"small"], 0, 0)
    for missing in range(3):
        assert delivered([*one, *two[:missing], *two[missing + 1 :], *three]) == ([large, b"small"], 1, 0)
    assert delivered([*one, two[0], *three]) == ([large, b"small"], 1, 0)
    assert delivered([two[0], *two])[0] == [large]  # sent again from its beginning


def test_pieces_of_several_publishers_may_come_interleaved() -> None:
    large = b"z" * (2 * PIECE_BYTES)
    first, second = pieces(1, large + b"1"), [f.replace(b"publishr", b"otherone") for f in pieces(1, large + b"2")]
    mixed = [frame for pair in zip(first, second, strict=True) for frame in pair]
    assert delivered(mixed) == ([large + b"1", large + b"2"], 0, 0)


def test_unfinished_messages_are_bounded_in_bytes() -> None:
    held = Pieces(most_bytes=10 * PIECE_BYTES)
    every = [pieces(1, bytes(5 * PIECE_BYTES)) for _ in range(3)]
    for at, frames in enumerate(every):
        for frame in frames[:4]:
            assert held.add(frame.replace(b"publishr", b"publish%d" % at), 1) is None
    lasts = [held.add(frames[4].replace(b"publishr", b"publish%d" % at), 1) for at, frames in enumerate(every)]
    assert [last is not None for last in lasts] == [False, True, True]  # the first was given up for the third
    assert topic_pieces.MOST_BYTES >= 64 * 2**20


def test_empty_unfinished_messages_are_bounded_too() -> None:
    held = Pieces(most_bytes=10 * topic_pieces.OVERHEAD_BYTES)
    for number in range(100):
        start = b"t\0" + number.to_bytes(8, "little") + struct.pack("<QdIB", 1, 0.0, 0, PIECE)
        assert held.add(start + PLACE.pack(0, 2), 1) is None
    finished = [
        number
        for number in range(100)
        if held.add(
            b"t\0" + number.to_bytes(8, "little") + struct.pack("<QdIB", 1, 0.0, 0, PIECE) + PLACE.pack(1, 2), 1
        )
    ]
    assert finished == list(range(90, 100))


def test_publishers_without_end_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_routes, "MOST_REMEMBERED", 50)
    frames = [b"t\0" + n.to_bytes(8, "little") + struct.pack("<QdIB", 1, 0.0, 0, 0) + b"x" for n in range(500)]
    monkeypatch.setattr(topic_routes, "MOST_PUBLISHERS", 1000)
    gap = b"t\0" + (499).to_bytes(8, "little") + struct.pack("<QdIB", 4, 0.0, 0, 0) + b"x"
    assert delivered([*frames, gap])[1:] == (2, 0)  # of those that are remembered, what is missing still shows
    first = b"t\0" + (0).to_bytes(8, "little") + struct.pack("<QdIB", 4, 0.0, 0, 0) + b"x"
    assert delivered([*frames, first])[1:] == (0, 0)


@given(st.lists(st.binary(max_size=80) | st.tuples(st.integers(0, 65), st.integers(0, 65), st.integers(0, 3))))
def test_no_frames_at_all_harm_whoever_receives(parts: list[bytes | tuple[int, int, int]]) -> None:
    frames = []
    for part in parts:
        if isinstance(part, bytes):
            frames.append(b"t\0" + part)
        else:
            index, count, number = part
            frames.append(START + struct.pack("<QdIB", number, 0.0, 0, PIECE) + PLACE.pack(index, count) + b"part")
    delivered(frames)


# -- a subscriber's buffer counts what it holds ----------------------------------------------------------------


def test_a_buffer_counts_a_block_and_not_its_reference(hub: MessageHub) -> None:
    table = pa.table({"x": pa.array(range(300_000), pa.int64())})  # 2.4 MB
    assert table.nbytes > 2_000_000
    # private: nothing public sets the bytes of a buffer, and 64 MiB would take long
    topics = hub._parts.topics
    with topics.subscribe(
        "blocks", buffer=100, buffer_bytes=5_000_000, overflow="drop_newest", timeout=SECONDS, is_local=False
    ) as subscription:
        for _ in range(6):
            hub.publish("blocks", table, timeout=SECONDS)
        hub.publish("blocks", b"a last one")
        with hub.subscribe("after") as settled:
            hub.publish("after", b"")
            settled.receive(SECONDS)
        subscription.close()
        kept = list(subscription)
        assert [message.size_bytes > 2_000_000 for message in kept] == [True] * 3
        assert subscription.lost_in_buffer == 4
