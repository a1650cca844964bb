"""NumPy arrays."""

import json
from typing import Any

from messagehub.shm.error_hints import array_instead
from messagehub.shm.errors import (
    EntryDamaged,
    PayloadDamaged,
    PayloadLargerThanSlot,
    PayloadRefused,
    PayloadSchemaMismatch,
)
from messagehub.shm.layout import FLAT, MAX_DIMENSIONS, PayloadFormat, Shape, pack_shape, unpack_shape
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads.codec import MASKED, Encoder, Piece, is_masked


class NumpyCodec:
    """Arrays of one dtype and any shape, in the order they have; values are read-only arrays."""

    copied_bytes = 0
    payload_format = PayloadFormat.NUMPY
    scratch_bytes = 0

    def __init__(self, dtype: Any) -> None:
        import numpy as np

        self._np = np
        self.dtype = self.schema = np.dtype(dtype)
        if self.dtype.hasobject or self.dtype.itemsize == 0:
            raise PayloadRefused(f"schema {self.dtype} has no fixed bytes. Use numbers, times or fixed-size strings.")
        if self.dtype.subdtype is not None:
            base, shape = self.dtype.subdtype
            raise PayloadRefused(
                f"schema {self.dtype} is a sub-array, which no array has as its dtype. "
                f"Give {base} and write arrays whose last dimensions are {shape}."
            )
        self.description = json.dumps(np.lib.format.dtype_to_descr(self.dtype)).encode()
        # Times export no buffer, fields may be times.
        self._is_plain = self.dtype.kind in "biufcSUV" and self.dtype.names is None
        self.plain_type: type | None = np.ndarray if self._is_plain else None

    @classmethod
    def from_description(cls, description: bytes, path: str) -> "NumpyCodec":
        import numpy as np

        try:
            return cls(np.lib.format.descr_to_dtype(_tuples(json.loads(description))))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, SyntaxError, RecursionError) as error:
            raise EntryDamaged(path, f"its NumPy description is unusable ({error!r})") from None

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]:
        np = self._np
        if isinstance(payload, np.generic):
            payload = np.asarray(payload)
        if not isinstance(payload, np.ndarray) or payload.dtype != self.dtype:
            found = getattr(payload, "dtype", f"a {type(payload).__name__}")
            raise PayloadSchemaMismatch(str(self.dtype), str(found), array_instead(payload, self.dtype))
        if is_masked(payload):
            raise PayloadRefused(MASKED)
        if payload.nbytes > slot_bytes:
            raise PayloadLargerThanSlot(payload.nbytes, slot_bytes)
        columns_first = payload.flags.fnc
        shape = pack_shape(payload.shape, columns_first=columns_first)
        if shape is None:
            raise PayloadRefused(
                f"an array of shape {payload.shape} has more than {MAX_DIMENSIONS} dimensions, or more than 2**32 - 1"
                " items in one. Reshape it."
            )
        return [Piece(payload.reshape(-1, order="F" if columns_first else "C"), payload.nbytes, shape)]

    def plain(self, payload: Any) -> tuple[Any, Shape | None] | None:
        if type(payload) is not self._np.ndarray or payload.dtype is not self.dtype or not self._is_plain:
            return None
        if not payload.flags.c_contiguous:
            return None
        shape = FLAT if payload.ndim == 1 else pack_shape(payload.shape, columns_first=False)
        return None if shape is None else (payload, shape)

    def encoder(self, segment: Segment) -> Encoder:
        np, dtype, data = self._np, self.dtype, segment.data

        def encode(piece: Any, offset: int, size: int) -> None:
            if size:
                np.frombuffer(data[offset : offset + size], dtype=dtype)[:] = piece

        return encode

    def decode(self, buffer: Any, shape: Shape) -> Any:
        try:
            flat = self._np.frombuffer(buffer, dtype=self.dtype)
            if shape == FLAT:
                return flat
            sizes, columns_first = unpack_shape(shape)
            return flat.reshape(sizes, order="F" if columns_first else "C")
        except ValueError as error:
            raise PayloadDamaged("a payload", error) from None


def _tuples(value: Any) -> Any:
    """Turn lists back into tuples: JSON has no tuples, and the fields and shapes of a dtype need them."""
    if not isinstance(value, list):
        return value
    return [_field(entry) for entry in value]


def _field(entry: Any) -> Any:
    name, kind, *shape = entry
    name = tuple(name) if isinstance(name, list) else name
    return (name, _tuples(kind), *(tuple(s) for s in shape))
