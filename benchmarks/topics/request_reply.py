"""Services beside request-reply over Redis lists and over NATS: one worker in another process, all from Python."""

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Protocol

import nats

from benchmarks.brokers import hub_broker
from benchmarks.clients import p50_us, timed
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison, enter_or_say_why, if_present, until
from benchmarks.peers import nats_server, redis_server
from benchmarks.placement import WAKING
from benchmarks.processes import spawn, stop
from benchmarks.service_workers import SERVICE, SUBJECT, queue_of, redis_client
from benchmarks.verdicts import at_least, at_most
from messagehub import MessageHub
from messagehub.services.replies import PendingReply

PAYLOAD = b"x" * 100
IN_FLIGHT = 16
OURS, REDIS, REDIS_UNIX, NATS = "messagehub", "redis-py", "redis-py, unix socket", "nats-py"


class Client(Protocol):
    """Asks for so many seconds: one after the other, each timed, or with 16 on their way, counted."""

    def trips(self, seconds: float) -> list[float]: ...

    def load(self, seconds: float) -> int: ...

    def close(self) -> None: ...


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


class Hub:
    def __init__(self, endpoint: str) -> None:
        self._hub = MessageHub(endpoint=endpoint)

    def trips(self, seconds: float) -> list[float]:
        return timed(lambda: bool(self._hub.request(SERVICE, PAYLOAD, timeout=10) == PAYLOAD))(seconds)

    def load(self, seconds: float) -> int:
        """As many on their way as the others have, from one thread."""
        count = 0
        pending: deque[PendingReply] = deque()
        for _ in until(seconds):
            pending.append(self._hub.begin_request(SERVICE, PAYLOAD, timeout=10))
            if len(pending) == IN_FLIGHT:
                count += _right(pending.popleft().result())
        return count + sum(_right(each.result()) for each in pending)

    def close(self) -> None:
        self._hub.close()


class Redis:
    """Requests go out and their replies are waited for in one round trip."""

    def __init__(self, address: str) -> None:
        self._client = redis_client(address)
        self._queue = queue_of(address)
        self._reply_to = f"{self._queue}:reply"

    def trips(self, seconds: float) -> list[float]:
        return timed(lambda: self._ask(1) == 1)(seconds)

    def load(self, seconds: float) -> int:
        return sum(self._ask(IN_FLIGHT) for _ in until(seconds))

    def close(self) -> None:
        self._client.close()

    def _ask(self, count: int) -> int:
        with self._client.pipeline(transaction=False) as pipeline:
            for _ in range(count):
                pipeline.rpush(self._queue, self._reply_to.encode() + b" " + PAYLOAD)
            for _ in range(count):
                pipeline.blpop([self._reply_to], timeout=10)
            return sum(_right(reply[1]) for reply in pipeline.execute()[count:])


class Nats:
    def __init__(self, port: str) -> None:
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


def _right(reply: bytes) -> int:
    if reply != PAYLOAD:
        raise CannotMeasure("a wrong reply")
    return 1


def _compare(bench: Bench, measure: Callable[[Client], Measure], *, unit: str, is_latency: bool) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        redis_peer = enter_or_say_why(stack, redis_server())
        nats_peer = enter_or_say_why(stack, nats_server())

        def contender(kind: str, address: str, connect: Callable[[str], Client]) -> Measure:
            stack.enter_context(worker(kind, address))
            client = connect(address)
            stack.callback(client.close)
            return measure(client)

        bound = at_most if is_latency else at_least
        bench.compare(
            {
                OURS: contender("messagehub", broker.endpoint, Hub),
                REDIS: if_present(redis_peer, lambda peer: contender("redis", str(peer.port), Redis)),
                REDIS_UNIX: if_present(redis_peer, lambda peer: contender("redis", peer.unix_socket, Redis)),
                NATS: if_present(nats_peer, lambda peer: contender("nats", str(peer.port), Nats)),
            },
            unit=unit,
            claims=[bound(1.0, OURS, REDIS), bound(1.0, OURS, REDIS_UNIX), bound(1.0, OURS, NATS)],
            repetitions=bench.slices if is_latency else None,
        )


@comparison("a request of 100 bytes and its reply, p50", placements=WAKING)
def request_latency(bench: Bench) -> None:
    _compare(bench, lambda client: p50_us(client.trips, bench.slice_seconds), unit="µs", is_latency=True)


@comparison("requests of 100 bytes, 16 at once from one process, a second")
def request_throughput(bench: Bench) -> None:
    def measured(client: Client) -> Measure:
        def measure() -> float:
            started = perf_counter()
            return client.load(bench.seconds) / (perf_counter() - started)

        return measure

    _compare(bench, measured, unit="/s", is_latency=False)
