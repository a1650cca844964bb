"""What one registration costs a client that has very many already, and its broker."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.brokers import Broker, hub_broker
from benchmarks.harness import Bench, CannotMeasure, comparison
from benchmarks.placement import Placement
from benchmarks.processes import cpu_seconds
from benchmarks.verdicts import at_most, beside
from messagehub import MessageHub
from messagehub.client.registration import Registration

BATCH = 1_000
WAIT_SECONDS = 60.0


@comparison(
    "registering channels from one client: the last 1,000 of 100,000 against the first 1,000",
    headline=True,
    placements=[Placement.TWO_CORES],
)
def many_registrations(bench: Bench) -> None:
    """Each of the two has a broker of its own. With --quick: the last 1,000 of 5,000.

    The cost is the processor's time of client and broker: on the wall, waiting for each other is most of it.
    """
    count = bench.scaled(100_000, 5_000)
    last, first = f"the last {BATCH:,} of {count:,}", f"the first {BATCH:,}"
    waited: dict[str, list[float]] = {f"on the wall, {last}": [], f"on the wall, {first}": []}
    with ExitStack() as stack:
        full, fresh = (stack.enter_context(hub_broker(bench, profiled=name == "full")) for name in ("full", "fresh"))
        many = stack.enter_context(_client(bench, full))
        numbers = itertools.count()
        for done in range(0, count - BATCH, BATCH):
            bench.step(f"{done:,} of {count - BATCH:,} channels are registered")
            _register(many, numbers)

        def register_last() -> float:
            return _measured(many, full, waited[f"on the wall, {last}"])

        def register_first() -> float:
            with _client(bench, fresh) as few:
                return _measured(few, fresh, waited[f"on the wall, {first}"])

        bench.compare({last: register_last, first: register_first}, unit="µs each", claims=[at_most(1.2, last, first)])
        bench.judge(waited, unit="µs each", claims=[beside(*waited)])


@contextmanager
def _client(bench: Bench, broker: Broker) -> Iterator[MessageHub]:
    """A hub that shares nothing with the user's own."""
    with (
        tempfile.TemporaryDirectory(prefix="registering-", dir=bench.directory) as place,
        MessageHub(
            endpoint=broker.endpoint, dir=Path(place), domain=Path(place).name, request_timeout_seconds=WAIT_SECONDS
        ) as hub,
    ):
        hub.connect(required=True)
        yield hub


def _measured(hub: MessageHub, broker: Broker, waited: list[float]) -> float:
    """Register a batch, end it again, and return what one registration took of the processors, in microseconds."""
    used, began = process_time() + cpu_seconds(broker.pid), perf_counter()
    made = _register(hub, itertools.count(1_000_000))
    waited.append((perf_counter() - began) / BATCH * 1e6)
    used = process_time() + cpu_seconds(broker.pid) - used
    for registration in made:
        registration.close()
    return used / BATCH * 1e6


def _register(hub: MessageHub, numbers: "itertools.count[int]") -> list[Registration]:
    made = [
        hub.register_producer(f"bench.r{number}", schema_hash="abc123", schema_version="1.0.0")
        for number in itertools.islice(numbers, BATCH)
    ]
    if any(registration.ack is None for registration in made):
        raise CannotMeasure("the broker did not take every registration")
    return made
