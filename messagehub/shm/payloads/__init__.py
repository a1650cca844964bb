"""Codecs: what a slot can hold, and how values are encoded and decoded without needless copies.

One payload is one piece, which must fit a slot; only Arrow data is cut by rows, where that was asked for. A codec
encodes a piece straight into the mapping, and turns a pinned buffer back into a value that shares the slot's memory.
Arrow and NumPy are imported when a codec that needs them is made.

Rule: a value that `decode` returns lies within its buffer, whatever the bytes are; other bytes are a PayloadDamaged.
The cells of Arrow data (offsets of strings and lists, indexes of dictionaries) are checked where others than this user
can write the block, or where the reader asks for it: numbers cost nothing, strings about 6 ns each.
"""

from typing import Any

from messagehub.shm.error_hints import schema_instead
from messagehub.shm.errors import EntryDamaged, PayloadRefused
from messagehub.shm.layout import PayloadFormat
from messagehub.shm.payloads.arrays import NumpyCodec
from messagehub.shm.payloads.arrow import ArrowCodec, ArrowStreamCodec, arrow_flaws, check_names, has_dictionary
from messagehub.shm.payloads.codec import Codec
from messagehub.shm.payloads.raw import RawCodec

__all__ = ["Codec", "NumpyCodec", "RawCodec", "codec_for", "codec_of", "is_arrow"]


def codec_for(schema: Any, *, split_rows: bool = False, name: str = "schema") -> Codec:
    """Return the codec of a schema as a user gives it: None (raw bytes), an Arrow schema, or a NumPy dtype.

    `name` is the name of the argument, for error messages.
    """
    if schema is None:
        return RawCodec()
    if is_arrow(schema):
        kind = ArrowStreamCodec if has_dictionary(schema) else ArrowCodec
        return kind(schema, split_rows=split_rows)
    try:
        return NumpyCodec(schema)
    except (TypeError, ValueError, KeyError, SyntaxError) as error:
        taken = f"no Arrow schema and no NumPy dtype ({error!s:.200}). Give one, or None for raw bytes."
        raise PayloadRefused(schema_instead(schema, name, taken)) from None


def is_arrow(schema: Any) -> bool:
    """Return whether this is an Arrow schema, without importing pyarrow for processes that never use it."""
    return type(schema).__module__.startswith("pyarrow") and type(schema).__name__ == "Schema"


def codec_of(payload_format: PayloadFormat, description: bytes, path: str, *, checks_cells: bool = False) -> Codec:
    """Return the codec for the description in a block."""
    if payload_format == PayloadFormat.RAW:
        return RawCodec()
    if payload_format == PayloadFormat.NUMPY:
        return NumpyCodec.from_description(description, path)
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.py_buffer(description))
        check_names(schema)
        kind = ArrowStreamCodec if payload_format == PayloadFormat.ARROW_STREAM else ArrowCodec
        return kind(schema, checks_cells=checks_cells)
    except arrow_flaws() as error:
        raise EntryDamaged(path, f"its Arrow schema is unusable ({error})") from None
