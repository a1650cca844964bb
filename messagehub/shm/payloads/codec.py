"""The contract of codecs: how values of one kind get into slots and out of them."""

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from messagehub.shm.layout import FLAT, PayloadFormat, Shape
from messagehub.shm.mapped_file import Segment


class Piece(NamedTuple):
    """A value for `encode`, the number of bytes that it will fill, and the shape of an array."""

    content: Any
    size_bytes: int
    shape: Shape = FLAT


Encoder = Callable[[Any, int, int], None]  # (piece, offset in the block, its bytes)


class Codec(Protocol):
    payload_format: PayloadFormat
    description: bytes  # stored in the block: a reader needs no more to decode
    scratch_bytes: int
    schema: Any  # as users give it: an Arrow schema, a NumPy dtype, None for raw bytes
    copied_bytes: int  # payloads up to this size are best handed to `decode` as bytes of their own
    plain_type: type | None  # values of this very type (arrays: flat, and of the dtype `schema`) need only be copied

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]: ...

    def plain(self, payload: Any) -> tuple[Any, Shape | None] | None:
        """Return the bytes of a payload that needs only be copied, and its shape; None: ask `pieces`."""

    def encoder(self, segment: Segment) -> Encoder: ...

    def decode(self, buffer: Any, shape: Shape, /) -> Any: ...


MASKED: Final = "the mask of a masked array would be lost. Write array.filled(…), or the mask as a field."


def is_masked(payload: Any) -> bool:
    """Return whether the payload is a masked array, without importing NumPy for processes that never use it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(payload, numpy.ma.MaskedArray)
