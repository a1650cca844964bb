"""How long one client from Python waits for a discovery."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter, sleep
from typing import Any

from benchmarks import clients
from benchmarks.brokers import Broker, client_socket, echo_broker, hub_broker, register_channels
from benchmarks.clients import p50_us
from benchmarks.harness import Bench, CannotMeasure, Measure, NotMeasured, comparison, enter_or_say_why, if_present
from benchmarks.native import nats_clients
from benchmarks.peers import Peer, etcd_server, http_server, nats_responder, nats_server, redis_server
from benchmarks.placement import WAKING, Placement
from benchmarks.verdicts import at_most, beside, percentile
from messagehub.settings import Settings

REQUEST = b'{"type":"DISCOVERY_REQUEST","channel":"bench.c0"}'


@comparison("discovery of a watched channel, from memory", placements=[Placement.TWO_CORES])
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


@comparison("raw REQ discovery over TCP, one Python client, p50", headline=True, placements=WAKING)
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
            claims=[at_most(1.25, "raw REQ", "bare pyzmq echo"), at_most(1.15, "raw REQ", "redis-py GET")],
            repetitions=bench.slices,
        )


def cold_discoveries(
    broker: Broker, trips: int, *, pause_seconds: float = 0.0, is_local: bool = False, **settings: Any
) -> Measure:
    """p50 of `hub.discover` of one channel after the other by a client that is connected and knows none of them.

    A local client is given the directory only, as on a host of its own.
    """
    from messagehub import MessageHub

    register_channels(broker.endpoint, trips + 1)

    def measure() -> float:
        hub = MessageHub(dir=broker.directory, **settings, **({} if is_local else {"endpoint": broker.endpoint}))
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


@comparison("hub.discover of a channel never asked for before, now and then, p50", placements=[Placement.TWO_CORES])
def cold_now_and_then(bench: Bench) -> None:
    """With a pause before each, so that what the client does in the background for the one before is over."""
    trips = bench.scaled(20, 10)
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench, is_local=True))
        echo = stack.enter_context(echo_broker())
        socket = stack.enter_context(client_socket(echo.endpoint))

        def send_and_receive() -> bool:
            socket.send(REQUEST)
            return socket.recv() == REQUEST

        ours, floor = "hub.discover, cold, 5 ms apart", "bare pyzmq echo, 5 ms apart"
        bench.compare(
            {
                ours: cold_discoveries(broker, trips, pause_seconds=0.005, is_local=True),
                floor: p50_of(send_and_receive, trips, pause_seconds=0.005),
            },
            unit="µs",
            claims=[at_most(1.4, ours, floor)],
            repetitions=bench.slices,
        )


@comparison(
    "hub.discover on one host of channels never asked for before, one after the other, p50",
    headline=True,
    placements=WAKING,
)
def cold(bench: Bench) -> None:
    trips = bench.scaled(40, 20)
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench, is_local=True))
        echo = stack.enter_context(echo_broker())
        echoed = stack.enter_context(clients.raw_request(echo.endpoint, REQUEST, REQUEST))
        redis = enter_or_say_why(stack, redis_server())

        def redis_get(server: Peer) -> Measure:
            return p50_us(stack.enter_context(clients.redis_get(server)), bench.slice_seconds)

        def etcd_range(server: Peer) -> Measure:
            return p50_us(stack.enter_context(clients.etcd_range(server)), bench.slice_seconds)

        def nats_request(server: Peer) -> Measure:
            stack.enter_context(nats_responder(nats_clients(bench.directory), server, clients.RECORD))
            return p50_us(stack.enter_context(clients.nats_request(server)), bench.slice_seconds)

        def http_get(server: Peer) -> Measure:
            return p50_us(stack.enter_context(clients.http_get(server)), bench.slice_seconds)

        ours, floor = "hub.discover, cold", "bare pyzmq echo"
        peers: dict[str, Measure | NotMeasured] = {"redis-py GET": if_present(redis, redis_get)}
        if bench.placement is Placement.TWO_CORES:  # of the others one placement says enough
            etcd = enter_or_say_why(stack, etcd_server(bench.directory))
            nats = enter_or_say_why(stack, nats_server())
            http = enter_or_say_why(stack, http_server())
            peers |= {
                "etcd range (grpcio)": if_present(etcd, etcd_range),
                "NATS request (nats-py, C service)": if_present(nats, nats_request),
                "HTTP GET (FastAPI, http.client)": if_present(http, http_get),
            }
        bench.compare(
            {
                ours: cold_discoveries(broker, trips, is_local=True),
                floor: p50_us(echoed, bench.slice_seconds),
                **peers,
            },
            unit="µs",
            claims=[at_most(0.5, ours, floor), *(at_most(1.0, ours, name) for name in peers)],
            repetitions=bench.slices,
        )


@comparison("hub.discover over TCP and on one host, against the echo, p50", placements=[Placement.TWO_CORES])
def cold_by_transport(bench: Bench) -> None:
    """What the way to the broker costs: the hub's own on one host, and ZeroMQ's over TCP."""
    trips = bench.scaled(40, 20)
    with ExitStack() as stack:
        local = stack.enter_context(hub_broker(bench, is_local=True))
        distant = stack.enter_context(hub_broker(bench, profiled=False))
        echo = stack.enter_context(echo_broker())
        ipc = stack.enter_context(echo_broker(f"ipc://{local.directory}/echo.sock"))
        over_tcp = stack.enter_context(clients.raw_request(echo.endpoint, REQUEST, REQUEST))
        over_ipc = stack.enter_context(clients.raw_request(ipc.endpoint, REQUEST, REQUEST))
        here, distantly, by_zmq = "hub.discover on one host", "hub.discover over TCP", "the same by ZeroMQ ipc"
        floor_here, floor = "bare pyzmq echo over ipc", "bare pyzmq echo over TCP"
        contenders = {
            here: cold_discoveries(local, trips, is_local=True),
            floor_here: p50_us(over_ipc, bench.slice_seconds),
            distantly: cold_discoveries(distant, trips),
            floor: p50_us(over_tcp, bench.slice_seconds),
        }
        claims = [beside(here, floor_here), at_most(1.4, distantly, floor)]
        if "transport" in Settings.__struct_fields__:  # there is another one than ZeroMQ
            contenders[by_zmq] = cold_discoveries(local, trips, is_local=True, transport="zmq")
            claims.append(at_most(0.5, here, by_zmq))
        bench.compare(contenders, unit="µs", claims=claims, repetitions=bench.slices)
