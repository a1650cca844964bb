"""Codecs: what a slot can hold, and how values are encoded and decoded without needless copies.

One payload is one piece, which must fit a slot; only Arrow data is cut by rows, where that was asked for. A codec
encodes a piece straight into the mapping, and turns a pinned buffer back into a value that shares the slot's memory.
Arrow and NumPy are imported when a codec that needs them is made.

Rule: a value that `decode` returns lies within its buffer, whatever the bytes are; other bytes are a PayloadDamaged.
The cells of Arrow data (offsets of strings and lists, indexes of dictionaries) are checked where others than this user
can write the block, or where the reader asks for it: numbers cost nothing, strings about 6 ns each.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from .advice import array_instead, bytes_instead, schema_instead
from .errors import EntryDamaged, PayloadDamaged, PayloadLargerThanSlot, PayloadRefused, PayloadSchemaMismatch
from .frames import check_columns, table_of
from .layout import FLAT, MAX_DIMENSIONS, PayloadFormat, Shape, pack_shape, unpack_shape
from .mapped_file import Segment
from .nulls import check_nulls, columns_without_nulls


class Piece(NamedTuple):
    """A value for `encode`, the number of bytes that it will fill, and the shape of an array."""

    content: Any
    size_bytes: int
    shape: Shape = FLAT


Encoder = Callable[[Any, int, int], None]  # (piece, offset in the block, its bytes)


class Codec(Protocol):
    payload_format: PayloadFormat
    description: bytes  # stored in the block: a reader needs no more to decode
    scratch_bytes: int
    schema: Any  # as users give it: an Arrow schema, a NumPy dtype, None for raw bytes
    copied_bytes: int  # payloads up to this size are best handed to `decode` as bytes of their own

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]: ...

    def plain(self, payload: Any) -> tuple[Any, Shape | None] | None:
        """Return the bytes of a payload that needs only be copied, and its shape; None: ask `pieces`."""

    def encoder(self, segment: Segment) -> Encoder: ...

    def decode(self, buffer: Any, shape: Shape, /) -> Any: ...


SMALL_BYTES: Final = 32 << 10


class RawCodec:
    """Bytes in; bytes out where they are small (`SMALL_BYTES`), else a read-only memoryview of the slot."""

    copied_bytes = SMALL_BYTES
    payload_format = PayloadFormat.RAW
    description = b""
    scratch_bytes = 0
    schema = None

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]:
        if type(payload) is bytes and len(payload) <= slot_bytes:
            return [Piece(payload, len(payload))]
        if _is_masked(payload):
            raise PayloadRefused(_MASKED)
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


class NumpyCodec:
    """Arrays of one dtype and any shape, in the order they have; values are read-only arrays."""

    copied_bytes = 0
    payload_format = PayloadFormat.NUMPY
    scratch_bytes = 0

    def __init__(self, dtype: Any) -> None:
        import numpy as np

        self._np = np
        self.dtype = self.schema = np.dtype(dtype)
        if self.dtype.hasobject or self.dtype.itemsize == 0:
            raise PayloadRefused(f"schema {self.dtype} has no fixed bytes. Use numbers, times or fixed-size strings.")
        if self.dtype.subdtype is not None:
            base, shape = self.dtype.subdtype
            raise PayloadRefused(
                f"schema {self.dtype} is a sub-array, which no array has as its dtype. "
                f"Give {base} and write arrays whose last dimensions are {shape}."
            )
        self.description = json.dumps(np.lib.format.dtype_to_descr(self.dtype)).encode()
        # Times export no buffer, fields may be times.
        self._is_plain = self.dtype.kind in "biufcSUV" and self.dtype.names is None

    @classmethod
    def from_description(cls, description: bytes, path: str) -> "NumpyCodec":
        import numpy as np

        try:
            return cls(np.lib.format.descr_to_dtype(_tuples(json.loads(description))))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, SyntaxError, RecursionError) as error:
            raise EntryDamaged(path, f"its NumPy description is unusable ({error!r})") from None

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]:
        np = self._np
        if isinstance(payload, np.generic):
            payload = np.asarray(payload)
        if not isinstance(payload, np.ndarray) or payload.dtype != self.dtype:
            found = getattr(payload, "dtype", f"a {type(payload).__name__}")
            raise PayloadSchemaMismatch(str(self.dtype), str(found), array_instead(payload, self.dtype))
        if _is_masked(payload):
            raise PayloadRefused(_MASKED)
        if payload.nbytes > slot_bytes:
            raise PayloadLargerThanSlot(payload.nbytes, slot_bytes)
        columns_first = payload.flags.fnc
        shape = pack_shape(payload.shape, columns_first=columns_first)
        if shape is None:
            raise PayloadRefused(
                f"an array of shape {payload.shape} has more than {MAX_DIMENSIONS} dimensions, or more than 2**32 - 1"
                " items in one. Reshape it."
            )
        return [Piece(payload.reshape(-1, order="F" if columns_first else "C"), payload.nbytes, shape)]

    def plain(self, payload: Any) -> tuple[Any, Shape | None] | None:
        if type(payload) is not self._np.ndarray or payload.dtype is not self.dtype or not self._is_plain:
            return None
        if not payload.flags.c_contiguous:
            return None
        shape = FLAT if payload.ndim == 1 else pack_shape(payload.shape, columns_first=False)
        return None if shape is None else (payload, shape)

    def encoder(self, segment: Segment) -> Encoder:
        np, dtype, data = self._np, self.dtype, segment.data

        def encode(piece: Any, offset: int, size: int) -> None:
            if size:
                np.frombuffer(data[offset : offset + size], dtype=dtype)[:] = piece

        return encode

    def decode(self, buffer: Any, shape: Shape) -> Any:
        try:
            flat = self._np.frombuffer(buffer, dtype=self.dtype)
            if shape == FLAT:
                return flat
            sizes, columns_first = unpack_shape(shape)
            return flat.reshape(sizes, order="F" if columns_first else "C")
        except ValueError as error:
            raise PayloadDamaged("a payload", error) from None


class ArrowCodec:
    """Record batches and tables of one schema; also NumPy structured arrays whose fields match it.

    The schema is in the block once and a slot holds the batch message alone. Dictionary-encoded columns are
    sent with their dictionaries, so such a schema takes a whole stream a slot (`ArrowStreamCodec`).
    """

    copied_bytes = 0
    payload_format = PayloadFormat.ARROW

    def __init__(self, schema: Any, *, split_rows: bool = False, checks_cells: bool = False) -> None:
        import pyarrow as pa

        self._pa = pa
        self._split_rows = split_rows
        self._checks_cells = checks_cells
        self.schema = schema
        self.description = schema.serialize().to_pybytes()
        # Not from Python lists: that would import pandas, which takes a second.
        self._empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
        # Arrow's writer sends the schema with the first batch: that one goes to the scratch area.
        self.scratch_bytes = len(self.description) + pa.ipc.get_record_batch_size(self._empty) + 256
        self._size: Callable[[Any], int] = pa.ipc.get_record_batch_size
        self._columns_without_nulls = columns_without_nulls(schema)

    def pieces(self, payload: Any, slot_bytes: int) -> list[Piece]:
        pa = self._pa
        if isinstance(payload, pa.RecordBatch):
            batches = [payload]
        elif isinstance(payload, pa.Table):
            batches = payload.combine_chunks().to_batches() or [self._empty]
        elif hasattr(payload, "__arrow_c_stream__"):
            batches = table_of(payload, self.schema).combine_chunks().to_batches() or [self._empty]
        else:
            batches = [self._from_numpy(payload)]
        found = []
        for batch in batches:
            if not batch.schema.equals(self.schema):
                batch = self._as_declared(batch)  # noqa: PLW2901  the same columns
            if self._columns_without_nulls:
                check_nulls(batch, self._columns_without_nulls)
            size = self._size(batch)
            if size <= slot_bytes:
                found.append(Piece(batch, size))
            elif self._split_rows:
                found += self._split(batch, size, slot_bytes)
            else:
                raise PayloadLargerThanSlot(size, slot_bytes, is_splittable=batch.num_rows > 1)
        return found

    def plain(self, payload: Any) -> None:
        """Return None: a batch is encoded into its slot."""

    def _as_declared(self, batch: Any) -> Any:
        """Return the batch with the declared schema, if they differ at most in which columns may hold nulls.

        Spark and others declare their columns as free of nulls. The nulls themselves are searched for afterwards.
        """
        if [field.with_nullable(True) for field in batch.schema] != [f.with_nullable(True) for f in self.schema]:
            raise PayloadSchemaMismatch(str(self.schema), str(batch.schema))
        return self._pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def encoder(self, segment: Segment) -> Encoder:
        pa = self._pa
        file = pa.memory_map(f"/proc/self/fd/{segment.descriptor.fd}", "r+")
        file.seek(segment.header().geometry.scratch_offset)
        writer = pa.ipc.new_stream(file, self.schema)
        writer.write_batch(self._empty)

        def encode(piece: Any, offset: int, _size: int) -> None:
            file.seek(offset)
            writer.write_batch(piece)

        return encode

    def decode(self, buffer: Any, _shape: Shape) -> Any:
        try:
            batch = self._pa.ipc.read_record_batch(self._pa.py_buffer(buffer), self.schema)
            batch.validate(full=self._checks_cells)  # if not full, sizes only: half a microsecond
        except arrow_flaws() as error:
            raise PayloadDamaged("a payload", error) from None
        return batch

    def _split(self, batch: Any, size: int, slot_bytes: int) -> list[Piece]:
        """Split into equal shares of rows first; shares that are still too large (uneven strings) are split again."""
        rows = batch.num_rows
        if rows <= 1:
            raise PayloadLargerThanSlot(size, slot_bytes)
        shares = min(rows, -(-size // slot_bytes))
        step = -(-rows // shares)
        found = []
        for start in range(0, rows, step):
            part = batch.slice(start, step)
            part_size = self._size(part)
            if part_size <= slot_bytes:
                found.append(Piece(part, part_size))
            else:
                found += self._split(part, part_size, slot_bytes)
        return found

    def _from_numpy(self, payload: Any) -> Any:
        dtype = getattr(payload, "dtype", None)
        if dtype is None:
            raise PayloadRefused(
                f"a {type(payload).__name__} is no payload of an Arrow schema: give a pyarrow RecordBatch or Table"
                " (pa.RecordBatch.from_pylist or from_pydict make one), a data frame or a NumPy structured array"
            )
        names = getattr(dtype, "names", None)
        if not names:
            raise PayloadSchemaMismatch(str(self.schema), str(dtype))
        check_columns(list(names), self.schema, "a structured array")
        if payload.ndim != 1:
            raise PayloadRefused(
                f"a structured array of shape {payload.shape} has no rows of a table: write array.reshape(-1), or make"
                " the producer with schema=array.dtype, which keeps the shape"
            )
        return self._pa.RecordBatch.from_arrays([self._column(payload, f) for f in self.schema], schema=self.schema)

    def _column(self, payload: Any, field: Any) -> Any:
        pa, given = self._pa, payload[field.name]
        try:
            column = pa.array(given, type=field.type)
        except (pa.ArrowException, TypeError) as error:
            raise PayloadSchemaMismatch(
                f"column {field.name!r} as {field.type}",
                f"an array of {given.dtype} that does not fit it ({error})",
                "Convert the values, or declare a type that holds them.",
            ) from None
        _check_range(given, column, field)
        return column


class ArrowStreamCodec(ArrowCodec):
    """A complete stream in every slot, for schemas with dictionaries."""

    payload_format = PayloadFormat.ARROW_STREAM

    def __init__(self, schema: Any, *, split_rows: bool = False, checks_cells: bool = False) -> None:
        super().__init__(schema, split_rows=split_rows, checks_cells=checks_cells)
        self.scratch_bytes = 0
        self._size = self._stream_size

    def encoder(self, segment: Segment) -> Encoder:
        pa, data = self._pa, segment.data

        def encode(piece: Any, offset: int, size: int) -> None:
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(data[offset : offset + size]))
            with pa.ipc.new_stream(sink, self.schema) as writer:
                writer.write_batch(piece)
            sink.close()

        return encode

    def decode(self, buffer: Any, _shape: Shape) -> Any:
        try:
            batch = self._pa.ipc.open_stream(self._pa.py_buffer(buffer)).read_next_batch()
            batch.validate(full=self._checks_cells)
        except arrow_flaws() as error:
            raise PayloadDamaged("a payload", error) from None
        if not batch.schema.equals(self.schema):
            raise PayloadDamaged("a payload", "it has another schema than its block")
        return batch

    def _stream_size(self, batch: Any) -> int:
        sink = self._pa.MockOutputStream()
        with self._pa.ipc.new_stream(sink, self.schema) as writer:
            writer.write_batch(batch)
        return int(sink.size())


_MASKED: Final = "the mask of a masked array would be lost. Write array.filled(…), or the mask as a field."


def _is_masked(payload: Any) -> bool:
    """Return whether the payload is a masked array, without importing NumPy for processes that never use it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(payload, numpy.ma.MaskedArray)


