"""Payloads and headers as bytes and back: bytes, JSON values, arrays, frames and Arrow data.

What is decoded comes from other processes: it is validated before anybody uses it.
"""

from math import isfinite
from types import NoneType
from typing import Any

import msgspec

from messagehub.arguments import is_numpy_number
from messagehub.errors import DataLost, InvalidRequest, MalformedRequest, MessageTooLarge
from messagehub.payloads.arrow_compression import is_compressed
from messagehub.payloads.arrow_values import PLAIN_TYPES, as_arrow, restored
from messagehub.payloads.json_advice import conversion_of
from messagehub.protocol.topic_frames import ARROW_BATCH, ARROW_TABLE, BYTES, JSON

MAX_MESSAGE_BYTES = 2**20
_encode_json = msgspec.json.Encoder(enc_hook=lambda number: number.item()).encode  # of NumPy, the only others let in
_decode_json = msgspec.json.Decoder().decode
_decode_headers = msgspec.json.Decoder(dict[str, Any]).decode
_SCALARS = frozenset({str, int, bool, NoneType})


def encode_payload(payload: Any) -> tuple[int, bytes]:
    """Return the kind of a payload and its bytes."""
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


def arrow_kind(payload: Any) -> int:
    import pyarrow as pa

    return ARROW_BATCH if isinstance(payload, pa.RecordBatch) else ARROW_TABLE


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


def encode_headers(headers: dict[str, Any]) -> bytes:
    rule = "headers are names and JSON values"
    if not isinstance(headers, dict):
        raise InvalidRequest(f"{rule}, not {type(headers).__name__}")
    return _write_json(headers, rule)


def decode_headers(encoded: bytes | memoryview) -> dict[str, Any]:
    """Return the headers of a frame. Raise ValueError if they are not a JSON object."""
    return _decode_headers(encoded) if encoded else {}


def check_size(size_bytes: int) -> None:
    if size_bytes > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"payload and headers have {size_bytes} bytes, the limit is {MAX_MESSAGE_BYTES}: larger data belongs into a"
            " channel (hub.producer), and the channel's name into the message",
            size_bytes=size_bytes,
            limit_bytes=MAX_MESSAGE_BYTES,
        )


def _write_json(value: Any, rule: str) -> bytes:
    """Return the value as JSON. Raise InvalidRequest if it would not be read as the same value.

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
    """Return where in the value is something that JSON has no form for, and what to do; None if there is none."""
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
    """Return the batches of an IPC stream.

    Raise ValueError if they are invalid: offsets that point outside would crash a reader.
    """
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
