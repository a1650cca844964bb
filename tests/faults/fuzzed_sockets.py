"""Fuzzed bytes for every socket of a hub: each function sends so many frames to one of them.

`check` is called after every batch, while what was sent is still under way: it asks what a well-behaved peer asks.
"""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable

import zmq

from messagehub import MessageHub
from messagehub.protocol.stream_frames import LENGTH
from messagehub.protocol.topic_frames import MAX_FRAME_BYTES, frames_of
from messagehub.services.frames import (
    ANSWER,
    CALL,
    MORE,
    REQUEST,
    SEND,
    STREAM,
    Greeting,
    call,
    greeting,
    key_id,
    more,
)
from registry.records import Worker
from tests.integration.harness import PATIENCE_SECONDS, Peer
from tests.integration.local_peer import LocalPeer, framed
from tests.messaging.service_harness import SECONDS, connected, received, welcomed, worker_of

BATCH = 200
LINGER_MS = 30_000
WRONG = 10
"""How many connections of a batch say something for which a worker hangs up."""
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL"
NAMES = [b"channel/", b"channel/a/", b"fuzz.", b"fuzz.a\0", b"schema/", b"\0", b"", b"x" * 900]
TOPICS = [b"fuzz.a", b"fuzz.retained", b"fuzz.checked", b"fuzz.\xff", b"fuzz..", b"fuzz.>", b"", b"fuzz." + b"a" * 300]
HEADERS = [b"", b"{}", b'{"a":1}', b"[]", b"{", b"\xff", b"[" * 900, b'{"a":"\\ud800"}']
BODIES = [b"", b"{}", b"1", b'"text"', b"[" * 900, b"\xff", b'{"stream":[1,2,3]}', b"NaN"]
Check = Callable[[], None]


def mutated(dice: random.Random, data: bytes) -> bytes:
    """With one to three bytes changed, or with a part left out."""
    changed = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(changed) + 1)
        if dice.random() < 0.7:
            changed[at : at + 1] = dice.randbytes(1)
        else:
            del changed[at : at + dice.randrange(1, 20)]
    return bytes(changed)


def say_raw(dice: random.Random, endpoint: str) -> None:
    """Bytes before, and instead of, a handshake."""
    with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.connect(endpoint.removeprefix("ipc://"))
        raw.sendall(dice.choice((GREETING, b"")) + dice.randbytes(dice.randrange(1, 300)))


def any_frames(dice: random.Random) -> list[bytes]:
    return [dice.randbytes(dice.choice((0, 1, 5, 50))) for _ in range(dice.randrange(1, 12))]


