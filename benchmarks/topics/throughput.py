"""How many requests a second the broker answers for 32 native clients."""

from contextlib import ExitStack

from benchmarks import clients
from benchmarks.brokers import echo_broker, hub_broker, register_channels
from benchmarks.harness import Bench, Measure, comparison, enter_or_say_why, if_present
from benchmarks.native import Native, nats_clients, zmq_clients
from benchmarks.peers import (
    Peer,
    etcd_server,
    grpc_load,
    nats_responder,
    nats_server,
    redis_benchmark,
    redis_server,
)
from benchmarks.verdicts import at_least, beside

REQUEST = '{"type":"DISCOVERY_REQUEST","channel":"bench.c{n}"}'
CHANNELS = 1000


def discovery(
    native: Native, endpoint: str, expect: str, bench: Bench, *, clients: int = 32, depth: int = 1
) -> Measure:
    return lambda: (
        native.run(
            endpoint=endpoint,
            request=REQUEST,
            expect=expect,
            modulo=CHANNELS,
            clients=clients,
            depth=depth,
            seconds=bench.seconds,
        ).per_second
    )


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
            load = nats_clients(bench.directory)
            stack.enter_context(nats_responder(load, server, clients.RECORD))
            endpoint = f"nats://127.0.0.1:{server.port}"
            return lambda: (
                load.run(endpoint=endpoint, request="bench.c0", expect="DISCOVERY", seconds=bench.seconds).per_second
            )

        def etcd_range(server: Peer) -> Measure:
            stack.enter_context(clients.etcd_range(server))  # puts the record
            request = clients.protobuf(b"bench.c0")
            return lambda: grpc_load(server, "etcdserverpb.KV/Range", request, operations=bench.scaled(4_000, 1_000))

        ours = "messagehub"
        bench.compare(
            {
                ours: discovery(native, broker.endpoint, '"shm_name":"/pylabhub_bench.c', bench),
                "frame-safe Python echo": discovery(native, echo, "DISCOVERY_REQUEST", bench),
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

        ours, expect = "messagehub", '"shm_name":"/pylabhub_bench.c'
        bench.compare(
            {
                ours: discovery(native, broker.endpoint, expect, bench, clients=1, depth=512),
                "frame-safe Python echo": discovery(native, echo, "DISCOVERY_REQUEST", bench, clients=1, depth=512),
                "redis-benchmark GET, 32 x 16 in flight": if_present(redis, redis_get),
            },
            unit="/s",
            claims=[
                beside(ours, "frame-safe Python echo"),
                beside(ours, "redis-benchmark GET, 32 x 16 in flight"),
            ],
        )
