"""Whether a message of an Arrow IPC stream is compressed, from its metadata alone.

A compressed message of a few kilobytes may take gigabytes when it is read, which Arrow does without asking. Its
metadata is a flatbuffer, of which only the way to one field is followed; every step is checked against its bounds.

    Message           version, header type, header, …
    RecordBatch       length, nodes, buffers, compression, …
    DictionaryBatch   id, data (a RecordBatch), …
"""

import struct

_HEADER_TYPE, _HEADER, _COMPRESSION, _DICTIONARY_DATA = 1, 2, 3, 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def is_compressed(metadata: memoryview) -> bool:
    """Return whether the message is compressed. Raise ValueError if its metadata is no flatbuffer."""
    try:
        message = _follow(metadata, 0)
        at = _field(metadata, message, _HEADER_TYPE)
        kind = metadata[at] if at else 0
        if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
            return False
        batch = _child(metadata, message, _HEADER)
        if kind == _DICTIONARY_BATCH:
            batch = _child(metadata, batch, _DICTIONARY_DATA)
        return _field(metadata, batch, _COMPRESSION) != 0
    except (struct.error, IndexError) as error:
        raise ValueError(f"the metadata of a message cannot be read: {error}") from None


def _follow(data: memoryview, at: int) -> int:
    return at + _number("<I", data, at)


def _child(data: memoryview, table: int, index: int) -> int:
    at = _field(data, table, index)
    if not at:
        raise ValueError("a message without its header")
    return _follow(data, at)


def _field(data: memoryview, table: int, index: int) -> int:
    """Return the position of a field of a table; 0 if it has none."""
    slots = table - _number("<i", data, table)
    slot = 4 + 2 * index
    if slot >= _number("<H", data, slots):
        return 0
    offset = _number("<H", data, slots + slot)
    return table + offset if offset else 0


def _number(form: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise struct.error("an offset before the beginning")
    found: int = struct.unpack_from(form, data, at)[0]
    return found
