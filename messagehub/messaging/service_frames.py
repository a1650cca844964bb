"""The frames between a caller and a worker, on a plain stream socket between two processes of one host.

    to a worker    length, form, priority, payload kind, number, deadline, length of the worker's id, length of the
                   headers; then id, headers (JSON), payload
    to a caller    length, form, payload kind, number, load; then the payload (of a failure: JSON)

`length` counts what follows it. The deadline is CLOCK_MONOTONIC, which the processes of a host share; `number` is the
caller's own and comes back with the answer; `load` is how much the worker has in hand. The first frame each way is a
greeting: the caller proves that the registry sent it by the worker's key, the other side answers that it may stay.
"""

import struct
from typing import Any

import msgspec

from messagehub.errors import HubError, from_wire
from messagehub.messaging.topic_messages import MAX_MESSAGE_BYTES
from registry.records import Priority

GREETING, REQUEST, SEND, STREAM = range(4)
WELCOME, REPLY, PARTIAL, REFUSED, TAKEN, FAILED, EXPIRED = range(7)
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
CALL = struct.Struct("<IBBBQdBI")
ANSWER = struct.Struct("<IBBQI")
LENGTH = 4
SCHEME = "unix:@"
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 4096
MAX_GREETING_BYTES = 4096
CHUNK = 2**16
_pack_call, _pack_answer = CALL.pack, ANSWER.pack
_unpack_length = struct.Struct("<I").unpack_from


class Failure(msgspec.Struct):
    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict)
    retryable: bool = False


class Greeting(msgspec.Struct):
    key: str
    sender: str


class NotAFrame(Exception):
    """The other side does not speak this protocol."""


_encode_json = msgspec.json.Encoder().encode
_decode_failure = msgspec.json.Decoder(Failure).decode
decode_greeting = msgspec.json.Decoder(Greeting).decode


def call(
    form: int, priority: int, kind: int, number: int, deadline: float, target: bytes, headers: bytes, body: bytes
) -> bytes:
    length = CALL.size - LENGTH + len(target) + len(headers) + len(body)
    return (
        _pack_call(length, form, priority, kind, number, deadline, len(target), len(headers)) + target + headers + body
    )


def answer(form: int, kind: int, number: int, load: int, body: bytes) -> bytes:
    return _pack_answer(ANSWER.size - LENGTH + len(body), form, kind, number, load) + body


def greeting(key: str, sender: str) -> bytes:
    return call(GREETING, 1, 0, 0, 0.0, b"", b"", _encode_json(Greeting(key, sender)))


def failure(number: int, load: int, error: HubError, form: int = REFUSED) -> bytes:
    """Refused: no handler has seen the message, so that it may be tried again. Failed: one has."""
    try:
        body = _encode_json(Failure(error.code, error.message, error.details, error.retryable))
    except (TypeError, ValueError, RecursionError):  # details, or half a character (a file's name), of a handler's
        text = str(error.message).encode(errors="backslashreplace").decode()
        body = _encode_json(Failure(error.code, text, {}, error.retryable))
    if len(body) > MAX_MESSAGE_BYTES:
        text = str(error.message)[:1000].encode(errors="backslashreplace").decode()
        body = _encode_json(Failure(error.code, text, {}, error.retryable))
    return answer(form, 0, number, load, body)


def read_failure(body: bytes | memoryview) -> HubError:
    try:
        said = _decode_failure(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return HubError("the worker failed, and what it says of it cannot be read")
    return from_wire(said.code, said.message, said.details, retryable=said.retryable)


class Frames:
    """Bytes as they arrive, cut into frames."""

    __slots__ = ("_head_bytes", "_rest", "most_bytes")

    def __init__(self, head: struct.Struct, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self.most_bytes = most_bytes
        self._head_bytes = head.size
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The whole frames that are here now, each with its length in front; raises NotAFrame."""
        if self._rest:
            data = self._rest + data
        found: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= LENGTH:
            size = _unpack_length(data, at)[0] + LENGTH
            if not self._head_bytes <= size <= self.most_bytes:
                raise NotAFrame
            if end - at < size:
                break
            if at == 0 and size == end:
                self._rest = b""
                return [data]
            found.append(data[at : at + size])
            at += size
        self._rest = data[at:]
        return found
