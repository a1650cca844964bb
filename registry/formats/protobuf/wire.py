"""The Protobuf wire format, as much of it as descriptors need.

Why not `google.protobuf.descriptor_pb2`: see decision 0002.
"""

from collections.abc import Iterator

from registry.formats.differences import MalformedSchema

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
MASK = (1 << 64) - 1


class WireMessage:
    """One decoded message: its fields by number, each with the bytes that it came from."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[int | bytes]] = {}
        self.pieces: dict[int, list[bytes]] = {}
        for number, value, raw in _scan(data):
            self.fields.setdefault(number, []).append(value)
            self.pieces.setdefault(number, []).append(raw)

    def raw(self, number: int) -> bytes:
        return b"".join(self.pieces[number])

    def texts(self, number: int) -> list[str]:
        try:
            return [value.decode() for value in self._blobs(number)]
        except UnicodeDecodeError:
            raise MalformedSchema("the descriptor holds text that is not UTF-8") from None

    def text(self, number: int) -> str:
        return (self.texts(number) or [""])[-1]

    def messages(self, number: int) -> list["WireMessage"]:
        return [WireMessage(value) for value in self._blobs(number)]

    def message(self, number: int) -> "WireMessage":
        return WireMessage(b"".join(self._blobs(number))) if number in self.fields else EMPTY

    def integers(self, number: int) -> list[int]:
        """Signed; a repeated number may also come packed."""
        found: list[int] = []
        for value in self.fields.get(number, []):
            if isinstance(value, int):
                found.append(value)
            else:
                position = 0
                while position < len(value):
                    item, position = _varint(value, position)
                    found.append(item)
        return [value - (1 << 64) if value >> 63 else value for value in found]

    def integer(self, number: int, default: int = 0) -> int:
        return (self.integers(number) or [default])[-1]

    def _blobs(self, number: int) -> list[bytes]:
        values = self.fields.get(number, [])
        if not all(isinstance(value, bytes) for value in values):
            raise MalformedSchema(f"field {number} of the descriptor has the wrong wire type")
        return [value for value in values if isinstance(value, bytes)]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & MASK, position
    raise MalformedSchema("the descriptor ends within a number")


def _scan(data: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    position = 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        if not tag >> 3:
            raise MalformedSchema("the descriptor has a field with the number 0")
        kind, value = tag & 7, 0
        if kind == VARINT:
            value, position = _varint(data, position)
            yield tag >> 3, value, data[start:position]
            continue
        if kind == LENGTH:
            size, position = _varint(data, position)
        elif kind in FIXED_SIZES:
            size = FIXED_SIZES[kind]
        else:
            raise MalformedSchema(f"the descriptor has a field of wire type {kind}")
        if position + size > len(data):
            raise MalformedSchema("the descriptor ends within a field")
        position += size
        yield tag >> 3, data[position - size : position], data[start:position]


EMPTY = WireMessage(b"")


def varint(value: int) -> bytes:
    value &= MASK
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def blob_field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | LENGTH) + varint(len(data)) + data
