"""The frames between a caller and a worker, on a plain stream socket between two processes of one host, or with a relay
on each of two hosts in between (`between_hosts`).

    to a worker    length, form, priority, payload kind, number, deadline, length of the worker's id, length of the
                   headers; then id, headers (JSON), payload
    to a caller    length, form, payload kind, number, load; then the payload (of a failure: JSON)

`length` counts what follows it. The deadline is CLOCK_MONOTONIC, which the processes of a host share (between hosts it
is the seconds that are left); `number` is the caller's own and comes back with the answer; `load` is how much the
worker has in hand.

A connection is to one worker, and begins with a handshake in which each side proves that it has the worker's key, which
the registry gave it, without showing it:

    caller   GREETING    {"worker_id", "key_id", "sender", "nonce"}
    worker   CHALLENGE   {"nonce", "proof"}    proof: HMAC-SHA256(key, "worker" + the caller's nonce + its own)
    caller   GREETING    {"proof"}             proof: HMAC-SHA256(key, "caller" + its own nonce + the worker's)
    worker   WELCOME

Partial results are sent as far as the caller has room for them: WINDOW_BYTES ahead of what its reader has taken, which
MORE tells. MORE of EVERYTHING says that nobody reads on: further partial results are thrown away.
"""

import hashlib
import hmac
import os
import struct
from typing import Any, Literal

import msgspec

from messagehub.errors import HubError, from_wire
from messagehub.payloads.encoding import MAX_MESSAGE_BYTES
from messagehub.protocol.stream_frames import LENGTH
from registry.records import Priority

GREETING, REQUEST, SEND, STREAM, MORE = range(5)
WELCOME, REPLY, PARTIAL, REFUSED, TAKEN, FAILED, EXPIRED, CHALLENGE = range(8)
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
CALL = struct.Struct("<IBBBQdBI")
ANSWER = struct.Struct("<IBBQI")
SCHEME = "unix:@"
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 4096
MAX_GREETING_BYTES = 4096
WINDOW_BYTES = 8 * 2**20
EVERYTHING = 2**64 - 1
_AMOUNT = struct.Struct("<Q")
_pack_call, _pack_answer = CALL.pack, ANSWER.pack


class RequestFailure(msgspec.Struct):
    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    retryable: bool = False


class Greeting(msgspec.Struct):
    worker_id: str
    key_id: str
    sender: str
    nonce: str


class Challenge(msgspec.Struct):
    nonce: str
    proof: str


class Proof(msgspec.Struct):
    proof: str


_encode_json = msgspec.json.Encoder().encode
_decode_failure = msgspec.json.Decoder(RequestFailure).decode
decode_greeting = msgspec.json.Decoder(Greeting).decode
decode_challenge = msgspec.json.Decoder(Challenge).decode
decode_proof = msgspec.json.Decoder(Proof).decode


def call(
    form: int, priority: int, kind: int, number: int, deadline: float, target: bytes, headers: bytes, body: bytes
) -> bytes:
    length = CALL.size - LENGTH + len(target) + len(headers) + len(body)
    return (
        _pack_call(length, form, priority, kind, number, deadline, len(target), len(headers)) + target + headers + body
    )


def answer(form: int, kind: int, number: int, load: int, body: bytes) -> bytes:
    return _pack_answer(ANSWER.size - LENGTH + len(body), form, kind, number, load) + body


def greeting(said: Greeting | Proof) -> bytes:
    return call(GREETING, 1, 0, 0, 0.0, b"", b"", _encode_json(said))


def challenge(said: Challenge) -> bytes:
    return answer(CHALLENGE, 0, 0, 0, _encode_json(said))


def new_nonce() -> str:
    return os.urandom(16).hex()


def proof_of(side: Literal["worker", "caller"], key: str, callers_nonce: str, workers_nonce: str) -> str:
    """Shows that one side has the key. The other side's proof, or one of another connection, is of no use for it."""
    text = _encode_json([side, callers_nonce, workers_nonce])
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest()


def key_id(key: str) -> str:
    """Which of a worker's keys, without saying it."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def is_proof(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def more(number: int, amount: int) -> bytes:
    return call(MORE, 1, 0, number, 0.0, b"", b"", _AMOUNT.pack(amount))


def read_more(body: bytes | memoryview) -> int | None:
    """How many bytes were taken; None for what does not say so."""
    amount: int | None = _AMOUNT.unpack(body)[0] if len(body) == _AMOUNT.size else None
    return amount


def failure(number: int, load: int, error: HubError, form: int = REFUSED) -> bytes:
    """Refused: no handler has seen the message, so that it may be tried again. Failed: one has."""
    try:
        body = _encode_json(RequestFailure(error.code, error.message, error.details, error.retryable))
    except (TypeError, ValueError, RecursionError):  # details, or half a character (a file's name), of a handler's
        text = str(error.message).encode(errors="backslashreplace").decode()
        body = _encode_json(RequestFailure(error.code, text, {}, error.retryable))
    if len(body) > MAX_MESSAGE_BYTES:
        text = str(error.message)[:1000].encode(errors="backslashreplace").decode()
        body = _encode_json(RequestFailure(error.code, text, {}, error.retryable))
    return answer(form, 0, number, load, body)


def read_failure(body: bytes | memoryview) -> HubError:
    try:
        said = _decode_failure(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return HubError("the worker failed, and what it says of it cannot be read")
    return from_wire(said.code, said.message, said.details, retryable=said.retryable)