def fuzz_listening(
    endpoint: str, frames: int, seed: int, check: Check, prefix: bytes, ask_for: Callable[[bytes], object]
) -> None:
    """What a subscriber may say: subscriptions, their ends and anything at all.

    Each batch ends with a subscription, to something that begins with `prefix`, of which an echo comes: by itself, or
    when `ask_for` asks for it.
    """
    dice = random.Random(seed)
    with Peer(endpoint, zmq.XSUB, SNDHWM=0, RCVHWM=0) as peer:
        for batch in range(-(-frames // BATCH)):
            for _ in range(BATCH):
                if dice.random() < 0.1:
                    peer.socket.send_multipart(any_frames(dice))
                else:
                    name = dice.choice(NAMES) + dice.randbytes(dice.randrange(3))
                    peer.socket.send(dice.choice((b"\0", b"\1", b"\1", b"\2")) + name)
            say_raw(dice, endpoint)
            check()
            mark = b"%s%d" % (prefix, batch)
            deadline = time.monotonic() + PATIENCE_SECONDS
            peer.socket.send(b"\1" + mark)
            is_echoed = False
            while not is_echoed:
                assert time.monotonic() < deadline, "what was sent is not taken"
                ask_for(mark)
                is_echoed = has_heard(mark, peer.socket)
            peer.socket.send(b"\0" + mark)
        peer.socket.close(LINGER_MS)  # what was sent last is sent before the connection ends


def has_heard(mark: bytes, listening: zmq.Socket[bytes]) -> bool:
    """Whether a message that begins with the mark comes before nothing does for a moment."""
    while listening.poll(10):
        if listening.recv_multipart()[0] == mark:
            return True
    return False


def fuzz_topics_in(endpoint: str, frames: int, seed: int, check: Check) -> None:
    """What a publisher may push: messages, damaged ones, pieces, and anything at all."""
    dice = random.Random(seed)
    with Peer(endpoint, zmq.PUSH, SNDTIMEO=int(SECONDS * 1000)) as peer:
        for _ in range(-(-frames // BATCH)):
            for number in range(BATCH):
                start = dice.choice(TOPICS) + b"\0" + dice.choice((b"publishr", dice.randbytes(8)))
                payload = dice.choice(BODIES) + dice.randbytes(dice.randrange(50))
                sent_at = dice.choice((time.time(), float("nan"), -1e300))
                (frame,) = frames_of(
                    start, number + dice.choice((0, 2**62)), sent_at, dice.randrange(256), dice.choice(HEADERS), payload
                )
                choice = dice.random()
                if choice < 0.1:
                    peer.socket.send_multipart(any_frames(dice))
                else:
                    peer.socket.send(mutated(dice, frame) if choice < 0.6 else frame)
            say_raw(dice, endpoint)
            check()
        peer.socket.close(LINGER_MS)  # as above
    with Peer(endpoint, zmq.PUSH) as peer:
        peer.socket.send(bytes(MAX_FRAME_BYTES + 1))
        check()


def fuzz_local_socket(endpoint: str, frames: int, seed: int, check: Check, body: Callable[[], bytes]) -> None:
    """What a client of this host may say: requests, of which each is answered once, subscriptions, and anything."""
    dice = random.Random(seed)
    with LocalPeer(endpoint) as peer:
        for _ in range(-(-frames // BATCH)):
            said, asked = [], 0
            for _ in range(BATCH - WRONG):
                if dice.random() < 0.8:
                    said.append(framed(0, body()))
                    asked += 1
                else:
                    said.append(framed(dice.choice((1, 1, 2)), dice.choice(NAMES) + dice.randbytes(dice.randrange(3))))
            data = b"".join(said)
            while data:
                size = dice.choice((1, 3, 100, 10_000, 100_000))
                peer.socket.sendall(data[:size])
                data = data[size:]
            for _ in range(WRONG):
                with LocalPeer(endpoint) as wrong, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    wrong.socket.sendall(dice.choice((mutated(dice, said[0]), dice.randbytes(dice.randrange(1, 300)))))
            for _ in range(asked):
                assert peer.reply()["type"]
            check()


def fuzz_worker(hub: MessageHub, address: str, frames: int, seed: int, check: Check) -> None:
    """What a caller may say to a worker, before the handshake and behind it."""
    dice = random.Random(seed)
    for _ in range(-(-frames // BATCH)):
        worker = worker_of(hub, address)
        for _ in range(WRONG):
            greet_wrongly(dice, worker)
            with welcomed(worker) as peer:
                peer.sendall(wrong_call(dice, worker))
        with welcomed(worker) as peer:
            for number in range(1, BATCH - 2 * WRONG):
                peer.sendall(any_call(dice, worker, number))
            peer.sendall(
                call(REQUEST, 0, 0, BATCH, time.monotonic() + SECONDS, worker.worker_id.encode(), b"", b"mine")
            )
            answered = received(peer)
            while struct.unpack_from("<Q", answered, 6)[0] != BATCH:
                answered = received(peer)
                assert answered, "the worker hung up on somebody who did nothing wrong"
            assert answered[ANSWER.size :] == b"mine"
            check()


def greet_wrongly(dice: random.Random, worker: Worker) -> None:
    said = greeting(Greeting(worker.worker_id, key_id(worker.key), "peer", "nonce"))
    with connected(worker.endpoint) as peer, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.sendall(
            dice.choice((dice.randbytes(dice.randrange(100)), mutated(dice, said), said[: dice.randrange(90)]))
        )
        peer.sendall(dice.choice((said, any_call(dice, worker, 1), b"")))


def any_call(dice: random.Random, worker: Worker, number: int) -> bytes:
    """A call that is well-formed, with anything in it."""
    form = dice.choice((REQUEST, REQUEST, REQUEST, STREAM, STREAM, SEND, MORE))
    if form == MORE:
        return more(dice.choice((number, 1, 2**64 - 1)), dice.choice((0, 1, 2**64 - 1)))
    until = time.monotonic() + dice.choice((SECONDS, -1.0))
    headers, body = dice.choice(HEADERS), dice.choice(BODIES)
    return call(
        form, dice.choice((1, 1, 2)), dice.randrange(4), number, until, worker.worker_id.encode(), headers, body
    )


def wrong_call(dice: random.Random, worker: Worker) -> bytes:
    """A call with a byte of its head changed, or any others."""
    said = bytearray(any_call(dice, worker, 1))
    if dice.random() < 0.3:
        return mutated(dice, said)
    said[dice.randrange(LENGTH, CALL.size)] = dice.randrange(256)
    return bytes(said)
