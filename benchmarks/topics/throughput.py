"""How many requests a second the broker answers for 32 native clients."""

from contextlib import ExitStack

from benchmarks import clients
from benchmarks.brokers import Server, echo_broker, hub_broker, register_channels
from benchmarks.harness import Bench, Measure, comparison, enter_or_say_why, if_present
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
from benchmarks.processes import cpu_seconds
from benchmarks.verdicts import at_least, beside
from messagehub.security.credentials import KeyPair
from messagehub.settings import local_socket_of

REQUEST = '{"type":"DISCOVERY_REQUEST","channel":"bench.c{n}"}'
CHANNELS = 1000
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


@comparison("32 native clients discovering, replies a second")
def native_clients(bench: Bench) -> None:
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        broker = stack.enter_context(hub_broker(bench))
        register_channels(broker.endpoint, CHANNELS)
        echo = stack.enter_context(echo_broker())
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
                generator.run(
                    endpoint=endpoint, request="bench.c0", expect="DISCOVERY", seconds=bench.seconds
                ).per_second
            )

        def etcd_range(server: Peer) -> Measure:
            stack.enter_context(clients.etcd_range(server))  # puts the record
            request = clients.protobuf(b"bench.c0")
            return lambda: grpc_load(server, "etcdserverpb.KV/Range", request, operations=bench.scaled(4_000, 1_000))

        ours = "messagehub"
        bench.compare(
            {
                ours: lambda: load(native, broker, FOUND, bench.seconds).per_second,
                "frame-safe Python echo": lambda: load(native, echo, ECHOED, bench.seconds).per_second,
                "redis-benchmark GET": if_present(redis, redis_get),
                "NATS C client": if_present(nats, nats_request),
                "etcd range (h2load)": if_present(etcd, etcd_range),
            },
            unit="/s",
            claims=[
                at_least(0.85, ours, "frame-safe Python echo"),
                at_least(0.45, ours, "redis-benchmark GET"),
                at_least(2.5, ours, "NATS C client"),
                at_least(5.0, ours, "etcd range (h2load)"),
            ],
        )
        bench.absent(
            "ZooKeeper get",
            "Debian's zookeeper brings 47 packages and a Java runtime: not part of the set-up",
        )


@comparison("32 native clients of the local socket discovering, replies a second")
def local_clients(bench: Bench) -> None:
    native, by_zmq = unix_clients(bench.directory), zmq_clients(bench.directory)
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench, is_local=True))
        register_channels(broker.endpoint, CHANNELS)
        local = Server(str(local_socket_of(broker.endpoint)), broker.pid)
        redis = enter_or_say_why(stack, redis_server())

        def redis_get(server: Peer) -> Measure:
            stack.enter_context(clients.redis_get(server))  # sets the record
            return lambda: redis_benchmark(server, operations=bench.scaled(40_000, 8_000))

        ours, theirs, peer = "messagehub, local socket", "messagehub, ZeroMQ ipc", "redis-benchmark GET"
        bench.compare(
            {
                ours: lambda: load(native, local, FOUND, bench.seconds).per_second,
                theirs: lambda: load(by_zmq, broker, FOUND, bench.seconds).per_second,
                peer: if_present(redis, redis_get),
            },
            unit="/s",
            claims=[at_least(2.0, ours, theirs), at_least(0.8, ours, peer)],
        )


@comparison("32 native clients discovering with CURVE, replies a second")
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


@comparison("CPU time of the broker for one request of 32 native clients")
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


@comparison("one pipelining DEALER (512 in flight), replies a second")
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
