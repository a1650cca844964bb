"""Blocks in shared memory: waking a reader, moving bytes, finding and attaching without a broker."""

import itertools
import mmap
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.brokers import hub_broker
from benchmarks.harness import Bench, CannotMeasure, Measure, NotMeasured, comparison, enter_or_say_why, until
from benchmarks.hub_processes import fresh_place, hub_row
from benchmarks.hub_rows import KIB, MIB, hub_in
from benchmarks.placement import WAKING, Placement
from benchmarks.shared_memory import (
    fifo_trip,
    iceoryx_stream,
    iceoryx_trip,
    partner,
    queue_trip,
    zenoh_stream,
    zenoh_trip,
    zmq_trip,
)
from benchmarks.verdicts import at_least, at_most, beside, percentile

Trip = Callable[[], None]


@comparison("1 KiB to a sleeping process and back, one Python client, p50", headline=True, placements=WAKING)
def sleeping_reader(bench: Bench) -> None:
    """Both sides sleep between messages, as they do in life; halve a figure for one way."""
    with ExitStack() as stack:

        def peer(make: Callable[[Path], AbstractContextManager[Trip]]) -> Measure | NotMeasured:
            trip = enter_or_say_why(stack, make(stack.enter_context(fresh_place(bench.directory))))
            return trip if isinstance(trip, NotMeasured) else _p50_us(trip, bench.slice_seconds)

        def ours(row: str) -> Measure:
            return stack.enter_context(hub_row(bench.directory, row)).microseconds(bench.slice_seconds)

        through_hub, ring = "through hub", "ring alone"
        others = {"pyzmq ipc": zmq_trip, "multiprocessing.Queue": queue_trip, "zenoh": zenoh_trip}
        bench.compare(
            {
                through_hub: ours("trip"),
                ring: ours("ring-trip"),
                "iceoryx2 events": peer(iceoryx_trip),
                "bare FIFO": peer(fifo_trip),
                **({} if bench.quick else {name: peer(make) for name, make in others.items()}),
            },
            unit="µs",
            claims=[
                at_most(1.0, through_hub, "iceoryx2 events"),
                at_most(0.6 if bench.placement is Placement.SAME_CORE else 0.85, ring, "iceoryx2 events"),
                at_most(1.5, through_hub, "bare FIFO"),
                *([] if bench.quick else [at_most(1.0, through_hub, name) for name in others]),
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


@comparison("items of 1 KiB to a reader, lossless, time an item", headline=True, placements=[Placement.TWO_CORES])
def small_stream(bench: Bench) -> None:
    """Up to 64 items wait for the reader, here and with iceoryx2."""
    with ExitStack() as stack:

        def peer(make: Callable[[Path], AbstractContextManager[Callable[[float], float]]]) -> Measure | NotMeasured:
            stream = enter_or_say_why(stack, make(stack.enter_context(fresh_place(bench.directory))))
            return stream if isinstance(stream, NotMeasured) else lambda: stream(bench.slice_seconds)

        ours = stack.enter_context(hub_row(bench.directory, "stream-1k"))
        through_hub = "through hub"
        bench.compare(
            {
                through_hub: ours.microseconds(bench.slice_seconds),
                "iceoryx2 events": peer(iceoryx_stream),
                "zenoh": peer(zenoh_stream),
            },
            unit="µs",
            claims=[
                at_most(1.5, through_hub),
                at_most(1.0, through_hub, "iceoryx2 events"),
                at_most(1.0, through_hub, "zenoh"),
            ],
            repetitions=bench.slices,
        )


def against_memcpy(bench: Bench, row: str, size: int, bound: float, *, is_pure: bool = False) -> None:
    """Compare a stream with copying the same bytes into a mapping of eight slots; `is_pure`: with rings in Python."""
    source = bytes(size)
    with (
        hub_row(bench.directory, row, environment={"MESSAGEHUB_PURE_PYTHON": "1"} if is_pure else {}) as ours,
        mmap.mmap(-1, size * 8) as mapping,
        memoryview(mapping) as target,
    ):
        if is_pure and ours.implementation != "python":
            raise CannotMeasure(f"the rings are {ours.implementation}")
        offsets = itertools.cycle(range(0, size * 8, size))

        def copy() -> None:
            offset = next(offsets)
            target[offset : offset + size] = source

        through_hub = "through hub to another process"
        bench.compare(
            {
                through_hub: ours.gigabytes_a_second(size, bench.seconds),
                "memcpy": _rate(copy, size, bench.seconds),
            },
            unit="GB/s",
            claims=[at_least(bound, through_hub, "memcpy")],
        )


def _rate(move: Callable[[], object], size: int, seconds: float) -> Measure:
    def measure() -> float:
        start = perf_counter()
        count = 0
        for _ in until(seconds):
            move()
            count += 1
        return count * size / (perf_counter() - start) / 1e9

    return measure


@comparison("64 KiB payloads to a reader, lossless", headline=True, placements=[Placement.TWO_CORES])
def payloads_64_kib(bench: Bench) -> None:
    against_memcpy(bench, "stream-64k", 64 * KIB, 0.7)


@comparison("1 MiB payloads to a reader, lossless", headline=True, placements=[Placement.TWO_CORES])
def payloads_1_mib(bench: Bench) -> None:
    against_memcpy(bench, "stream-1m", MIB, 0.9)


@comparison("16 MiB payloads to a reader, lossless", headline=True, placements=[Placement.TWO_CORES])
def payloads_16_mib(bench: Bench) -> None:
    against_memcpy(bench, "stream-16m", 16 * MIB, 0.95)


@comparison(
    "a producer at default settings, and a consumer that keeps 1,000 items",
    headline=True,
    placements=[Placement.TWO_CORES],
)
def kept_values(bench: Bench) -> None:
    """Arrays of 1 KiB: what a consumer keeps shares memory with the ring while it is little, and is copied beyond."""
    with ExitStack() as stack:

        def contender(kind: str) -> Measure:
            place = stack.enter_context(fresh_place(bench.directory))
            hub = hub_in(place)
            stack.callback(hub.close)
            items = np.zeros(KIB // 8)
            producer = hub.producer("stream", schema=items.dtype)
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


@comparison("without a broker: discovery through the directory, and attaching", placements=[Placement.TWO_CORES])
def without_broker(bench: Bench) -> None:
    from messagehub.shm.rings.ring import open_reader

    calls = bench.scaled(2000, 400)
    with fresh_place(bench.directory) as place, partner("echo", place):
        hub = hub_in(place)

        def discover() -> float:
            start = perf_counter()
            for _ in itertools.repeat(None, calls):
                if hub.discover("back").source != "files":
                    raise CannotMeasure("the directory did not answer")
            return (perf_counter() - start) / calls * 1e6

        path = f"/dev/shm{hub.discover('back').shm_name}"

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
                opened = hub.consumer("back")
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
        hub.close()


@comparison("processor time of a waiting reader, of one core", placements=[Placement.TWO_CORES])
def idle_reader(bench: Bench) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    with fresh_place(bench.directory) as place:
        hub = hub_in(place)
        producer = hub.producer("stream")
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

            bench.compare({"reader": busy}, unit="%", claims=[at_most(0.5, "reader")], repetitions=3)
        hub.close()


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@comparison("a consumer is killed: until its producer's process is told")
def death_told(bench: Bench) -> None:
    """From kill -9 to the event, through the broker, at its default settings."""
    from messagehub import MessageHub
    from registry.events import ConsumerRegistered, ConsumerUnregistered

    with (
        fresh_place(bench.directory) as place,
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
