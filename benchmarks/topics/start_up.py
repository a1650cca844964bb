"""How long a broker takes to start with a large registry, and what it holds in memory."""

import tempfile
import time
from pathlib import Path

from benchmarks.brokers import hub_broker
from benchmarks.harness import Bench, comparison
from benchmarks.native import zmq_clients
from benchmarks.processes import resident_bytes
from benchmarks.topics.durable_writes import CHANNEL, SCHEMA
from benchmarks.verdicts import at_most, beside


@comparison("start with 100,000 channels and 100,000 schemas")
def large_registry(bench: Bench) -> None:
    """Filled through the wire protocol. With --quick a tenth of the records against a tenth of the time."""
    count = bench.scaled(100_000, 10_000)
    with tempfile.TemporaryDirectory(prefix="large-", dir=bench.directory) as directory:
        large = Path(directory)
        empty = Path(directory, "empty")
        empty.mkdir()
        _fill(bench, large, CHANNEL, count)
        before = _start(bench, empty)[1]
        per_channel = (_start(bench, large)[1] - before) / count / 1024
        _fill(bench, large, SCHEMA, count)
        memory: list[float] = []

        def start() -> float:
            seconds, resident = _start(bench, large)
            memory.append((resident - before) / count / 1024)
            return seconds

        ours = f"start, {count:,} channels and schemas"
        bench.compare(
            {ours: start, "start, empty": lambda: _start(bench, empty)[0]},
            unit="s",
            claims=[at_most(5.0 * count / 100_000, ours), beside(ours, "start, empty")],
        )
        sizes = iter(memory)
        bench.compare(
            {"resident, a channel": lambda: per_channel, "resident, a channel and its schema": lambda: next(sizes)},
            unit="KiB",
            claims=[at_most(2.0, "resident, a channel"), beside("resident, a channel and its schema")],
        )


def _fill(bench: Bench, directory: Path, request: str, count: int) -> None:
    bench.step(f"writing {count:,} records")
    with hub_broker(bench, directory=directory, profiled=False) as broker:
        zmq_clients(bench.directory).run(
            endpoint=broker.endpoint,
            request=request,
            expect="_ACK",
            operations=count,
            clients=4,
            depth=256,
            seconds=60,
        )


def _start(bench: Bench, directory: Path) -> tuple[float, int]:
    """Seconds from starting the process to its first reply, and its resident bytes then."""
    started = time.perf_counter()
    with hub_broker(bench, directory=directory) as broker:
        return time.perf_counter() - started, resident_bytes(broker.pid)
