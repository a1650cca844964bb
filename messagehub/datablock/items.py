"""What a reader hands out."""

from typing import Any, Literal, NamedTuple

from .layout import FLAT, Shape
from .payloads import Codec


class Position(NamedTuple):
    """A place in a stream that stays meaningful over restarts of writer and reader."""

    block_id: str
    epoch: int
    sequence: int


class Gap(NamedTuple):
    """Sequences that were overwritten before this reader came to them."""

    first: int
    last: int


class Item:
    """One payload; `value` and `buffer` share the slot's memory and hold the slot while they exist."""

    __slots__ = ("_codec", "_shape", "buffer", "epoch", "sequence")

    def __init__(self, sequence: int, epoch: int, buffer: Any, codec: Codec, shape: Shape = FLAT) -> None:
        self.sequence = sequence
        self.epoch = epoch
        self.buffer = buffer
        self._codec = codec
        self._shape = shape

    @property
    def value(self) -> Any:
        return self._codec.decode(self.buffer, self._shape)


Start = Literal["oldest", "latest", "first"] | Position
"""`oldest` is the oldest item that is still there, `first` is item 1: what is gone of it is reported as a `Gap`."""
