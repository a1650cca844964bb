"""The frames that a message of a topic is on the wire: one, or several pieces of a large one.

    topic, 0, publisher (8 bytes), number, sent_at, length of the headers, kind, headers (JSON), payload
    topic, 0, the same head with the flag PIECE, index, count, a part of headers and payload

One frame and not several, where it fits: each costs Python about as much as all the rest of a message. No frame has
more than MAX_FRAME_BYTES, so that the queue of a subscriber that is behind, which libzmq bounds in frames, is bounded
in bytes. The flag IN_BLOCK in the kind says that the payload is a reference to a block in shared memory.

Marks of groups of subscribers (registry/topics/subscriber_groups.py) come between the messages: 0, "group ", the group,
a space, and the mark as a JSON array.

Messages of retained topics come on a socket of their own, into which only the broker writes. The broker numbers them:
the publisher is the topic's incarnation, the number its offset, and whoever counts numbers sees what is missing.
"""

import struct

import msgspec

from registry.events import MessagesRetained
from registry.records import PayloadKind
from registry.topics.subscriber_groups import Mark

BYTES, JSON, ARROW_BATCH, ARROW_TABLE = range(4)
KIND_OF: dict[PayloadKind, int] = {"bytes": BYTES, "json": JSON, "arrow_batch": ARROW_BATCH, "arrow_table": ARROW_TABLE}
NAME_OF: dict[int, PayloadKind] = {kind: name for name, kind in KIND_OF.items()}
PIECE = 0x80
IN_BLOCK = 0x40
PUBLISHER_BYTES = 8
HEAD = struct.Struct("<8sQdIB")  # publisher, number, sent_at, length of the headers, kind
REST = struct.Struct("<QdIB")  # the same without the publisher
PLACE = struct.Struct("<HH")  # of a piece: its index, and how many there are
PIECE_BYTES = 64 * 1024
MAX_FRAME_BYTES = PIECE_BYTES + 1024
MOST_PIECES = 32
GROUP = b"\0group "
_encode = msgspec.json.Encoder().encode
_mark_decoder: msgspec.json.Decoder[Mark] = msgspec.json.Decoder(Mark)


def group_prefix(group: str) -> bytes:
    """How the marks of a group of subscribers begin: with a zero byte, as no topic does."""
    return GROUP + group.encode() + b" "


def group_frame(mark: Mark) -> bytes:
    return group_prefix(mark.group) + _encode(mark)


def group_mark(frame: bytes) -> Mark | None:
    """Return the mark that a frame holds, or None if it holds none."""
    try:
        return _mark_decoder.decode(frame[frame.index(b" [") + 1 :])
    except ValueError:
        return None


def incarnation_bytes(incarnation: int) -> bytes:
    return incarnation.to_bytes(PUBLISHER_BYTES, "little")


def frames_of(start: bytes, number: int, sent_at: float, kind: int, headers: bytes, payload: bytes) -> list[bytes]:
    """Return the frames of one message. `start` is the topic, its end and the publisher."""
    if len(headers) + len(payload) <= PIECE_BYTES:
        return [start + REST.pack(number, sent_at, len(headers), kind) + headers + payload]
    content = memoryview(headers + payload if headers else payload)
    head = start + REST.pack(number, sent_at, len(headers), kind | PIECE)
    count = -(-len(content) // PIECE_BYTES)
    return [
        b"".join((head, PLACE.pack(index, count), content[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]))
        for index in range(count)
    ]


def retained_frames(event: MessagesRetained) -> list[bytes]:
    """The messages as subscribers get them."""
    start = event.name.encode() + b"\0" + incarnation_bytes(event.incarnation)
    frames = []
    for offset, message in enumerate(event.messages, event.offset):
        headers = _encode(message.headers) if message.headers else b""
        frames += frames_of(start, offset, event.at, KIND_OF[message.kind], headers, message.payload)
    return frames
