"""A site: discovery and durable writes at a host that does not decide, and data of another host.

The hosts are hubs on this machine with directories, domains and names of their own, over one member of etcd.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from time import perf_counter
from unittest.mock import patch

from pyarrow import flight

from benchmarks import clients
from benchmarks.brokers import Broker, client_socket, hub_broker, register_channels
from benchmarks.far_host import RING, SMALL, TABLE
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison
from benchmarks.native import Native, zmq_clients
from benchmarks.peers import Peer, etcd_server
from benchmarks.processes import spawn, stop
from benchmarks.topics.durable_writes import CHANNEL, writing
from benchmarks.topics.throughput import REQUEST
from benchmarks.verdicts import at_least, at_most
from messagehub import MessageHub

EXPECTED = '"shm_name":"/pylabhub_bench.c0"'
READ_SECONDS = 60.0
LEADER, FOLLOWER = "first", "second"


@contextmanager
def site(bench: Bench, etcd: Peer, *arguments: str) -> Iterator[tuple[Broker, Broker]]:
    """The host that decides, and another one."""
    with site_of(bench, etcd, [LEADER, FOLLOWER], *arguments) as (leader, follower):
        yield leader, follower


@contextmanager
def site_of(bench: Bench, etcd: Peer, names: Sequence[str], *arguments: str) -> Iterator[list[Broker]]:
    """Hosts of one site. The first one decides; the second one is under the profiler when the bench asks for that."""
    shared = member_arguments(etcd, uuid.uuid4().hex[:12], *arguments)
    with ExitStack() as stack:
        hosts: list[Broker] = []
        for name in names:
            environment = {"MESSAGEHUB_HOST": name}
            is_profiled = len(hosts) == 1
            broker = hub_broker(bench, arguments=shared, environment=environment, profiled=is_profiled)
            hosts.append(stack.enter_context(broker))
            _wait(hosts[-1], '"role":"follower"' if len(hosts) > 1 else '"role":"leader"')
        yield hosts


def member_arguments(etcd: Peer, site: str, *more: str) -> list[str]:
    url = f"http://127.0.0.1:{etcd.port}"
    return ["--site", site, "--etcd", url, "--site-endpoint", "tcp://127.0.0.1:0", "--new-site", *more]


def _wait(broker: Broker, expected: str) -> None:
    with client_socket(broker.endpoint) as socket:
        for _ in range(600):
            socket.send(b'{"type":"HOST_LIST_REQUEST"}')
            if expected.encode() in socket.recv():
                return
    raise CannotMeasure(f"no {expected} in a site of two hosts")


@comparison("discovery at a host of a site, raw REQ, p50")
def discovery_in_a_site(bench: Bench) -> None:
    native = zmq_clients(bench.directory)
    with (
        etcd_server(bench.directory) as etcd,
        site(bench, etcd, "--no-gateway") as (leader, follower),
        hub_broker(bench, profiled=False) as single,
    ):
        for broker in (leader, single):
            register_channels(broker.endpoint, 1)
        ours, theirs = "at a host of a site", "at a single hub"
        bench.compare(
            {ours: _p50(native, follower, bench), theirs: _p50(native, single, bench)},
            unit="µs",
            claims=[at_most(1.1, ours, theirs)],
        )


def _p50(native: Native, broker: Broker, bench: Bench) -> Measure:
    options = {"request": REQUEST, "expect": EXPECTED, "modulo": 1, "clients": 1, "seconds": bench.seconds}
    return lambda: native.run(endpoint=broker.endpoint, **options).p50_us


@comparison("durable CHANNEL_CREATE at a host of a site that does not decide")
def writes_in_a_site(bench: Bench) -> None:
    native = zmq_clients(bench.directory)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(bench.directory))
        leader, follower = stack.enter_context(site(bench, etcd, "--no-gateway"))
        put = clients.protobuf(b"bench.c0", clients.RECORD)
        call = stack.enter_context(clients.etcd_calls(etcd))
        puts = clients.timed(lambda: bool(call("Put", put)))
        one, at_leader, bare = "one client", "one client, at the host that decides", "etcd put (grpcio)"
        bench.compare(
            {
                one: clients.p50_us(stack.enter_context(_creating(follower)), bench.seconds),
                at_leader: clients.p50_us(stack.enter_context(_creating(leader)), bench.seconds),
                bare: clients.p50_us(puts, bench.seconds),
            },
            unit="µs",
            claims=[at_most(2.0, one, bare), at_most(2.0, at_leader, bare)],
        )
        many, each = "32 clients", "etcd puts, one after the other"
        bench.compare(
            {
                many: writing(native, follower, CHANNEL, clients=32, operations=bench.scaled(4_000, 800)),
                each: lambda: len(found := puts(bench.seconds)) / sum(found),
            },
            unit="/s",
            claims=[at_least(5.0, many, each)],
        )


@contextmanager
def _creating(broker: Broker) -> Iterator[clients.Trips]:
    with client_socket(broker.endpoint) as socket:

        def create() -> bool:
            socket.send(CHANNEL.replace("{n}", uuid.uuid4().hex).encode())
            return b"_ACK" in socket.recv()

        yield clients.timed(create)


@comparison("data of another host, by Arrow Flight")
def data_of_another_host(bench: Bench) -> None:
    """A table of 1 GiB and 4,000 batches of 64 KiB; with --quick 64 MiB and 500."""
    mib, count = bench.scaled(1024, 64), bench.scaled(4_000, 500)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_server(bench.directory))
        far, near = stack.enter_context(site(bench, etcd))
        write, port = stack.enter_context(_far_host(far, mib))
        bare = stack.enter_context(flight.connect(f"grpc://127.0.0.1:{port}"))
        stack.enter_context(patch.dict(os.environ, near.environment))
        hub = stack.enter_context(MessageHub(dir=near.directory))

        def table() -> None:
            with hub.consumer(TABLE, start="oldest") as consumer:
                if (found := consumer.read(timeout=READ_SECONDS)) is None or found.nbytes < mib << 20:
                    raise CannotMeasure("the table did not come")

        ring_consumer = stack.enter_context(hub.consumer(RING))
        ring_consumer.read(timeout=1.0)  # finds the ring, and attaches to it

        def ring() -> None:
            write(count)
            for _ in range(count):
                if ring_consumer.read(timeout=READ_SECONDS) is None:
                    raise CannotMeasure("a batch did not come")

        def stream() -> None:
            if sum(1 for _ in bare.do_get(flight.Ticket(str(count)))) != count:
                raise CannotMeasure("a batch did not come")

        ours, theirs = "a table", "the same batches by a bare Flight server"
        contenders = {ours: table, theirs: lambda: bare.do_get(flight.Ticket(b"table")).read_all()}
        speeds = {name: _gigabytes(run, mib << 20) for name, run in contenders.items()}
        bench.compare(speeds, unit="GB/s", claims=[at_least(0.9, ours, theirs)], repetitions=5)
        ours, theirs = "a ring of 64 KiB batches", "a bare Flight stream of them"
        speeds = {name: _gigabytes(run, count * SMALL.nbytes) for name, run in ((ours, ring), (theirs, stream))}
        bench.compare(speeds, unit="GB/s", claims=[at_least(0.8, ours, theirs)])


@contextmanager
def _far_host(host: Broker, mib: int) -> Iterator[tuple[Callable[[int], None], int]]:
    """A function that has batches written there, and the port of the bare server."""
    command = [sys.executable, "-m", "benchmarks.far_host", str(host.directory), str(mib)]
    process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, environment=host.environment)
    assert process.stdin is not None
    assert process.stdout is not None

    def write(count: int) -> None:
        process.stdin.write(f"{count}\n".encode())  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]

    try:
        if not (said := process.stdout.readline()):
            raise CannotMeasure("the process of the other host did not start")
        yield write, int(said)
    finally:
        process.stdin.close()  # upon which it closes its ring, and ends
        with suppress(subprocess.TimeoutExpired):
            process.wait(READ_SECONDS)
        stop(process)
        process.stdout.close()


def _gigabytes(run: Callable[[], object], size: int) -> Measure:
    def measure() -> float:
        started = perf_counter()
        run()
        return size / (perf_counter() - started) / 1e9

    return measure
