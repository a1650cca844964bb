"""What durability costs: writes that are answered only once the disk has them, and discovery beside them.

`synchronous=OFF` is the same broker with MESSAGEHUB_STORE_SYNC=off. Every write is new: SQLite skips one that
changes nothing.
"""

import itertools
import sqlite3
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import clients
from benchmarks.brokers import Broker, hub_broker, register_channels
from benchmarks.harness import Bench, Measure, comparison, enter_or_say_why, if_present, until
from benchmarks.native import Native, zmq_clients
from benchmarks.peers import Peer, etcd_server, grpc_load
from benchmarks.topics.throughput import REQUEST
from benchmarks.verdicts import at_least, at_most, beside

NO_SYNC = {"MESSAGEHUB_STORE_SYNC": "off"}
CHANNEL = '{"type":"CHANNEL_CREATE","channel":"bench.d{n}","schema_hash":"abc123","schema_version":"1.0.0"}'
SCHEMA = (
    '{"type":"SCHEMA_REGISTER","subject":"bench.s{n}","schema_type":"JSON","schema":{"type":"object","properties":'
    '{"time":{"type":"number"},"value":{"type":"number"},"field{n}":{"type":"string"}},"required":["time"]}}'
)
_fresh = itertools.count()


def writing(native: Native, broker: Broker, request: str, *, clients: int, operations: int) -> Measure:
    """So many writes that no run before has made, as writes a second; bounded in time for a slow disk."""

    def measure() -> float:
        first = next(_fresh) * 1_000_000
        load = native.run(
            endpoint=broker.endpoint,
            request=request,
            expect="_ACK",
            first=first,
            clients=clients,
            operations=operations,
            seconds=5,
        )
        return load.per_second

    return measure


def bare_sqlite(directory: Path, seconds: float) -> Measure:
    """The disk's own pace: SQLite in WAL mode, FULL, one row and one commit at a time, and no network."""
    database = sqlite3.connect(directory / "bare.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE written (name TEXT PRIMARY KEY, record BLOB)")

    def measure() -> float:
        count = 0
        for _ in until(seconds):
            database.execute("INSERT INTO written VALUES (?, ?)", (str(next(_fresh)), clients.RECORD))
            count += 1
        return count / seconds

    return measure


@comparison("durable CHANNEL_CREATE, writes a second")
def channel_create(bench: Bench) -> None:
    _durable(bench, CHANNEL, many=bench.scaled(8_000, 2_000), few=bench.scaled(400, 100), bound=5.0)


@comparison("durable SCHEMA_REGISTER, writes a second", headline=True)
def schema_register(bench: Bench) -> None:
    """Fewer of them: each schema is parsed and judged, which takes longer than writing it."""
    _durable(bench, SCHEMA, many=bench.scaled(2_000, 400), few=bench.scaled(200, 50), bound=4.5)


def _durable(bench: Bench, request: str, *, many: int, few: int, bound: float) -> None:
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        broker = stack.enter_context(hub_broker(bench))
        quiet = stack.enter_context(hub_broker(bench, environment=NO_SYNC, profiled=False))
        etcd = enter_or_say_why(stack, etcd_server(bench.directory))
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.directory))

        def etcd_put(server: Peer) -> Measure:
            message = clients.protobuf(b"bench.c0", clients.RECORD)
            with clients.etcd_calls(server) as call:
                call("Put", message)
            return lambda: grpc_load(server, "etcdserverpb.KV/Put", message, operations=bench.scaled(2_000, 500))

        ours = "32 clients"
        bench.compare(
            {
                ours: writing(native, broker, request, clients=32, operations=many),
                "1 client, one sync each": writing(native, broker, request, clients=1, operations=few),
                "32 clients, synchronous=OFF": writing(native, quiet, request, clients=32, operations=many),
                "bare SQLite, one commit each": bare_sqlite(Path(directory), bench.seconds / 2),
                "etcd put (h2load, 32)": if_present(etcd, etcd_put),
            },
            unit="/s",
            claims=[
                at_least(bound, ours, "1 client, one sync each"),
                at_least(0.65, ours, "32 clients, synchronous=OFF"),
                beside(ours, "bare SQLite, one commit each"),
                beside(ours, "etcd put (h2load, 32)"),
            ],
        )


@comparison("discovery p99 while 32 clients write durably")
def discovery_beside_writes(bench: Bench) -> None:
    """The same requests to both: 32 clients as fast as they are answered, and again at one fixed rate."""
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        durable = stack.enter_context(hub_broker(bench))
        quiet = stack.enter_context(hub_broker(bench, environment=NO_SYNC, profiled=False))
        for broker in (durable, quiet):
            register_channels(broker.endpoint, 1)
        for request, kind, pace in ((SCHEMA, "SCHEMA_REGISTER", 400), (CHANNEL, "CHANNEL_CREATE", 2000)):
            for rate in (0, pace)[: bench.scaled(2, 1)]:
                said = f"at {rate:,}/s" if rate else "unpaced"
                ours, theirs = f"{kind} {said}", f"{kind} {said}, synchronous=OFF"
                bench.compare(
                    {
                        ours: p99_beside(native, durable, request, rate, bench),
                        theirs: p99_beside(native, quiet, request, rate, bench),
                    },
                    unit="µs",
                    claims=[at_most(1.5, ours, theirs)],
                )


def p99_beside(native: Native, broker: Broker, request: str, rate: int, bench: Bench) -> Measure:
    """p99 of four discovering clients while the writers run: fewer would see too few of the slow moments."""

    def measure() -> float:
        writers = native.start(
            endpoint=broker.endpoint,
            request=request,
            expect="_ACK",
            first=next(_fresh) * 1_000_000,
            clients=32,
            rate=rate,
            operations=bench.scaled(20_000, 4_000),
            seconds=bench.seconds + 0.3,
        )
        try:
            found = native.run(
                endpoint=broker.endpoint,
                request=REQUEST,
                expect='"shm_name":"/pylabhub_bench.c0"',
                modulo=1,
                clients=4,
                seconds=bench.seconds,
            )
        finally:
            writers.result()
        return found.p99_us

    return measure
