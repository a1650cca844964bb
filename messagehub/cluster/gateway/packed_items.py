"""Items of a ring as one message: what is known of each, and its bytes.

Rule: large items are sent from their slots, which are let go of when gRPC has sent them. A process keeps no more than
its share of a ring's slots; of what is read beyond that it gets copies.
"""

import struct
from collections.abc import Iterator, Mapping

import pyarrow as pa

from messagehub.flight.messages import ITEM, ITEM_ALIGNMENT, MESSAGE_BYTES, MESSAGE_ITEMS
from messagehub.shm.layout import FLAT
from messagehub.shm.rings.read_results import Gap, Item, Producers

LARGE_BYTES = 16 << 10
"""Items from this size on are a buffer each: copying them takes longer."""
_COLUMNS = pa.schema([pa.field("items", pa.binary(), nullable=False), pa.field("payload", pa.binary_view())])
_NO_TEXT = pa.py_buffer(bytes(16))
_ARROW_ALIGNMENT = 8
_PADDING = pa.py_buffer(bytes(_ARROW_ALIGNMENT))


def columns(metadata: Mapping[bytes, bytes]) -> pa.Schema:
    """Return the schema of messages.

    A message is one row: what is known of each item, packed (`ITEM`), and an empty value of a type that may have any
    number of buffers: those are the items' bytes. Columns for each field would take more time than sending 64 KiB does.
    """
    return _COLUMNS.with_metadata(metadata)


class PackedItems:
    def __init__(self) -> None:
        self.producers: Producers = ()
        """Who wrote the ring, as its newest item here says."""
        self._rows: list[bytes] = []
        self._small = bytearray()
        self._large: list[pa.Buffer] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size >= MESSAGE_BYTES or len(self._rows) >= MESSAGE_ITEMS

    def add(self, item: Item | Gap) -> None:
        if isinstance(item, Gap):
            self._rows.append(ITEM.pack(item.first, item.last, 0, 0, *FLAT, 0, 0, 0))
            return
        self.producers = item.producers
        content = pa.py_buffer(item.buffer)
        size = content.size
        if size >= LARGE_BYTES:
            self._large.append(content)
            place = len(self._large), 0, size
            if -size % ITEM_ALIGNMENT >= _ARROW_ALIGNMENT:  # Arrow sees to the rest
                self._large.append(_PADDING)
        else:
            place = 0, len(self._small), size
            self._small += content
            self._small += bytes(-size % ITEM_ALIGNMENT)
        self._rows.append(ITEM.pack(item.sequence, 0, item.epoch, item.written_ns, *item.shape, *place))
        self._size += size

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        rows = pa.py_buffer(b"".join(self._rows))
        buffers = [None, _NO_TEXT, pa.py_buffer(self._small), *_as_parts(self._large)]
        cells = [
            pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(struct.pack("=2i", 0, rows.size)), rows]),
            pa.Array.from_buffers(pa.binary_view(), 1, buffers),
        ]
        return pa.RecordBatch.from_arrays(cells, schema=schema)


def _as_parts(buffers: list[pa.Buffer]) -> Iterator[pa.Buffer]:
    """Give the buffers as parts of one, which ends when gRPC lets go of the last of them. For each that ends there, it
    would wait for the interpreter's lock, in a thread that Python does not know."""
    if buffers:
        low = min(each.address for each in buffers)
        high = max(each.address + each.size for each in buffers)
        whole = pa.foreign_buffer(low, high - low, buffers)  # never read but in its parts
        for each in buffers:
            yield whole.slice(each.address - low, each.size)
