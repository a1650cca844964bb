"""Payloads of requests and replies: in the frame or, if they are too large for one, in a block of shared memory.

Arrow tables and batches can be in blocks, and so can what becomes one: NumPy arrays and data frames (`prepared`).
A block is written anew for each attempt, since it lives for LEASE_SECONDS only; whoever receives the frame maps it at
once. Partial results are never in blocks: the room of their reader is counted in bytes of frames.
"""

import os
import threading
from typing import Any

from messagehub.payloads.arrow_values import PLAIN_TYPES, as_arrow
from messagehub.payloads.blocks import MessageBlocks, attach
from messagehub.payloads.encoding import MAX_MESSAGE_BYTES, arrow_kind, encode_payload
from messagehub.protocol.topic_frames import ARROW_BATCH, ARROW_TABLE, IN_BLOCK, PUBLISHER_BYTES
from messagehub.settings import Settings
from messagehub.shm.channel_directory.location import directory_of

FRAMING_BYTES = 64 * 1024
"""What Arrow's format may add to the bytes of a table, so that it still fits into a frame."""


def prepared(payload: Any) -> Any:
    """Return an array or a frame as Arrow, and any other payload as it is. InvalidRequest where Arrow has no form."""
    return payload if type(payload) in PLAIN_TYPES else as_arrow(payload)


def is_too_large(payload: Any) -> bool:
    """Whether a prepared payload is an Arrow batch or table that does not fit into a frame."""
    if type(payload).__module__.partition(".")[0] != "pyarrow":
        return False
    import pyarrow as pa

    return isinstance(payload, pa.RecordBatch | pa.Table) and payload.nbytes > MAX_MESSAGE_BYTES - FRAMING_BYTES


def is_known_kind(kind: int) -> bool:
    return kind <= ARROW_TABLE or (bool(kind & IN_BLOCK) and ARROW_BATCH <= kind & ~IN_BLOCK <= ARROW_TABLE)


def attached(kind: int, frame: bytes, body_at: int, source: str) -> Any:
    """Return the table that a frame refers to, or the error that says why there is none; None for other frames."""
    return attach(memoryview(frame)[body_at:], source) if kind & IN_BLOCK else None


class PayloadEncoder:
    """Encodes the payloads of one hub. Any thread may use it."""

    def __init__(self, settings: Settings) -> None:
        self._blocks = MessageBlocks(directory_of(settings), os.urandom(PUBLISHER_BYTES))
        self._lock = threading.Lock()

    def encode(self, payload: Any) -> tuple[int, bytes]:
        """Return its kind and its bytes, which may be a reference."""
        payload = prepared(payload)
        if not is_too_large(payload):
            return encode_payload(payload)
        with self._lock:
            return arrow_kind(payload) | IN_BLOCK, self._blocks.put(payload)
