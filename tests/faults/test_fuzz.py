"""Fuzzed bytes never stop the broker: every request gets one answer, no defect is counted, and what is on disk is
what is in memory.

Fifty thousand frames over all sockets in `make test`, a million in `make nightly`, ten million in `make soak`.
"""

import contextlib
import json
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from messagehub import MessageHub
from messagehub.errors import BY_CODE, HubError
from messagehub.protocol import COMMANDS_BY_TYPE
from tests.access.shared import SharedHub
from tests.conftest import QUICK
from tests.faults.fuzzed_sockets import fuzz_listening, fuzz_local_socket, fuzz_topics_in, fuzz_worker
from tests.integration.harness import PATIENCE_SECONDS, AnyBroker, Listener, Message, Peer, Served, producer
from tests.levels import FUZZED_FRAMES, IS_QUICK
from tests.messaging.service_harness import WorkerProcess, patient_hub

pytestmark = pytest.mark.usefixtures("no_leaks")

BATCH = 200
POOL = 20_000
FUZZED = "service:fuzzed"

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


def fuzz(broker: AnyBroker, frames: int, seed: int) -> None:
    with Peer(broker.endpoint, zmq.DEALER, SNDHWM=0, RCVHWM=0) as peer, Peer(broker.endpoint) as witness:
        fuzz_as(peer, witness, frames, seed)


def fuzz_as(peer: Peer, witness: Peer, frames: int, seed: int) -> set[str]:
    """Send so many frames; every message that is one request is answered once. Returns the codes of the refusals."""
    fuzzer = Fuzzer(seed)
    choose = fuzzer.random.choice
    paths = [fuzzer.path() for _ in range(100)]
    bodies: list[bytes] = []
    codes = set()
    sent = 0
    while sent < frames:
        if len(bodies) < POOL:
            bodies += [fuzzer.body() for _ in range(BATCH)]
        for _ in range(BATCH):
            message = [*choose(paths), b"", choose(bodies)]
            peer.socket.send_multipart(message)
            sent += len(message)
        bad = fuzzer.bad_frames()
        peer.socket.send_multipart(bad)
        sent += len(bad)
        for _ in range(BATCH):
            assert peer.socket.poll(PATIENCE_SECONDS * 1000), "no reply"
            answer = peer.socket.recv_multipart()[-1]
            if answer.startswith(b'{"type":"ERROR"'):
                code = json.loads(answer)["code"]
                assert code in BY_CODE, answer
                assert code != "INTERNAL_ERROR", answer
                codes.add(code)
        assert peer.socket.poll(0) == 0
        assert witness.ask({"type": "PING"})["type"] == "PONG"
    stats = witness.stats()
    assert stats["counters"]["internal_errors"] == 0
    assert stats["read_only"] is False
    return codes


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
    fuzz(broker, 50_000, seed=1)
    with Peer(broker.endpoint) as peer:
        assert peer.ask(producer("fine"))["type"] == "PRODUCER_REGISTER_ACK"


@pytest.mark.parametrize("rate", [0, 100])  # far fewer a second than a loaded machine sends
@pytest.mark.parametrize("name", ["limited", "boss"])
def test_fuzzed_requests_of_peers_with_keys_are_each_answered_once(tmp_path: Path, name: str, rate: float) -> None:
    limits = {"requests_per_second": rate, "registrations_per_peer": 20}
    with SharedHub(tmp_path / "hub").running(**limits) as shared, shared.local() as witness:
        with shared.peer(name, zmq.DEALER, SNDHWM=0, RCVHWM=0) as peer:
            codes = fuzz_as(peer, witness, 20_000, seed=5)
        assert ("RATE_LIMITED" in codes, "FORBIDDEN" in codes) == (rate > 0, name == "limited")
        for entry in shared.audit():
            assert entry["who"] == f"key:{name}"


