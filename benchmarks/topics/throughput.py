"""How many requests a second the broker answers for 32 native clients."""

from contextlib import ExitStack
from pathlib import Path

from benchmarks import clients
from benchmarks.brokers import Broker, Server, echo_broker, hub_broker, register_channels
from benchmarks.harness import Bench, Measure, NotMeasured, comparison, enter_or_say_why, if_present
from benchmarks.native import Load, Native, curve, nats_clients, unix_clients, zmq_clients
from benchmarks.peers import (
    Peer,
    etcd_server,
    grpc_load,
    nats_responder,
    nats_server,
    redis_benchmark,
    redis_server,
)
from benchmarks.placement import Placement
from benchmarks.processes import cpu_seconds
from benchmarks.verdicts import at_least, beside
from messagehub.security.credentials import KeyPair
from messagehub.settings import local_socket_of

REQUEST = '{"type":"DISCOVERY_REQUEST","channel":"bench.c{n}"}'
CHANNELS = 1000
ON_TWO = [Placement.TWO_CORES]
"""The server has one core and the load generator the other, whoever's they are."""
WITH_LOAD = [Placement.FREE, Placement.TWO_CORES]
"""A server with several threads gains from what the load generator leaves of its core, where it may have that."""
ECHOED = "DISCOVERY_REQUEST"
FOUND = '"shm_name":"/pylabhub_bench.c'


def load(
    native: Native,
    server: Server,
    expect: str,
    seconds: float,
    *,
    clients: int = 32,
    depth: int = 1,
    pair: KeyPair | None = None,
) -> Load:
    return native.run(
        endpoint=server.endpoint,
        request=REQUEST,
        expect=expect,
        modulo=CHANNELS,
        clients=clients,
        depth=depth,
        seconds=seconds,
        **curve(pair),
    )


def cpu_us_each(native: Native, server: Server, expect: str, seconds: float) -> Measure:
    def measure() -> float:
        before = cpu_seconds(server.pid)
        answered = load(native, server, expect, seconds).operations
        return (cpu_seconds(server.pid) - before) / answered * 1e6

    return measure


@comparison("32 native ZeroMQ clients discovering over TCP, replies a second", headline=True, placements=WITH_LOAD)
def native_clients(bench: Bench) -> None:
    native = zmq_clients(bench.directory)
    with hub_broker(bench) as broker, echo_broker() as echo:
        register_channels(broker.endpoint, CHANNELS)
        bench.compare(
            {
                "messagehub": lambda: load(native, broker, FOUND, bench.seconds).per_second,
                "frame-safe Python echo": lambda: load(native, echo, ECHOED, bench.seconds).per_second,
            },
            unit="/s",
            claims=[at_least(0.74, "messagehub", "frame-safe Python echo")],
        )


@comparison("32 native clients discovering on one host, replies a second", headline=True, placements=WITH_LOAD)
def local_clients(bench: Bench) -> None:
    """Through the broker's sockets in its directory. The peers are asked over TCP."""
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench, is_local=True))
        register_channels(broker.endpoint, CHANNELS)
        over_ipc, path = zmq_clients(bench.directory), local_socket(broker)
        ipc = ours = "messagehub, ZeroMQ ipc"
        contenders: dict[str, Measure | NotMeasured] = {
            ipc: lambda: load(over_ipc, broker, FOUND, bench.seconds).per_second
        }
        if path is not None:
            ours, over_socket = "messagehub, local socket", unix_clients(bench.directory)
            server = Server(str(path), broker.pid)
            contenders[ours] = lambda: load(over_socket, server, FOUND, bench.seconds).per_second
        bench.compare(
            contenders | answering_32_clients(bench, stack),
            unit="/s",
            claims=[
                at_least(0.8, ours, REDIS),
                at_least(2.5, ours, NATS),
                at_least(5.0, ours, ETCD),
                *([at_least(2.0, ours, ipc)] if path is not None else []),
            ],
        )


def local_socket(broker: Broker) -> Path | None:
    """Where the broker listens for clients of its host; None if it does not."""
    return local_socket_of(broker.endpoint)


REDIS, NATS, ETCD = "redis-benchmark GET", "NATS C client", "etcd range (h2load)"


