"""Bad input on the wire: each gets what the protocol page says, the broker goes on, nothing changes."""

import json
from typing import Any

import pytest
import zmq

from tests.integration.harness import REGISTER, AnyBroker, Message, Peer, eventually, producer, without

DEEP = 100_000
NOT_JSON = [b"", b"{", b"null", b"[]", b"1", b'"PING"', b"\x00", b"\xff\xfe{}", b"PING", b"{'type':'PING'}", b"NaN"]
NOT_UTF8 = [b'{"type":"PING","id":"\xff\xfe"}', b'{"type":"PING","id":"\xed\xa0\x80"}', b'{"type":"PING\xc3("}']
DEEPLY_NESTED = [
    b'{"type":"PING","x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"type":"PRODUCER_REGISTER","channel":"deep","schema_hash":"h","metadata":'
    + b'{"a":' * 500
    + b"1"
    + b"}" * 500
    + b"}",
    b'{"type":"SCHEMA_REGISTER","subject":"deep","schema":' + b"[" * 129 + b"]" * 129 + b"}",
]
FIELDS: list[tuple[Message, str]] = [
    (without(REGISTER, "channel"), "channel"),
    (without(REGISTER, "schema_hash"), "schema_hash"),
    (REGISTER | {"channel": 7}, "channel"),
    (REGISTER | {"schema_hash": ""}, "schema_hash"),
    (REGISTER | {"schema_hash": "h" * 257}, "schema_hash"),
    (REGISTER | {"config": []}, "config"),
    (REGISTER | {"pid": -1}, "pid"),
    (REGISTER | {"pid": 2**63}, "pid"),
    (REGISTER | {"access": "mine"}, "access"),
    (REGISTER | {"priority": "urgent"}, "priority"),
    (REGISTER | {"blocks": [{"shm_name": 1}]}, "blocks[0].shm_name"),
    (REGISTER | {"id": 5}, "id"),
    ({"type": "CHANNEL_LIST_REQUEST", "limit": 0}, "limit"),
    ({"type": "CHANNEL_LIST_REQUEST", "limit": 10**9}, "limit"),
    ({"type": "HEARTBEAT"}, "lease"),
    ({"type": None}, "type"),
    ({"type": 7}, "type"),
    ({"type": ["PING"]}, "type"),
    ({}, "type"),
]
BAD_NAMES = [
    "",
    ".",
    "a..b",
    "1a",
    "a b",
    "a/b",
    "../etc/passwd",
    "a\x00b",
    "ä",
    "hub.x",
    "sys",
    "a" * 65,
    ".".join("abcdefgh" for _ in range(30)),
    "x | pid:1-0",
    "a\n",
]


def state(peer: Peer) -> tuple[Any, ...]:
    stats = peer.stats()
    return stats["revision"], stats["leases"], stats["schemas"], peer.snapshot()


@pytest.fixture
def unchanged(peer: Peer) -> Any:
    """A hub with something in it that must be the same afterwards, and no defect counted."""
    peer.ask(REGISTER)
    before = state(peer)
    yield
    assert state(peer) == before
    assert peer.counter("internal_errors") == 0


def assert_refused(reply: Message, code: str) -> None:
    assert reply["type"] == "ERROR"
    assert reply["code"] == code, reply
    assert reply["message"]
    assert reply["retryable"] is False
    assert isinstance(reply["details"], dict)


def test_what_is_no_json_object_is_an_invalid_request(peer: Peer, unchanged: None) -> None:
    for body in [*NOT_JSON, *NOT_UTF8, b"[" * DEEP]:
        assert_refused(peer.ask(body), "INVALID_REQUEST")
    assert peer.counter("malformed") == len(NOT_JSON + NOT_UTF8) + 1


def test_deep_nesting_is_an_error_of_its_own(peer: Peer, unchanged: None) -> None:
    for body in DEEPLY_NESTED:
        assert_refused(peer.ask(body), "NESTED_TOO_DEEPLY")
    assert peer.counter("refused_nested_too_deeply") == len(DEEPLY_NESTED)


def test_a_wrong_field_is_named(peer: Peer, unchanged: None) -> None:
    for message, field in FIELDS:
        reply = peer.ask(message)
        assert_refused(reply, "INVALID_REQUEST")
        assert reply["details"].get("field") == field, reply


def test_unknown_types_are_counted_under_one_label(peer: Peer, unchanged: None) -> None:
    for name in ("NONSENSE", "ping", "DISCOVERY_RESPONSE", "ERROR", "PONG", "", "x" * 100_000, "\x00"):
        assert_refused(peer.ask({"type": name, "id": "u"}), "UNKNOWN_TYPE")
    stats = peer.stats()
    assert stats["counters"]["unknown_type"] == 8
    assert set(stats["requests"]) <= {"unknown", "STATS_REQUEST", "PRODUCER_REGISTER", "SNAPSHOT_REQUEST"}
    assert stats["requests"]["unknown"]["errors"] == 8


