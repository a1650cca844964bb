"""A process that answers requests with what they said: `ready`, then until it is stopped.

    python -m benchmarks.service_workers KIND ADDRESS

Redis has no request and reply of its own: requests and replies are lists, and each side has the server do two things
in one round trip (answer all and wait for more), which is the fastest way that redis-py has.
"""

import asyncio
import sys
import threading
from collections.abc import Callable

import nats
import redis

from messagehub import MessageHub

SERVICE = "service:bench"
SUBJECT = "bench.requests"
MOST_AT_ONCE = 64


def tell(word: str) -> None:
    print(word, flush=True)


def redis_client(address: str) -> "redis.Redis":
    return redis.Redis(port=int(address)) if address.isdecimal() else redis.Redis(unix_socket_path=address)


def queue_of(address: str) -> str:
    """One for each way to reach the server, so that each has its own worker."""
    return f"bench:requests:{address}"


def messagehub_worker(address: str) -> None:
    with MessageHub(endpoint=address) as hub, hub.serve(SERVICE, lambda message, _: message.payload):
        tell("ready")
        threading.Event().wait()


def redis_worker(address: str) -> None:
    client, queue = redis_client(address), queue_of(address)
    tell("ready")
    requests: list[bytes] = []
    while True:
        with client.pipeline(transaction=False) as pipeline:
            for request in requests:
                reply_to, _, payload = request.partition(b" ")
                pipeline.rpush(reply_to, payload)
            pipeline.blmpop(0, 1, queue, direction="LEFT", count=MOST_AT_ONCE)
            requests = pipeline.execute()[-1][1]


def nats_worker(address: str) -> None:
    async def run() -> None:
        client = await nats.connect(f"nats://127.0.0.1:{address}")

        async def answer(message: "nats.aio.msg.Msg") -> None:
            await message.respond(message.data)

        await client.subscribe(SUBJECT, cb=answer)
        await client.flush()
        tell("ready")
        await asyncio.Event().wait()

    asyncio.run(run())


KINDS: dict[str, Callable[[str], None]] = {
    "messagehub": messagehub_worker,
    "redis": redis_worker,
    "nats": nats_worker,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2])
