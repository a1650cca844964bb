"""The draft messages of the protocol page, from stock ZeroMQ sockets."""

import json
import struct
import time

import pytest
import zmq

from tests.integration.harness import (
    CONSUME,
    DISCOVER,
    DISCOVERED,
    REGISTER,
    AnyBroker,
    Peer,
    eventually,
    run_script,
)

SCRIPT = """
import json, sys, zmq
socket = zmq.Context.instance().socket(zmq.REQ)
socket.connect(sys.argv[1])
for request in map(json.loads, sys.argv[2:]):
    socket.send_json(request)
    reply = socket.recv_json()
print(json.dumps(reply))
socket.close()
zmq.Context.instance().term()
"""


def test_ten_lines_of_plain_req_receive_the_fourth_draft_message_also_when_run_twice(broker: AnyBroker) -> None:
    requests = [json.dumps(request) for request in (REGISTER, CONSUME, DISCOVER)]
    for _ in range(2):
        reply = json.loads(run_script(SCRIPT, broker.endpoint, *requests))
        assert {name: reply[name] for name in DISCOVERED} == DISCOVERED
        assert "id" not in reply


def test_draft_registrations_are_acknowledged_and_idempotent(peer: Peer) -> None:
    first = peer.ask(REGISTER)
    assert first["type"] == "PRODUCER_REGISTER_ACK"
    assert first["shm_name"] == "/pylabhub_sensor_data"
    assert first["producer_id"] == "sensor_data/default"
    consumed = peer.ask(CONSUME)
    assert consumed["type"] == "CONSUMER_REGISTER_ACK"
    assert consumed["schema_hash"] == "abc123..."
    assert peer.ask(REGISTER) == first
    assert peer.ask(CONSUME) == consumed
    assert peer.stats()["revision"] == consumed["revision"]


def test_what_a_producer_registers_comes_back_from_discovery(peer: Peer) -> None:
    full = REGISTER | {
        "producer_id": "camera-1",
        "host": "lab-7",
        "pid": 4711,
        "start_time": 99,
        "boot_id": "b-1",
        "blocks": [{"shm_name": "/own_name", "host": "lab-7", "format": "arrow"}],
        "metadata": {"unit": "mV", "nested": {"é": [1, 2.5, None, True]}},
        "shm_name": "/own_name",
    }
    peer.ask(full)
    found = peer.ask(DISCOVER)
    assert found["shm_name"] == "/own_name"
    assert found["blocks"] == full["blocks"]
    (shown,) = found["producers"]
    for name in ("producer_id", "host", "pid", "start_time", "boot_id", "metadata", "config", "schema_version"):
        assert shown[name] == full[name]
    assert found["schema"] == "unverified"


def test_the_id_of_a_request_is_echoed_also_in_errors(peer: Peer) -> None:
    assert peer.ask(DISCOVER | {"id": "a-1"})["id"] == "a-1"
    refused = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "nobody", "id": "a-2"})
    assert (refused["code"], refused["id"]) == ("CHANNEL_NOT_FOUND", "a-2")
    assert peer.ask({"type": "NONSENSE", "id": "a-3"})["id"] == "a-3"
    assert peer.ask({"type": "DISCOVERY_REQUEST", "id": "a-4"})["id"] == "a-4"


@pytest.mark.parametrize("count", [100, 6000])
def test_a_dealer_may_have_many_requests_in_flight_and_read_late(broker: AnyBroker, count: int) -> None:
    """More than the default high-water marks of both sides, and nothing read until all are sent."""
    with Peer(broker.endpoint, zmq.DEALER, SNDHWM=0) as peer:
        for number in range(count):
            peer.send({"type": "PING", "id": str(number)})
        answered = [peer.receive()["id"] for _ in range(count)]
    assert answered == [str(number) for number in range(count)]


def test_a_dealer_that_reads_nothing_loses_at_most_what_no_buffer_holds_and_stops_nobody(broker: AnyBroker) -> None:
    with Peer(broker.endpoint, zmq.DEALER, SNDHWM=0, RCVHWM=1) as deaf, Peer(broker.endpoint) as other:
        for _ in range(30_000):
            deaf.send({"type": "PING", "id": "x" * 1000})
        assert other.ask({"type": "PING"})["type"] == "PONG"


def test_a_req_client_that_gave_up_on_a_reply_goes_on_with_correlation(broker: AnyBroker) -> None:
    with Peer(broker.endpoint, REQ_CORRELATE=1, REQ_RELAXED=1) as peer:
        for number in range(50):
            peer.send({"type": "PING", "id": f"abandoned-{number}"})
            assert peer.ask({"type": "PING", "id": str(number)})["id"] == str(number)


def test_every_return_path_frame_is_echoed_unchanged(broker: AnyBroker) -> None:
    """ROUTER adds the first frame; with the delimiter and the body, five more fit into eight."""
    path = [b"one", struct.pack("!I", 7), b"\xff\xfe", b"x" * 300, b"{}"]
    with Peer(broker.endpoint, zmq.DEALER) as peer:
        for length in range(len(path) + 1):
            peer.socket.send_multipart([*path[:length], b"", b'{"type":"PING"}'])
            assert peer.socket.poll(30_000)
            *echoed, delimiter, body = peer.socket.recv_multipart()
            assert echoed == path[:length]
            assert delimiter == b""
            assert json.loads(body)["type"] == "PONG"


NOT_ONE_REQUEST = {
    "nine frames": [b"1", b"2", b"3", b"4", b"5", b"6", b"", b'{"type":"PING"}'],
    "a thousand": [b"x"] * 1000 + [b"", b'{"type":"PING"}'],
    "no delimiter": [b'{"type":"PING"}'],
    "path only": [b"x", b'{"type":"PING"}'],
    "empty tail": [b"", b'{"type":"PING"}', b""],
    "two bodies": [b"", b'{"type":"PING"}', b"more"],
    "delimiter only": [b""],
}


def test_frames_that_are_not_one_request_behind_a_path_are_dropped_and_counted(broker: AnyBroker) -> None:
    with Peer(broker.endpoint, zmq.DEALER) as odd, Peer(broker.endpoint) as peer:
        for count, frames in enumerate(NOT_ONE_REQUEST.values(), start=1):
            odd.socket.send_multipart(frames)
            eventually(lambda wanted: peer.counter("bad_frames") == wanted, count)
            odd.send({"type": "PING", "id": "still served"})
            assert odd.receive()["id"] == "still served"


def test_a_peer_that_leaves_before_its_reply_is_counted_and_harms_nobody(broker: AnyBroker, peer: Peer) -> None:
    deadline = time.monotonic() + 30
    while peer.counter("undeliverable") == 0 and time.monotonic() < deadline:
        with Peer(broker.endpoint, zmq.DEALER) as hasty:
            for _ in range(200):
                hasty.send({"type": "CHANNEL_LIST_REQUEST"})
            hasty.receive()
    assert peer.counter("undeliverable") > 0
    assert peer.ask(REGISTER)["type"] == "PRODUCER_REGISTER_ACK"