def _check_range(given: Any, column: Any, field: Any) -> None:
    """Refuse a finite number that became infinite: pyarrow checks whole numbers only."""
    import numpy as np
    import pyarrow as pa

    if not pa.types.is_floating(field.type) or given.dtype.kind != "f" or given.itemsize * 8 <= field.type.bit_width:
        return
    taken = column.to_numpy(zero_copy_only=False)
    if (np.isinf(taken) & np.isfinite(np.ma.getdata(given))).any():
        raise PayloadRefused(
            f"column {field.name!r} has a number that is too large for {field.type}. Declare it as double."
        )


def codec_for(schema: Any, *, split_rows: bool = False, name: str = "schema") -> Codec:
    """Return the codec of a schema as a user gives it: None (raw bytes), an Arrow schema, or a NumPy dtype.

    `name` is the name of the argument, for error messages.
    """
    if schema is None:
        return RawCodec()
    if is_arrow(schema):
        kind = ArrowStreamCodec if _has_dictionary(schema) else ArrowCodec
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


@cache
def arrow_flaws() -> tuple[type[Exception], ...]:
    """Return the errors that pyarrow raises for malformed bytes."""
    import pyarrow as pa

    return pa.ArrowException, OSError, EOFError, StopIteration, UnicodeDecodeError


def check_names(schema: Any) -> None:
    """Decode all names, since pyarrow decodes a name only when it is used, and would raise then."""
    fields = list(schema)
    while fields:
        field = fields.pop()
        field.name.encode()
        fields += [field.type.field(index) for index in range(field.type.num_fields)]


def _has_dictionary(schema: Any) -> bool:
    import pyarrow as pa

    def inside(kind: Any) -> bool:
        if pa.types.is_dictionary(kind):
            return True
        return any(inside(kind.field(i).type) for i in range(kind.num_fields))

    return any(inside(field.type) for field in schema)


def _tuples(value: Any) -> Any:
    """Turn lists back into tuples: JSON has no tuples, and the fields and shapes of a dtype need them."""
    if not isinstance(value, list):
        return value
    return [_field(entry) for entry in value]


def _field(entry: Any) -> Any:
    name, kind, *shape = entry
    name = tuple(name) if isinstance(name, list) else name
    return (name, _tuples(kind), *(tuple(s) for s in shape))
