"""Two processes share Arrow batches through shared memory, with or without a broker.

python examples/share_batches.py
"""

import multiprocessing
import os

import pyarrow as pa

from messagehub import MessageHub

SCHEMA = pa.schema([("at", pa.float64()), ("volts", pa.float64())])


def produce(channel: str) -> None:
    with MessageHub() as hub, hub.producer(channel, schema=SCHEMA, capacity=8, when_full="block") as producer:
        for n in range(5):
            batch = pa.record_batch([pa.array([n / 10]), pa.array([float(n)])], schema=SCHEMA)
            producer.write(batch, timeout=30.0)


def main() -> None:
    channel = f"example.batches-p{os.getpid()}"
    with MessageHub() as hub, hub.consumer(channel, expected_schema=SCHEMA) as consumer:
        process = multiprocessing.get_context("spawn").Process(target=produce, args=(channel,))
        process.start()
        total = 0.0
        for batch in consumer:  # each shares memory with the producer's ring; ends when the producer ends
            total += sum(batch["volts"].to_pylist())
        process.join()
    print(f"{total} volts, found through {consumer.source}")


if __name__ == "__main__":
    main()
