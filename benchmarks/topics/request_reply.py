"""Services beside request-reply over Redis lists and over NATS: one worker in another process, all from Python."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from time import perf_counter

import nats

from benchmarks.brokers import hub_broker
from benchmarks.clients import Trips, p50_us, timed
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison, enter_or_say_why, if_present, until
from benchmarks.peers import Peer, nats_server, redis_server
from benchmarks.processes import spawn, stop
from benchmarks.service_workers import SERVICE, SUBJECT, queue_of, redis_client
from benchmarks.verdicts import at_least, at_most
from messagehub import MessageHub

PAYLOAD = b"x" * 100
IN_FLIGHT = 16
OURS, REDIS, REDIS_UNIX, NATS = "messagehub", "redis-py", "redis-py, unix socket", "nats-py"
Call = Callable[[], bool]
Load = Callable[[float], int]  # so many seconds long; how many were answered


@contextmanager
def worker(kind: str, address: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.service_workers", kind, address]
    process = spawn(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"ready\n":
            raise CannotMeasure(f"the worker of {kind} did not start")
        yield
    finally:
        stop(process)
        process.stdout.close()


@contextmanager
def hub_call(endpoint: str) -> Iterator[Callable[[], Call]]:
    """Makes calls; each may be used by one thread. Threads share the hub, as a user's would."""
    with MessageHub(endpoint=endpoint) as hub:
        yield lambda: lambda: bool(hub.request(SERVICE, PAYLOAD, timeout=10) == PAYLOAD)


@contextmanager
def redis_call(address: str) -> Iterator[Callable[[], Call]]:
    """The request goes out and the reply is waited for in one round trip."""
    names, queue = itertools.count(), queue_of(address)
    with ExitStack() as stack:

        def make() -> Call:
            client = stack.enter_context(redis_client(address))
            reply_to = f"{queue}:reply:{next(names)}"
            request = reply_to.encode() + b" " + PAYLOAD

            def call() -> bool:
                with client.pipeline(transaction=False) as pipeline:
                    pipeline.lpush(queue, request)
                    pipeline.brpop([reply_to], timeout=10)
                    return bool(pipeline.execute()[1][1] == PAYLOAD)

            return call

        yield make


def threaded(make: Callable[[], Call]) -> Load:
    calls = [make() for _ in range(IN_FLIGHT)]

    def run(call: Call, seconds: float) -> int:
        count = 0
        for _ in until(seconds):
            if not call():
                raise CannotMeasure("a wrong reply")
            count += 1
        return count

    def load(seconds: float) -> int:
        with ThreadPoolExecutor(IN_FLIGHT) as threads:
            return sum(threads.map(run, calls, [seconds] * IN_FLIGHT))

    return load


class Nats:
    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{port}"))

    def trips(self, seconds: float) -> list[float]:
        return self._loop.run_until_complete(self._ask(seconds))

    def load(self, seconds: float) -> int:
        async def run() -> int:
            found = await asyncio.gather(*(self._ask(seconds) for _ in range(IN_FLIGHT)))
            return sum(map(len, found))

        return self._loop.run_until_complete(run())

    async def _ask(self, seconds: float) -> list[float]:
        durations: list[float] = []
        for _ in until(seconds):
            start = perf_counter()
            reply = await self._client.request(SUBJECT, PAYLOAD, timeout=10)
            durations.append(perf_counter() - start)
            if reply.data != PAYLOAD:
                raise CannotMeasure("a wrong reply")
        return durations

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


def _a_second(load: Load, seconds: float) -> Measure:
    def measure() -> float:
        started = perf_counter()
        return load(seconds) / (perf_counter() - started)

    return measure


def _compare(
    bench: Bench,
    *,
    of_calls: Callable[[Callable[[], Call]], Measure],
    of_nats: Callable[[Nats], Measure],
    unit: str,
    is_latency: bool,
) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        redis_peer = enter_or_say_why(stack, redis_server())
        nats_peer = enter_or_say_why(stack, nats_server())
        stack.enter_context(worker("messagehub", broker.endpoint))

        def of_redis(peer: Peer) -> Measure:
            stack.enter_context(worker("redis", str(peer.port)))
            return of_calls(stack.enter_context(redis_call(str(peer.port))))

        def of_redis_unix(peer: Peer) -> Measure:
            stack.enter_context(worker("redis", peer.unix_socket))
            return of_calls(stack.enter_context(redis_call(peer.unix_socket)))

        def with_nats(peer: Peer) -> Measure:
            stack.enter_context(worker("nats", str(peer.port)))
            client = Nats(peer.port)
            stack.callback(client.close)
            return of_nats(client)

        bound = at_most if is_latency else at_least
        bench.compare(
            {
                OURS: of_calls(stack.enter_context(hub_call(broker.endpoint))),
                REDIS: if_present(redis_peer, of_redis),
                REDIS_UNIX: if_present(redis_peer, of_redis_unix),
                NATS: if_present(nats_peer, with_nats),
            },
            unit=unit,
            claims=[bound(1.0, OURS, REDIS), bound(1.0, OURS, REDIS_UNIX), bound(1.0, OURS, NATS)],
            repetitions=bench.slices if is_latency else None,
        )


@comparison("a request of 100 bytes and its reply, p50")
def request_latency(bench: Bench) -> None:
    def of_calls(make: Callable[[], Call]) -> Measure:
        trips: Trips = timed(make())
        return p50_us(trips, bench.slice_seconds)

    _compare(
        bench,
        of_calls=of_calls,
        of_nats=lambda client: p50_us(client.trips, bench.slice_seconds),
        unit="µs",
        is_latency=True,
    )


@comparison("requests of 100 bytes, 16 at once from one process, a second")
def request_throughput(bench: Bench) -> None:
    _compare(
        bench,
        of_calls=lambda make: _a_second(threaded(make), bench.seconds),
        of_nats=lambda client: _a_second(client.load, bench.seconds),
        unit="/s",
        is_latency=False,
    )