def test_invalid_names_are_refused_with_the_rule(peer: Peer, unchanged: None) -> None:
    for name in BAD_NAMES:
        for message in (producer(name), {"type": "CHANNEL_CREATE", "channel": name}):
            reply = peer.ask(message)
            assert_refused(reply, "INVALID_NAME")
            assert "rule" in reply["details"]
    for role in ("", "a b", "../x", "x\x00", "1"):
        reply = peer.ask({"type": "CONSUMER_REGISTER", "channel": "sensor_data", "consumer_id": role})
        assert_refused(reply, "INVALID_NAME")
    for shm_name in ("relative", "/../up", "/a/../b", "/", "//x", "/nul\x00"):
        assert_refused(peer.ask(REGISTER | {"shm_name": shm_name}), "INVALID_NAME")


def test_the_logical_name_is_found_behind_a_display_marker(peer: Peer, unchanged: None) -> None:
    for name in ("sensor_data | pid:1-0", "sensor_data | pid:4711-12"):
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": name})["channel"] == "sensor_data"
    assert_refused(peer.ask({"type": "DISCOVERY_REQUEST", "channel": "sensor_data | pid:"}), "INVALID_NAME")


def test_a_frame_over_one_mebibyte_is_too_large_and_the_peer_goes_on(peer: Peer, unchanged: None) -> None:
    for size in ((1 << 20) + 1, 2 << 20, 4 << 20):
        reply = peer.ask(b" " * size)
        assert_refused(reply, "MESSAGE_TOO_LARGE")
        assert reply["details"] == {"size_bytes": size, "limit_bytes": 1 << 20}
    fits = {"type": "PING", "id": "fits", "padding": ""}
    fits["padding"] = "x" * ((1 << 20) - len(json.dumps(fits)))
    assert peer.ask(fits)["id"] == "fits"
    assert peer.counter("too_large") == 3


def test_eight_mebibytes_cost_the_peer_its_connection_and_nobody_else(broker: AnyBroker, peer: Peer) -> None:
    peer.ask(REGISTER)
    before = state(peer)
    with Peer(broker.endpoint, zmq.DEALER, RECONNECT_IVL=-1) as huge:
        monitor = huge.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        huge.send({"type": "PING"})
        huge.receive()
        huge.send(b" " * (8 << 20))
        assert monitor.poll(30_000)
        huge.socket.disable_monitor()
        monitor.close(0)
    assert state(peer) == before


def test_a_stream_of_garbage_on_the_raw_socket_stops_nobody(broker: AnyBroker, peer: Peer) -> None:
    """Not even ZeroMQ's own greeting."""
    import socket

    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64, b"\xff" * 10 + b"\x7f" * 100, b""):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(broker.endpoint.removeprefix("ipc://"))
            raw.sendall(garbage)
    assert peer.ask({"type": "PING"})["type"] == "PONG"


def test_duplicate_ids_are_each_answered(broker: AnyBroker) -> None:
    with Peer(broker.endpoint, zmq.DEALER) as peer:
        for _ in range(3):
            peer.send({"type": "PING", "id": "same"})
        assert [peer.receive()["id"] for _ in range(3)] == ["same"] * 3


def test_replies_that_answer_nothing_are_unknown_requests(peer: Peer, unchanged: None) -> None:
    """A peer may send what only a broker says; nobody waits for it."""
    for message in ({"type": "HEARTBEAT_ACK", "known": True, "notices": []}, {"type": "PRODUCER_REGISTER_ACK"}):
        assert_refused(peer.ask(message), "UNKNOWN_TYPE")


def test_odd_but_valid_values_are_kept_exactly(peer: Peer) -> None:
    """Free-form fields may hold any JSON, also what other encodings cannot say."""
    odd = {
        "big": 123456789012345678901234567890,
        "small": -99999999999999999999,
        "nul": "a\x00b",
        "astral": "😀",
        "": "",
        "float": 1e-300,
    }
    reply = peer.ask(producer("odd", metadata=odd, config=odd))
    assert reply["type"] == "PRODUCER_REGISTER_ACK", reply
    (shown,) = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "odd"})["producers"]
    assert shown["metadata"] == shown["config"] == odd
    eventually(lambda: peer.stats()["store"]["written_revision"] == reply["revision"])


def test_unknown_fields_are_ignored(peer: Peer) -> None:
    assert peer.ask(REGISTER | {"future": {"a": 1}, "__proto__": []})["type"] == "PRODUCER_REGISTER_ACK"
