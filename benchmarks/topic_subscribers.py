"""A process with many subscribers of one kind: `ready`, then a line for each batch that all of them have received.

    python -m benchmarks.topic_subscribers KIND ADDRESS SUBSCRIBERS BATCH

Each system is used as its client library does it best in one process: redis-py needs a connection for each
subscriber and is read one after the other without threads, nats-py counts in callbacks on its one connection.
"""

import asyncio
import sys
from collections.abc import Callable

import nats
import redis

from messagehub import MessageHub

TOPIC = "bench.topic"


def tell(word: str) -> None:
    print(word, flush=True)


def messagehub_subscribers(address: str, subscribers: int, batch: int) -> None:
    with MessageHub(endpoint=address) as hub:
        opened = [hub.subscribe(TOPIC, buffer=batch) for _ in range(subscribers)]
        tell("ready")
        while True:
            for subscription in opened:
                for _ in range(batch):
                    next(subscription)
                if subscription.lost:
                    raise SystemExit("a message was lost")
            tell("done")


def redis_subscribers(address: str, subscribers: int, batch: int) -> None:
    client = redis.Redis(port=int(address))
    opened = [client.pubsub(ignore_subscribe_messages=True) for _ in range(subscribers)]  # type: ignore[no-untyped-call]
    for subscription in opened:
        subscription.subscribe(TOPIC)
        subscription.get_message(timeout=10)  # the confirmation
    tell("ready")
    while True:
        for subscription in opened:
            for _ in range(batch):
                if subscription.get_message(timeout=60) is None:
                    raise SystemExit("a message was lost")
        tell("done")


def nats_subscribers(address: str, subscribers: int, batch: int) -> None:
    async def run() -> None:
        client = await nats.connect(f"nats://127.0.0.1:{address}")
        received = 0

        async def count(_: object) -> None:
            nonlocal received
            received += 1
            if received % (batch * subscribers) == 0:
                tell("done")

        for _ in range(subscribers):
            await client.subscribe(TOPIC, cb=count, pending_msgs_limit=10 * batch)
        await client.flush()
        tell("ready")
        await asyncio.Event().wait()

    asyncio.run(run())


KINDS: dict[str, Callable[[str, int, int], None]] = {
    "messagehub": messagehub_subscribers,
    "redis": redis_subscribers,
    "nats": nats_subscribers,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
