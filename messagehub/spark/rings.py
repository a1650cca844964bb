"""The live blocks of a channel on this host, and what their payloads look like as rows.

Arrow batches are rows already; a NumPy structured array has one column a field, any other one column of its items, both
whatever their shape; raw bytes are one row with one column.
"""

import os
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import host
from messagehub.shm.layout import HEADER_BYTES, Header, Kind, PayloadFormat
from messagehub.shm.mapped_file import Segment
from messagehub.shm.payloads import codec_of
from messagehub.shm.rings.read_results import Item, Position, Start
from messagehub.shm.rings.ring import open_reader, peek
from messagehub.spark.options import Options

RAW: Final = pa.schema([pa.field("value", pa.binary())])


@dataclass(frozen=True)
class Ring:
    path: str
    header: Header
    description: bytes

    @property
    def block_id(self) -> str:
        return self.header.block_id

    @property
    def channel(self) -> str:
        return self.header.channel

    def state(self) -> dict[str, Any]:
        """The words that change: head, epoch, has_ended, has_writer."""
        return peek(self.path)[1]

    @property
    def host(self) -> str:
        return host()

    def schema(self) -> pa.Schema:
        return schema_of_ring(self.header.payload_format, self.description, self.path)

    def since(self, at_ns: int) -> Start:
        """Return the position before the first item that is there and was not written before that time."""
        with open_reader(self.path, start="oldest", lossless=False, wait_for_writer=True) as reader:
            while (found := reader.take()) is not None:
                if isinstance(found, Item) and found.written_ns >= at_ns:
                    return Position(self.block_id, found.epoch, found.sequence - 1)
        return "latest"


def schema_of_ring(payload_format: int, description: bytes, path: str) -> pa.Schema:
    """Return what the payloads of a ring look like as rows."""
    if payload_format == PayloadFormat.RAW:
        return RAW
    codec: Any = codec_of(PayloadFormat(payload_format), description, path)
    if payload_format == PayloadFormat.NUMPY:
        dtype = codec.dtype
        columns = {"value": dtype} if dtype.names is None else {name: dtype[name] for name in dtype.names}
        return pa.schema([pa.field(name, pa.from_numpy_dtype(kind)) for name, kind in columns.items()])
    schema: pa.Schema = codec.schema
    return schema


def rings(options: Options) -> list[Ring]:
    """Of producers that live or whose data still lingers, of all channels that the option names, by block id."""
    directory = options.directory()
    paths: dict[str, None] = {}
    for channel in options.channels():
        paths[directory.exclusive_block(channel)] = None
        for listed in directory.producers(channel):
            if listed.entry is not None:
                paths |= {os.path.join(directory.root, name): None for name in listed.entry.blocks}
    found = (ring_at(path) for path in paths)
    return sorted((ring for ring in found if ring is not None), key=lambda ring: ring.block_id)


def ring_at(path: str) -> Ring | None:
    """None where there is none (any more), or nothing that can be read as one."""
    try:
        segment = Segment.attach(path)
        header = segment.header()
    except DataBlockError:
        return None
    if header.kind == Kind.TABLE:
        return None
    return Ring(path, header, bytes(segment.data[HEADER_BYTES : HEADER_BYTES + header.geometry.schema_bytes]))


def rows_of(value: Any) -> pa.RecordBatch:
    """One payload as a batch; Arrow batches share its memory."""
    if isinstance(value, pa.RecordBatch):
        return value
    if hasattr(value, "dtype"):
        flat, names = value.reshape(-1), value.dtype.names
        if names is None:
            return pa.RecordBatch.from_arrays([pa.array(flat)], names=["value"])
        return pa.RecordBatch.from_arrays([pa.array(flat[name]) for name in names], names=list(names))
    return pa.RecordBatch.from_arrays([pa.array([bytes(value)], pa.binary())], schema=RAW)
