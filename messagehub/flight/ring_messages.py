"""A message of a gateway about a ring, as it comes: items as the bytes of their slots, and the ring's state."""

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from messagehub.flight.messages import ITEM, ITEM_ALIGNMENT, RING_KEY, RemoteRingState, RingInfo
from messagehub.shm.errors import PayloadDamaged

if TYPE_CHECKING:
    from pyarrow import flight


class RingMessage(NamedTuple):
    """Items as they came, until somebody reads them."""

    rows: list[tuple[int, ...]]  # as `ITEM` has them
    buffers: list[Any]  # which the rows refer to
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
    if batch.num_rows != 1 or batch.schema.types != [pa.binary(), pa.binary_view()]:
        kinds = ", ".join(map(str, batch.schema.types))
        raise PayloadDamaged(path, f"its gateway sends {batch.num_rows} rows of other columns ({kinds})")
    try:
        rows = list(ITEM.iter_unpack(batch.column(0)[0].as_py()))
    except struct.error as error:
        raise PayloadDamaged(path, f"its gateway sends items that cannot be read ({error})") from None
    _, _, *buffers = batch.column(1).buffers()
    sizes = [buffer.size for buffer in buffers]
    if any(row[8] >= len(sizes) or row[9] + row[10] > sizes[row[8]] for row in rows):
        raise PayloadDamaged(path, "its gateway sends items that are longer than their message")
    if any(buffer.address % ITEM_ALIGNMENT for buffer in buffers):  # gRPC puts small messages anywhere
        buffers = [pa.py_buffer(buffer.to_pybytes()) for buffer in buffers]
    return RingMessage(rows, buffers, state, sum(sizes))
