"""How long one client from Python waits for a discovery."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter, sleep

from benchmarks import clients
from benchmarks.brokers import Broker, client_socket, echo_broker, hub_broker, register_channels
from benchmarks.clients import p50_us
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison, enter_or_say_why, if_present
from benchmarks.native import nats_clients
from benchmarks.peers import Peer, etcd_server, http_server, nats_responder, nats_server, redis_server
from benchmarks.verdicts import at_most, beside, percentile

REQUEST = b'{"type":"DISCOVERY_REQUEST","channel":"bench.c0"}'


@comparison("discovery of a watched channel, from memory")
def watched_cache(bench: Bench) -> None:
    from messagehub import MessageHub

    calls = bench.scaled(10_000, 5_000)
    with hub_broker(bench) as broker, ExitStack() as stack:
        register_channels(broker.endpoint, 1)
        hub = MessageHub(endpoint=broker.endpoint, dir=broker.directory)
        stack.callback(hub.disconnect)
        if not hub.discover("bench.c0"):
            raise CannotMeasure("the channel was not discovered")
        known = {"bench.c0": object()}

        def each_us(find: Callable[[str], object]) -> Measure:
            def measure() -> float:
                start = perf_counter()
                for _ in itertools.repeat(None, calls):
                    find("bench.c0")
                return (perf_counter() - start) / calls * 1e6

            return measure

        each_us(hub.discover)()  # the first ones ask the broker, until the channel is watched
        bench.compare(
            {"hub.discover, watched": each_us(hub.discover), "dict lookup": each_us(known.get)},
            unit="µs",
            claims=[at_most(0.5, "hub.discover, watched"), beside("hub.discover, watched", "dict lookup")],
            repetitions=bench.slices,
        )


@comparison("raw REQ discovery, one Python client, p50")
def raw_request(bench: Bench) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        register_channels(broker.endpoint, 1)
        echo = stack.enter_context(echo_broker())
        ours = stack.enter_context(clients.raw_request(broker.endpoint, REQUEST, b'"shm_name":"/pylabhub_bench.c0"'))
        floor = stack.enter_context(clients.raw_request(echo.endpoint, REQUEST, REQUEST))
        redis = enter_or_say_why(stack, redis_server())

        def redis_get(server: Peer) -> Measure:
            return p50_us(stack.enter_context(clients.redis_get(server)), bench.slice_seconds)

        bench.compare(
            {
                "raw REQ": p50_us(ours, bench.slice_seconds),
                "bare pyzmq echo": p50_us(floor, bench.slice_seconds),
                "redis-py GET": if_present(redis, redis_get),
            },
            unit="µs",
            claims=[at_most(1.15, "raw REQ", "bare pyzmq echo"), at_most(1.15, "raw REQ", "redis-py GET")],
            repetitions=bench.slices,
        )


def cold_discoveries(broker: Broker, trips: int, *, pause_seconds: float = 0.0, transport: str = "auto") -> Measure:
    """p50 of `hub.discover` of one channel after the other by a client that is connected and knows none of them."""
    from messagehub import MessageHub

    register_channels(broker.endpoint, trips + 1)

    def measure() -> float:
        hub = MessageHub(endpoint=broker.endpoint, dir=broker.directory, transport=transport)
        names = (f"bench.c{number}" for number in range(trips + 1))

        def discover() -> bool:
            channel = next(names)
            found = hub.discover(channel)
            return found is not None and found.shm_name == f"/pylabhub_{channel}"

        try:
            if not discover():
                raise CannotMeasure("the first channel was not discovered")
            return p50_of(discover, trips, pause_seconds=pause_seconds)()
        finally:
            hub.disconnect()

    return measure


def p50_of(call: Callable[[], bool], trips: int, *, pause_seconds: float = 0.0) -> Measure:
    def measure() -> float:
        durations = []
        for _ in range(trips):
            sleep(pause_seconds)
            start = perf_counter()
            is_right = call()
            durations.append(perf_counter() - start)
            if not is_right:
                raise CannotMeasure("a wrong answer")
        return percentile(durations, 0.5) * 1e6

    return measure


@comparison("hub.discover of a channel never asked for before, now and then, p50")
def cold_now_and_then(bench: Bench) -> None:
    """With a pause before each, so that what the client does in the background for the one before is over."""
    trips = bench.scaled(20, 10)
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        echo = stack.enter_context(echo_broker())
        socket = stack.enter_context(client_socket(echo.endpoint))

        def send_and_receive() -> bool:
            socket.send(REQUEST)
            return socket.recv() == REQUEST

        ours, floor = "hub.discover, cold, 5 ms apart", "bare pyzmq echo, 5 ms apart"
        bench.compare(
            {
                ours: cold_discoveries(broker, trips, pause_seconds=0.005),
                floor: p50_of(send_and_receive, trips, pause_seconds=0.005),
            },
            unit="µs",
            claims=[at_most(1.4, ours, floor)],
            repetitions=bench.slices,
        )


@comparison("hub.discover of channels never asked for before, on the hub's host, p50")
def cold_local(bench: Bench) -> None:
    trips = bench.scaled(40, 20)
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench, is_local=True))
        echo = stack.enter_context(echo_broker())
        floor = stack.enter_context(clients.raw_request(echo.endpoint, REQUEST, REQUEST))
        ours, by_zmq, bare = "hub.discover, cold, local socket", "hub.discover, cold, ZeroMQ ipc", "bare pyzmq echo"
        bench.compare(
            {
                ours: cold_discoveries(broker, trips),
                by_zmq: cold_discoveries(broker, trips, transport="zmq"),
                bare: p50_us(floor, bench.slice_seconds),
            },
            unit="µs",
            claims=[at_most(0.5, ours, bare), at_most(0.5, ours, by_zmq)],
            repetitions=bench.slices,
        )


@comparison("hub.discover of channels never asked for before, one after the other, p50")
def cold(bench: Bench) -> None:
    trips = bench.scaled(40, 20)
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        echo = stack.enter_context(echo_broker())
        floor = stack.enter_context(clients.raw_request(echo.endpoint, REQUEST, REQUEST))
        etcd = enter_or_say_why(stack, etcd_server(bench.directory))
        nats = enter_or_say_why(stack, nats_server())
        http = enter_or_say_why(stack, http_server())

        def etcd_range(server: Peer) -> Measure:
            return p50_us(stack.enter_context(clients.etcd_range(server)), bench.slice_seconds)

        def nats_request(server: Peer) -> Measure:
            stack.enter_context(nats_responder(nats_clients(bench.directory), server, clients.RECORD))
            return p50_us(stack.enter_context(clients.nats_request(server)), bench.slice_seconds)

        def http_get(server: Peer) -> Measure:
            return p50_us(stack.enter_context(clients.http_get(server)), bench.slice_seconds)

        ours = "hub.discover, cold"
        bench.compare(
            {
                ours: cold_discoveries(broker, trips),
                "bare pyzmq echo": p50_us(floor, bench.slice_seconds),
                "etcd range (grpcio)": if_present(etcd, etcd_range),
                "NATS request (nats-py, C service)": if_present(nats, nats_request),
                "HTTP GET (FastAPI, http.client)": if_present(http, http_get),
            },
            unit="µs",
            claims=[
                at_most(1.4, ours, "bare pyzmq echo"),
                at_most(1.0, ours, "etcd range (grpcio)"),
                at_most(1.0, ours, "NATS request (nats-py, C service)"),
                at_most(1.0, ours, "HTTP GET (FastAPI, http.client)"),
            ],
            repetitions=bench.slices,
        )
        bench.absent(
            "ZooKeeper get",
            "Debian's zookeeper brings 47 packages and a Java runtime: not part of the set-up",
        )
