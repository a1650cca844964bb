"""Damage: one mutant per seed, so that a number is enough to make a failure again."""

import json
import os
import random
import struct
import zlib
from typing import Any, NamedTuple

from messagehub.shm.errors import DataBlockError
from messagehub.shm.layout import (
    CHECKSUM,
    CRC_OFFSET,
    LENGTH,
    SEQUENCE,
    Checksum,
    Header,
    Kind,
    checksum,
    fixed_checksum,
)
from tests.faults.blocks.originals import Original

NUMBERS = [0, 1, 2, 3, 63, 64, 4095, 4096, 4097, *(1 << n for n in (16, 20, 21, 30, 31, 32, 40, 47, 62, 63))]
NUMBERS += [*((1 << n) - 1 for n in (8, 16, 31, 32, 63, 64)), (1 << 64) - 64]
SIZES = [1 << 20, 1 << 30, 1 << 40, 1 << 62]
VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, float("nan"), 10**30, "", "x", "..", "../../x", "a/b", "a\0b", "\ud800", "é" * 300),
    *([], {}, [[]], [1], {"a": 1}, "x" * 5000),
]
TEXTS = [b"", b"null", b"{}", b"[]", b'"x"', b"1e999", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"\0" * 64]


class Mutant(NamedTuple):
    content: bytes
    size: int | None  # with a hole up to here
    is_sealed: bool  # by somebody who knows how checksums are made
    how: str


def mutant(original: Original, others: list[Original], seed: int) -> Mutant:
    chance = random.Random(seed)
    data = bytearray(original.content)
    is_text = original.damaged.endswith(".json")
    if is_text and chance.random() < 0.6:
        return Mutant(_other_text(chance, original.content), None, False, "other JSON")
    how = []
    size = None
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        act = chance.choice([_flip, _flip, _word, _word, _word, _half, _noise, _zeros, _swap, _cut, _grow, _replace])
        how.append(act.__name__)
        act(chance, data, original, others)
    if chance.random() < 0.05:
        size = chance.choice(SIZES)
        how.append(f"a hole up to {size}")
    is_sealed = not is_text and chance.random() < 0.5
    if is_sealed:
        _seal(data)
    return Mutant(bytes(data), size, is_sealed, ", ".join(how))


def write(path: str, made: Mutant) -> None:
    """As a new file: readers of the one before may still hold it."""
    if os.path.exists(path):
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, made.content)
        if made.size is not None:
            os.truncate(fd, made.size)
    finally:
        os.close(fd)


def _place(chance: random.Random, data: bytearray, original: Original, step: int) -> int:
    """Anywhere in one of the regions, each as likely as the others: the small ones matter most."""
    start, stop = chance.choice(original.regions)
    return min(chance.randrange(start, stop) // step * step, max(len(data) - step, 0))


def _flip(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    for _time in range(chance.choice([1, 1, 2, 8])):
        if data:
            data[_place(chance, data, original, 1)] ^= 1 << chance.randrange(8)


def _word(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    if len(data) >= 8:
        number = chance.choice([*NUMBERS, len(data), len(data) + 1, chance.getrandbits(64)])
        struct.pack_into("=Q", data, _place(chance, data, original, 8), number)


def _half(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    if len(data) >= 4:
        number = chance.choice([*NUMBERS, len(data), chance.getrandbits(32)]) & 0xFFFFFFFF
        struct.pack_into("=I", data, _place(chance, data, original, 4), number)


def _noise(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    start = _place(chance, data, original, 1)
    count = min(chance.choice([1, 8, 64, 1000, 10**6]), len(data) - start)
    data[start : start + count] = chance.randbytes(count)


def _zeros(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    start = _place(chance, data, original, 1)
    count = min(chance.choice([1, 8, 64, 4096, 10**6]), len(data) - start)
    data[start : start + count] = bytes(count)


def _swap(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    count = chance.choice([8, 64, 1024])
    a, b = _place(chance, data, original, 8), _place(chance, data, original, 8)
    one, two = bytes(data[a : a + count]), bytes(data[b : b + count])
    if len(one) == len(two) == count:
        data[a : a + count], data[b : b + count] = two, one


def _cut(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    del data[chance.choice([0, 1, 4095, 4096, len(data) - 1, chance.randrange(len(data) + 1)]) :]


def _grow(chance: random.Random, data: bytearray, original: Original, _: list[Original]) -> None:
    data += chance.randbytes(chance.choice([1, 8, 4096, 20_000]))


def _replace(chance: random.Random, data: bytearray, original: Original, others: list[Original]) -> None:
    """By another block, its beginning or its end, or by noise."""
    other = chance.choice(others).content
    half = min(len(other), len(data)) // 2
    data[:] = chance.choice([other, other[:half] + data[half:], data[:half] + other[half:], chance.randbytes(half)])


def _other_text(chance: random.Random, content: bytes) -> bytes:
    """JSON with one value replaced, at any depth, or something else altogether."""
    if chance.random() < 0.2:
        return chance.choice(TEXTS)
    value = json.loads(content)
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        if not isinstance(place[key], (dict, list)) or not place[key] or chance.random() < 0.3:
            break
        place = place[key]
    if chance.random() < 0.15:
        del place[key]
    else:
        place[key] = chance.choice(VALUES)
    return json.dumps(value).encode()


def _seal(data: bytearray) -> None:
    """Make all checksums right again, as far as the damage leaves them a place."""
    if len(data) >= 4096:
        struct.pack_into("=I", data, CRC_OFFSET, 0)
        schema_bytes = struct.unpack_from("=Q", data, 64)[0]
        struct.pack_into("=I", data, CRC_OFFSET, fixed_checksum(data, min(schema_bytes, len(data))))
    try:
        header = Header.unpack(memoryview(bytes(data)), "", len(data))
    except DataBlockError:
        return
    geometry = header.geometry
    if header.checksum == Checksum.NONE:
        return
    for slot in range(min(geometry.slot_count, 8)):
        line = geometry.line(slot) * 8
        sequence, length = (struct.unpack_from("=Q", data, line + 8 * word)[0] for word in (SEQUENCE, LENGTH))
        start = geometry.slot_offset(slot)
        payload = bytes(data[start : start + min(length, len(data))])
        made = zlib.crc32(payload) if header.kind == Kind.TABLE else checksum(payload, sequence)
        struct.pack_into("=Q", data, line + 8 * CHECKSUM, made)
