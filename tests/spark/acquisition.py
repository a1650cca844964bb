"""An acquisition loop in a process of its own: writes as many batches as it is told on stdin, and says how far it is.

python -m tests.spark.acquisition DIR DOMAIN CHANNEL CAPACITY FIRST_ID
"""

import sys

import pyarrow as pa

from messagehub import MessageHub

SCHEMA = pa.schema([("id", pa.int64()), ("sensor", pa.string())])
ROWS = 10


def batch(first: int) -> pa.RecordBatch:
    ids = list(range(first, first + ROWS))
    return pa.RecordBatch.from_pydict({"id": ids, "sensor": [f"s{i % 3}" for i in ids]}, schema=SCHEMA)


def main(directory: str, domain: str, channel: str, capacity: str, first: str) -> None:
    following = int(first)
    with (
        MessageHub(dir=directory, domain=domain) as hub,
        hub.producer(channel, schema=SCHEMA, capacity=int(capacity), page_size=4096) as producer,
    ):
        print("ready", flush=True)
        for line in sys.stdin:
            for _ in range(int(line)):
                producer.write(batch(following))
                following += ROWS
            print(following, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
