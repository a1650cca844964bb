"""What peers of a worker can do to it and to each other: keys, strangers, slow readers, full mailboxes, garbage."""

import contextlib
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagehub import MessageHub
from messagehub.errors import HubError, MailboxFull, NoResponse, RequestTimeout, RouteError
from messagehub.protocol.stream_frames import Frames
from messagehub.services import server as service_server
from messagehub.services import server_connections as service_callers
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.services.frames import (
    ANSWER,
    CALL,
    CHALLENGE,
    FAILED,
    MAX_FRAME_BYTES,
    MORE,
    PARTIAL,
    REPLY,
    REQUEST,
    SEND,
    STREAM,
    WELCOME,
    Challenge,
    Greeting,
    Proof,
    answer,
    call,
    challenge,
    decode_greeting,
    greeting,
    key_id,
    proof_of,
)
from tests.access.test_places import as_nobody, needs_root
from tests.conftest import QUICK
from tests.integration.harness import Peer, Served, eventually
from tests.messaging.service_harness import (
    SECONDS,
    Gate,
    connected,
    metrics,
    patient_hub,
    received,
    welcomed,
    worker_of,
)

PIECE = b"x" * (2**20 - 100)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("broker") / "hub", "--no-http", **QUICK)
    yield served
    served.close()


