"""What a flooding peer costs the others: a polite client's discovery, alone and beside it.

The flood has a core's worth of work for itself (encrypting, sending, reading refusals), and on a small machine that
alone is felt. So the same flood against another broker runs too: what is more than that, the broker answers for.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic

import msgspec

from benchmarks.brokers import Broker, client_socket, hub_broker, register_channels
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison
from benchmarks.native import Native, curve, zmq_clients
from benchmarks.topics.throughput import FOUND, REQUEST
from benchmarks.verdicts import at_most, beside

ALLOWED = 1000.0
"""Requests a second of one peer."""
POLITE = 400
IN_FLIGHT = 512
START_SECONDS = 30.0


@comparison("discovery beside a peer that floods and is limited, one native client with CURVE")
def discovery_beside_a_flood(bench: Bench) -> None:
    native = zmq_clients(bench.directory)
    p99: dict[str, list[float]] = {}
    with ExitStack() as stack:
        broker, other = (stack.enter_context(_guarded(bench, profiled=profiled)) for profiled in (True, False))

        def polite(name: str, flooded: Broker | None) -> Measure:
            def measure() -> float:
                if flooded is None:
                    return discover()
                with _flood(native, flooded):
                    return discover()

            def discover() -> float:
                found = native.run(
                    endpoint=broker.endpoint,
                    request=REQUEST,
                    expect=FOUND,
                    modulo=1,
                    clients=1,
                    rate=POLITE,
                    seconds=bench.seconds * 3,
                    **curve(broker.keys["polite"]),
                )
                p99.setdefault(f"{name}, p99", []).append(found.p99_us)
                return found.p50_us

            return measure

        flooded, alone, elsewhere = "beside a flood", "without", "beside a flood of another broker"
        bench.compare(
            {flooded: polite(flooded, broker), alone: polite(alone, None), elsewhere: polite(elsewhere, other)},
            unit="µs",
            claims=[at_most(1.5, flooded, elsewhere), beside(flooded, alone)],
        )
        flooded, alone, elsewhere = p99
        bench.judge(p99, unit="µs", claims=[at_most(2.0, flooded, elsewhere), beside(flooded, alone)])


@contextmanager
def _guarded(bench: Bench, *, profiled: bool) -> Iterator[Broker]:
    peers = ["polite", "flooder", "watcher"]
    with hub_broker(bench, profiled=profiled, peers=peers, requests_per_second=ALLOWED) as broker:
        register_channels(broker.endpoint, 1, broker.keys["polite"])
        yield broker


@contextmanager
def _flood(native: Native, broker: Broker) -> Iterator[None]:
    """From the first refusals on."""
    before = _refused(broker)
    flooding = native.start(
        endpoint=broker.endpoint,
        request=REQUEST,
        modulo=1,
        clients=1,
        depth=IN_FLIGHT,
        seconds=START_SECONDS * 2,
        **curve(broker.keys["flooder"]),
    )
    try:
        deadline = monotonic() + START_SECONDS
        while _refused(broker) < before + IN_FLIGHT:
            if monotonic() > deadline:
                raise CannotMeasure("the flood was not refused")
        yield
    finally:
        flooding.stop()


def _refused(broker: Broker) -> int:
    with client_socket(broker.endpoint, pair=broker.keys["watcher"]) as socket:
        socket.send(b'{"type":"STATS_REQUEST"}')
        counters: dict[str, int] = msgspec.json.decode(socket.recv())["counters"]
    return counters.get("refused_rate_limited", 0)
