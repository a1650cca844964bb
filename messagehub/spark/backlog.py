"""How far a query is behind the head of a ring: in payloads, rows, bytes and seconds."""

from typing import Any, Final

import pyarrow as pa

from messagehub.shm.errors import NothingThere
from messagehub.shm.rings.read_results import Item
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import open_reader

COUNTED_PAYLOADS: Final = 1000
"""So many unread payloads of a ring are looked at each time progress is reported; about 10 µs each."""


def behind(reader: RingReader, committed_ns: int | None) -> dict[str, float]:
    """Return what lies between the reader's position, with a payload written at `committed_ns`, and the head.

    Beyond `COUNTED_PAYLOADS` rows and bytes are estimated from the payloads that were counted. What was overwritten
    counts as a payload only: nobody can tell its rows. Of a ring that is replaced meanwhile only payloads are told.
    """
    found: dict[str, float] = {"payloads": reader.head - reader.position.sequence}
    try:
        ahead = open_reader(reader.path, start=reader.position, lossless=False, wait_for_writer=True)
    except NothingThere:
        return found
    with ahead:
        if ahead.header.block_id != reader.header.block_id:
            return found
        rows = size = count = 0
        since_ns, head = committed_ns, ahead.head
        while count < COUNTED_PAYLOADS and ahead.position.sequence < head and (item := ahead.take()) is not None:
            if isinstance(item, Item):
                since_ns = since_ns or item.written_ns
                count, rows, size = count + 1, rows + _row_count(item.value), size + memoryview(item.buffer).nbytes
        share = (count + head - ahead.position.sequence) / max(count, 1)
        seconds = max(ahead.newest_ns() - since_ns, 0) / 1e9 if since_ns else 0.0
    return found | {"rows": round(rows * share), "bytes": round(size * share), "seconds": round(seconds, 3)}


def _row_count(value: Any) -> int:
    if isinstance(value, pa.RecordBatch):
        return int(value.num_rows)
    return int(value.size) if hasattr(value, "dtype") else 1
