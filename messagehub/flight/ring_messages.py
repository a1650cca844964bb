"""A message of a gateway about a ring, as it comes: items as the bytes of their slots, and the ring's state."""

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from messagehub.flight.messages import ITEM, RING_KEY, RemoteRingState, RingInfo
from messagehub.shm.errors import PayloadDamaged

if TYPE_CHECKING:
    from pyarrow import flight

ALIGNED_BYTES = 16
"""What the widest numbers of NumPy and Arrow need, to be read in place."""


class RingMessage(NamedTuple):
    """Items as they came, until somebody reads them."""

    rows: list[tuple[int, ...]]  # as `ITEM` has them
    payload: Any
    state: RemoteRingState
    size_bytes: int


def ring_info(stream: "flight.FlightStreamReader", path: str) -> RingInfo:
    try:
        return msgspec.json.decode((stream.schema.metadata or {}).get(RING_KEY, b""), type=RingInfo)
    except msgspec.DecodeError as error:
        raise PayloadDamaged(path, f"its gateway sends no ring ({error})") from None


def ring_message(chunk: Any, path: str) -> RingMessage:
    import pyarrow as pa

    batch = chunk.data
    try:
        state = msgspec.json.decode(chunk.app_metadata, type=RemoteRingState)
    except (msgspec.DecodeError, TypeError) as error:
        raise PayloadDamaged(path, f"its gateway sends no state of it ({error})") from None
    if batch.num_rows != 1 or batch.num_columns != 2:
        raise PayloadDamaged(path, f"its gateway sends {batch.num_rows} rows of {batch.num_columns} columns")
    try:
        rows = list(ITEM.iter_unpack(batch.column(0)[0].as_py()))
    except struct.error as error:
        raise PayloadDamaged(path, f"its gateway sends items that cannot be read ({error})") from None
    data = batch.column(1).buffers()[2] or pa.py_buffer(b"")
    if any(row[8] + row[9] > data.size for row in rows):
        raise PayloadDamaged(path, "its gateway sends items that are longer than their message")
    if data.address % ALIGNED_BYTES:  # gRPC puts small messages anywhere
        data = pa.py_buffer(data.to_pybytes())
    return RingMessage(rows, data, state, data.size)
