"""A process on another host of a site: `python -m benchmarks.far_host DIR MIB`.

It publishes a table of so many MiB and opens a ring, says the port of a bare Flight server that has the same batches,
and for each number on its stdin writes so many batches into the ring, while it reads the next line.
"""

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import flight

from messagehub import MessageHub

ROWS = 1 << 16
TABLE, RING = "bench.table", "bench.ring"
SMALL = pa.record_batch([np.random.default_rng(1).random(8192)], names=["x"])
"""64 KiB."""
WRITE_SECONDS = 60.0


def table(mib: int) -> pa.Table:
    """Each batch has memory of its own: one that was sent again and again would come from the processor's cache."""
    columns = [np.random.default_rng(2).random(ROWS), np.arange(ROWS)]
    batches = [pa.record_batch([column.copy() for column in columns], names=["a", "b"]) for _ in range(mib)]
    return pa.Table.from_batches(batches)


class Bare(flight.FlightServerBase):  # type: ignore[misc]  pyarrow has no types
    """`table` is the table; a number is so many small batches."""

    def __init__(self, batches: pa.Table) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._table = batches

    def do_get(self, _: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        if ticket.ticket == b"table":
            return flight.RecordBatchStream(self._table)
        return flight.GeneratorStream(SMALL.schema, _small(int(ticket.ticket)))


def _small(count: int) -> Iterator[pa.RecordBatch]:
    for _ in range(count):
        yield SMALL


def main(directory: str, mib: int) -> None:
    batches = table(mib)
    with MessageHub(dir=directory) as hub, Bare(batches) as bare:
        hub.publish_table(TABLE, batches)
        size = 2 * SMALL.nbytes
        producer = hub.producer(RING, schema=SMALL.schema, capacity=256, page_size=size, when_full="block")
        print(bare.port, flush=True)
        for line in sys.stdin:

            def write(count: int = int(line)) -> None:
                for _ in range(count):
                    producer.write(SMALL, timeout=WRITE_SECONDS)

            threading.Thread(target=write).start()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
