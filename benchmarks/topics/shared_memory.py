"""Blocks in shared memory: waking a reader, moving bytes, finding and attaching without a broker."""

import itertools
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.brokers import hub_broker
from benchmarks.harness import Bench, CannotMeasure, Measure, NotMeasured, comparison, enter_or_say_why, until
from benchmarks.shared_memory import (
    fifo_trip,
    hub_in,
    iceoryx_trip,
    partner,
    queue_trip,
    ring_trip,
    zenoh_trip,
    zmq_trip,
)
from benchmarks.verdicts import at_least, at_most, beside, percentile

_numbers = itertools.count(1)
Trip = Callable[[], None]
KIB, MIB = 1 << 10, 1 << 20


@contextmanager
def fresh_place(bench: Bench) -> Iterator[Path]:
    """A directory whose name is also the domain, so that nothing of the user's hub is touched."""
    from messagehub.shm.directory import Directory

    name = f"bench-{os.getpid()}-{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="shm-", dir=bench.directory) as parent:
        place = Path(parent) / name
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            _remove(Directory(name))


def _remove(directory: object) -> None:
    import shutil

    shutil.rmtree(Path(directory.path).parent, ignore_errors=True)  # type: ignore[attr-defined]
    for ring in Path(directory.root).glob(f"pylabhub_*@{directory.domain}"):  # type: ignore[attr-defined]
        ring.unlink(missing_ok=True)


@comparison("1 KiB to a sleeping process and back, one Python client, p50")
def sleeping_reader(bench: Bench) -> None:
    """Both sides sleep between messages, as they do in life; halve a figure for one way."""
    with ExitStack() as stack:

        def contender(make: Callable[[Path], AbstractContextManager[Trip]]) -> Measure | NotMeasured:
            trip = enter_or_say_why(stack, make(stack.enter_context(fresh_place(bench))))
            return trip if isinstance(trip, NotMeasured) else _p50_us(trip, bench.slice_seconds)

        bench.compare(
            {
                "ring": contender(ring_trip),
                "bare FIFO": contender(fifo_trip),
                "pyzmq ipc": contender(zmq_trip),
                "multiprocessing.Queue": contender(queue_trip),
                "iceoryx2 events": contender(iceoryx_trip),
                "zenoh": contender(zenoh_trip),
            },
            unit="µs",
            claims=[
                at_most(1.5, "ring", "bare FIFO"),
                at_most(1.0, "ring", "pyzmq ipc"),
                at_most(1.0, "ring", "multiprocessing.Queue"),
                at_most(1.0, "ring", "iceoryx2 events"),
                at_most(1.0, "ring", "zenoh"),
            ],
            repetitions=bench.slices,
        )


def _p50_us(trip: Trip, seconds: float) -> Measure:
    def measure() -> float:
        durations = []
        for _ in until(seconds):
            start = perf_counter()
            trip()
            durations.append(perf_counter() - start)
        return percentile(durations, 0.5) * 1e6

    return measure


def _moving(bench: Bench, size: int, bound: float) -> None:
    with fresh_place(bench) as place, _reading(place, size) as write:
        source = bytes(size)
        with mmap.mmap(-1, size * 8) as mapping, memoryview(mapping) as target:
            offsets = itertools.cycle(range(0, size * 8, size))

            def copy() -> None:
                offset = next(offsets)
                target[offset : offset + size] = source

            bench.compare(
                {
                    "ring, read by another process": _rate(lambda: write(source), size, bench.seconds),
                    "memcpy": _rate(copy, size, bench.seconds),
                },
                unit="GB/s",
                claims=[at_least(bound, "ring, read by another process", "memcpy")],
            )


@contextmanager
def _reading(place: Path, size: int) -> Iterator[Callable[[bytes], object]]:
    hub = hub_in(place)
    try:
        producer = hub.producer("stream", capacity=8, page_size=size, when_full="block")  # type: ignore[attr-defined]
        with partner("swallow", place):
            yield lambda payload: producer.write(payload, timeout=10.0)
    finally:
        hub.close()  # type: ignore[attr-defined]


def _rate(move: Callable[[], object], size: int, seconds: float) -> Measure:
    def measure() -> float:
        start = perf_counter()
        count = 0
        for _ in until(seconds):
            move()
            count += 1
        return count * size / (perf_counter() - start) / 1e9

    return measure


@comparison("64 KiB payloads to a reader, lossless")
def payloads_64_kib(bench: Bench) -> None:
    _moving(bench, 64 * KIB, 0.5)


@comparison("1 MiB payloads to a reader, lossless")
def payloads_1_mib(bench: Bench) -> None:
    _moving(bench, MIB, 0.9)


@comparison("16 MiB payloads to a reader, lossless")
def payloads_16_mib(bench: Bench) -> None:
    _moving(bench, 16 * MIB, 0.9)


