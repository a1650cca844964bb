"""Rings for tests: payloads that say their own number and carry their own checksum."""

import os
import zlib
from typing import Any

from messagehub.shm import core
from messagehub.shm.core import python_ring
from messagehub.shm.layout import Checksum, Kind, WhenFull
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import RingSpec, open_writer
from messagehub.shm.rings.writer import RingWriter

SLOT_BYTES = 512


def spec(**changes: Any) -> RingSpec:
    values = {
        "channel": "c",
        "producer_id": "p",
        "readers_path": "readers",
        "slot_bytes": SLOT_BYTES,
        "slot_count": 4,
        "kind": Kind.RING_BUFFER,
        "when_full": WhenFull.OVERWRITE,
        "checksum": Checksum.VERIFY,
    }
    return RingSpec(**{**values, **changes})


def writer(root: str, schema: Any = None, *, split_rows: bool = False, **changes: Any) -> RingWriter:
    return open_writer(os.path.join(root, "ring"), spec(**changes), codec_for(schema, split_rows=split_rows))


def payload(number: int, size: int = 300) -> bytes:
    body = number.to_bytes(8, "little") + bytes((number * 31 + i) & 0xFF for i in range(size - 12))
    return body + zlib.crc32(body).to_bytes(4, "little")


def number_of(value: Any) -> int:
    """The number in a payload, after checking every byte of it."""
    data = bytes(value)
    assert zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little"), "BAD READ"
    return int.from_bytes(data[:8], "little")


def checked(found: Item | Gap | None) -> int:
    assert isinstance(found, Item), found
    assert number_of(found.value) == found.sequence
    return found.sequence


def use_python_core() -> None:
    """In a child only: rings that are opened from now on have the core in Python, as on machines without a compiler."""
    for name in ("Writer", "Reader", "fence"):
        setattr(core, name, getattr(python_ring, name))


def drain(reader: RingReader) -> list[int]:
    """Numbers of everything that can be read now; a gap shows as its negative first and last."""
    numbers = []
    while (found := reader.read(0)) is not None:
        numbers += [-found.first, -found.last] if isinstance(found, Gap) else [checked(found)]
    return numbers
