"""The one frame that a message of a topic is on the wire.

    topic, 0, publisher (8 bytes), number, sent_at, length of the headers, kind, headers (JSON), payload

One frame and not several: each costs Python about as much as all the rest of a message. The flag IN_BLOCK in the kind
says that the payload is a reference to a block in shared memory. A message of a kept topic has the flag KEPT; there the
broker numbers, so that the publisher is the topic's incarnation, the number its offset, and whoever counts numbers sees
what is missing all the same.
"""

import struct

import msgspec

from registry.events import MessagesKept
from registry.records import PayloadKind

BYTES, JSON, ARROW_BATCH, ARROW_TABLE = range(4)
KIND_OF: dict[PayloadKind, int] = {"bytes": BYTES, "json": JSON, "arrow_batch": ARROW_BATCH, "arrow_table": ARROW_TABLE}
NAME_OF: dict[int, PayloadKind] = {kind: name for name, kind in KIND_OF.items()}
KEPT = 0x80
IN_BLOCK = 0x40
PUBLISHER_BYTES = 8
HEAD = struct.Struct("<8sQdIB")  # publisher, number, sent_at, length of the headers, kind
REST = struct.Struct("<QdIB")  # the same without the publisher
_encode = msgspec.json.Encoder().encode


def incarnation_bytes(incarnation: int) -> bytes:
    return incarnation.to_bytes(PUBLISHER_BYTES, "little")


def kept_frames(event: MessagesKept) -> list[bytes]:
    """The messages as subscribers get them."""
    start = event.name.encode() + b"\0" + incarnation_bytes(event.incarnation)
    frames = []
    for offset, kept in enumerate(event.messages, event.offset):
        headers = _encode(kept.headers) if kept.headers else b""
        rest = REST.pack(offset, event.at, len(headers), KIND_OF[kept.kind] | KEPT)
        frames.append(b"".join((start, rest, headers, kept.payload)))
    return frames
