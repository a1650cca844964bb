"""A message of a topic as users see it, made from its frame (protocol/topic_frames.py) or from what the broker stored.

Whoever receives checks a frame before anything else looks at it, since any process that reaches the socket may have
written it.
"""

import asyncio
import struct
import warnings
from typing import Any, Protocol

import msgspec

from messagehub.errors import ConfigurationError
from messagehub.payloads.blocks import attach
from messagehub.payloads.encoding import decode_payload, from_block
from messagehub.protocol.topic_frames import (
    ARROW_BATCH,
    ARROW_TABLE,
    HEAD,
    IN_BLOCK,
    KIND_OF,
    incarnation_bytes,
)
from registry.replies import StoredMessage

END_OF_TIME = 253_402_300_800.0  # the year 10000, which `datetime` cannot say
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_NO_HEADERS: dict[str, Any] = {}


class Acknowledging(Protocol):
    def acknowledge(self, offset: int, timeout: float | None) -> None: ...

    def give_back(self, offset: int, timeout: float | None) -> None: ...


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message as a subscriber gets it.

    Subscribers of one process share it, so its payload is decoded at each access.
    """

    topic: str
    """The topic that it was published to, without wildcards."""
    publisher: bytes
    """Which publisher sent it, as random bytes; of a retained topic, which life of the topic it is of."""
    number: int
    """The publisher's own count, or in a retained topic the offset."""
    sent_at: float
    """When it was published, in seconds since the epoch; of a retained topic, when the broker stored it."""
    _kind: int
    _frame: bytes
    _body_at: int
    _headers: dict[str, Any]
    frame_bytes: int
    """How much memory the message takes, with headers and shared memory."""
    is_retained: bool = False
    """Whether it is of a retained topic, so that the broker has stored it."""
    _block: Any = None  # a table in shared memory, or why there is none
    deliveries: int = 1
    """How often it was handed out under its durable name, this time included."""
    _acknowledgements: "Acknowledging | None" = None

    @property
    def is_kept(self) -> bool:
        """The former name of `is_retained`, which is to be used instead."""
        warnings.warn("Message.is_kept is now is_retained", DeprecationWarning, stacklevel=2)
        return self.is_retained

    @property
    def offset(self) -> int | None:
        """The offset of a message of a retained topic, which `since` takes. None for one of a plain topic."""
        return self.number if self.is_retained else None

    @property
    def headers(self) -> dict[str, Any]:
        """What the publisher said beside the payload."""
        return dict(self._headers)

    @property
    def payload(self) -> Any:
        """Bytes, what the JSON says, a NumPy array, or an Arrow record batch or table, as it was published.

        A data frame arrives as an Arrow table.

        DataLost where it was put into shared memory that is not of this host, or was removed before it came here.
        """
        if self._block is not None:
            return from_block(self._block, self._kind)
        return decode_payload(self._kind, memoryview(self._frame)[self._body_at :], self.topic)

    @property
    def size_bytes(self) -> int:
        """The size of the payload, or of the shared memory that holds it."""
        return len(self._frame) - self._body_at if self._block is None else _block_bytes(self._block)

    def ack(self, *, timeout: float | None = None) -> None:
        """Acknowledge the message.

        When this returns, that is on the broker's disk, and the message does not come again.

        SendTimeout where the broker does not confirm it in time: it may come again then. Only of a subscription with a
        durable name; saying it twice is harmless.
        """
        self._held().acknowledge(self.number, timeout)

    def nak(self, *, timeout: float | None = None) -> None:
        """Give the message back: it is handed out again, to any subscriber of the name, as soon as one has room."""
        self._held().give_back(self.number, timeout)

    async def ack_async(self, *, timeout: float | None = None) -> None:
        """As `ack`, to be awaited."""
        await asyncio.to_thread(self.ack, timeout=timeout)

    async def nak_async(self, *, timeout: float | None = None) -> None:
        """As `nak`, to be awaited."""
        await asyncio.to_thread(self.nak, timeout=timeout)

    def _held(self) -> "Acknowledging":
        if self._acknowledgements is None:
            raise ConfigurationError(
                "only messages of a subscription with a durable name are acknowledged: hub.subscribe(…, durable=NAME)"
            )
        return self._acknowledgements

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, number={self.number}, {self.size_bytes} bytes)"


def decode(frame: bytes, end: int, topic: str, is_retained: bool) -> Message | None:
    """Return the message whose topic ends at `end`, or None if the bytes are not a message."""
    try:
        publisher, number, sent_at, headers_bytes, kind = HEAD.unpack_from(frame, end + 1)
        headers_at = end + 1 + HEAD.size
        body_at = headers_at + headers_bytes
        is_in_block = bool(kind & IN_BLOCK)
        kind &= ~IN_BLOCK
        is_known = kind <= ARROW_TABLE and not (is_in_block and kind < ARROW_BATCH)
        if not is_known or body_at > len(frame) or not 0.0 <= sent_at < END_OF_TIME:
            return None
        headers = _decode_headers(memoryview(frame)[headers_at:body_at]) if headers_bytes else _NO_HEADERS
    except (ValueError, RecursionError, struct.error):
        return None
    if not is_in_block:
        return Message(topic, publisher, number, sent_at, kind, frame, body_at, headers, len(frame), is_retained)
    block = attach(memoryview(frame)[body_at:], topic)
    size = len(frame) + _block_bytes(block)
    return Message(topic, publisher, number, sent_at, kind, frame, body_at, headers, size, is_retained, block)


def _block_bytes(block: Any) -> int:
    """Return the size of a table in shared memory; of the reason why there is none, 0."""
    return int(getattr(block, "nbytes", 0))


def from_store(
    topic: str,
    incarnation: int,
    stored: StoredMessage,
    deliveries: int = 1,
    acknowledgements: Acknowledging | None = None,
) -> Message:
    """Return the message that the broker stored: the same as its frame would give."""
    return Message(
        topic=topic,
        publisher=incarnation_bytes(incarnation),
        number=stored.offset,
        sent_at=stored.at,
        _kind=KIND_OF[stored.kind],
        _frame=stored.payload,
        _body_at=0,
        _headers=stored.headers,
        frame_bytes=len(stored.payload),
        is_retained=True,
        deliveries=deliveries,
        _acknowledgements=acknowledgements,
    )