def answering_32_clients(bench: Bench, stack: ExitStack) -> dict[str, Measure | NotMeasured]:
    """The peers that answer 32 native clients, each with a record of the same size."""
    redis = enter_or_say_why(stack, redis_server())
    nats = enter_or_say_why(stack, nats_server())
    etcd = enter_or_say_why(stack, etcd_server(bench.directory))

    def redis_get(server: Peer) -> Measure:
        stack.enter_context(clients.redis_get(server))  # sets the record
        return lambda: redis_benchmark(server, operations=bench.scaled(40_000, 8_000))

    def nats_request(server: Peer) -> Measure:
        generator = nats_clients(bench.directory)
        stack.enter_context(nats_responder(generator, server, clients.RECORD))
        endpoint = f"nats://127.0.0.1:{server.port}"
        return lambda: (
            generator.run(endpoint=endpoint, request="bench.c0", expect="DISCOVERY", seconds=bench.seconds).per_second
        )

    def etcd_range(server: Peer) -> Measure:
        stack.enter_context(clients.etcd_range(server))  # puts the record
        request = clients.protobuf(b"bench.c0")
        return lambda: grpc_load(server, "etcdserverpb.KV/Range", request, operations=bench.scaled(4_000, 1_000))

    return {
        REDIS: if_present(redis, redis_get),
        NATS: if_present(nats, nats_request),
        ETCD: if_present(etcd, etcd_range),
    }


@comparison("32 native clients discovering with CURVE, replies a second", placements=ON_TWO)
def curve_clients(bench: Bench) -> None:
    """What keys cost: libzmq's encryption on both sides, and the broker's look at who asks."""
    native = zmq_clients(bench.directory)
    with hub_broker(bench, peers=["bench"]) as guarded, hub_broker(bench, profiled=False) as plain:
        pair = guarded.keys["bench"]
        register_channels(guarded.endpoint, CHANNELS, pair)
        register_channels(plain.endpoint, CHANNELS)
        bench.compare(
            {
                "CURVE": lambda: load(native, guarded, FOUND, bench.seconds, pair=pair).per_second,
                "plain": lambda: load(native, plain, FOUND, bench.seconds).per_second,
            },
            unit="/s",
            claims=[at_least(0.7, "CURVE", "plain")],
        )


@comparison("CPU time of the broker for one request of 32 native clients", placements=ON_TWO)
def processor_time(bench: Bench) -> None:
    """Steadier than throughput on a busy machine, and what there is to gain by a shorter path in the broker."""
    native = zmq_clients(bench.directory)
    with hub_broker(bench) as broker, echo_broker() as echo:
        register_channels(broker.endpoint, CHANNELS)
        bench.compare(
            {
                "messagehub": cpu_us_each(native, broker, FOUND, bench.seconds),
                "frame-safe Python echo": cpu_us_each(native, echo, ECHOED, bench.seconds),
            },
            unit="µs",
            claims=[beside("messagehub", "frame-safe Python echo")],
        )


@comparison("one pipelining DEALER (512 in flight), replies a second", placements=ON_TWO)
def pipelined(bench: Bench) -> None:
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        broker = stack.enter_context(hub_broker(bench))
        register_channels(broker.endpoint, CHANNELS)
        echo = stack.enter_context(echo_broker())
        redis = enter_or_say_why(stack, redis_server())

        def redis_get(server: Peer) -> Measure:
            stack.enter_context(clients.redis_get(server))
            return lambda: redis_benchmark(server, operations=bench.scaled(320_000, 64_000), pipeline=16)

        def pipelining(server: Server, expect: str) -> Measure:
            return lambda: load(native, server, expect, bench.seconds, clients=1, depth=512).per_second

        ours = "messagehub"
        bench.compare(
            {
                ours: pipelining(broker, FOUND),
                "frame-safe Python echo": pipelining(echo, ECHOED),
                "redis-benchmark GET, 32 x 16 in flight": if_present(redis, redis_get),
            },
            unit="/s",
            claims=[
                beside(ours, "frame-safe Python echo"),
                beside(ours, "redis-benchmark GET, 32 x 16 in flight"),
            ],
        )
