"""How long a broker takes to start with a large registry, and what it holds in memory."""

import hashlib
import itertools
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.brokers import client_socket, hub_broker
from benchmarks.harness import Bench, CannotMeasure, comparison
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.topics.durable_writes import CHANNEL, SCHEMA
from benchmarks.verdicts import at_most, beside
from messagehub import protocol
from messagehub.store.sqlite import SQLiteStore
from registry.events import AnyEvent, SchemaRegistered
from registry.registry import Registry

WRITTEN_AT_ONCE = 10_000


@comparison("start with 100,000 channels and 100,000 schemas")
def large_registry(bench: Bench) -> None:
    """Filled through the store. With --quick: a tenth of the records and no target for the time."""
    count = bench.scaled(100_000, 10_000)
    with tempfile.TemporaryDirectory(prefix="large-", dir=bench.directory) as directory:
        empty, channels, both = (Path(directory, name) for name in ("empty", "channels", "both"))
        empty.mkdir(mode=0o700)
        channels.mkdir(mode=0o700)
        bench.step(f"writing {count:,} channels and schemas")
        fill_sqlite(channels, channels_made(count))
        shutil.copytree(channels, both)
        fill_sqlite(both, _schemas(count, after=count))
        _check(bench, both, count)

        starts: dict[Path, list[Started]] = {both: [], empty: []}

        def start(directory: Path) -> float:
            starts[directory].append(_start(bench, directory, profiled=directory is both))
            return starts[directory][-1].seconds

        ours = f"start, {count:,} channels and schemas"
        bench.compare(
            {ours: lambda: start(both), "start, empty": lambda: start(empty)},
            unit="s",
            claims=[beside(ours) if bench.quick else at_most(5.0, ours), beside(ours, "start, empty")],
            repetitions=1 if bench.profile else bench.scaled(5, 3),
        )
        # Beside other work the clock on the wall says little; the processor's says what a quiet machine would take.
        processor = "CPU time of that start"
        bench.judge({processor: [each.cpu_seconds for each in starts[both]]}, unit="s", claims=[beside(processor)])
        nothing = starts[empty][0].resident_bytes

        def kib_each(start: Started) -> float:
            """What the process holds more than an empty broker, shared among the records."""
            return (start.resident_bytes - nothing) / count / 1024

        channel, with_schema = "resident, a channel", "resident, a channel and its schema"
        bench.judge(
            {
                channel: [kib_each(_start(bench, channels, profiled=False))],
                with_schema: [kib_each(each) for each in starts[both]],
            },
            unit="KiB",
            claims=[at_most(2.0, channel), beside(with_schema)],
        )


def channels_made(count: int) -> Iterator[AnyEvent]:
    registry = Registry()
    for number in range(count):
        command = protocol.decode(CHANNEL.replace("{n}", str(number)).encode())
        yield from registry.apply(command, now=0.0).events


def _schemas(count: int, *, after: int) -> Iterator[AnyEvent]:
    """Judging 100,000 schemas would take a minute: one is judged, the others differ from it by name and content."""
    (first,) = Registry().apply(protocol.decode(SCHEMA.encode()), now=0.0).events
    assert isinstance(first, SchemaRegistered)
    for number in range(1, count + 1):
        version = msgspec.structs.replace(
            first.schema,
            subject=first.schema.subject.replace("{n}", str(number)),
            schema=first.schema.schema.replace("{n}", str(number)),
            schema_id=number,
            schema_hash=hashlib.sha256(str(number).encode()).hexdigest(),
            guid=str(uuid.UUID(int=number)),
        )
        yield msgspec.structs.replace(first, schema=version, revision=after + number)


def fill_sqlite(directory: Path, happened: Iterator[AnyEvent]) -> None:
    store = SQLiteStore(directory / "registry.db", sync="off")
    while batch := list(itertools.islice(happened, WRITTEN_AT_ONCE)):
        rows = [row for event in batch for row in store.rows(event)]
        store.write(rows, revision=batch[-1].revision, durable=False)
    store.close()


def _check(bench: Bench, directory: Path, count: int) -> None:
    """A broker that did not find the records would start quickly."""
    with hub_broker(bench, directory=directory, profiled=False) as broker, client_socket(broker.endpoint) as socket:
        socket.send(b'{"type":"STATS_REQUEST"}')
        found = msgspec.json.decode(socket.recv())
    if (found["channels"], found["schemas"]) != (count, count):
        raise CannotMeasure(f"{found['channels']} channels and {found['schemas']} schemas instead of {count} each")


class Started(NamedTuple):
    seconds: float
    cpu_seconds: float
    resident_bytes: int


def _start(bench: Bench, directory: Path, *, profiled: bool = True) -> Started:
    """A broker from the start of its process to its first reply."""
    began = time.perf_counter()
    with hub_broker(bench, directory=directory, profiled=profiled) as broker:
        return Started(time.perf_counter() - began, cpu_seconds(broker.pid), resident_bytes(broker.pid))
