"""The bytes of a block: a 4096-byte header, the schema, a table of slots, the slots.

    0      fixed header: written before the block gets its name, never changed afterwards
    2048   the words that change, each alone on its cache line, each with one writer
    4096   schema (Arrow message or NumPy description), then scratch of the writer's encoder and, at its end, a word a
           slot: when its item was written
    table  one cache line a slot: sequence, length, checksum, hint, shape
    data   the slots, `stride_bytes` apart

Rule 1: a word is stored with one aligned 8-byte store (`memoryview.cast("Q")`), never with `struct`.
Rule 2: a reader believes nothing before `unpack` has compared all sizes with the file, and the fixed header and the
schema with their checksum.
Rule 3: what the writer and the readers of a ring store, and in which order, is in `core/ring.h`.
Rule 4: rings have layout 3. Tables, which are written once, still have layout 2.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal

from messagehub.shm.errors import (
    ForeignByteOrder,
    HeaderInconsistent,
    NameTooLong,
    OtherLayout,
    TruncatedBlock,
    WrongMagic,
)

MAGIC: Final = b"MHUBDATA"
LAYOUT_VERSION: Final = 3
_TABLE_LAYOUT_VERSION: Final = 2
CLAIM: Final = 1 << 63  # set in the sequence of a slot that the writer wants and has not touched
HEADER_BYTES: Final = 4096
LINE_BYTES: Final = 64
MAX_SLOTS: Final = 1 << 20
MAX_SLOT_BYTES: Final = 1 << 40
_BYTE_ORDER_MARK: Final = 0x0102030405060708


class Kind(IntEnum):
    RING_BUFFER = 1
    DOUBLE_BUFFER = 2
    SINGLE = 3
    TABLE = 4


FullRing = Literal["overwrite", "block", "error"]
ChecksumUse = Literal["none", "write", "verify"]
"""The values of `WhenFull` and `Checksum`, as users name them."""


class WhenFull(IntEnum):
    OVERWRITE = 1
    BLOCK = 2
    ERROR = 3


class Checksum(IntEnum):
    NONE = 1
    WRITE = 2  # stored with every payload; compared only when someone asks
    VERIFY = 3  # stored, and compared by every reader


class PayloadFormat(IntEnum):
    RAW = 1
    ARROW = 2  # one record batch message a slot, the schema once in the block
    ARROW_STREAM = 3  # a whole stream a slot: schemas with dictionaries need it
    NUMPY = 4


class State(IntEnum):
    OPEN = 1
    ENDED = 2


# Indexes into the block seen as 8-byte words.
HEAD: Final = 256
EPOCH: Final = 264
STATE: Final = 272
WRITER_PID: Final = 280
WRITER_START: Final = 288
WRITER_TICKET: Final = 296  # not 0 while the writer waits for room: wake it
SKIPPED: Final = 304  # items that an overwriting writer did not write because readers held every slot
SUCCESSORS: Final = 312  # how many producers with another name took the ring over
_SUCCESSOR_BYTES: Final = 136  # the first sequence of its own, then its name
_SUCCESSORS_OFFSET: Final = 2560
MAX_SUCCESSORS: Final = 8

# Offsets of words within a slot's cache line.
SEQUENCE: Final = 0
LENGTH: Final = 1
CHECKSUM: Final = 2
HINT: Final = 3  # in line s % slot_count: the slot that holds sequence s, if it is still there
SHAPE: Final = 4  # four words: the shape of an array, see `pack_shape`; all 0 for what has one dimension or none
LINE_WORDS: Final = LINE_BYTES // 8

Shape = tuple[int, int, int, int]
FLAT: Final[Shape] = (0, 0, 0, 0)
MAX_DIMENSIONS: Final = 6
_COLUMNS_FIRST: Final = 1 << 8

_FIXED = struct.Struct("=8sQIIIIIIQQQQQQQd256s256s128s32s64s40s512s")

CRC_OFFSET: Final = 36


def _version(kind: int) -> int:
    return _TABLE_LAYOUT_VERSION if kind == Kind.TABLE else LAYOUT_VERSION


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class Geometry:
    """Every offset follows from these five numbers, so nothing else in a header has to be checked for its place."""

    slot_bytes: int
    slot_count: int
    page_bytes: int = 4096
    schema_bytes: int = 0
    scratch_bytes: int = 0

    @property
    def scratch_offset(self) -> int:
        return HEADER_BYTES + _up(self.schema_bytes, LINE_BYTES)

    @property
    def times(self) -> int:
        """The first word of the times."""
        return (self.table_offset - times_bytes(self.slot_count)) // 8

    @property
    def table_offset(self) -> int:
        return _up(self.scratch_offset + self.scratch_bytes, LINE_BYTES)

    @property
    def data_offset(self) -> int:
        return _up(self.table_offset + self.slot_count * LINE_BYTES, HEADER_BYTES)

    @property
    def stride_bytes(self) -> int:
        return _up(self.slot_bytes, self.page_bytes)

    @property
    def file_bytes(self) -> int:
        return self.data_offset + self.stride_bytes * self.slot_count

    def line(self, index: int) -> int:
        """The first word of a slot's line in the table."""
        return (self.table_offset + index * LINE_BYTES) // 8

    def lines(self) -> range:
        """The first word of each slot's line."""
        return range(self.line(0), self.line(self.slot_count), LINE_BYTES // 8)

    def slot_offset(self, slot: int) -> int:
        return self.data_offset + slot * self.stride_bytes

    def places(self) -> dict[str, int]:
        """Return where things are, for the `core` of a writer or reader."""
        return {
            "table": self.line(0),
            "times": self.times,
            "data_offset": self.data_offset,
            "stride_bytes": self.stride_bytes,
            "slot_bytes": self.slot_bytes,
            "slot_count": self.slot_count,
        }

    def flaw(self) -> str | None:
        if not 1 <= self.slot_count <= MAX_SLOTS:
            return f"{self.slot_count} slots, not 1 to {MAX_SLOTS}"
        if not 1 <= self.slot_bytes <= MAX_SLOT_BYTES:
            return f"slots of {self.slot_bytes} bytes, not 1 to {MAX_SLOT_BYTES}"
        if self.page_bytes < LINE_BYTES or self.page_bytes & (self.page_bytes - 1):
            return f"pages of {self.page_bytes} bytes, not a power of two of at least {LINE_BYTES}"
        if max(self.schema_bytes, self.scratch_bytes) > 1 << 30:
            return f"a schema of {self.schema_bytes} bytes"
        return None


@dataclass(frozen=True)
class Header:
    """The fixed half of the header: what the block is and who made it."""

    kind: Kind
    geometry: Geometry
    payload_format: PayloadFormat
    channel: str
    producer_id: str
    block_id: str
    host: str
    boot_id: str
    created_at: float
    when_full: WhenFull = WhenFull.OVERWRITE
    checksum: Checksum = Checksum.NONE
    schema_hash: str = ""
    schema_id: int = 0
    readers_path: str = ""  # directory of the reader files, relative to the directory of the block

    def pack(self, schema: bytes = b"") -> bytes:
        """Return the bytes of the header, with the checksum over itself and the schema that will follow it."""
        g = self.geometry
        packed = bytearray(_FIXED.size)
        _FIXED.pack_into(
            packed,
            0,
            MAGIC,
            _BYTE_ORDER_MARK,
            _version(self.kind),
            self.kind,
            self.when_full,
            self.checksum,
            self.payload_format,
            0,
            g.slot_bytes,
            g.slot_count,
            g.page_bytes,
            g.schema_bytes,
            g.scratch_bytes,
            g.file_bytes,
            self.schema_id,
            self.created_at,
            _text(self.schema_hash, 256),
            _text(self.channel, 256),
            _text(self.producer_id, 128),
            _text(self.block_id, 32),
            _text(self.host, 64),
            _text(self.boot_id, 40),
            _text(self.readers_path, 512),
        )
        struct.pack_into("=I", packed, CRC_OFFSET, zlib.crc32(schema, zlib.crc32(packed)))
        return bytes(packed)

    @classmethod
    def unpack(cls, data: bytes | memoryview, path: str, actual_bytes: int) -> "Header":
        """Refuse anything but a block whose sizes agree with each other and with the file, and whose checksum is right.

        `data` goes at least to the end of the schema.
        """
        if actual_bytes < HEADER_BYTES:
            raise TruncatedBlock(path, HEADER_BYTES, actual_bytes)
        fields = _FIXED.unpack_from(data)
        magic, mark, version, kind, when_full, checksum, payload_format = fields[:7]
        if magic != MAGIC:
            raise WrongMagic(path)
        if mark != _BYTE_ORDER_MARK:
            raise ForeignByteOrder(path)
        if version != _version(kind):
            raise OtherLayout(path, version, _version(kind))
        geometry = Geometry(*fields[8:13])
        flaw = geometry.flaw()
        if flaw is None and kind != Kind.TABLE and geometry.scratch_bytes < times_bytes(geometry.slot_count):
            flaw = f"times of {geometry.slot_count} slots in {geometry.scratch_bytes} bytes"
        if flaw is None and fields[13] != geometry.file_bytes:
            flaw = f"it claims {fields[13]} bytes, its parts need {geometry.file_bytes}"
        if flaw is not None:
            raise HeaderInconsistent(path, flaw)
        if actual_bytes < geometry.file_bytes:
            raise TruncatedBlock(path, geometry.file_bytes, actual_bytes)
        if fields[7] != fixed_checksum(data, geometry.schema_bytes):
            raise HeaderInconsistent(path, "it does not match its checksum")
        try:
            texts = [field.rstrip(b"\0").decode() for field in fields[16:]]
            if any("\0" in text for text in texts):
                raise ValueError("a name with a zero byte in it")
            readers_path = texts[6]
            if readers_path.startswith("/") or ".." in readers_path.split("/"):
                raise ValueError(f"reader files at {readers_path!r}")
            return cls(
                kind=Kind(kind),
                geometry=geometry,
                payload_format=PayloadFormat(payload_format),
                when_full=WhenFull(when_full),
                checksum=Checksum(checksum),
                schema_id=fields[14],
                created_at=fields[15],
                schema_hash=texts[0],
                channel=texts[1],
                producer_id=texts[2],
                block_id=texts[3],
                host=texts[4],
                boot_id=texts[5],
                readers_path=readers_path,
            )
        except ValueError as error:
            raise HeaderInconsistent(path, str(error)) from None


def claimed_schema_bytes(head: bytes) -> int:
    """Return the length of the schema that the header states; nothing has been checked yet."""
    return Geometry(*_FIXED.unpack_from(head)[8:13]).schema_bytes


def fixed_checksum(data: bytes | bytearray | memoryview, schema_bytes: int) -> int:
    """Return the checksum of what never changes: the fixed header, with its checksum taken as 0, and the schema."""
    crc = zlib.crc32(bytes(4), zlib.crc32(data[:CRC_OFFSET]))
    crc = zlib.crc32(data[CRC_OFFSET + 4 : _FIXED.size], crc)
    return zlib.crc32(data[HEADER_BYTES : HEADER_BYTES + schema_bytes], crc)


def pack_shape(sizes: tuple[int, ...], *, columns_first: bool) -> Shape | None:
    """Return the words for the shape of an array, or None if it does not fit.

    The first word is the number of dimensions plus one, with the order; then each word has two sizes of 32 bits. An
    array of one dimension needs no shape, since the payload's length gives it.
    """
    if len(sizes) == 1:
        return FLAT
    if len(sizes) > MAX_DIMENSIONS or any(size >> 32 for size in sizes):
        return None
    first, second, third, fourth, fifth, sixth = (*sizes, *(0,) * (MAX_DIMENSIONS - len(sizes)))
    kind = len(sizes) + 1 + (_COLUMNS_FIRST if columns_first else 0)
    return kind, first | second << 32, third | fourth << 32, fifth | sixth << 32


def unpack_shape(shape: Shape) -> tuple[tuple[int, ...], bool]:
    """Return the sizes, and whether columns come first.

    Damaged words raise ValueError, or give sizes that fit no payload.
    """
    dimensions = (shape[0] & (_COLUMNS_FIRST - 1)) - 1
    if not 0 <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"an array of {dimensions} dimensions")
    sizes = [size for word in shape[1:] for size in (word & 0xFFFFFFFF, word >> 32)]
    return tuple(sizes[:dimensions]), bool(shape[0] & _COLUMNS_FIRST)


