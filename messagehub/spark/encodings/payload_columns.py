"""A column of payloads as NumPy sees it: one array of bytes, and where each payload begins and ends in it."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from messagehub.spark.encodings.payloads import HEAD_BYTES, MAGIC
from messagehub.spark.errors import PayloadNotDecoded

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MARGIN: Final = 16
"""Bytes before the first payload and behind the last: a whole word is read where a value begins or ends."""
MOST_BYTES: Final = 2**31 - 1
"""Of a column of text or binary that Spark takes."""


@dataclass(frozen=True)
class PayloadColumn:
    """Null rows are empty here; `is_present` tells them from empty payloads."""

    data: Bytes
    begins: Positions
    ends: Positions
    is_present: Mask

    @classmethod
    def of(cls, values: pa.Array) -> "PayloadColumn":
        if not pa.types.is_binary(values.type):
            values = _as_large_binary(values)
        width = np.int32 if pa.types.is_binary(values.type) else np.int64
        _, offsets_buffer, data_buffer = values.buffers()
        offsets = np.frombuffer(offsets_buffer, width, count=len(values) + 1, offset=values.offset * width().itemsize)
        first, last = int(offsets[0]), int(offsets[-1])
        data = np.zeros(last - first + 2 * MARGIN, np.uint8)
        if last > first:
            data[MARGIN:-MARGIN] = np.frombuffer(data_buffer, np.uint8, count=last - first, offset=first)
        positions = offsets.astype(np.int64) + (MARGIN - first)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        return cls(data, positions[:-1], np.where(present, positions[1:], positions[:-1]), present)

    @property
    def is_small(self) -> bool:
        return len(self.data) <= MOST_BYTES

    def schema_ids(self) -> tuple[Positions, Mask]:
        """Return the id that each payload begins with, and which of them begin with one."""
        has_head = self.is_present & (self.ends - self.begins >= HEAD_BYTES)
        has_head &= self.data[self.begins] == MAGIC
        heads = np.ndarray((len(self.data) - 3,), ">u4", self.data, strides=(1,))
        return heads[self.begins + 1].astype(np.int64), has_head

    def part(self, rows: Positions, head_bytes: int = 0) -> "PayloadColumn":
        """Return these rows, without so many bytes at the beginning of each."""
        return PayloadColumn(self.data, self.begins[rows] + head_bytes, self.ends[rows], self.is_present[rows])

    def to_list(self) -> list[bytes]:
        whole = self.data.tobytes()
        return [whole[begin:end] for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]


def _as_large_binary(values: pa.Array) -> Any:
    try:
        return values.cast(pa.large_binary())
    except pa.ArrowException:
        raise PayloadNotDecoded(f"payloads are a column of binary, not of {values.type}") from None
