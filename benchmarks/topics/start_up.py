"""How long a broker takes to start with a large registry, and what it holds in memory."""

import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.brokers import hub_broker
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison
from benchmarks.native import zmq_clients
from benchmarks.processes import resident_bytes
from benchmarks.topics.durable_writes import CHANNEL, SCHEMA
from benchmarks.verdicts import at_most, beside

STARTS = 5
FILL_SECONDS = 90


@comparison("start with 100,000 channels and 100,000 schemas")
def large_registry(bench: Bench) -> None:
    """Filled through the wire protocol. With --quick: a tenth of the records and no target for the time."""
    count = bench.scaled(100_000, 10_000)
    with tempfile.TemporaryDirectory(prefix="large-", dir=bench.directory) as directory:
        empty, channels, both = (Path(directory, name) for name in ("empty", "channels", "both"))
        empty.mkdir(mode=0o700)
        channels.mkdir(mode=0o700)
        _fill(bench, channels, CHANNEL, count)
        shutil.copytree(channels, both)
        _fill(bench, both, SCHEMA, count)

        ours = f"start, {count:,} channels and schemas"
        bench.compare(
            {ours: _seconds(bench, both), "start, empty": _seconds(bench, empty, profiled=False)},
            unit="s",
            claims=[beside(ours) if bench.quick else at_most(5.0, ours), beside(ours, "start, empty")],
            repetitions=STARTS,
        )
        _, nothing = _start(bench, empty, profiled=False)
        bench.compare(
            {
                "resident, a channel": _kib_each(bench, channels, nothing, count),
                "resident, a channel and its schema": _kib_each(bench, both, nothing, count),
            },
            unit="KiB",
            claims=[at_most(2.0, "resident, a channel"), beside("resident, a channel and its schema")],
            repetitions=bench.scaled(STARTS, 2),
        )


def _fill(bench: Bench, directory: Path, request: str, count: int) -> None:
    bench.step(f"writing {count:,} records")
    with hub_broker(bench, directory=directory, profiled=False) as broker:
        load = zmq_clients(bench.directory).run(
            endpoint=broker.endpoint,
            request=request,
            expect="_ACK",
            operations=count,
            clients=4,
            depth=256,
            seconds=FILL_SECONDS,
        )
    if load.operations < count:
        raise CannotMeasure(f"only {load.operations:,} of {count:,} records were written in {FILL_SECONDS} s")


def _start(bench: Bench, directory: Path, *, profiled: bool = True) -> tuple[float, int]:
    """Seconds from starting the process to its first reply, and its resident bytes then."""
    started = time.perf_counter()
    with hub_broker(bench, directory=directory, profiled=profiled) as broker:
        return time.perf_counter() - started, resident_bytes(broker.pid)


def _seconds(bench: Bench, directory: Path, *, profiled: bool = True) -> Measure:
    return lambda: _start(bench, directory, profiled=profiled)[0]


def _kib_each(bench: Bench, directory: Path, nothing: int, count: int) -> Measure:
    """What the process holds more than an empty broker, shared among the records."""
    return lambda: (_start(bench, directory, profiled=False)[1] - nothing) / count / 1024