def times_bytes(slot_count: int) -> int:
    return _up(8 * slot_count, LINE_BYTES)


def scratch_bytes(encoder_bytes: int, slot_count: int) -> int:
    """Return the bytes for the writer's encoder and for the times behind it."""
    return _up(encoder_bytes, LINE_BYTES) + times_bytes(slot_count)


def checksum(payload: Any, sequence: int, shape: Shape = FLAT) -> int:
    """Covers the sequence, so that a whole payload under a wrong number is noticed, and the shape if there is one."""
    found = zlib.crc32(payload, sequence & 0xFFFFFFFF)
    return found if shape == FLAT else zlib.crc32(struct.pack("=4Q", *shape), found)


def add_successor(words: memoryview, data: memoryview, first_sequence: int, producer_id: str) -> None:
    """Note that another producer writes from `first_sequence` on. There must be room: `MAX_SUCCESSORS`."""
    count = words[SUCCESSORS]
    offset = _SUCCESSORS_OFFSET + count * _SUCCESSOR_BYTES
    data[offset + 8 : offset + _SUCCESSOR_BYTES] = _text(producer_id, 128).ljust(128, b"\0")
    words[offset // 8] = first_sequence
    words[SUCCESSORS] = count + 1


def successors(words: memoryview, data: memoryview) -> list[tuple[int, str]]:
    """Return (first sequence, producer id) of the producers with another name that took the ring over, in order."""
    found = []
    for index in range(min(words[SUCCESSORS], MAX_SUCCESSORS)):
        offset = _SUCCESSORS_OFFSET + index * _SUCCESSOR_BYTES
        name = bytes(data[offset + 8 : offset + _SUCCESSOR_BYTES]).rstrip(b"\0").decode(errors="replace")
        found.append((words[offset // 8], name))
    return found


def _text(value: str, limit: int) -> bytes:
    data = value.encode()
    if len(data) > limit:
        raise NameTooLong(value, limit)
    return data
