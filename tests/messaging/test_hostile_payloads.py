"""Bytes of other processes as payloads: whatever they are, they are a value or MalformedRequest, and harm no thread."""

import struct
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from messagehub import MessageHub
from messagehub.errors import HandlerFailed, HubError, MalformedRequest
from messagehub.payloads.arrow_compression import is_compressed
from messagehub.payloads.encoding import decode_payload, encode_payload
from messagehub.protocol.topic_frames import ARROW_BATCH, ARROW_TABLE, BYTES, HEAD, IN_BLOCK, JSON
from messagehub.services.frames import ANSWER, FAILED, REQUEST, call
from tests import preloaded
from tests.conftest import QUICK
from tests.integration.harness import ROOT, Peer, Served, clean_environment
from tests.messaging.service_harness import SECONDS, patient_hub, received, welcomed, worker_of

BATCH = pa.RecordBatch.from_pydict({"text": ["one", "two", "three"], "n": [1, 2, 3]})
_, WHOLE = encode_payload(BATCH)
OFFSETS = struct.pack("<4i", 0, 3, 6, 11)
assert WHOLE.count(OFFSETS) == 1
HOSTILE = WHOLE.replace(OFFSETS, struct.pack("<4i", 0, 3, 6, 1_000_000_000))
"""A column of texts whose last one lies a gigabyte behind the message."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("broker") / "hub", "--no-http", **QUICK)
    yield served
    served.close()


@pytest.fixture
def hub(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as connected:
        yield connected


@pytest.mark.parametrize("kind", [ARROW_BATCH, ARROW_TABLE])
def test_offsets_that_point_outside_are_refused_and_not_followed(kind: int) -> None:
    assert decode_payload(kind, memoryview(WHOLE), "t").num_rows == 3
    with pytest.raises(MalformedRequest):
        decode_payload(kind, memoryview(HOSTILE), "t")


@given(st.sampled_from([BYTES, JSON, ARROW_BATCH, ARROW_TABLE]), st.binary(max_size=200))
def test_any_bytes_are_a_payload_or_malformed(kind: int, body: bytes) -> None:
    try:
        decode_payload(kind, memoryview(body), "t")
    except MalformedRequest:
        return


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8), st.sampled_from([ARROW_BATCH, ARROW_TABLE]))
def test_arrow_with_any_damage_is_a_payload_or_malformed(at: int, damage: bytes, kind: int) -> None:
    body = WHOLE[:at] + damage + WHOLE[at + len(damage) :]
    try:
        value = decode_payload(kind, memoryview(body), "t")
    except MalformedRequest:
        return
    value.to_pydict()


def compressed(codec: str, data: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", [ARROW_BATCH, ARROW_TABLE])
def test_a_few_compressed_kilobytes_never_become_gigabytes(codec: str, kind: int) -> None:
    bomb = compressed(codec, pa.record_batch({"x": [0] * 2**20}))
    words = pa.array(["a"] * 2**20).dictionary_encode()
    for body in (bomb, compressed(codec, pa.record_batch({"x": words}))):
        before = pa.total_allocated_bytes()
        with pytest.raises(MalformedRequest, match="compressed"):
            decode_payload(kind, memoryview(body), "t")
        assert pa.total_allocated_bytes() - before < 2**20


def test_what_our_publishers_send_is_not_taken_for_compressed() -> None:
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    nested = pa.array([[{"x": 1}], None, []])
    for data in (pa.record_batch({"x": words, "n": nested}), pa.table({"x": words}), pa.table({}), BATCH.slice(0, 0)):
        kind, body = encode_payload(data)
        assert decode_payload(kind, memoryview(body), "t").equals(data)


@given(st.binary(max_size=64))
def test_any_metadata_is_compressed_or_not_or_no_metadata(metadata: bytes) -> None:
    try:
        assert is_compressed(memoryview(metadata)) in (True, False)
    except ValueError:
        return


FRAMES: dict[str, tuple[int, bytes, bytes]] = {
    "no JSON": (JSON, b"", b"{"),
    "half a character": (JSON, b"", b'"\\ud800"'),
    "nested without end": (JSON, b"", b"[" * 20_000),
    "no Arrow": (ARROW_TABLE, b"", b"\xff" * 100),
    "Arrow that points outside": (ARROW_BATCH, b"", HOSTILE),
    "nothing of Arrow": (ARROW_BATCH, b"", b""),
    "a reference to nothing": (ARROW_TABLE | IN_BLOCK, b"", b'{"name":"../../etc/passwd","host":"","boot_id":""}'),
    "a reference that is none": (ARROW_TABLE | IN_BLOCK, b"", b"\xff"),
    "a reference nested without end": (ARROW_TABLE | IN_BLOCK, b"", b"[" * 20_000),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_hostile_message_of_a_topic_harms_only_who_looks_at_it(
    broker: Served, hub: MessageHub, frame: tuple[int, bytes, bytes]
) -> None:
    kind, headers, body = frame
    with Peer(broker.endpoint) as peer:
        incoming = peer.ask({"type": "HELLO"})["endpoints"]["topics_in"]
    with hub.subscribe("hostile") as subscription, Peer(incoming, zmq.PUSH) as stranger:
        head = HEAD.pack(b"stranger", 1, 0.0, len(headers), kind)
        stranger.socket.send_multipart([b"hostile\0" + head + headers + body])
        message = subscription.receive(SECONDS)
        with pytest.raises(HubError):
            message.payload  # noqa: B018  looking is what raises
        hub.publish("hostile", b"after it")
        assert subscription.receive(SECONDS).payload == b"after it"


@pytest.mark.parametrize(("kind", "body"), [(JSON, b"{"), (ARROW_BATCH, HOSTILE), (ARROW_TABLE, b"\xff" * 9)])
def test_a_hostile_request_fails_its_handler_and_no_more(hub: MessageHub, kind: int, body: bytes) -> None:
    seen: list[Any] = []
    with hub.serve("name:look", lambda message, context: seen.append(message.payload)):
        worker = worker_of(hub, "name:look")
        with welcomed(worker) as peer:
            peer.sendall(call(REQUEST, 1, kind, 1, 1e9, worker.worker_id.encode(), b"", body))
            said = received(peer)
            assert said[4] == FAILED
            assert b"INVALID_REQUEST" in said[ANSWER.size :]
        assert hub.request("name:look", "fine", timeout=SECONDS) is None
    assert seen == ["fine"]


@pytest.mark.parametrize("sent_at", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_message_of_no_time_is_no_message(broker: Served, hub: MessageHub, sent_at: float) -> None:
    with Peer(broker.endpoint) as peer:
        incoming = peer.ask({"type": "HELLO"})["endpoints"]["topics_in"]
    with hub.subscribe("untimely") as subscription, Peer(incoming, zmq.PUSH) as stranger:
        for at in (sent_at, 0.0):
            stranger.socket.send(b"untimely\0" + HEAD.pack(b"stranger", 1, at, 0, JSON) + b"7")
        message = subscription.receive(SECONDS)
        assert (message.sent_at, message.payload) == (0.0, 7)


def test_a_hostile_message_does_not_end_the_command_that_prints_messages(broker: Served, hub: MessageHub) -> None:
    with Peer(broker.endpoint) as peer:
        incoming = peer.ask({"type": "HELLO"})["endpoints"]["topics_in"]
    command = [sys.executable, "-m", "messagehub", "subscribe", "printed", "-n", "2", "--endpoint", broker.endpoint]
    with (
        preloaded.Popen(command, stdout=-1, stderr=-1, text=True, env=clean_environment(), cwd=ROOT) as process,
        Peer(incoming, zmq.PUSH) as stranger,
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == "messagehub: subscribed to printed\n"
        for body in (b"{", b"7"):
            stranger.socket.send(b"printed\0" + HEAD.pack(b"stranger", 1, 0.0, 0, JSON) + body)
        out, complaints = process.communicate(timeout=SECONDS)
    assert out.rstrip().endswith("printed  json  7")
    assert "cannot be read" in complaints
    assert process.returncode == 0


def test_a_callback_that_looks_at_a_hostile_message_goes_on_with_the_next(broker: Served, hub: MessageHub) -> None:
    seen: list[Any] = []
    with Peer(broker.endpoint) as peer:
        incoming = peer.ask({"type": "HELLO"})["endpoints"]["topics_in"]
    with (
        hub.subscribe("called", lambda message: seen.append(message.payload)) as subscription,
        Peer(incoming, zmq.PUSH) as stranger,
    ):
        stranger.socket.send(b"called\0" + HEAD.pack(b"stranger", 1, 0.0, 0, JSON) + b"{")
        stranger.socket.send(b"called\0" + HEAD.pack(b"stranger", 2, 0.0, 0, JSON) + b"7")
        with hub.subscribe("settled") as settled:
            while not seen:
                hub.publish("settled", b"")
                settled.receive(SECONDS)
    assert seen == [7]
    assert subscription.is_closed


def test_a_handler_may_not_return_what_crashes_its_caller(hub: MessageHub) -> None:
    with hub.serve("name:odd", lambda message, context: pa.array([1])), pytest.raises(HandlerFailed):
        hub.request("name:odd", timeout=SECONDS)
