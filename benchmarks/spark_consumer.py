"""A second process that takes what Spark made: for every line on stdin it holds the data as Arrow and says so.

python -m benchmarks.spark_consumer DIR DOMAIN CHANNEL
"""

import sys

import pyarrow.parquet as pq

from messagehub import MessageHub


def main(directory: str, domain: str, channel: str) -> None:
    with MessageHub(dir=directory, domain=domain) as hub, hub.consumer(channel) as consumer:
        print("ready", flush=True)
        for line in sys.stdin:
            kind, _, path = line.strip().partition(" ")
            table = consumer.latest() if kind == "channel" else pq.read_table(path)
            print(table.num_rows, flush=True)
            del table


if __name__ == "__main__":
    main(*sys.argv[1:])
