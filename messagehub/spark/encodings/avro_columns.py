"""Avro payloads of one schema, decoded field by field: NumPy works on all payloads of a batch at once.

Rule 1: a payload is accepted only where fastavro decodes it to the same value. Whatever is unusual is left out (a
number that does not fit its type, a length beyond the end, a date that Python does not know), and the caller hands it
to fastavro, which says what the value is or why there is none.
Rule 2: a cursor never passes the end of its payload, and no value has a byte of another payload. Words are read across
the end; what does not belong to the value is masked.
Rule 3: a schema with arrays or maps is not decoded here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from messagehub.spark.encodings.payload_columns import Bytes, Mask, Positions

_Words = npt.NDArray[np.uint64]
_MORE_FOLLOW: Final = np.uint64(0x8080808080808080)
_GROUPS_OF_7: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_FIRST_BITS: Final = np.uint64(0x0101010101010101)
_PAIRS: Final = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
"""Each step brings neighbouring groups together: of 7 bits, of 14, of 28."""
_ONE: Final = np.uint64(1)
_DAYS: Final = (-719_162, 2_932_896)
"""From 0001-01-01 to 9999-12-31, in days since 1970."""
_SECONDS: Final = (_DAYS[0] * 86_400, (_DAYS[1] + 1) * 86_400 - 1)


class NotByColumns(Exception):
    """A schema has something that only fastavro reads."""


class Cursors:
    """Where each payload of a batch has been read to, and which of them are as usual so far."""

    def __init__(self, data: Bytes, begins: Positions, ends: Positions) -> None:
        self._data = data
        self._words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._at = begins
        self._ends = ends
        self.is_accepted: Mask = np.ones(len(begins), np.bool_)

    def __len__(self) -> int:
        return len(self._at)

    def finish(self) -> Mask:
        """Return which payloads were accepted and read to their end."""
        is_whole: Mask = self._at == self._ends
        return self.is_accepted & is_whole

    def leave_out(self, which: Mask) -> None:
        if which.any():
            self.is_accepted &= ~which
            self._at = np.where(which, self._ends, self._at)

    def advance(self, sizes: Positions | int) -> Positions:
        """Step over `sizes` bytes and return where they begin. Payloads that have fewer are left out."""
        begins = self._at
        fits = (sizes >= np.int64(0)) & (sizes <= self._ends - begins)
        if not fits.all():
            self.leave_out(~fits)
            begins = np.where(fits, begins, self._ends)
            sizes = np.where(fits, sizes, 0)
        self._at = begins + sizes
        return begins

    def numbers(self) -> Positions:
        """Read a variable-length zig-zag number of each."""
        first = self._data[self._at]
        if (first < 0x80).all():
            self.advance(1)
            value: _Words = first.astype(np.uint64)
        else:
            value = self._long_numbers()
        return (value >> _ONE).view(np.int64) ^ -(value & _ONE).view(np.int64)

    def _long_numbers(self) -> _Words:
        """Take the seven low bits of each byte up to the first byte below 0x80, of eight bytes in one word."""
        word = self._words[self._at]
        stops = ~word & _MORE_FOLLOW
        lowest = stops & -stops
        used = lowest ^ (lowest - _ONE)
        sizes = (((used & _FIRST_BITS) * _FIRST_BITS) >> np.uint64(56)).view(np.int64)
        value: _Words = word & used & _GROUPS_OF_7
        for low, high, bits in _PAIRS:
            value = (value & low) | ((value & high) >> bits)
        (longer,) = np.nonzero(lowest == 0)
        if len(longer):
            ninth, tenth = (self._data[self._at[longer] + step].astype(np.uint64) for step in (8, 9))
            ends_there = ninth < 0x80
            value[longer] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
            value[longer] |= np.where(ends_there, np.uint64(0), tenth << np.uint64(63))
            sizes[longer] = np.where(ends_there, 9, np.where(tenth <= 1, 10, -1))
        self.advance(sizes)
        return value

    def byte_values(self) -> npt.NDArray[np.uint8]:
        return self._data[self.advance(1)]

    def words(self, size: int) -> _Words:
        """Read the words that begin with the next `size` bytes of each."""
        return self._words[self.advance(size)]

    def signed(self, sizes: Positions) -> tuple[Positions, Positions]:
        """Read big-endian numbers of 1 to 16 bytes as their low and their high 64 bits. Other sizes are left out."""
        self.leave_out((sizes < 1) | (sizes > 16))
        self.advance(sizes)
        sizes = np.where(self.is_accepted, sizes, 1)
        low, high = (self._words[self._at - bytes_].byteswap().view(np.int64) for bytes_ in (8, 16))
        is_long = sizes > 8
        unused = np.where(is_long, 16 - sizes, 8 - sizes) * 8
        low = np.where(is_long, low, (low << unused) >> unused)
        return low, np.where(is_long, (high << unused) >> unused, low >> 63)

    def slices(self, sizes: Positions | int, kind: pa.DataType) -> pa.Array:
        """Read the next `sizes` bytes of each as text or binary."""
        count = len(self)
        if not count:
            return pa.array([], kind)
        bounds = np.empty(
            2 * count, np.int32
        )  # payloads follow one another: what lies between two values is a value too
        bounds[::2] = self.advance(sizes)
        bounds[1::2] = self._at
        all_ = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._data)])
        return all_.take(pa.array(np.arange(0, 2 * count, 2)))

    def among(self, rows: Positions) -> "Cursors":
        return Cursors(self._data, self._at[rows], self._ends[rows])

    def take_over(self, rows: Positions, part: "Cursors") -> None:
        """Go on where `part`, which is among these, has come to."""
        self._at = self._at.copy()
        self._at[rows] = part._at
        self.is_accepted[rows] &= part.is_accepted


class FieldReader(Protocol):
    """Reads values of one Avro type. Readers of the same type are equal."""

    @property
    def type(self) -> pa.DataType: ...

    def read(self, cursors: Cursors) -> pa.Array:
        """Return a value for each payload; those of payloads that are left out mean nothing."""


@dataclass(frozen=True)
class Null:
    type: pa.DataType = field(default_factory=pa.null)

    def read(self, cursors: Cursors) -> pa.Array:
        return pa.nulls(len(cursors))


@dataclass(frozen=True)
class Boolean:
    type: pa.DataType = field(default_factory=pa.bool_)

    def read(self, cursors: Cursors) -> pa.Array:
        found = cursors.byte_values()
        cursors.leave_out(found > 1)
        return pa.array(found.astype(np.bool_))


@dataclass(frozen=True)
class Integer:
    """Also dates and timestamps: numbers times `factor`."""

    type: pa.DataType
    bounds: tuple[int, int] | None = None
    factor: int = 1

    def read(self, cursors: Cursors) -> pa.Array:
        found = cursors.numbers()
        if self.bounds is not None:
            unusual = (found < self.bounds[0]) | (found > self.bounds[1])
            if unusual.any():
                cursors.leave_out(unusual)
                found = np.where(unusual, 0, found)
        if self.type.bit_width == 32:
            found = found.astype(np.int32)
        return pa.array(found * self.factor if self.factor > 1 else found).view(self.type)


@dataclass(frozen=True)
class Float:
    type: pa.DataType

    def read(self, cursors: Cursors) -> pa.Array:
        size = self.type.bit_width // 8
        words = cursors.words(size)
        return pa.array(words.view("<f8") if size == 8 else words.astype("<u4").view("<f4"))


@dataclass(frozen=True)
class Sized:
    """Reads text and bytes, and fixed bytes if `size` is given."""

    type: pa.DataType
    name: str = ""
    size: int | None = None

    def read(self, cursors: Cursors) -> pa.Array:
        found = cursors.slices(cursors.numbers() if self.size is None else self.size, self.type)
        if pa.types.is_string(self.type):
            try:
                found.validate(full=True)
            except pa.ArrowInvalid:
                cursors.leave_out(np.array([not _is_text(value) for value in found.view(pa.binary()).to_pylist()]))
        return found


@dataclass(frozen=True)
class EnumSymbols:
    name: str
    symbols: tuple[str, ...]
    type: pa.DataType = field(default_factory=pa.string)

    def read(self, cursors: Cursors) -> pa.Array:
        found = cursors.numbers()
        unknown = (found < 0) | (found >= len(self.symbols))
        cursors.leave_out(unknown)
        return pa.array(self.symbols, self.type).take(pa.array(np.where(unknown, 0, found)))


@dataclass(frozen=True)
class Decimal:
    type: pa.DataType
    name: str = ""
    size: int | None = None

    def read(self, cursors: Cursors) -> pa.Array:
        sizes = cursors.numbers() if self.size is None else np.full(len(cursors), self.size, np.int64)
        low, high = cursors.signed(sizes)
        sign = high >> 63
        low_magnitude = (low ^ sign).view(np.uint64) + (sign & 1).view(np.uint64)
        carries = (low_magnitude == 0) & (sign != 0)
        high_magnitude = (high ^ sign).view(np.uint64) + carries.astype(np.uint64)
        most_high, most_low = (np.uint64(part) for part in divmod(10**self.type.precision, 2**64))
        fits = (high_magnitude < most_high) | ((high_magnitude == most_high) & (low_magnitude < most_low))
        cursors.leave_out(~fits)
        found = np.where(fits, (low, high), 0).T.copy()
        return pa.Array.from_buffers(self.type, len(cursors), [None, pa.py_buffer(found)])


@dataclass(frozen=True)
class Union:
    """Of null and types that become one column."""

    members: tuple[FieldReader, ...]
    type: pa.DataType

    def read(self, cursors: Cursors) -> pa.Array:
        which = cursors.numbers()
        cursors.leave_out((which < 0) | (which >= len(self.members)))
        found = []
        places = np.full(len(cursors), -1, np.int64)
        taken = 0
        for number, member in enumerate(self.members):
            (rows,) = np.nonzero(which == number)
            if isinstance(member, Null) or not len(rows):
                continue
            if len(rows) == len(cursors):
                return member.read(cursors).cast(self.type)
            part = cursors.among(rows)
            found.append(member.read(part).cast(self.type))
            cursors.take_over(rows, part)
            places[rows] = np.arange(taken, taken + len(rows))
            taken += len(rows)
        if not found:
            return pa.nulls(len(cursors), self.type)
        return pa.concat_arrays(found).take(pa.array(places, mask=places < 0))


@dataclass(frozen=True)
class Record:
    name: str
    members: tuple[tuple[str, FieldReader], ...]

    @cached_property
    def type(self) -> pa.DataType:
        return pa.struct([pa.field(name, member.type) for name, member in self.members])

    def read(self, cursors: Cursors) -> pa.Array:
        return pa.StructArray.from_arrays(list(self.columns(cursors).values()), fields=list(self.type))

    def columns(self, cursors: Cursors) -> dict[str, pa.Array]:
        return {name: member.read(cursors) for name, member in self.members}


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def reader_of(schema: Any, kind: pa.DataType) -> FieldReader:
    """Return the reader of a schema that fastavro has parsed, whose values are of `kind`."""
    return _Readers().of(schema, kind)


class _Readers:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, kind: pa.DataType) -> FieldReader:
        if isinstance(schema, list):
            return Union(tuple(self._members(schema, kind)), kind)
        if isinstance(schema, str):
            return self.of(self._named.get(schema, {"type": schema}), kind)
        avro, name = schema["type"], schema.get("name", "")
        size = schema["size"] if avro == "fixed" else None
        if name:
            self._named[name] = schema
        logical = schema.get("logicalType")
        if logical is not None:
            return _logical(name, avro, logical, size, kind)
        if avro in ("record", "error") and schema["fields"]:
            return Record(name, tuple(self._fields(schema, kind)))
        if avro == "enum":
            return EnumSymbols(name, tuple(schema["symbols"]))
        return _primitive(name, avro, size, kind)

    def _members(self, union: list[Any], kind: pa.DataType) -> Iterator[FieldReader]:
        for member in union:
            yield Null() if member == "null" else self.of(member, _PLAIN_NUMBERS.get(str(member), kind))

    def _fields(self, schema: Any, kind: pa.DataType) -> Iterator[tuple[str, FieldReader]]:
        for each in schema["fields"]:
            yield each["name"], self.of(each["type"], kind.field(each["name"]).type)


_PLAIN_NUMBERS: Final = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}


def _primitive(name: str, avro: Any, size: int | None, kind: pa.DataType) -> FieldReader:
    if avro == "null":
        return Null()
    if avro == "boolean":
        return Boolean()
    if avro == "int":
        return Integer(kind, (-(2**31), 2**31 - 1))
    if avro == "long":
        return Integer(kind)
    if avro in ("float", "double"):
        return Float(kind)
    if avro in ("string", "bytes"):
        return Sized(kind)
    if avro == "fixed":
        return Sized(kind, name, size)
    raise NotByColumns


def _logical(name: str, avro: Any, logical: str, size: int | None, kind: pa.DataType) -> FieldReader:
    if (avro, logical) == ("int", "date"):
        return Integer(kind, _DAYS)
    if avro == "long" and logical.endswith("timestamp-micros"):
        return Integer(kind, _in_units(1_000_000))
    if avro == "long" and logical.endswith("timestamp-millis"):
        return Integer(kind, _in_units(1_000), 1_000)
    if avro in ("bytes", "fixed") and logical == "decimal":
        return Decimal(kind, name, size)
    raise NotByColumns


def _in_units(per_second: int) -> tuple[int, int]:
    return _SECONDS[0] * per_second, (_SECONDS[1] + 1) * per_second - 1
