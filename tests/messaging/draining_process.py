"""A worker as a process of its own that ends by a signal: `served` or `hub` runs, in a loop or without one."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from messagehub import MessageHub
from messagehub.services.context import ServiceContext, ServiceMessage


def handle(message: ServiceMessage, context: ServiceContext) -> Any:
    """Says that it has begun, and ends when somebody makes the file."""
    begun, until = Path(message.payload["begun"]), Path(message.payload["until"])
    begun.touch()
    deadline = time.monotonic() + 60
    while not until.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return message.payload["name"]


async def handle_async(message: ServiceMessage, context: ServiceContext) -> Any:
    Path(message.payload["begun"]).touch()
    async with asyncio.timeout(60):
        while not Path(message.payload["until"]).exists():
            await asyncio.sleep(0.005)
    return message.payload["name"]


async def run_async(endpoint: str, way: str, drain_seconds: float) -> None:
    async with MessageHub(endpoint=endpoint, hello_timeout_seconds=5) as hub:
        served = await hub.serve_async("service:work", handle_async, timeout=30)
        print("serving", flush=True)
        await (hub.run_forever_async if way == "hub" else served.run_async)(drain_seconds=drain_seconds)
    print("ended", flush=True)


def run(endpoint: str, way: str, drain_seconds: float) -> None:
    with MessageHub(endpoint=endpoint, hello_timeout_seconds=5) as hub:
        served = hub.serve("service:work", handle, timeout=30)
        print("serving", flush=True)
        (hub.run_forever if way == "hub" else served.run)(drain_seconds=drain_seconds)
    print("ended", flush=True)


if __name__ == "__main__":
    endpoint, way, is_async, drain_seconds = sys.argv[1:]
    if is_async == "async":
        asyncio.run(run_async(endpoint, way, float(drain_seconds)))
    else:
        run(endpoint, way, float(drain_seconds))
