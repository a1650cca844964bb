"""A message of a topic as users see it, made from its frame (topic_frames.py) or from what the broker kept.

Whoever receives checks a frame before anything else looks at it, since any process that reaches the socket may have
written it.
"""

import asyncio
import struct
from math import isfinite
from types import NoneType
from typing import Any, Protocol

import msgspec

from messagehub.arguments import is_numpy_number
from messagehub.errors import ConfigurationError, DataLost, InvalidRequest, MalformedRequest, MessageTooLarge
from messagehub.messaging.arrow_compression import is_compressed
from messagehub.messaging.arrow_values import PLAIN_TYPES, as_arrow, restored
from messagehub.messaging.json_advice import conversion_of
from messagehub.messaging.message_blocks import attach
from messagehub.topic_frames import (
    ARROW_BATCH,
    ARROW_TABLE,
    BYTES,
    HEAD,
    IN_BLOCK,
    JSON,
    KIND_OF,
    incarnation_bytes,
)
from registry.replies import StoredMessage

MAX_MESSAGE_BYTES = 2**20
END_OF_TIME = 253_402_300_800.0  # the year 10000, which `datetime` cannot say
_encode_json = msgspec.json.Encoder(enc_hook=lambda number: number.item()).encode  # of NumPy, the only others let in
_decode_json = msgspec.json.Decoder().decode
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_NO_HEADERS: dict[str, Any] = {}
_SCALARS = frozenset({str, int, bool, NoneType})


