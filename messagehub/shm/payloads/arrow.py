"""Arrow record batches and tables."""

from collections.abc import Callable
from functools import cache
from typing import Any

from messagehub.shm.errors import PayloadDamaged, PayloadLargerThanSlot, PayloadRefused, PayloadSchemaMismatch
from messagehub.shm.frames import check_columns, table_of
from messagehub.shm.layout import PayloadFormat, Shape
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads.codec import Encoder, Piece
from messagehub.shm.tables.nulls import check_nulls, columns_without_nulls


class ArrowCodec:
    """Record batches and tables of one schema; also NumPy structured arrays whose fields match it.

    The schema is in the block once and a slot holds the batch message alone. Dictionary-encoded columns are
    sent with their dictionaries, so such a schema takes a whole stream a slot (`ArrowStreamCodec`).
    """

    copied_bytes = 0
    plain_type: type | None = None
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


def has_dictionary(schema: Any) -> bool:
    import pyarrow as pa

    def inside(kind: Any) -> bool:
        if pa.types.is_dictionary(kind):
            return True
        return any(inside(kind.field(i).type) for i in range(kind.num_fields))

    return any(inside(field.type) for field in schema)
