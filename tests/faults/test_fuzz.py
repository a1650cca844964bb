"""Fuzzed bytes never stop the broker: every request gets one answer, no defect is counted, and what is on disk is
what is in memory.

MESSAGEHUB_SOAK_SECONDS sets how long the `slow` run takes; `make soak` runs it for minutes.
"""

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from messagehub.errors import BY_CODE
from messagehub.protocol import COMMANDS_BY_TYPE
from tests.conftest import QUICK
from tests.integration.harness import AnyBroker, Message, Peer, Served, producer

pytestmark = pytest.mark.usefixtures("no_leaks")

SHORT_SECONDS = 3.0
LONG_SECONDS = float(os.environ.get("MESSAGEHUB_SOAK_SECONDS", "3"))
BATCH = 200

NAMES = ["a", "b", "a.b", "c-1", "a | pid:1-0", "", "1", "hub.x", "a" * 200, "x" * 1025, "\0", "é", "a\n", "..", "/"]
LABELS = ["h", "abc123...", "", "h" * 256, "h" * 257, "\0", "😀"]
SCHEMAS: list[Any] = [
    {"type": "object"},
    {},
    True,
    [],
    "int",
    '{"type":"string"}',
    "{",
    "",
    "[" * 2000,
    "[" * 900 + "]" * 900,
    '{"a":' * 400 + "1" + "}" * 400,
    "syntax = 'proto3';",
    {"$ref": "file:///etc/passwd"},
    {"a": [[[[[{}]]]]]},
]
ANYTHING: list[Any] = [
    None,
    True,
    0,
    -1,
    2**53,
    2**53 + 1,
    2**64,
    10**400,
    1.5,
    1e308,
    "",
    "x",
    "\0",
    [],
    {},
    [[]],
    {"a": {"b": 1}},
    "a" * 2000,
]
FIELDS: dict[str, list[Any]] = {
    "channel": NAMES,
    "consumer_id": NAMES,
    "producer_id": NAMES,
    "group": NAMES,
    "subject": [*NAMES, "s", "t"],
    "schema_hash": LABELS,
    "expected_schema_hash": LABELS,
    "lease": LABELS,
    "shm_name": ["/ok", "/a/b", "no", "/..", "/\0", ""],
    "schema": SCHEMAS,
    "schema_type": ["JSON", "AVRO", "PROTOBUF", "ARROW", "XML"],
    "access": ["exclusive", "shared", "none"],
    "priority": ["high", "normal", "low", "urgent"],
    "protocol": ["1.0", "1.9", "2.0", "", "x"],
    "config": [{}, {"policy": "RingBuffer"}, {"policy": None}, {"n": 10**30}, [], None],
    "metadata": [{}, {"k": [1, {"é": None}]}, {"n": -(10**25)}, {"f": 1e-300}, "x"],
    "blocks": [
        [],
        [{"shm_name": "/b"}],
        [{"shm_name": ""}],
        [{}],
        {},
        [{"shm_name": "/b", "host": "h", "format": "f"}] * 150,
    ],
    "ready": [True, False, 1],
    "required": [True, False],
    "limit": [1, 2, 10_000, 10_001, 0, -1],
    "after": ["", "a", "zzz", "\0"],
    "prefix": ["", "a", "zzz"],
    "blocks_offset": [0, 1, 100, 10**9, -1],
    "schema_id": [0, 1, 2, 10**9, -1],
    "version": [0, 1, 2, 10**9],
    "versions": [["1.0"], [], ["2.0"], [1]],
    "correlation_id": ["x", ""],
    "pid": [0, 1, -1, 2**53],
}


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self) -> Message:
        choose = self.random.choice
        kind = choose([*COMMANDS_BY_TYPE, choose(["NONSENSE", "PING "])])
        message: Message = {"type": kind}
        likely = [name for name in FIELDS if hasattr(COMMANDS_BY_TYPE.get(kind, object), name)]
        for name in likely:
            if self.random.random() < 0.6:
                message[name] = choose(FIELDS[name])
        for _ in range(self.random.choice([0, 0, 0, 1, 3])):
            message[choose([*FIELDS, "type", "id", "extra"])] = choose(ANYTHING)
        return message

    def body(self) -> bytes:
        text = json.dumps(self.message()).encode()
        roll = self.random.random()
        if roll < 0.75:
            return text
        broken = bytearray(text)
        for _ in range(self.random.randint(1, 8)):
            place = self.random.randrange(len(broken) or 1)
            action = self.random.randrange(4)
            if action == 0 and broken:
                broken[place % len(broken)] = self.random.randrange(256)
            elif action == 1:
                del broken[place : place + self.random.randint(1, 20)]
            elif action == 2:
                broken[place:place] = self.random.choice(
                    [b"\\ud800", b"\\udc00\\ud800", b"[" * 300, b"1e999", b"\xff", b'"', b"{", b"\0"]
                )
            else:
                broken[place:place] = broken[: self.random.randint(1, 50)]
        return bytes(broken)

    def path(self) -> list[bytes]:
        """A return path that is short enough to be answered."""
        return [self.random.randbytes(self.random.randint(1, 40)) for _ in range(self.random.choice([0, 0, 0, 1, 5]))]

    def bad_frames(self) -> list[bytes]:
        count = self.random.choice([1, 2, 9, 30])
        return [self.random.randbytes(self.random.randint(1, 10)) for _ in range(count)]


