"""CURVE: who is not listed gets nothing, and who is listed no longer gets nothing more."""

import time

import pytest
import zmq

from messagehub import MessageHub
from messagehub.errors import (
    ConfigurationError,
    Forbidden,
    ReceiveTimeout,
    SendTimeout,
    SubscriptionClosed,
    Unauthorized,
)
from messagehub.security.credentials import KeyPair, allow_key
from tests.access.shared import SharedHub
from tests.integration.harness import Peer, eventually, producer
from tests.integration.invariants import gauge


def test_an_unlisted_key_gets_nothing_and_is_counted(shared: SharedHub) -> None:
    shared.keys["stranger"] = shared.key("stranger", [])
    with shared.peer("stranger") as peer, shared.local() as local:
        before = local.stats()
        peer.send_in_vain({"type": "CHANNEL_CREATE", "channel": "made_by_a_stranger"})
        eventually(lambda: local.counter("denied_peers") > 0)
        assert peer.hears_nothing(0.1)
        assert local.stats()["revision"] == before["revision"]
    denied = {"event": "denied", "who": "unknown", "socket": "control", "key": shared.keys["stranger"].public}
    eventually(lambda: any(denied.items() <= line.items() for line in shared.audit()))


def test_our_client_with_an_unlisted_key_says_so(shared: SharedHub) -> None:
    shared.key("stranger", [])
    with shared.hub("stranger") as hub:
        for _ in range(2):  # while it waits to try again, too
            with pytest.raises(Unauthorized, match="does not list"):
                hub.register_producer("c", schema_hash="h")
        with pytest.raises(Unauthorized, match="does not list"):
            hub.discover("c")


def test_a_plaintext_peer_is_refused(shared: SharedHub) -> None:
    with Peer(shared.endpoint) as peer:
        peer.send_in_vain({"type": "PING"})
        assert peer.hears_nothing(0.5)
    with MessageHub(endpoint=shared.endpoint, dir=shared.dir / "client") as hub:
        started = time.monotonic()
        with pytest.raises(Unauthorized, match="only peers with keys"):
            hub.discover("c", timeout=30)
        assert time.monotonic() - started < 20


def test_a_wrong_server_key_is_an_error_within_the_deadline(shared: SharedHub) -> None:
    with shared.hub("boss", server_key=KeyPair.new().public) as hub:
        started = time.monotonic()
        with pytest.raises(Unauthorized, match="server_key is not its public key"):
            hub.register_producer("c", schema_hash="h", timeout=30)
        assert time.monotonic() - started < 20
        assert hub.health()["status"] == "unavailable"


