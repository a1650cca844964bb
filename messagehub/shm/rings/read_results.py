"""The results of reading: items, gaps and positions."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from messagehub.shm.layout import FLAT, Shape
from messagehub.shm.payloads import Codec


class Position(NamedTuple):
    """A place in a stream. It stays valid when the writer or the reader is restarted."""

    block_id: str
    epoch: int
    sequence: int


class LastItems(NamedTuple):
    """The last items up to a position, as far as they still exist."""

    wanted: int
    position: Position


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences that were lost before this reader reached them. It is no tuple, so that nobody takes it for a value."""

    first: int
    """The number of the first item that was lost."""
    last: int
    """The number of the last one."""
    why: str = field(default="", compare=False)
    """What happened, where that is known; else the reader was slower than the producer."""


Producers = tuple[tuple[int, str], ...]
"""Who wrote a ring: the first sequence of each producer, and its id."""


def producer_of(sequence: int, producers: Producers) -> str:
    return next(producer_id for first, producer_id in reversed(producers) if first <= sequence)


class Item:
    """One payload; `value` and `buffer` share the slot's memory and hold the slot while they exist, or are a copy.

    `written_ns` is the time of writing in nanoseconds since 1970; 0 in a block of an earlier version.
    """

    __slots__ = ("_codec", "buffer", "epoch", "producers", "sequence", "shape", "written_ns")

    def __init__(
        self,
        sequence: int,
        epoch: int,
        buffer: Any,
        codec: Codec,
        shape: Shape = FLAT,
        written_ns: int = 0,
        producers: Producers = ((0, ""),),
    ) -> None:
        self.sequence = sequence
        self.epoch = epoch
        self.buffer = buffer
        self.written_ns = written_ns
        self.producers = producers
        self._codec = codec
        self.shape = shape

    @property
    def producer_id(self) -> str:
        return producer_of(self.sequence, self.producers)

    @property
    def value(self) -> Any:
        return self._codec.decode(self.buffer, self.shape)


Start = Literal["oldest", "latest", "first"] | LastItems | Position
"""`oldest` is the oldest item that is still there, `first` is item 1: what is gone of it is reported as a `Gap`."""