def test_what_fuzzing_left_on_disk_is_what_was_in_memory(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    for seed in range(2, 4):
        fuzz(server, 20_000, seed)
        assert_kept_over_a_kill(server)


class WellBehaved:
    """Somebody who uses everything as it is meant, and is served as if nobody else were there."""

    def __init__(self, server: Served, hub: MessageHub) -> None:
        self.peer = Peer(server.endpoint)
        self.hub = hub
        self.turns = 0
        self.retained = hub.topic("fuzz.retained", keep=1000)
        self.plain = hub.subscribe("checked")
        self.positioned = hub.subscribe("fuzz.retained", since=0)
        self.fuzzed = hub.subscribe("fuzz.>")

    def use(self) -> None:
        self.turns += 1
        assert self.peer.ask({"type": "PING"})["type"] == "PONG"
        self.hub.publish("checked", self.turns, timeout=PATIENCE_SECONDS)
        assert self.plain.receive(PATIENCE_SECONDS).payload == self.turns
        assert self.hub.request(FUZZED, self.turns, timeout=PATIENCE_SECONDS) == self.turns
        if self.turns % 10 == 0:
            offset = self.retained.publish(b"%d" % self.turns, timeout=PATIENCE_SECONDS)
            message = self.positioned.receive(PATIENCE_SECONDS)
            assert (message.offset, message.payload) == (offset, b"%d" % self.turns)
        while self.fuzzed.buffered:
            message = self.fuzzed.receive(0)
            with contextlib.suppress(HubError):  # a payload that cannot be read says why
                assert isinstance(message.headers, dict)
                assert message.payload is not self

    def close(self) -> None:
        self.peer.close()
        for subscription in (self.plain, self.positioned, self.fuzzed):
            subscription.close()


def fuzz_every_socket(server: Served, well_behaved: WellBehaved, frames: int, seed: int) -> None:
    """So many frames, split over the sockets of the broker and that of a service's worker."""
    check, peer = well_behaved.use, well_behaved.peer
    ends = peer.ask({"type": "HELLO"})["endpoints"]

    def ask_for(mark: bytes) -> None:
        peer.ask({"type": "PING", "echo": mark.decode().removeprefix("\0")})

    fuzzers: dict[str, Callable[[int], None]] = {
        "control": lambda count: fuzz(server, count, seed),
        "events": lambda count: fuzz_listening(ends["events"], count, seed, check, b"channel/mark", ask_for),
        "topics_in": lambda count: fuzz_topics_in(ends["topics_in"], count, seed, check),
        "topics_out": lambda count: fuzz_listening(ends["topics_out"], count, seed, check, b"\0", ask_for),
        "topics_retained": lambda count: fuzz_listening(ends["topics_retained"], count, seed, check, b"\0", ask_for),
        "local": lambda count: fuzz_local_socket(server.endpoint, count, seed, check, Fuzzer(seed).body),
        "worker": lambda count: fuzz_worker(well_behaved.hub, FUZZED, count, seed, check),
    }
    assert fuzzers.keys() == {*ends, "local", "worker"}, "a socket that nobody fuzzes"
    for name, send in fuzzers.items():
        began_at = time.monotonic()
        send(frames // len(fuzzers))
        check()
        print(f"{name}: {frames // len(fuzzers)} frames in {time.monotonic() - began_at:.1f} s")


@pytest.mark.soak
@pytest.mark.timeout(120 + FUZZED_FRAMES // 1000)
def test_so_many_frames_over_all_sockets_and_memory_stays_flat(
    tmp_path: Path, served: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    server = served(**QUICK)
    seed = 4 if IS_QUICK else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    log = tmp_path / "worker.log"
    with (
        contextlib.closing(WorkerProcess(server, FUZZED, log=log)) as worker,
        patient_hub(server) as hub,
        contextlib.closing(WellBehaved(server, hub)) as well_behaved,
    ):
        warm: dict[int, int] = {}
        for part in range(4):  # the same again: nothing new to remember
            fuzz_every_socket(server, well_behaved, FUZZED_FRAMES // 4, seed)
            now = {pid: resident_bytes(pid) for pid in (server.pid, worker.pid)}
            warm = warm or now
            print(f"{part}: {[now[pid] - warm[pid] for pid in now]} bytes more in broker and worker")
        assert well_behaved.fuzzed.received > 0
        assert hub.metrics()["topics"]["malformed"] > 0
        assert all(now[pid] < 1.25 * warm[pid] + 16_000_000 for pid in now)
        assert worker.process.poll() is None
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        with log.open() as lines:
            assert not [line for line in lines if "internal error" in line or "Traceback" in line]
        with Listener(server.endpoint, b"channel/") as listener:
            assert well_behaved.peer.ask({"type": "CHANNEL_CREATE", "channel": "after"})["type"] == "CHANNEL_CREATE_ACK"
            assert listener.event()[1]["channel"] == "after"
        counters = well_behaved.peer.stats()["counters"]
        assert counters["internal_errors"] == counters["threads_restarted"] == 0
    assert_kept_over_a_kill(server)


def assert_kept_over_a_kill(server: Served) -> None:
    with Peer(server.endpoint) as peer:
        before = kept(peer)
    server.kill()
    server.start()
    with Peer(server.endpoint) as peer:
        assert kept(peer) == before


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
