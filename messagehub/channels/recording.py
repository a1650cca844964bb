"""Recordings: the items of a channel in a file, as an Arrow IPC stream that other tools read too.

Rule 1: an Arrow item is one batch of the stream. An array or raw bytes are a batch of one row, column `value`, and the
stream's metadata says how to read them.
Rule 2: every batch has the time at which its item was written, so that it can be played at the same pace.
Rule 3: a file has one schema: items of another one, which the next producer may bring, need a file of their own.
Rule 4: a recording that ends in the middle, because its writer was killed, is played up to its last whole item.
"""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from messagehub.channels.items import ReadItem
from messagehub.errors import ConfigurationError

_FLAWS = (
    ValueError,
    TypeError,
    LookupError,
    OSError,
    RecursionError,
)  # what a file that is no recording, or damaged, leads to; Arrow's errors too
_FILE_MAGIC = b"ARROW1\0\0"
CHANNEL, DTYPE, SHAPE, WRITTEN_AT = b"messagehub.channel", b"messagehub.dtype", b"messagehub.shape", b"written_at"


class Recorder:
    """Writes items of one schema to a new file: that of the first item."""

    def __init__(self, path: Path, channel: str, first: ReadItem) -> None:
        import pyarrow as pa

        self.path = path
        self._pa = pa
        self._recorded = schema = _schema_of(first.value)
        self._is_arrow = isinstance(schema, pa.Schema)
        about = {CHANNEL: channel.encode()}
        if not self._is_arrow:
            if schema is not None:
                about[DTYPE] = json.dumps(_described(schema)).encode()
            schema = pa.schema([pa.field("value", pa.large_binary(), nullable=False)])
        self._schema = schema.with_metadata({**(schema.metadata or {}), **about})
        self._file = path.open("xb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)

    def takes(self, item: ReadItem) -> bool:
        """Whether the item has the schema of this file, with all of its names, types and their order."""
        schema = _schema_of(item.value)
        return type(schema) is type(self._recorded) and bool(schema == self._recorded)

    def write(self, item: ReadItem) -> None:
        about = {WRITTEN_AT: repr(item.written_at).encode()}
        for batch in self._batches(item.value, about):
            self._writer.write_batch(batch, custom_metadata=about)
        self._file.flush()

    def _batches(self, value: Any, about: dict[bytes, bytes]) -> list[Any]:
        pa = self._pa
        if self._is_arrow:
            return value.combine_chunks().to_batches() if isinstance(value, pa.Table) else [value]
        if hasattr(value, "dtype"):
            about[SHAPE] = json.dumps(value.shape).encode()
            value = value.tobytes()
        data = bytes(value)
        # Not from a Python list: that would import pandas, in which time a ring may be overwritten.
        buffers = [None, pa.py_buffer(struct.pack("<2q", 0, len(data))), pa.py_buffer(data)]
        return [pa.record_batch([pa.Array.from_buffers(pa.large_binary(), 1, buffers)], schema=self._schema)]

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Recorded(NamedTuple):
    value: Any
    written_at: float


class Recording:
    """A file that a `Recorder` wrote, or any Arrow IPC stream."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path = path
        self.flaw: str | None = None
        """What is wrong with the end of the recording, once all of it was read."""
        with self._opened() as reader:
            schema = reader.schema
        about = dict(schema.metadata or {})
        self.channel: str | None = about.pop(CHANNEL).decode() if CHANNEL in about else None
        self.schema: Any = schema.with_metadata(about or None)
        """An Arrow schema, a NumPy dtype, or None for raw bytes."""
        self._is_arrow = schema.names != ["value"] or not pa.types.is_large_binary(schema.field(0).type)
        if not self._is_arrow:
            try:
                self.schema = _dtype(json.loads(about[DTYPE])) if DTYPE in about else None
            except _FLAWS as error:
                raise ConfigurationError(f"{path} does not say how its arrays are to be read: {error}") from None

    def items(self) -> Iterator[Recorded]:
        with self._opened() as reader:
            while True:
                try:
                    batch, about = reader.read_next_batch_with_custom_metadata()
                    batch.validate(full=True)
                    found = dict(about) if about is not None else {}
                    item = Recorded(self._value(batch, found), float(found.get(WRITTEN_AT, b"0")))
                except StopIteration:
                    return
                except _FLAWS as error:
                    self.flaw = str(error)
                    return
                yield item

    def largest_bytes(self) -> int:
        """Return how many bytes the largest item takes in a ring."""
        import pyarrow as pa

        def size(value: Any) -> int:
            if self._is_arrow:
                return int(pa.ipc.get_record_batch_size(value))
            return int(getattr(value, "nbytes", 0)) or len(value)

        return max((size(one.value) for one in self.items()), default=0)

    def _value(self, batch: Any, about: dict[bytes, bytes]) -> Any:
        import pyarrow as pa

        if self._is_arrow:
            return pa.record_batch(batch.columns, schema=self.schema)
        data = batch.column(0)[0].as_py()
        if self.schema is None:
            return data
        import numpy as np

        return np.frombuffer(data, self.schema).reshape(json.loads(about[SHAPE]))

    def _opened(self) -> Any:
        import pyarrow as pa

        try:
            file = pa.memory_map(str(self._path))
            if file.read(len(_FILE_MAGIC)) != _FILE_MAGIC:  # else an Arrow IPC file: a stream behind its magic
                file.seek(0)
            return pa.ipc.open_stream(file)
        except _FLAWS as error:
            raise ConfigurationError(f"{self._path} is not a recording (an Arrow IPC stream): {error}") from None


class Pace:
    """When each item of a recording is due, at `speed` times the pace at which it was written; 0 is at once."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, float] | None = None

    def seconds_until(self, written_at: float) -> float:
        if not self._speed or not written_at:
            return 0.0
        if self._began is None:
            self._began = time.monotonic(), written_at
        began_at, first = self._began
        return began_at + (written_at - first) / self._speed - time.monotonic()


def _schema_of(value: Any) -> Any:
    """Return the Arrow schema or NumPy dtype of an item; None of raw bytes. Another producer's may differ."""
    return value.schema if hasattr(value, "schema") else getattr(value, "dtype", None)


def _described(dtype: Any) -> Any:
    return dtype.descr if dtype.names else dtype.str


def _dtype(described: Any) -> Any:
    import numpy as np

    def fields(value: Any) -> Any:
        if isinstance(value, str):
            return value
        return [(one[0], fields(one[1]), *(tuple(shape) for shape in one[2:])) for one in value]

    dtype = np.dtype(fields(described))
    if dtype.hasobject:
        raise ValueError("a dtype with objects")
    return dtype
