"""Raw bytes."""

from typing import Any, Final

from messagehub.shm.error_hints import bytes_instead
from messagehub.shm.errors import PayloadLargerThanSlot, PayloadRefused, PayloadSchemaMismatch
from messagehub.shm.layout import PayloadFormat, Shape
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads.codec import MASKED, Encoder, Piece, is_masked

SMALL_BYTES: Final = 32 << 10


class RawCodec:
    """Bytes in; bytes out where they are small (`SMALL_BYTES`), else a read-only memoryview of the slot."""

    copied_bytes = SMALL_BYTES
    plain_type: type | None = bytes
    payload_format = PayloadFormat.RAW
    description = b""
    scratch_bytes = 0
    schema = None

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]:
        if type(payload) is bytes and len(payload) <= slot_bytes:
            return [Piece(payload, len(payload))]
        if is_masked(payload):
            raise PayloadRefused(MASKED)
        try:
            view = memoryview(payload)
            if view.format != "B" or view.ndim != 1:
                view = view.cast("B")
        except TypeError:
            kind = type(payload).__name__
            raise PayloadSchemaMismatch("raw bytes", f"a {kind}", bytes_instead(payload)) from None
        if view.nbytes > slot_bytes:
            raise PayloadLargerThanSlot(view.nbytes, slot_bytes)
        return [Piece(view, view.nbytes)]

    def plain(self, payload: Any) -> tuple[Any, Shape | None] | None:
        return (payload, None) if type(payload) is bytes else None

    def encoder(self, segment: Segment) -> Encoder:
        data = segment.data

        def encode(piece: Any, offset: int, size: int) -> None:
            data[offset : offset + size] = piece

        return encode

    def decode(self, buffer: Any, _shape: Shape) -> bytes | memoryview:
        if type(buffer) is bytes and len(buffer) <= SMALL_BYTES:
            return buffer
        view = memoryview(buffer)
        return bytes(view) if view.nbytes <= SMALL_BYTES else view
