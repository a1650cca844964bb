"""A table that outlives the process that wrote it; no broker is needed to find it.

python examples/publish_a_table.py
"""

import os

import pyarrow as pa

from messagehub import MessageHub


def main() -> None:
    channel = f"example.report-p{os.getpid()}"
    with MessageHub() as hub:
        hub.publish_table(channel, pa.table({"day": ["mon", "tue"], "sold": [3, 5]}))
        found = hub.discover(channel)
        assert found is not None
        with hub.consumer(channel) as consumer:
            table = consumer.latest()
        print(f"generation {found.generation}: {table.num_rows} rows, status {found.status}")


if __name__ == "__main__":
    main()
