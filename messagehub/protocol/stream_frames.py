"""Frames on a stream socket between two processes of one host: a length, then so many bytes.

`length` is 4 bytes, little-endian, and counts what follows it. Services and the broker's local socket use the same
frames; what follows the length is theirs. On the local socket that is one byte for the kind, then

    to the broker    REQUEST: a request (JSON)             SUBSCRIBE, UNSUBSCRIBE: a topic
    to the client    REPLY: a reply (JSON)                 EVENT: length of the topic (2 bytes), topic, event (JSON)
"""

import struct

LENGTH = 4
REQUEST, SUBSCRIBE, UNSUBSCRIBE = range(3)
REPLY, EVENT = range(2)
HEAD = struct.Struct("<IB")
EVENT_HEAD = struct.Struct("<IBH")
CHUNK = 2**16
"""How many bytes are read from a socket at a time."""
MAX_TOPIC_BYTES = 1024
MAX_REPLY_BYTES = 2**28
_unpack_length = struct.Struct("<I").unpack_from
_pack, _pack_event, _unpack_event = HEAD.pack, EVENT_HEAD.pack, EVENT_HEAD.unpack_from


class NotAFrame(Exception):
    """The other side does not speak this protocol."""


class Frames:
    """Bytes as they arrive, cut into frames."""

    __slots__ = ("_head_bytes", "_rest", "most_bytes")

    def __init__(self, head: struct.Struct, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._head_bytes = head.size
        self._rest = bytearray()  # grows in place: bytes that come one by one cost no more than all at once

    def feed(self, data: bytes) -> list[bytes]:
        """The whole frames that are here now, each with its length in front; raises NotAFrame."""
        if not self._rest and len(data) >= LENGTH and _unpack_length(data)[0] + LENGTH == len(data):
            if not self._head_bytes <= len(data) <= self.most_bytes:
                raise NotAFrame
            return [data]  # the usual single frame
        if self._rest:
            self._rest += data
            size = self._size(self._rest, 0)
            if size is None or len(self._rest) < size:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        found: list[bytes] = []
        at, end = 0, len(data)
        while (size := self._size(data, at)) is not None and end - at >= size:
            found.append(data[at : at + size])
            at += size
        if at < end:
            self._rest += data[at:]
        return found

    def _size(self, data: bytes | bytearray, at: int) -> int | None:
        """Return the size of the frame that begins there, its length included; None before that is known."""
        if len(data) - at < LENGTH:
            return None
        size: int = _unpack_length(data, at)[0] + LENGTH
        if not self._head_bytes <= size <= self.most_bytes:
            raise NotAFrame
        return size


def frame(kind: int, body: bytes) -> bytes:
    return _pack(len(body) + 1, kind) + body


def event_frame(topic: bytes, payload: bytes) -> bytes:
    return _pack_event(len(topic) + len(payload) + 3, EVENT, len(topic)) + topic + payload


def read_event(event: bytes) -> tuple[bytes, bytes]:
    """Return topic and payload of an EVENT frame; raises NotAFrame."""
    if len(event) < EVENT_HEAD.size:
        raise NotAFrame
    payload_at = EVENT_HEAD.size + _unpack_event(event)[2]
    if payload_at > len(event):
        raise NotAFrame
    return event[EVENT_HEAD.size : payload_at], event[payload_at:]
