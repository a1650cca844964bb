"""The blocks of tables: an Arrow stream behind a block header, written once.

The size of a part is unknown until its last batch, so the block grows by plain writes while it has no name:
a full tmpfs is an error of the write, never a SIGBUS, and a process that dies here leaves nothing.
"""

import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterable
from typing import Any

from messagehub.shm.channel_directory.ownership import is_written_by_others
from messagehub.shm.errors import ChecksumMismatch, HeaderInconsistent, PayloadDamaged
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import CHECKSUM, LENGTH, LINE_BYTES, Checksum, Geometry, Header, Kind, PayloadFormat
from messagehub.shm.mapped_file import Segment, create_unnamed, map_file, publish, refusal
from messagehub.shm.payloads.arrow import arrow_flaws, check_names

_DATA_OFFSET = Geometry(slot_bytes=1, slot_count=1, page_bytes=LINE_BYTES).data_offset


def write_block(path: str, batches: Iterable[Any], schema: Any, checksum: Checksum) -> tuple[int, int]:
    """Write the block, give it its name, and return its rows and payload bytes."""
    import pyarrow as pa

    descriptor = create_unnamed(path)
    rows = 0
    try:
        with pa.OSFile(f"/proc/self/fd/{descriptor.fd}", "wb") as sink:
            sink.write(bytes(_DATA_OFFSET))
            with pa.ipc.new_stream(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
        size = os.fstat(descriptor.fd).st_size - _DATA_OFFSET
        geometry = Geometry(slot_bytes=size, slot_count=1, page_bytes=LINE_BYTES)
        os.posix_fallocate(descriptor.fd, 0, geometry.file_bytes)
        os.pwrite(descriptor.fd, _header(path, geometry, checksum).pack(), 0)
        crc = 0 if checksum == Checksum.NONE else _crc(descriptor.fd, geometry)
        os.pwrite(descriptor.fd, struct.pack("=QQQ", 1, size, crc), geometry.table_offset)
    except OSError as error:
        raise refusal(error, path, os.fstat(descriptor.fd).st_size) from None
    publish(descriptor.fd, path)
    descriptor.close()
    return rows, size


def read_block(path: str, *, verify: bool = False) -> Any:
    """Return the block as a pyarrow Table that shares its memory; the memory stays until the last view is gone.

    `verify` compares the checksum and checks the cells (see `payloads`).
    """
    import pyarrow as pa

    segment = Segment.attach(path)
    try:
        address, length = _payload(segment, path, verify=verify)
    finally:
        segment.descriptor.close()
    try:
        table = pa.ipc.open_stream(pa.foreign_buffer(address, length, base=segment.mapping)).read_all()
        table.validate(full=verify or is_written_by_others(path))  # if not full, sizes only
        check_names(table.schema)
    except arrow_flaws() as error:
        raise PayloadDamaged(path, error) from None
    return table


def _payload(segment: Segment, path: str, *, verify: bool) -> tuple[int, int]:
    """Return the address and the length of the memory."""
    import pyarrow as pa

    header = segment.header()
    if header.kind != Kind.TABLE:
        raise HeaderInconsistent(path, "it is a ring, not a table")
    line = header.geometry.line(0)
    length = segment.words[line + LENGTH]
    if length > header.geometry.slot_bytes:
        raise HeaderInconsistent(path, f"it claims {length} bytes of {header.geometry.slot_bytes}")
    is_checked = header.checksum == Checksum.VERIFY or (verify and header.checksum == Checksum.WRITE)
    if is_checked:
        start = header.geometry.data_offset
        if zlib.crc32(segment.data[start : start + length]) != segment.words[line + CHECKSUM]:
            raise ChecksumMismatch(path, "the table")
    return pa.py_buffer(segment.mapping).address + header.geometry.data_offset, length


def _header(path: str, geometry: Geometry, checksum: Checksum) -> Header:
    me = ProcessIdentity.current()
    return Header(
        kind=Kind.TABLE,
        geometry=geometry,
        payload_format=PayloadFormat.ARROW_STREAM,
        channel=os.path.basename(os.path.dirname(os.path.dirname(path))),
        producer_id="",
        block_id=uuid.uuid4().hex,
        host=me.host,
        boot_id=me.boot_id,
        created_at=time.time(),
        checksum=checksum,
    )


def _crc(fd: int, geometry: Geometry) -> int:
    with map_file(fd, geometry.file_bytes, writable=False) as mapping, memoryview(mapping) as data:
        start = geometry.data_offset
        with data[start : start + geometry.slot_bytes] as payload:
            return zlib.crc32(payload)
