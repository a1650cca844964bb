"""Retained topics: messages that are answered only once the disk has them, and what removing old ones costs others."""

import base64
from contextlib import ExitStack

from benchmarks.brokers import Broker, hub_broker, register_channels
from benchmarks.harness import Bench, comparison
from benchmarks.native import zmq_clients
from benchmarks.topics.durable_writes import NO_SYNC, p99_beside, writing
from benchmarks.verdicts import at_least, at_most
from messagehub import MessageHub

PAYLOAD = base64.b64encode(b"x" * 100).decode()
ALL, FEW = "bench.all", "bench.few"
PACE = 2_000  # a second: unpaced, a faster disk would only mean more load


def _publish(topic: str) -> str:
    return f'{{"type":"TOPIC_PUBLISH","topic":"{topic}","messages":[{{"payload":"{PAYLOAD}"}}]}}'


def _keep(broker: Broker) -> None:
    with MessageHub(endpoint=broker.endpoint) as hub:
        hub.topic(ALL, keep=10_000_000)
        hub.topic(FEW, keep=100)


@comparison("retained messages of 100 bytes, acknowledged a second")
def retained_throughput(bench: Bench) -> None:
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        broker = stack.enter_context(hub_broker(bench))
        quiet = stack.enter_context(hub_broker(bench, environment=NO_SYNC, profiled=False))
        for each in (broker, quiet):
            _keep(each)
        many, few = bench.scaled(8_000, 2_000), bench.scaled(400, 100)
        bench.compare(
            {
                "32 clients": writing(native, broker, _publish(ALL), clients=32, operations=many),
                "32 clients, only 100 retained": writing(native, broker, _publish(FEW), clients=32, operations=many),
                "1 client, one sync each": writing(native, broker, _publish(ALL), clients=1, operations=few),
                "32 clients, synchronous=OFF": writing(native, quiet, _publish(ALL), clients=32, operations=many),
            },
            unit="/s",
            claims=[
                at_least(5.0, "32 clients", "1 client, one sync each"),
                at_least(0.65, "32 clients", "32 clients, synchronous=OFF"),
                at_least(0.8, "32 clients, only 100 retained", "32 clients"),
            ],
        )


@comparison("discovery p99 while 32 clients publish to a retained topic")
def discovery_beside_retention(bench: Bench) -> None:
    """Removing what is beyond the bounds must not show: the same load, with all retained and with next to nothing."""
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        broker = stack.enter_context(hub_broker(bench))
        register_channels(broker.endpoint, 1)
        _keep(broker)
        bench.compare(
            {
                "only 100 retained": p99_beside(native, broker, _publish(FEW), PACE, bench),
                "all retained": p99_beside(native, broker, _publish(ALL), PACE, bench),
            },
            unit="µs",
            claims=[at_most(1.5, "only 100 retained", "all retained")],
        )
