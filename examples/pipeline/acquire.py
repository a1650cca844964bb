"""Sensors that say something every 100 ms, into a ring that the pipeline reads: python acquire.py [SECONDS]"""

import random
import sys
import time

import pyarrow as pa

from messagehub import MessageHub

SCHEMA = pa.schema([("sensor", pa.string()), ("celsius", pa.float64())])


def main(seconds: float) -> None:
    until = time.monotonic() + seconds
    with MessageHub.get_instance().producer("pipeline.readings", schema=SCHEMA, capacity=4096) as producer:
        print("writing", flush=True)
        while time.monotonic() < until:
            celsius = [random.gauss(20, 2), random.gauss(5, 1), 999.0]  # the third sensor is broken
            producer.write(pa.record_batch([["hall", "roof", "cellar"], celsius], schema=SCHEMA))
            time.sleep(0.1)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0)