class Acknowledging(Protocol):
    def acknowledge(self, offset: int, timeout: float | None) -> None: ...

    def give_back(self, offset: int, timeout: float | None) -> None: ...


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a subscriber gets. Subscribers of one process share it: payloads are decoded anew at each look."""

    topic: str
    publisher: bytes
    number: int
    sent_at: float
    _kind: int
    _frame: bytes
    _body_at: int
    _headers: dict[str, Any]
    is_kept: bool = False
    _block: Any = None  # a table in shared memory, or why there is none
    deliveries: int = 1
    """How often it was handed out under its durable name, this time included."""
    _acknowledgements: "Acknowledging | None" = None

    @property
    def offset(self) -> int | None:
        """Its place in a kept topic: what `since` takes. Of a plain topic, None."""
        return self.number if self.is_kept else None

    @property
    def headers(self) -> dict[str, Any]:
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
    def is_bytes(self) -> bool:
        return self._kind == BYTES

    @property
    def size_bytes(self) -> int:
        """Of the payload; where it is in shared memory, what that takes."""
        return len(self._frame) - self._body_at if self._block is None else getattr(self._block, "nbytes", 0)

    @property
    def frame_bytes(self) -> int:
        """What it holds in memory, headers and shared memory included."""
        return len(self._frame) if self._block is None else len(self._frame) + self.size_bytes

    def ack(self, *, timeout: float | None = None) -> None:
        """Say that it is done. When this returns, that is on the broker's disk, and it does not come again.

        SendTimeout where the broker does not confirm it in time: it may come again then. Only of a subscription with a
        durable name; saying it twice is harmless.
        """
        self._held().acknowledge(self.number, timeout)

    def nak(self, *, timeout: float | None = None) -> None:
        """Give it back: it is handed out again, to any subscriber of the name, as soon as one has room."""
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


def encode_payload(payload: Any) -> tuple[int, bytes]:
    """Its kind and its bytes."""
    if type(payload) is bytes:
        return BYTES, payload
    if type(payload) not in PLAIN_TYPES:
        payload = as_arrow(payload)
    if isinstance(payload, bytes | bytearray | memoryview):
        found = (BYTES, bytes(payload))
    elif type(payload).__module__.partition(".")[0] == "pyarrow":
        found = _write_arrow(payload)
    else:
        found = (JSON, _write_json(payload, "a payload is bytes, a JSON value, an array, a frame or Arrow"))
    return found


def _write_json(value: Any, rule: str) -> bytes:
    """The value as JSON, if it would be read as the same value; InvalidRequest otherwise.

    msgspec alone would write NaN as null, and sets, tuples, dates, bytes and number keys as what they are not.
    """
    advice = "convert it first"
    try:
        found = None if type(value) in _SCALARS else _lost_in_json(value)
        if found is None:
            return _encode_json(value)
        difference, advice = found
    except (TypeError, ValueError, RecursionError) as error:  # half a character, or nested without end
        difference = f": {error}"
    raise InvalidRequest(f"{rule}; what was given{difference}, and would not arrive as it is: {advice}")


def _lost_in_json(value: Any) -> tuple[str, str] | None:
    """Where and what in the value JSON has no form for, and what to do; None when it can say all of it."""
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                return f" has the key {key!r:.100} ({type(key).__name__}, not str)", "make it text"
            if type(item) not in _SCALARS and (found := _lost_in_json(item)) is not None:
                return f"[{key!r:.100}]{found[0]}", found[1]
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if type(item) not in _SCALARS and (found := _lost_in_json(item)) is not None:
                return f"[{index}]{found[0]}", found[1]
    elif type(value) is float or (type(value) not in _SCALARS and is_numpy_number(value)):
        if not isfinite(value):
            return f" is {value}", "JSON has no such number: send None, or text"
    elif type(value) not in _SCALARS:
        return f" is of type {type(value).__name__}", conversion_of(value)
    return None


def arrow_kind(payload: Any) -> int:
    import pyarrow as pa

    return ARROW_BATCH if isinstance(payload, pa.RecordBatch) else ARROW_TABLE


def decode_payload(kind: int, body: memoryview, source: str) -> Any:
    if kind == BYTES:
        return bytes(body)
    try:
        if kind == JSON:
            return _decode_json(body)
        found = _read_arrow(body, kind)
        return restored(found) if kind == ARROW_BATCH else found
    except (ValueError, RecursionError, OSError, EOFError, StopIteration) as error:  # as msgspec and Arrow raise
        raise MalformedRequest(f"the payload of a message of {source!r} cannot be read: {error}") from None


def decode_headers(encoded: bytes | memoryview) -> dict[str, Any]:
    """Raises ValueError."""
    return _decode_headers(encoded) if encoded else {}


def encode_headers(headers: dict[str, Any]) -> bytes:
    rule = "headers are names and JSON values"
    if not isinstance(headers, dict):
        raise InvalidRequest(f"{rule}, not {type(headers).__name__}")
    return _write_json(headers, rule)


def check_size(size_bytes: int) -> None:
    if size_bytes > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"payload and headers have {size_bytes} bytes, the limit is {MAX_MESSAGE_BYTES}: larger data belongs into a"
            " channel (hub.producer), and the channel's name into the message",
            size_bytes=size_bytes,
            limit_bytes=MAX_MESSAGE_BYTES,
        )


def decode(frame: bytes, end: int, topic: str, is_retained: bool) -> Message | None:
    """The message whose topic ends at `end`; None when the bytes are not one."""
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
    block = attach(memoryview(frame)[body_at:], topic) if is_in_block else None
    return Message(topic, publisher, number, sent_at, kind, frame, body_at, headers, is_retained, block)


def from_store(
    topic: str,
    incarnation: int,
    kept: StoredMessage,
    deliveries: int = 1,
    acknowledgements: Acknowledging | None = None,
) -> Message:
    """The same message as its frame would give."""
    return Message(
        topic=topic,
        publisher=incarnation_bytes(incarnation),
        number=kept.offset,
        sent_at=kept.at,
        _kind=KIND_OF[kept.kind],
        _frame=kept.payload,
        _body_at=0,
        _headers=kept.headers,
        is_kept=True,
        deliveries=deliveries,
        _acknowledgements=acknowledgements,
    )


def from_block(block: Any, kind: int) -> Any:
    if isinstance(block, DataLost):
        raise DataLost(block.message, **block.details)  # anew: its traceback would tie the message into a cycle
    if kind == ARROW_TABLE:
        return block
    batch = block.to_batches()[0] if block.num_rows else block.schema.empty_table().to_batches()[0]
    try:
        return restored(batch)
    except ValueError as error:
        raise MalformedRequest(f"the payload of a message cannot be read: {error}") from None


def _write_arrow(payload: Any) -> tuple[int, bytes]:
    import pyarrow as pa

    if isinstance(payload, pa.RecordBatch):
        kind = ARROW_BATCH
    elif isinstance(payload, pa.Table):
        kind = ARROW_TABLE
    else:
        raise InvalidRequest(f"of Arrow, record batches and tables are payloads, not {type(payload).__name__}")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, payload.schema) as writer:
        writer.write(payload)
    return kind, sink.getvalue().to_pybytes()


def _read_arrow(body: memoryview, kind: int) -> Any:
    """Raises ValueError. The cells are checked too: offsets that point outside would crash whoever uses them."""
    import pyarrow as pa

    buffer = pa.py_buffer(body)
    try:
        for message in pa.ipc.MessageReader.open_stream(buffer):
            if is_compressed(memoryview(message.metadata)):
                raise ValueError("its Arrow data is compressed, which may take any memory to read: send it as it is")
        with pa.ipc.open_stream(buffer) as reader:
            found = reader.read_next_batch() if kind == ARROW_BATCH else reader.read_all()
        found.validate(full=True)
        found.schema.names  # noqa: B018  UnicodeDecodeError, a ValueError, where one is no text
    except pa.ArrowException as error:  # not all of them are ValueErrors
        raise ValueError(str(error)) from None
    return found
