"""Topics beside Redis pub/sub and NATS: one publisher, 1 to 100 subscribers in another process, all from Python."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter

import nats
import redis

from benchmarks.brokers import hub_broker
from benchmarks.clients import Trips, p50_us, timed
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison, enter_or_say_why, if_present, until
from benchmarks.peers import Peer, nats_server, redis_server
from benchmarks.placement import WAKING
from benchmarks.processes import spawn, stop
from benchmarks.topic_subscribers import TOPIC
from benchmarks.verdicts import at_least, at_most
from messagehub import MessageHub

PAYLOAD = b"x" * 100
OURS, REDIS, NATS = "messagehub", "redis-py", "nats-py"
Publish = Callable[[int], None]  # so many messages


@contextmanager
def subscribed(kind: str, address: str, subscribers: int, batch: int) -> Iterator[Callable[[], None]]:
    """A process of subscribers; the function waits until all of them have a whole batch."""
    command = [sys.executable, "-m", "benchmarks.topic_subscribers", kind, address, str(subscribers), str(batch)]
    process = spawn(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout

    def wait(word: bytes = b"done\n") -> None:
        if output.readline() != word:
            raise CannotMeasure(f"the subscribers of {kind} ended or lost messages")

    try:
        wait(b"ready\n")
        yield wait
    finally:
        stop(process)
        output.close()


@contextmanager
def hub_publisher(endpoint: str) -> Iterator[Publish]:
    with MessageHub(endpoint=endpoint) as hub:

        def publish(count: int) -> None:
            for _ in range(count):
                hub.publish(TOPIC, PAYLOAD)

        yield publish


@contextmanager
def redis_publisher(server: Peer) -> Iterator[Publish]:
    """Pipelined, which is the fastest way that redis-py has."""
    with redis.Redis(port=server.port) as client:

        def publish(count: int) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for _ in range(count):
                    pipeline.publish(TOPIC, PAYLOAD)
                pipeline.execute()

        yield publish


@contextmanager
def nats_publisher(server: Peer) -> Iterator[Publish]:
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{server.port}"))

    async def send(count: int) -> None:
        for _ in range(count):
            await client.publish(TOPIC, PAYLOAD)
        await client.flush()

    try:
        yield lambda count: loop.run_until_complete(send(count))
    finally:
        loop.run_until_complete(client.close())
        loop.close()


def _deliveries(publish: Publish, wait: Callable[[], None], subscribers: int, batch: int) -> Measure:
    def measure() -> float:
        started = perf_counter()
        publish(batch)
        wait()
        return batch * subscribers / (perf_counter() - started)

    return measure


def _fan_out(bench: Bench, subscribers: int, batch: int) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        redis_peer = enter_or_say_why(stack, redis_server())
        nats_peer = enter_or_say_why(stack, nats_server())

        def contender(kind: str, address: str, publish: Publish) -> Measure:
            wait = stack.enter_context(subscribed(kind, address, subscribers, batch))
            return _deliveries(publish, wait, subscribers, batch)

        ours = contender("messagehub", broker.endpoint, stack.enter_context(hub_publisher(broker.endpoint)))

        def of_redis(peer: Peer) -> Measure:
            return contender("redis", str(peer.port), stack.enter_context(redis_publisher(peer)))

        def of_nats(peer: Peer) -> Measure:
            return contender("nats", str(peer.port), stack.enter_context(nats_publisher(peer)))

        bench.compare(
            {OURS: ours, REDIS: if_present(redis_peer, of_redis), NATS: if_present(nats_peer, of_nats)},
            unit="/s",
            claims=[at_least(1.0, OURS, REDIS), at_least(1.0, OURS, NATS)],
        )


@comparison("messages of 100 bytes to one subscriber, deliveries a second")
def one_subscriber(bench: Bench) -> None:
    _fan_out(bench, 1, bench.scaled(5_000, 2_000))


@comparison("messages of 100 bytes to 10 subscribers, deliveries a second")
def ten_subscribers(bench: Bench) -> None:
    _fan_out(bench, 10, bench.scaled(2_000, 500))


@comparison("messages of 100 bytes to 100 subscribers, deliveries a second")
def hundred_subscribers(bench: Bench) -> None:
    _fan_out(bench, 100, bench.scaled(300, 100))


@contextmanager
def hub_there_and_back(endpoint: str) -> Iterator[Trips]:
    with MessageHub(endpoint=endpoint) as hub, hub.subscribe(TOPIC) as subscription:

        def call() -> bool:
            hub.publish(TOPIC, PAYLOAD)
            return bool(subscription.receive(10).payload == PAYLOAD)

        yield timed(call)


@contextmanager
def redis_there_and_back(server: Peer) -> Iterator[Trips]:
    with redis.Redis(port=server.port) as client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(TOPIC)
        subscription.get_message(timeout=10)

        def call() -> bool:
            client.publish(TOPIC, PAYLOAD)
            message = subscription.get_message(timeout=10)
            return message is not None and message["data"] == PAYLOAD

        yield timed(call)


@contextmanager
def nats_there_and_back(server: Peer) -> Iterator[Trips]:
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{server.port}"))
    subscription = loop.run_until_complete(client.subscribe(TOPIC))

    async def round_trips(seconds: float) -> list[float]:
        durations: list[float] = []
        for _ in until(seconds):
            start = perf_counter()
            await client.publish(TOPIC, PAYLOAD)
            message = await subscription.next_msg(timeout=10)
            durations.append(perf_counter() - start)
            if message.data != PAYLOAD:
                raise CannotMeasure("a wrong message")
        return durations

    try:
        yield lambda seconds: loop.run_until_complete(round_trips(seconds))
    finally:
        loop.run_until_complete(client.close())
        loop.close()


@comparison("a message published and received by one client, p50", placements=WAKING)
def latency(bench: Bench) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        redis_peer = enter_or_say_why(stack, redis_server())
        nats_peer = enter_or_say_why(stack, nats_server())

        def of_redis(peer: Peer) -> Measure:
            return p50_us(stack.enter_context(redis_there_and_back(peer)), bench.slice_seconds)

        def of_nats(peer: Peer) -> Measure:
            return p50_us(stack.enter_context(nats_there_and_back(peer)), bench.slice_seconds)

        bench.compare(
            {
                OURS: p50_us(stack.enter_context(hub_there_and_back(broker.endpoint)), bench.slice_seconds),
                REDIS: if_present(redis_peer, of_redis),
                NATS: if_present(nats_peer, of_nats),
            },
            unit="µs",
            claims=[at_most(1.0, OURS, REDIS), at_most(1.0, OURS, NATS)],
            repetitions=bench.slices,
        )