@pytest.fixture
def hub(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as connected_hub:
        yield connected_hub


@pytest.fixture
def caller(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as connected_hub:
        yield connected_hub


def echo(message: ServiceMessage, context: ServiceContext) -> Any:
    return message.payload


def is_hung_up(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True  # it had not read all that was said


def frame(form: int, worker_id: str, body: bytes = b"", *, number: int = 1, deadline: float | None = None) -> bytes:
    until = time.monotonic() + SECONDS if deadline is None else deadline
    return call(form, 1, 0, number, until, worker_id.encode(), b"", body)


# -- keys ------------------------------------------------------------------------------------------------------


def test_the_key_of_one_service_opens_no_other_of_its_process(hub: MessageHub) -> None:
    handled: list[Any] = []
    with hub.serve("name:open", echo), hub.serve("name:secret", lambda message, context: handled.append(1)):
        opened, secret = worker_of(hub, "name:open"), worker_of(hub, "name:secret")
        assert opened.endpoint == secret.endpoint
        assert opened.key != secret.key
        with welcomed(opened) as peer:
            peer.sendall(frame(REQUEST, opened.worker_id, b"1"))
            assert received(peer)[ANSWER.size :] == b"1"
            peer.sendall(frame(REQUEST, secret.worker_id, b"2"))
            assert is_hung_up(peer)
        with connected(secret.endpoint) as peer:
            peer.sendall(greeting(Greeting(secret.worker_id, key_id(secret.key), "peer", "n")))
            said = received(peer)
            assert said[4] == CHALLENGE
            nonce = Challenge(**json.loads(said[ANSWER.size :])).nonce
            peer.sendall(greeting(Proof(proof_of("caller", opened.key, "n", nonce))))
            assert is_hung_up(peer)
    assert handled == []


def test_a_proof_is_good_for_one_connection_and_one_side(hub: MessageHub) -> None:
    with hub.serve("name:one", echo):
        worker = worker_of(hub, "name:one")
        for proof in (
            lambda nonce: proof_of("worker", worker.key, "n", nonce),
            lambda nonce: proof_of("caller", worker.key, "n", "of another connection"),
            lambda nonce: worker.key,
            lambda nonce: "\ud800",
            lambda nonce: "",
        ):
            with connected(worker.endpoint) as peer:
                peer.sendall(greeting(Greeting(worker.worker_id, key_id(worker.key), "peer", "n")))
                nonce = json.loads(received(peer)[ANSWER.size :])["nonce"]
                said = proof(nonce)
                if said == "\ud800":
                    peer.sendall(call(0, 1, 0, 0, 0.0, b"", b"", b'{"proof":"\\ud800"}'))
                else:
                    peer.sendall(greeting(Proof(said)))
                assert is_hung_up(peer)
        assert hub.request("name:one", 1, timeout=SECONDS) == 1


class Impostor:
    """A listener that was registered as a worker's endpoint; runs what it is given on each connection."""

    def __init__(self, broker: Served, name: str, act: Callable[["Impostor", socket.socket], None]) -> None:
        self.key, self.worker_id = "k" * 32, name
        self.heard = b""
        self._act = act
        self._listener = self._current = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0test-{name}-{id(self)}")
        self._listener.listen()
        self._peer = Peer(broker.endpoint)
        registered = self._peer.ask(
            {
                "type": "SERVICE_REGISTER",
                "address": f"name:{name}",
                "worker_id": name,
                "endpoint": f"unix:@test-{name}-{id(self)}",
                "key": self.key,
                "lease": f"lease-{name}",
            }
        )
        assert registered["type"] == "SERVICE_REGISTER_ACK"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(SECONDS)
                self._current = peer
                with contextlib.suppress(OSError):  # it hung up
                    self._act(self, peer)

    def shake_hands(self, peer: socket.socket) -> None:
        """As the real worker would."""
        said = decode_greeting(self.next_call(peer)[CALL.size :])
        peer.sendall(challenge(Challenge("w", proof_of("worker", self.key, said.nonce, "w"))))
        self.next_call(peer)
        peer.sendall(answer(WELCOME, 0, 0, 0, b""))

    def next_call(self, peer: socket.socket) -> bytes:
        head = peer.recv(4)
        if not head:
            raise ConnectionError
        data = head + peer.recv(int.from_bytes(head, "little"))
        self.heard += data
        return data

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):  # it has ended
            self._current.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)
        self._peer.ask({"type": "SERVICE_UNREGISTER", "worker_id": self.worker_id, "lease": f"lease-{self.worker_id}"})
        self._peer.close()

    def __enter__(self) -> "Impostor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def welcome_blindly(impostor: Impostor, peer: socket.socket) -> None:
    impostor.next_call(peer)
    peer.sendall(answer(WELCOME, 0, 0, 0, b""))
    impostor.heard += peer.recv(100_000)


def challenge_blindly(impostor: Impostor, peer: socket.socket) -> None:
    impostor.next_call(peer)
    peer.sendall(challenge(Challenge("w", "0" * 64)))
    impostor.heard += peer.recv(100_000)


@pytest.mark.parametrize("act", [welcome_blindly, challenge_blindly])
def test_whoever_takes_the_place_of_a_worker_learns_neither_its_key_nor_a_message(
    broker: Served, caller: MessageHub, act: Callable[[Impostor, socket.socket], None]
) -> None:
    with Impostor(broker, "usurped", act) as impostor:
        with pytest.raises(RouteError):
            caller.request("name:usurped", b"a secret payload", timeout=SECONDS)
        assert impostor.heard
        assert impostor.key.encode() not in impostor.heard
        assert b"a secret payload" not in impostor.heard


# -- strangers -------------------------------------------------------------------------------------------------


def hold_open(endpoint: str, count: int, kept: int) -> list[str]:
    """Connect so often and say nothing; the numbers of those that were hung up on when only so many are left."""
    peers = [connected(endpoint) for _ in range(count)]
    poll = select.poll()
    for peer in peers:
        poll.register(peer, select.POLLIN)
    deadline = time.monotonic() + SECONDS
    found: list[int] = []
    while len(found) < count - kept and time.monotonic() < deadline:
        ended = {fd for fd, _ in poll.poll(100)}
        found = [number for number, peer in enumerate(peers) if peer.fileno() in ended]
    return [str(number) for number in found]


@needs_root
def test_another_user_holds_a_bounded_number_of_connections(
    hub: MessageHub, caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_server, "GREETING_SECONDS", 60.0)
    with hub.serve("name:one", echo):
        assert caller.request("name:one", 1, timeout=SECONDS) == 1
        endpoint, most = worker_of(hub, "name:one").endpoint, service_server.MOST_STRANGERS
        ended = as_nobody(lambda: hold_open(endpoint, most + 20, most))
        assert ended == [str(number) for number in range(20)]
        assert caller.request("name:one", 2, timeout=SECONDS) == 2


def test_many_processes_of_our_own_user_may_come_at_once(hub: MessageHub) -> None:
    with hub.serve("name:one", echo):
        worker = worker_of(hub, "name:one")
        peers = [connected(worker.endpoint) for _ in range(service_server.MOST_STRANGERS + 20)]
        for peer in peers:
            with peer:
                peer.sendall(greeting(Greeting(worker.worker_id, key_id(worker.key), "peer", "n")))
                assert received(peer)[4] == CHALLENGE


def test_a_stranger_that_says_nothing_is_hung_up_on(
    hub: MessageHub, caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_server, "GREETING_SECONDS", 4.0)
    with hub.serve("name:one", echo):
        worker = worker_of(hub, "name:one")
        with connected(worker.endpoint) as silent, connected(worker.endpoint) as halfway:
            halfway.sendall(greeting(Greeting(worker.worker_id, key_id(worker.key), "peer", "n")))
            assert received(halfway)[4] == CHALLENGE
            assert is_hung_up(silent)
            assert is_hung_up(halfway)
        assert caller.request("name:one", 1, timeout=SECONDS) == 1
        with welcomed(worker) as idle:  # who has shown the key may wait as long as it likes
            with connected(worker.endpoint) as stranger:
                assert is_hung_up(stranger)
            idle.sendall(frame(REQUEST, worker.worker_id, b"late"))
            assert received(idle)[ANSWER.size :] == b"late"


# -- slow readers of streams -----------------------------------------------------------------------------------


class Stream:
    """A handler that streams pieces of 1 MiB, and counts them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sent = 0
        self.ended = threading.Event()

    def __call__(self, message: ServiceMessage, context: ServiceContext) -> int:
        try:
            for _ in range(self.count):
                context.stream(PIECE)
                self.sent += 1
        finally:
            self.ended.set()
        return self.count


def test_a_slow_reader_of_a_stream_holds_a_bounded_part_of_it(hub: MessageHub, caller: MessageHub) -> None:
    stream = Stream(100)
    with hub.serve("name:long", stream), caller.stream("name:long", timeout=60) as streamed:
        assert next(streamed) == PIECE
        eventually(lambda: stream.sent >= 8)
        assert not stream.ended.wait(1.0)
        assert stream.sent <= 12
        assert sum(map(len, streamed)) == 99 * len(PIECE)
        assert streamed.result == 100


def test_a_slow_reader_does_not_hold_up_the_other_requests_of_its_process(hub: MessageHub, caller: MessageHub) -> None:
    stream = Stream(50)
    with (
        hub.serve("name:long", lambda m, c: stream(m, c) if m.payload == "stream" else m.payload, concurrency=2),
        caller.stream("name:long", "stream", timeout=60) as streamed,
    ):
        assert next(streamed) == PIECE
        eventually(lambda: stream.sent >= 8)
        for number in range(100):
            assert caller.request("name:long", number, timeout=SECONDS) == number
        assert not stream.ended.is_set()
        assert sum(map(len, streamed)) == 49 * len(PIECE)


def test_the_handler_of_a_stream_that_nobody_reads_on_is_told_so(hub: MessageHub, caller: MessageHub) -> None:
    stream = Stream(100)
    with hub.serve("name:long", stream):
        streamed = caller.stream("name:long", timeout=60)
        assert next(streamed) == PIECE
        eventually(lambda: stream.sent >= 8)
        streamed.close()
        assert stream.ended.wait(SECONDS)
        assert stream.sent < 100
        assert caller.stream("name:long", timeout=60).result == 100


def test_the_handler_of_a_stream_waits_no_longer_than_its_caller(hub: MessageHub, caller: MessageHub) -> None:
    stream = Stream(100)
    with hub.serve("name:long", stream):
        streamed = caller.stream("name:long", timeout=4.0)
        assert next(streamed) == PIECE
        assert stream.ended.wait(SECONDS)
        with pytest.raises(RequestTimeout):  # and not a part of it, with a reply
            list(streamed)


def test_a_handler_that_goes_on_past_the_deadline_cannot_make_a_part_look_whole(
    hub: MessageHub, caller: MessageHub
) -> None:
    ended = threading.Event()

    def stream(message: ServiceMessage, context: ServiceContext) -> str:
        for _ in range(30):
            with contextlib.suppress(RequestTimeout):
                context.stream(PIECE)
        ended.set()
        return "whole"

    with hub.serve("name:long", stream):
        streamed = caller.stream("name:long", timeout=4.0)
        assert ended.wait(SECONDS)
        with pytest.raises(RequestTimeout):
            list(streamed)


# -- mailboxes that have senders wait --------------------------------------------------------------------------


def test_what_waits_for_room_does_not_hold_up_its_connection(hub: MessageHub, caller: MessageHub) -> None:
    gate = Gate()
    with hub.serve("name:full", gate, mailbox=1) as full:
        caller.send("name:full", "running", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        caller.send("name:full", "queued", timeout=SECONDS)
        waiting = [caller.begin_request("name:full", number, priority="high", timeout=SECONDS) for number in range(5)]
        # private: a message that waits for room is counted only when there is room for it
        eventually(lambda: len(full.mailbox._blocked) == 5)
        with pytest.raises(MailboxFull):
            caller.request("name:full", "refused at once", timeout=SECONDS)
        gate.opened.set()
        assert [each.result() for each in waiting] == list(range(5))
    assert gate.seen == ["running", "queued", 0, 1, 2, 3, 4]
    counted = metrics(hub)
    assert counted["received"] == counted["handled"] + counted["refused"] == 8


def test_of_one_connection_a_bounded_number_waits_for_room_and_the_rest_in_order(
    hub: MessageHub, caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_callers, "MOST_BLOCKED", 3)
    gate = Gate()
    with hub.serve("name:full", gate, mailbox=1, overflow="block") as full:
        pending = [caller.begin_request("name:full", number, timeout=SECONDS) for number in range(30)]
        assert gate.entered.acquire(timeout=SECONDS)
        # private: a message that waits for room is counted only when there is room for it
        eventually(lambda: len(full.mailbox._blocked) == 3)
        gate.opened.set()
        assert [each.result() for each in pending] == list(range(30))
    assert gate.seen == list(range(30))


def test_many_threads_at_a_full_mailbox_all_get_their_own_answer(hub: MessageHub, caller: MessageHub) -> None:
    with hub.serve("name:full", echo, mailbox=1, concurrency=3, overflow="block"), ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: caller.request("name:full", n, timeout=SECONDS), range(400)))
    assert answers == list(range(400))


def test_a_stream_ends_although_its_caller_has_more_waiting_than_it_may(
    hub: MessageHub, caller: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_callers, "MOST_BLOCKED", 2)
    stream = Stream(30)
    handler = lambda m, c: stream(m, c) if m.payload == "stream" else m.payload  # noqa: E731
    with hub.serve("name:both", handler, mailbox=1, overflow="block"):
        with caller.stream("name:both", "stream", timeout=60) as streamed:
            assert next(streamed) == PIECE
            pending = [caller.begin_request("name:both", number, timeout=60) for number in range(10)]
            assert sum(map(len, streamed)) == 29 * len(PIECE)
        assert [each.result() for each in pending] == list(range(10))


# -- garbage ---------------------------------------------------------------------------------------------------


def test_nothing_that_a_caller_says_ends_the_threads_of_a_worker(hub: MessageHub, caller: MessageHub) -> None:
    deep = b"[" * 1900 + b"]" * 1900
    with hub.serve("name:one", lambda message, context: message.headers and message.payload) as served:
        worker = worker_of(hub, "name:one")
        target = worker.worker_id.encode()
        for said in (
            b'{"worker_id":"\\ud800","key_id":"","sender":"","nonce":""}',
            b'{"worker_id":"%s","sender":"\\ud800","nonce":"\\ud800"}' % target,
            b'{"worker_id":"%s","key_id":"x","sender":"x","nonce":""}' % target,
            b'{"worker_id":"%s","key_id":"x","sender":"x","nonce":{}}' % target,
            b'{"proof":"x"}',
            deep,
            b"\xff",
        ):
            with connected(worker.endpoint) as peer:
                peer.sendall(call(0, 1, 0, 0, 0.0, b"", b"", said))
                assert is_hung_up(peer)
        for number, wrong in enumerate(
            (
                frame(REQUEST, worker.worker_id, deadline=float("nan")),
                frame(STREAM, worker.worker_id, deadline=float("inf")),
                frame(9, worker.worker_id),
                call(REQUEST, 7, 0, 1, 0.0, target, b"", b""),
                call(REQUEST, 1, 9, 1, 0.0, target, b"", b""),
                call(MORE, 1, 0, 1, 0.0, b"", b"", b"short"),
                struct.pack("<IBBBQdBI", CALL.size - 4, REQUEST, 1, 0, 1, 0.0, 255, 2**32 - 1),
            )
        ):
            with welcomed(worker) as peer:
                peer.sendall(wrong)
                assert is_hung_up(peer), number
        with welcomed(worker) as peer:
            for headers in (b"\xff", deep, b"[]"):
                peer.sendall(call(REQUEST, 1, 0, 1, time.monotonic() + 60, target, headers, b""))
                assert received(peer)[4] == FAILED
            peer.sendall(call(MORE, 1, 0, 99, 0.0, b"", b"", struct.pack("<Q", 2**64 - 1)))
            peer.sendall(call(STREAM, 1, 0, 2, 1e9, target, b"", b"fine"))
            assert received(peer)[4] == REPLY
            peer.sendall(call(SEND, 1, 1, 3, time.monotonic() + 60, target, b"", b"no JSON"))
        assert caller.request("name:one", 7, headers={"a": 1}, timeout=SECONDS) == 7
        assert served.is_registered


ANSWERS = {
    "an unknown form": lambda number: answer(200, 0, number, 0, b""),
    "an unknown kind": lambda number: answer(REPLY, 200, number, 0, b""),
    "a handshake": lambda number: answer(WELCOME, 0, number, 0, b""),
    "a failure that is none": lambda number: answer(FAILED, 0, number, 0, b"\xff"),
    "a failure with odd details": lambda number: answer(
        FAILED, 0, number, 0, b'{"code":"HANDLER_FAILED","message":"m","details":{"message":1,"self":2}}'
    ),
    "a failure nested without end": lambda number: answer(FAILED, 0, number, 0, b"[" * 9999),
    "no frame": lambda number: b"\xff" * 100,
    "a half frame": lambda number: answer(REPLY, 0, number, 0, b"x" * 100)[:50],
    "a payload that is none": lambda number: answer(REPLY, 1, number, 0, b"{"),
    "Arrow that is none": lambda number: answer(REPLY, 2, number, 0, b"\xff" * 100),
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
def test_nothing_that_a_worker_says_ends_a_thread_of_its_caller(
    broker: Served, hub: MessageHub, caller: MessageHub, said: Callable[[int], bytes]
) -> None:
    def act(impostor: Impostor, peer: socket.socket) -> None:
        impostor.shake_hands(peer)
        while True:
            number = CALL.unpack_from(impostor.next_call(peer))[4]
            peer.sendall(said(number))
            if said is ANSWERS["a half frame"]:
                return

    with Impostor(broker, "odd", act), hub.serve("name:one", lambda m, c: c.stream(1)):
        for ask in (caller.stream, caller.request, caller.stream):
            with pytest.raises(HubError):
                list(ask("name:odd", timeout=SECONDS))
        assert list(caller.stream("name:one", timeout=SECONDS)) == [1]


def test_a_worker_that_ignores_its_readers_room_cannot_fill_its_callers_memory(
    broker: Served, caller: MessageHub
) -> None:
    def act(impostor: Impostor, peer: socket.socket) -> None:
        impostor.shake_hands(peer)
        number = CALL.unpack_from(impostor.next_call(peer))[4]
        for _ in range(200):
            peer.sendall(answer(PARTIAL, 0, number, 0, PIECE))

    with Impostor(broker, "flood", act):
        streamed = caller.stream("name:flood", timeout=60)
        # private: how much has come and waits to be read is shown nowhere
        stream = streamed._call
        # private: as above
        eventually(lambda: stream._bytes_in > 64 * 2**20)
        with pytest.raises(NoResponse):
            list(streamed)


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), max_size=40))
def test_frames_are_the_same_however_the_bytes_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    sent = [answer(REPLY, 0, number, 0, body) for number, body in enumerate(bodies)]
    data, frames, found = b"".join(sent), Frames(ANSWER, MAX_FRAME_BYTES), []
    for cut in cuts:
        part, data = data[:cut], data[cut:]
        found += frames.feed(part) if part else []
    found += frames.feed(data) if data else []
    assert found == sent


def test_a_handler_that_reads_odd_headers_fails_and_says_so(hub: MessageHub) -> None:
    with hub.serve("name:one", lambda message, context: message.headers):
        worker = worker_of(hub, "name:one")
        with welcomed(worker) as peer:
            peer.sendall(call(REQUEST, 1, 0, 1, time.monotonic() + 60, worker.worker_id.encode(), b"{", b""))
            said = received(peer)
            assert said[4] == FAILED
            assert b"INVALID_REQUEST" in said