def fuzz(broker: AnyBroker, seconds: float, seed: int) -> int:
    """Send for so long; every message that is one request is answered once."""
    fuzzer = Fuzzer(seed)
    deadline = time.monotonic() + seconds
    sent = 0
    with Peer(broker.endpoint, zmq.DEALER, SNDHWM=0, RCVHWM=0) as peer, Peer(broker.endpoint) as judge:
        while time.monotonic() < deadline:
            for _ in range(BATCH):
                peer.socket.send_multipart([*fuzzer.path(), b"", fuzzer.body()])
                if fuzzer.random.random() < 0.02:
                    peer.socket.send_multipart(fuzzer.bad_frames())
            for _ in range(BATCH):
                reply = peer.receive()
                if reply["type"] == "ERROR":
                    assert reply["code"] in BY_CODE, reply
                    assert reply["code"] != "INTERNAL_ERROR", reply
            assert peer.socket.poll(0) == 0
            sent += BATCH
            assert judge.ask({"type": "PING"})["type"] == "PONG"
        stats = judge.stats()
        assert stats["counters"]["internal_errors"] == 0
        assert stats["read_only"] is False
    return sent


def kept(peer: Peer) -> dict[str, Any]:
    """What a restart must give back."""
    channels = peer.snapshot()
    for channel in channels.values():
        del channel["revision"]
        if not channel["producers"]:
            for name in ("schema", "schema_hash", "schema_version", "schema_type", "schema_id", "access"):
                del channel[name]
        for member in [*channel["producers"].values(), *channel["consumers"].values()]:
            del member["status"]
    subjects = peer.ask({"type": "SCHEMA_LIST_REQUEST", "limit": 10_000})["subjects"]
    versions = {name: peer.ask({"type": "SCHEMA_LIST_REQUEST", "subject": name})["versions"] for name in subjects}
    return {"channels": channels, "schemas": versions}


def test_fuzzed_requests_are_each_answered_once(broker: AnyBroker) -> None:
    assert fuzz(broker, SHORT_SECONDS, seed=1) > 0
    with Peer(broker.endpoint) as peer:
        assert peer.ask(producer("fine"))["type"] == "PRODUCER_REGISTER_ACK"


def test_what_fuzzing_left_on_disk_is_what_was_in_memory(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    for seed in range(2, 4):
        fuzz(server, SHORT_SECONDS / 3, seed)
        with Peer(server.endpoint) as peer:
            before = kept(peer)
        server.kill()
        server.start()
        with Peer(server.endpoint) as peer:
            assert kept(peer) == before


@pytest.mark.slow
@pytest.mark.timeout(LONG_SECONDS * 4 + 120)
def test_fuzzing_for_long(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    deadline = time.monotonic() + LONG_SECONDS
    while time.monotonic() < deadline:
        fuzz(server, min(20.0, LONG_SECONDS), seed)
        seed += 1
        with Peer(server.endpoint) as peer:
            before = kept(peer)
        server.kill()
        server.start()
        with Peer(server.endpoint) as peer:
            assert kept(peer) == before
