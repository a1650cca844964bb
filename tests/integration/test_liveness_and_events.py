"""Who is alive, who hears of it, and how a watcher knows that it has heard everything."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import zmq

from registry.events import ConsumerUnregistered
from tests.conftest import QUICK
from tests.integration.harness import (
    PATIENCE_SECONDS,
    REGISTER,
    AnyBroker,
    Listener,
    Message,
    Peer,
    eventually,
    hub_of,
    producer,
)

SHORT = {"heartbeat_seconds": 0.1, "stall_seconds": 0.5, "beacon_seconds": 0.1}


def status(peer: Peer, channel: str) -> str:
    reply = peer.ask({"type": "DISCOVERY_REQUEST", "channel": channel})
    return str(reply.get("status") or reply["code"])


def test_silence_stalls_a_draft_producer_and_then_ends_it(start_broker: Callable[..., AnyBroker]) -> None:
    broker = start_broker(**SHORT | {"lease_seconds": 6.0})  # it is stalled for long enough to be seen
    with Peer(broker.endpoint) as peer, Listener(broker.endpoint, b"channel/") as listener:
        peer.ask(producer("a"))
        eventually(lambda: status(peer, "a") == "stalled")
        eventually(lambda: status(peer, "a") == "CHANNEL_NOT_FOUND")
        kinds = [listener.event()[1]["type"] for _ in range(5)]
    assert kinds == [
        "CHANNEL_CREATED",
        "PRODUCER_REGISTERED",
        "PRODUCER_STALLED",
        "PRODUCER_UNREGISTERED",
        "CHANNEL_ENDED",
    ]


def test_a_heartbeat_recovers_a_stalled_producer(start_broker: Callable[..., AnyBroker]) -> None:
    def is_active_after_a_beat() -> bool:
        assert peer.ask({"type": "HEARTBEAT", "lease": "a/default"})["known"]
        return status(peer, "a") == "active"

    with Peer(start_broker(**SHORT | {"lease_seconds": 60.0}).endpoint) as peer:
        peer.ask(producer("a"))
        eventually(lambda: status(peer, "a") == "stalled")
        eventually(is_active_after_a_beat)


def test_a_client_keeps_its_lease_alive_by_itself_and_one_heartbeat_covers_all(
    start_broker: Callable[..., AnyBroker],
) -> None:
    broker = start_broker(**SHORT | {"stall_seconds": 4.0, "lease_seconds": 5.0})
    with hub_of(broker) as hub, Peer(broker.endpoint) as peer:
        held = [hub.register_producer(f"c{number}", schema_hash="h") for number in range(30)]
        eventually(lambda: beats(peer) >= 70)  # which takes longer than the lease
        assert all(held)
        assert len(peer.snapshot()) == 30
        assert peer.stats()["leases"] == 1


def beats(peer: Peer) -> int:
    return int(peer.stats()["requests"].get("HEARTBEAT", {"count": 0})["count"])


def test_an_unknown_lease_is_told_to_register_again(peer: Peer) -> None:
    assert peer.ask({"type": "HEARTBEAT", "lease": "never-heard-of"})["known"] is False


def test_a_stalled_producer_is_replaced_by_another_process_a_living_one_is_not(
    start_broker: Callable[..., AnyBroker],
) -> None:
    with Peer(start_broker(**SHORT | {"stall_seconds": 5.0, "lease_seconds": 60.0}).endpoint) as peer:
        peer.ask(producer("a", lease="one"))
        assert peer.ask(producer("a", lease="two"))["code"] == "PRODUCER_ALREADY_REGISTERED"
        reply = eventually(lambda: acknowledged(peer.ask(producer("a", lease="two"))))
        assert reply["lease"] == "two"


def acknowledged(reply: Message) -> Message | None:
    return reply if reply["type"] != "ERROR" else None


def test_members_are_told_with_their_heartbeats(broker: AnyBroker) -> None:
    with hub_of(broker) as maker, hub_of(broker) as reader, Peer(broker.endpoint) as peer:
        assert maker.register_producer("a", schema_hash="h")
        consumer = reader.register_consumer("a", consumer_id="c")
        assert [it.consumer_id for it in maker.consumers("a")] == ["c"]
        (joined,) = eventually(maker.notices)
        assert (joined.event, joined.member) == ("CONSUMER_REGISTERED", "c")
        consumer.close()
        (left,) = eventually(maker.notices)
        assert (left.event, left.reason) == ("CONSUMER_UNREGISTERED", "released")
        again = reader.register_consumer("a", consumer_id="c")
        assert again
        peer.ask({"type": "CHANNEL_DESTROY", "channel": "a"})
        eventually(lambda: not again)
        eventually(lambda: "CHANNEL_DESTROYED" in [it.event for it in maker.notices()])
        assert peer.snapshot() == {}


def test_the_death_of_a_consumer_is_told_to_producer_and_watchers(start_broker: Callable[..., AnyBroker]) -> None:
    broker = start_broker(**SHORT | {"stall_seconds": 4.0, "lease_seconds": 5.0})
    with hub_of(broker) as maker, maker.watch("a") as watch:
        maker.register_producer("a", schema_hash="h")
        with Peer(broker.endpoint) as dying:
            dying.ask({"type": "CONSUMER_REGISTER", "channel": "a", "consumer_id": "c"})
        told = eventually(lambda: [it for it in maker.notices() if it.event == "CONSUMER_UNREGISTERED"])
        assert [it.reason for it in told] == ["expired"]
        eventually(lambda: isinstance(watch.get(5), ConsumerUnregistered))


def test_events_are_chained_per_topic_and_strictly_ordered(broker: AnyBroker, peer: Peer) -> None:
    with Listener(broker.endpoint, b"") as everything, Listener(broker.endpoint, b"channel/a/") as only_a:
        for number in range(20):
            peer.ask(producer("a", metadata={"n": number}))
            peer.ask(producer("ab", metadata={"n": number}))
            peer.ask({"type": "SCHEMA_REGISTER", "subject": "a", "schema": {"title": str(number)}})
        newest = peer.ask({"type": "PING"})["revision"]
        newest_of: dict[bytes, int] = {}
        revisions: list[int] = []
        while not revisions or revisions[-1] < newest:
            topic, event = everything.event()
            assert event["previous"] == newest_of.get(topic, 0)
            newest_of[topic] = event["revision"]
            revisions.append(event["revision"])
        assert revisions == list(range(1, newest + 1))
        assert set(newest_of) == {b"channel/a/", b"channel/ab/", b"schema/a/"}
        previous = 0
        for _ in range(21):
            topic, event = only_a.event()
            assert topic == b"channel/a/"
            assert event["previous"] == previous
            previous = event["revision"]


def test_beacons_repeat_the_newest_revision_of_each_watched_topic(broker: AnyBroker, peer: Peer) -> None:
    for number in range(3):
        peer.ask(producer("a", metadata={"n": number}))
        peer.ask(producer("b", metadata={"n": number}))
    state = peer.snapshot()
    broker_id = peer.ask({"type": "PING"})["broker_id"]
    for topic, revision in (
        (b"channel/a/", state["a"]["revision"]),
        (b"channel/b/", state["b"]["revision"]),
        (b"channel/none/", 0),
        (b"channel/", state["b"]["revision"]),
        (b"", state["b"]["revision"]),
    ):
        with Listener(broker.endpoint, topic) as listener:
            for heard in (listener.echo, listener.beacon(), listener.beacon()):
                assert heard == (topic, {"type": "BEACON", "revision": revision, "broker_id": broker_id})


def test_a_watcher_that_missed_the_end_of_its_channel_hears_of_it_by_a_beacon(broker: AnyBroker, peer: Peer) -> None:
    assert peer.ask(REGISTER)["type"] == "PRODUCER_REGISTER_ACK"
    with Listener(broker.endpoint, b"channel/sensor_data/") as listener:
        assert listener.echo[1]["revision"] > 0
        assert peer.ask({"type": "PRODUCER_UNREGISTER", "channel": "sensor_data"})["type"] == "PRODUCER_UNREGISTER_ACK"
        eventually(lambda: peer.snapshot() == {})
        assert eventually(lambda: listener.beacon()[1]["revision"] == 0)


def test_odd_subscriptions_stop_nobody(broker: AnyBroker, peer: Peer) -> None:
    events = peer.ask({"type": "HELLO"})["endpoints"]["events"]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    odd = context.socket(zmq.XSUB)
    odd.setsockopt(zmq.LINGER, 0)
    odd.connect(events)
    try:
        for frame in (b"", b"\x01", b"\x01\xff\xfe", b"\x01" + b"x" * 1000, b"\x02hello", b"user data", b"\x00\x00"):
            odd.send(frame)
        odd.send_multipart([b"\x01channel/a/", b"more"])
        odd.send(b"\x01" + b"y" * 5000)
        with Listener(broker.endpoint, b"channel/a/") as listener:
            peer.ask(producer("a"))
            assert listener.event()[1]["type"] == "CHANNEL_CREATED"
    finally:
        odd.close(0)
        context.term()
    assert peer.ask({"type": "PING"})["type"] == "PONG"


def test_a_message_without_its_last_frame_hides_no_subscription(broker: AnyBroker, peer: Peer) -> None:
    """libzmq drops the end of a subscription that a peer does not hold (XSUB) or that others still hold (XPUB).

    When that was the last frame of a message, nothing says that the message has ended.
    """
    events = peer.ask({"type": "HELLO"})["endpoints"]["events"]
    with Peer(events, zmq.XSUB) as odd, Peer(events, zmq.XSUB) as other:
        for subscriber in (odd, other):
            assert_echoed(subscriber, b"channel/")
        odd.socket.send_multipart([b"data", b"\0not held"])
        assert_echoed(odd, b"channel/own")
        odd.socket.send_multipart([b"data", b"\0channel/"])
        eventually(lambda: is_unheard(odd, b"channel/"))  # the broker's socket has taken the message
        assert_echoed(other, b"channel/other")


def assert_echoed(subscriber: Peer, topic: bytes) -> None:
    subscriber.socket.send(b"\1" + topic)
    eventually(lambda: subscriber.socket.poll(1000) and subscriber.socket.recv_multipart()[0] == topic)


def is_unheard(subscriber: Peer, topic: bytes) -> bool:
    """Whether no beacon of the topic comes during five times the beacon interval."""
    deadline = time.monotonic() + 5 * QUICK["beacon_seconds"]
    while time.monotonic() < deadline:
        if subscriber.socket.poll(10) and subscriber.socket.recv_multipart()[0] == topic:
            return False
    return True


def test_a_watchers_view_equals_the_brokers_state_after_any_churn(broker: AnyBroker, peer: Peer) -> None:
    with hub_of(broker) as hub, hub_of(broker) as watcher, watcher.watch() as early, watcher.watch("c1") as one:

        def churn(number: int) -> None:
            for turn in range(15):
                with hub.register_producer(f"c{number}", schema_hash="h", metadata={"turn": turn}):
                    with hub.register_consumer(f"c{number}", consumer_id=f"k{turn}"):
                        hub.discover(f"c{number}")
                    if turn % 4 == 0:
                        hub.create_channel(f"d{number}.t{turn}", metadata={"turn": turn})
            hub.register_producer(f"c{number}", schema_hash="h")

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        late = watcher.watch()
        for thread in threads:
            thread.join(60)

        def shown(watch: Any) -> Any:
            return msgspec.to_builtins(watch.channels)

        state = peer.snapshot()
        assert len(state) == 6 + 6 * 4
        eventually(lambda: early.is_current and shown(early) == state)
        eventually(lambda: late.is_current and shown(late) == state)
        eventually(lambda: one.is_current and shown(one) == {"c1": state["c1"]})
        late.close()


def test_discovery_of_a_watched_channel_needs_no_round_trip_and_sees_every_change(
    broker: AnyBroker, peer: Peer
) -> None:
    peer.ask(producer("a", schema_version="0"))
    with hub_of(broker) as hub:

        def from_memory() -> bool:
            before = hub.metrics()["requests"]["DISCOVERY_REQUEST"]["count"]
            found = hub.discover("a")
            return found is not None and hub.metrics()["requests"]["DISCOVERY_REQUEST"]["count"] == before

        assert hub.discover("a") is not None
        eventually(from_memory)
        for version in range(1, 10):
            peer.ask(producer("a", schema_version=str(version)))
            eventually(
                lambda wanted: (it := hub.discover("a")) is not None and it.schema_version == wanted, str(version)
            )
            eventually(from_memory)
        peer.ask({"type": "CHANNEL_DESTROY", "channel": "a"})
        eventually(lambda: hub.discover("a") is None)


def test_what_a_client_changed_itself_it_discovers_at_once(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        hub.register_producer("a", schema_hash="h", metadata={"n": -1})
        for number in range(200):
            hub.discover("a")
            hub.register_producer("a", schema_hash="h", metadata={"n": number})
            found = hub.discover("a")
            assert found is not None
            assert found.producers[0].metadata == {"n": number}


def test_waiting_for_a_channel_ends_when_it_becomes_active(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub_of(broker) as maker:
        assert hub.discover("a", wait=True, timeout=0.2) is None
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(hub.discover("a", wait=True, timeout=60)))
        waiting.start()
        maker.register_producer("a", schema_hash="h", ready=False)
        eventually(lambda: (it := maker.discover("a")) is not None and it.status == "pending")
        assert not found
        maker.register_producer("a", schema_hash="h", ready=True)
        waiting.join(30)
        assert found[0].is_active


def test_a_slow_subscriber_stops_nobody_and_can_tell_that_it_missed_something(
    start_broker: Callable[..., AnyBroker],
) -> None:
    """More events than its queue holds: the rest is dropped for it alone."""
    broker = start_broker(**QUICK | {"stall_seconds": 600.0, "lease_seconds": 1200.0})  # no event but what it asks for
    count, step = 8000, 1000  # a step fits into the queue of a subscriber that reads, however late it gets to run
    with (
        Listener(broker.endpoint, b"channel/", queue=1) as deaf,
        Listener(broker.endpoint, b"channel/") as other,
        Peer(broker.endpoint, zmq.DEALER, SNDHWM=0, RCVHWM=0) as peer,
    ):
        for begin in range(0, count, step):
            for number in range(begin, begin + step):
                peer.send(producer(f"c{number}"))
            assert all(peer.receive()["type"] == "PRODUCER_REGISTER_ACK" for _ in range(step))
            for revision in range(2 * begin + 1, 2 * (begin + step) + 1):
                assert other.event()[1]["revision"] == revision
        heard = 0
        while True:
            _, event = deaf.next()
            if event["type"] == "BEACON" and event["revision"] > heard:
                break  # ahead of what came: a gap
            if event["type"] != "BEACON":
                assert event["revision"] == heard + 1
                heard = event["revision"]
        assert heard < 2 * count


def test_each_of_many_watches_hears_of_its_own_channel_only(broker: AnyBroker, peer: Peer) -> None:
    """More than are followed at once: the topics of the later ones wait for each other."""
    with hub_of(broker) as watcher, ExitStack() as open_watches:
        watches = [open_watches.enter_context(watcher.watch(f"many{number}")) for number in range(200)]
        whole = open_watches.enter_context(watcher.watch())
        twin = open_watches.enter_context(watcher.watch("many7"))
        assert all(watch.wait_current(PATIENCE_SECONDS) for watch in (*watches, whole, twin))
        watches[8].close()
        for number in (7, 8, 199):
            peer.ask(producer(f"many{number}"))
        for watch, channels in ((watches[7], {"many7"}), (twin, {"many7"}), (watches[199], {"many199"})):
            eventually(lambda: watch.channels.keys() == channels)  # noqa: B023  called here
        eventually(lambda: whole.channels.keys() == {"many7", "many8", "many199"})
        assert not any(watch.channels for number, watch in enumerate(watches) if number not in (7, 199))