def test_keys_where_none_are_taken_are_an_error_too(
    shared: SharedHub, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("plain") / "hub"
    with SharedHub(place).running(curve=False) as plain, plain.hub("boss") as hub, pytest.raises(Unauthorized):
        hub.register_producer("c", schema_hash="h")


def test_a_peer_that_may_hear_no_events_is_answered_all_the_same(shared: SharedHub) -> None:
    allow_key(shared.access, "nothing", shared.key("nothing", []).public, [])
    with shared.hub("nothing") as hub:
        assert hub.health()["status"] == "healthy"
        with hub.watch("sensors.a") as watch:
            assert not watch.wait_current(1)
            assert hub.health()["status"] == "healthy"


def test_a_listed_key_does_all_that_a_local_peer_does(shared: SharedHub) -> None:
    with shared.hub("boss") as hub, shared.hub("reader") as reader:
        assert hub.register_producer("sensors.a", schema_hash="h")
        assert reader.discover("sensors.a").source == "broker"
        with reader.watch("sensors.a") as watch:
            assert watch.wait_current(30)
        with hub.subscribe("news.>") as news:
            hub.publish("news.today", b"x")
            assert news.receive(timeout=30).payload == b"x"


def test_keys_are_listed_and_revoked_without_a_restart(shared: SharedHub) -> None:
    pair = shared.keys["late"] = shared.key("late", [])
    with shared.peer("late") as peer:
        peer.send_in_vain({"type": "PING"})
        assert peer.hears_nothing(0.3)
    allow_key(shared.access, "late", pair.public, ["observe"])
    with shared.peer("late") as peer:
        assert peer.ask({"type": "PING"})["type"] == "PONG"
        assert peer.ask(producer("sensors.a"))["code"] == "FORBIDDEN"
        allow_key(shared.access, "late", pair.public, ["produce"])
        eventually(lambda: peer.ask(producer("sensors.a"))["type"] == "PRODUCER_REGISTER_ACK")


def test_a_revoked_key_is_refused_on_its_open_connections(shared: SharedHub) -> None:
    with shared.peer("boss") as peer, shared.local() as local:
        assert peer.ask({"type": "CHANNEL_CREATE", "channel": "before"})["type"] == "CHANNEL_CREATE_ACK"
        shared.revoke("boss")
        eventually(lambda: peer.ask({"type": "PING"})["type"] == "ERROR")
        refused = peer.ask({"type": "CHANNEL_CREATE", "channel": "after", "id": "7"})
        assert (refused["code"], refused["id"]) == ("UNAUTHORIZED", "7")
        assert set(local.snapshot()) == {"before"}
        assert local.counter("refused_unauthorized") >= 2


def test_a_revoked_key_hears_no_more_events_and_others_go_on(shared: SharedHub) -> None:
    with shared.peer("boss") as peer:
        endpoint = peer.ask({"type": "HELLO"})["endpoints"]["events"]
    with (
        shared.peer("boss", zmq.SUB, endpoint=endpoint) as lost,
        shared.peer("reader", zmq.SUB, endpoint=endpoint) as kept,
    ):
        for peer in (lost, kept):
            peer.socket.subscribe(b"channel/")
            assert peer.socket.poll(30_000)  # a beacon
        shared.revoke("boss")

        def is_silent() -> bool:
            while lost.socket.poll(0):
                lost.socket.recv_multipart()
            return lost.hears_nothing(0.5)  # five beacons' time

        eventually(lambda: _is_denied(shared, "events"))  # silence alone may be a broker that was held up
        eventually(is_silent)
        while kept.socket.poll(0):
            kept.socket.recv_multipart()
        assert kept.socket.poll(30_000)
        with shared.local() as local:
            local.ask(producer("sensors.a"))
        assert kept.socket.poll(30_000)
        assert lost.hears_nothing(0.3)


def test_a_connection_that_was_cut_and_does_not_come_back_leaves_no_subscription(shared: SharedHub) -> None:
    """libzmq says nothing of the end of a connection that it ends itself."""
    with shared.peer("reader") as peer, shared.local() as local:
        endpoint = peer.ask({"type": "HELLO"})["endpoints"]["events"]
        with shared.peer("reader", zmq.SUB, endpoint=endpoint, RECONNECT_IVL=-1) as watching:
            watching.socket.subscribe(b"channel/")
            assert watching.socket.poll(30_000)  # a beacon
            assert gauge(local, "subscriptions") == 1
            shared.revoke("boss")
            eventually(lambda: gauge(local, "subscriptions") == 0)


def test_a_revoked_key_hears_no_more_topics_and_others_go_on(shared: SharedHub) -> None:
    boss, writer, reader = (shared.hub(name) for name in ("boss", "writer", "reader"))
    with boss, writer, reader, boss.subscribe("news.>") as lost, reader.subscribe("news.>") as kept:
        shared.revoke("boss")
        eventually(lambda: _is_denied(shared, "topics_out"))  # the connections of all were cut
        received = []

        def arrives() -> bool:
            writer.publish("news.today", b"secret")
            try:
                received.append(kept.receive(timeout=0.2))
            except ReceiveTimeout:
                return False
            return True

        eventually(arrives)  # those that may came again
        with pytest.raises(ReceiveTimeout):
            lost.receive(timeout=0.5)


def _is_denied(shared: SharedHub, socket: str) -> bool:
    return any(entry["event"] == "denied" and entry.get("socket") == socket for entry in shared.audit())


def test_plain_topics_take_rights_without_a_pattern(shared: SharedHub) -> None:
    with shared.hub("limited") as limited, shared.hub("watcher") as watcher:
        with pytest.raises(Forbidden):
            limited.publish("sensors.a", b"x")
        with pytest.raises(Forbidden):
            limited.subscribe("sensors.a")
        with pytest.raises(Forbidden):
            watcher.publish("sensors.a", b"x")


def test_who_may_not_publish_cannot_even_connect_for_it(shared: SharedHub) -> None:
    """Whatever the client is told: each socket is authenticated by itself."""
    with shared.peer("boss") as peer:
        endpoint = peer.ask({"type": "HELLO"})["endpoints"]["topics_in"]
    with shared.hub("reader") as reader, reader.subscribe(">") as heard, shared.local() as local:
        before = local.counter("denied_peers")
        with shared.peer("reader", zmq.PUSH, endpoint=endpoint) as intruder:
            intruder.socket.send(b"news\0" + bytes(40))
            eventually(lambda: local.counter("denied_peers") > before)
        with pytest.raises(ReceiveTimeout):
            heard.receive(timeout=0.3)


def test_events_are_heard_only_of_channels_that_may_be_observed(shared: SharedHub) -> None:
    with shared.peer("limited") as peer:
        endpoint = peer.ask({"type": "HELLO"})["endpoints"]["events"]
    with shared.peer("limited", zmq.SUB, endpoint=endpoint) as events, shared.local() as local:
        for topic in (b"", b"channel/", b"channel/secret/", b"channel/sensors.a/"):
            events.socket.subscribe(topic)
        assert events.socket.poll(10_000)
        assert events.socket.recv_multipart()[0] == b"channel/sensors.a/"  # the beacon that echoes it
        local.ask(producer("secret"))
        local.ask(producer("sensors.a"))
        heard = set()

        def hears() -> bool:
            while events.socket.poll(0):
                heard.add(events.socket.recv_multipart()[0])
            return len(heard) > 0 and local.counter("refused_subscriptions") == 3

        eventually(hears)
        assert heard == {b"channel/sensors.a/"}


def test_a_lease_is_renewed_and_ended_only_by_its_owner(shared: SharedHub) -> None:
    with shared.peer("writer") as writer, shared.peer("limited") as limited:
        writer.ask(producer("sensors.a", lease="mine"))
        for message in (
            {"type": "HEARTBEAT", "lease": "mine"},
            {"type": "PRODUCER_UNREGISTER", "channel": "sensors.a", "lease": "mine"},
            producer("sensors.b", lease="mine"),
        ):
            assert limited.ask(message)["code"] == "FORBIDDEN"
        assert writer.ask({"type": "HEARTBEAT", "lease": "mine"})["known"]


def test_a_registration_without_a_lease_is_ended_only_by_its_owner(shared: SharedHub) -> None:
    with shared.peer("writer") as writer, shared.peer("limited") as limited, shared.peer("reader") as reader:
        writer.ask(producer("sensors.a"))
        consumer = {"channel": "sensors.a", "consumer_id": "r"}
        assert reader.ask({"type": "CONSUMER_REGISTER", **consumer})["type"] == "CONSUMER_REGISTER_ACK"
        for message in (
            {"type": "PRODUCER_UNREGISTER", "channel": "sensors.a"},
            producer("sensors.a", metadata={"changed": True}),
            {"type": "CONSUMER_UNREGISTER", **consumer},
        ):
            assert limited.ask(message)["code"] == "FORBIDDEN", message
        assert writer.ask({"type": "PRODUCER_UNREGISTER", "channel": "sensors.a"})["type"] == "PRODUCER_UNREGISTER_ACK"


def test_a_worker_is_ended_only_by_its_owner(shared: SharedHub) -> None:
    worker = {"address": "service:s", "worker_id": "w", "endpoint": "unix:@x", "key": "k", "lease": "mine"}
    with shared.peer("writer") as writer, shared.peer("reader") as reader:
        assert writer.ask({"type": "SERVICE_REGISTER", **worker})["type"] == "SERVICE_REGISTER_ACK"
        ending = {"type": "SERVICE_UNREGISTER", "worker_id": "w", "lease": "mine"}
        assert reader.ask(ending)["code"] == "FORBIDDEN"
        assert writer.ask(ending)["type"] == "SERVICE_UNREGISTER_ACK"


def test_settings_that_do_not_go_together_are_refused(shared: SharedHub) -> None:
    place = shared.dir / "client"
    with MessageHub(endpoint=shared.endpoint, dir=place, server_key=shared.server_key) as hub:
        assert hub.health()["reason"].endswith("name its own key with key_file")
    with shared.hub("boss", server_key="short") as hub, pytest.raises(ConfigurationError, match="not a public key"):
        hub.connect(required=True)


def test_a_key_file_that_others_can_read_is_refused(shared: SharedHub) -> None:
    path = shared.dir / "keys" / "boss.key"
    path.chmod(0o640)
    with shared.hub("boss") as hub, pytest.raises(ConfigurationError, match="chmod 600"):
        hub.connect(required=True)


def test_the_deadline_of_publishing_holds_after_a_revocation(shared: SharedHub) -> None:
    with shared.hub("writer") as writer:
        writer.publish("news", b"x")
        shared.revoke("writer")

        def is_refused() -> bool:
            try:
                writer.publish("news", b"x", timeout=1.0)
            except (Unauthorized, SendTimeout, Forbidden):
                return True
            return False

        eventually(is_refused)


def test_a_connection_with_an_old_key_has_nothing_of_the_rights_of_its_successor(shared: SharedHub) -> None:
    with shared.peer("writer") as old:
        assert old.ask(producer("sensors.a"))["type"] == "PRODUCER_REGISTER_ACK"
        new = KeyPair.new(shared.server_key)
        allow_key(shared.access, "writer", new.public, ["produce"])
        eventually(lambda: old.ask({"type": "PING"})["type"] == "ERROR")
        assert old.ask(producer("sensors.b"))["code"] == "UNAUTHORIZED"
        shared.keys["writer"] = new
        with shared.peer("writer") as successor:
            assert successor.ask(producer("sensors.b"))["type"] == "PRODUCER_REGISTER_ACK"


def test_a_right_with_a_pattern_is_enough_for_retained_topics(shared: SharedHub) -> None:
    with shared.hub("boss") as boss, shared.hub("limited") as limited:
        for name in ("sensors.a", "other"):
            boss.topic(name, keep=10)
        assert limited.publish("sensors.a", b"first") == 1
        subscription = limited.subscribe("sensors.a", since=0)
        boss.publish("sensors.a", b"second")
        assert [subscription.receive(30.0).payload for _ in range(2)] == [b"first", b"second"]
        for refused in (lambda: limited.publish("other", b"x"), lambda: limited.subscribe("other", since=0)):
            with pytest.raises(Forbidden):
                refused()
        limited.close()
        with pytest.raises(SubscriptionClosed):
            subscription.receive(30.0)


def test_a_right_with_a_pattern_is_enough_for_durable_names(shared: SharedHub) -> None:
    with shared.hub("boss") as boss, shared.hub("limited") as limited, shared.hub("watcher") as watcher:
        for name in ("sensors.a", "other"):
            boss.topic(name, keep=10).publish_all([1, 2, 3])
        with limited.subscribe("sensors.a", durable="billing", ack="manual") as subscription:
            for _ in range(3):
                subscription.receive(30.0).ack()
        assert watcher.topic("sensors.a").position("billing").summary.lag == 0
        mine = limited.topic("sensors.a")
        refusals = (
            lambda: limited.subscribe("other", durable="billing"),
            lambda: limited.subscribe("sensors.a", group="workers"),
            lambda: watcher.subscribe("sensors.a", durable="billing"),
            lambda: mine.reset_position("billing", 1),
            lambda: mine.delete_position("billing"),
        )
        for refused in refusals:
            with pytest.raises(Forbidden):
                refused()
        boss.topic("sensors.a").delete_position("billing")


def test_a_reader_of_a_retained_topic_ends_with_an_error_when_its_right_is_taken_away(
    shared: SharedHub, caplog: pytest.LogCaptureFixture
) -> None:
    public = shared.keys["limited"].public
    with shared.hub("boss") as boss, shared.hub("limited") as limited:
        for name in ("sensors.a", "sensors.b"):
            boss.topic(name, keep=10)
        lost, kept = limited.subscribe("sensors.a", since=0), limited.subscribe("sensors.b", since=0)
        boss.publish("sensors.a", b"before")
        assert lost.receive(30.0).payload == b"before"
        allow_key(shared.access, "limited", public, ["consume:sensors.b"])
        with pytest.raises(Forbidden, match=r"sensors\.a"):
            lost.receive(30.0)
        boss.publish("sensors.b", b"after")
        assert kept.receive(30.0).payload == b"after"
        shared.revoke("limited")
        with pytest.raises(Unauthorized):
            kept.receive(30.0)
        assert (lost.is_closed, kept.is_closed) == (True, True)
    assert not [record for record in caplog.records if record.exc_info or "cannot be read" in record.message]