@comparison("a producer at default settings, and a consumer that keeps 1,000 items")
def kept_values(bench: Bench) -> None:
    """Arrays of 1 KiB: what a consumer keeps shares memory with the ring while it is little, and is copied beyond."""
    with ExitStack() as stack:

        def contender(kind: str) -> Measure:
            place = stack.enter_context(fresh_place(bench))
            hub = hub_in(place)
            stack.callback(hub.close)  # type: ignore[attr-defined]
            items = np.zeros(KIB // 8)
            producer = hub.producer("stream", schema=items.dtype)  # type: ignore[attr-defined]
            stack.enter_context(partner(kind, place))
            return _per_second(lambda: producer.write(items), bench.slice_seconds)

        keeps, drops = "to a consumer that keeps 1,000 items", "to a consumer that keeps none"
        bench.compare(
            {keeps: contender("keep"), drops: contender("swallow")},
            unit="/s",
            claims=[at_least(0.9, keeps, drops)],
            repetitions=bench.slices,
        )


def _per_second(act: Callable[[], object], seconds: float) -> Measure:
    def measure() -> float:
        start = perf_counter()
        count = 0
        for _ in until(seconds):
            act()
            count += 1
        return count / (perf_counter() - start)

    return measure


@comparison("without a broker: discovery through the directory, and attaching")
def without_broker(bench: Bench) -> None:
    from messagehub.shm.ring import open_reader

    calls = bench.scaled(2000, 400)
    with fresh_place(bench) as place, partner("ring", place):
        hub = hub_in(place)

        def discover() -> float:
            start = perf_counter()
            for _ in itertools.repeat(None, calls):
                if hub.discover("back").source != "files":  # type: ignore[attr-defined]
                    raise CannotMeasure("the directory did not answer")
            return (perf_counter() - start) / calls * 1e6

        path = f"/dev/shm{hub.discover('back').shm_name}"  # type: ignore[attr-defined]

        def attach() -> float:
            durations = []
            for _ in range(20):
                start = perf_counter()
                reader = open_reader(path, start="latest")
                durations.append(perf_counter() - start)
                reader.close()
            return percentile(durations, 0.5) * 1e6

        def consumer() -> float:
            durations = []
            for _ in range(20):
                start = perf_counter()
                opened = hub.consumer("back")  # type: ignore[attr-defined]
                durations.append(perf_counter() - start)
                opened.close()
            return percentile(durations, 0.5) * 1e6

        bench.compare(
            {"hub.discover": discover, "attach to the ring": attach, "hub.consumer, found and registered": consumer},
            unit="µs",
            claims=[
                at_most(50.0, "hub.discover"),
                at_most(1000.0, "attach to the ring"),
                beside("hub.consumer, found and registered", "attach to the ring"),
            ],
        )
        hub.close()  # type: ignore[attr-defined]


@comparison("CPU of a waiting reader")
def idle_reader(bench: Bench) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    with fresh_place(bench) as place:
        hub = hub_in(place)
        producer = hub.producer("stream")  # type: ignore[attr-defined]
        with partner("swallow", place) as process:

            def busy() -> float:
                for _ in range(
                    10
                ):  # it has slept and woken before: waiting for more must cost no more than for the first
                    producer.write(b"x")
                    time.sleep(0.01)
                before = _cpu_ticks(process.pid)
                time.sleep(bench.scaled(2, 1))
                used = (_cpu_ticks(process.pid) - before) / ticks / bench.scaled(2, 1) * 100
                return max(used, 0.01)  # less than a tick cannot be told from nothing

            bench.compare({"reader": busy}, unit="% of a core", claims=[at_most(0.5, "reader")], repetitions=3)
        hub.close()  # type: ignore[attr-defined]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@comparison("a consumer is killed: until its producer's process is told")
def death_told(bench: Bench) -> None:
    """From kill -9 to the event, through the broker, at its default settings."""
    from messagehub import MessageHub
    from registry.events import ConsumerRegistered, ConsumerUnregistered

    with (
        fresh_place(bench) as place,
        hub_broker(bench, directory=place, environment={"MESSAGEHUB_DOMAIN": place.name}) as broker,
        MessageHub(endpoint=broker.endpoint, dir=place, domain=place.name) as hub,
        hub.producer("stream"),
        hub.watch("stream") as watch,
    ):
        if not watch.wait_current(10.0):
            raise CannotMeasure("the watch has no view")

        def wait_for(kind: type) -> None:
            while (event := watch.get(timeout=10.0)) is not None:
                if isinstance(event, kind):
                    return
            raise CannotMeasure(f"no {kind.__name__} came")

        def told() -> float:
            with partner("swallow", place) as process:
                wait_for(ConsumerRegistered)
                start = perf_counter()
                process.kill()
                wait_for(ConsumerUnregistered)
                return (perf_counter() - start) * 1e3

        bench.compare({"told": told}, unit="ms", claims=[at_most(100.0, "told")], repetitions=bench.scaled(11, 5))
