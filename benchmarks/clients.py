"""One client from Python for every contender: round trips for some seconds, and how long each took.

All of them keep their connection, look into every reply, and time only the call that a user would make.
"""

import asyncio
import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import grpc  # type: ignore[import-untyped]
import nats
import redis

from benchmarks.brokers import client_socket
from benchmarks.harness import CannotMeasure, Measure, until
from benchmarks.peers import Peer
from benchmarks.verdicts import percentile

RECORD = (
    b'{"type":"DISCOVERY_RESPONSE","channel":"bench.c0","shm_name":"/pylabhub_bench.c0","schema_hash":"abc123",'
    b'"schema_version":"1.0.0","status":"active"}'
)
Trips = Callable[[float], list[float]]


def p50_us(trips: Trips, seconds: float) -> Measure:
    """The median round trip of one repetition in microseconds, after a few that do not count."""

    def measure() -> float:
        trips(seconds / 10)
        return percentile(trips(seconds), 0.5) * 1e6

    return measure


def timed(call: Callable[[], bool]) -> Trips:
    def trips(seconds: float) -> list[float]:
        durations: list[float] = []
        for _ in until(seconds):
            start = perf_counter()
            is_right = call()
            durations.append(perf_counter() - start)
            if not is_right:
                raise CannotMeasure("a wrong reply")
        return durations

    return trips


@contextmanager
def raw_request(endpoint: str, request: bytes, expect: bytes) -> Iterator[Trips]:
    """What a script with a plain REQ socket does: bytes out, bytes in."""
    with client_socket(endpoint) as socket:

        def call() -> bool:
            socket.send(request)
            return expect in socket.recv()

        yield timed(call)


@contextmanager
def redis_get(server: Peer) -> Iterator[Trips]:
    with redis.Redis(port=server.port) as client:
        client.set("bench.c0", RECORD)
        yield timed(lambda: client.get("bench.c0") == RECORD)


@contextmanager
def http_get(server: Peer) -> Iterator[Trips]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)

    def call() -> bool:
        connection.request("GET", "/channels/bench.c0")
        return b"pylabhub_bench.c0" in connection.getresponse().read()

    try:
        yield timed(call)
    finally:
        connection.close()


def protobuf(*fields: bytes) -> bytes:
    """A protobuf message whose fields 1, 2, … are these bytes; enough for etcd's key and value."""
    message = b""
    for number, value in enumerate(fields, start=1):
        length = bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 127 | 128, len(value) >> 7])
        message += bytes([number << 3 | 2]) + length + value
    return message


@contextmanager
def etcd_calls(server: Peer) -> Iterator[Callable[[str, bytes], bytes]]:
    """etcd's own gRPC interface through grpcio, with the messages encoded before the clock runs."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        methods = {name: channel.unary_unary(f"/etcdserverpb.KV/{name}") for name in ("Range", "Put")}
        yield lambda method, message: bytes(methods[method](message, timeout=10))


@contextmanager
def etcd_range(server: Peer) -> Iterator[Trips]:
    with etcd_calls(server) as call:
        call("Put", protobuf(b"bench.c0", RECORD))
        request = protobuf(b"bench.c0")
        yield timed(lambda: RECORD in call("Range", request))


@contextmanager
def nats_request(server: Peer) -> Iterator[Trips]:
    """nats-py is asyncio only: the loop runs for the whole repetition, so entering it is not timed."""
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{server.port}"))

    async def round_trips(seconds: float) -> list[float]:
        durations: list[float] = []
        for _ in until(seconds):
            start = perf_counter()
            reply = await client.request("bench", b"bench.c0", timeout=10)
            durations.append(perf_counter() - start)
            if reply.data != RECORD:
                raise CannotMeasure("a wrong reply")
        return durations

    try:
        yield lambda seconds: loop.run_until_complete(round_trips(seconds))
    finally:
        loop.run_until_complete(client.close())
        loop.close()
