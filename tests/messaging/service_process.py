"""A worker as a process of its own: serves an address until its stdin ends."""

import os
import sys
import threading
import time
from typing import Any

from messagehub import MessageHub
from messagehub.errors import InvalidRequest
from messagehub.services.context import ServiceContext, ServiceMessage


def handle(message: ServiceMessage, context: ServiceContext) -> Any:
    """Does what the message says."""
    asked = message.payload
    if not isinstance(asked, dict):
        return asked
    for item in asked.get("stream", []):
        context.stream(item)
    if "until" in asked:  # a file that somebody makes
        deadline = time.monotonic() + 60
        while not os.path.exists(asked["until"]) and time.monotonic() < deadline:
            time.sleep(0.005)
    if "touch" in asked:
        with open(asked["touch"], "a") as file:
            file.write(f"{asked.get('mark', '')}\n")
    if "raise" in asked:
        raise {"refusal": InvalidRequest("not like this", field="raise"), "defect": KeyError("a")}[asked["raise"]]
    if "ask" in asked:
        return context.request(asked["ask"], asked.get("with"))
    if asked.get("kill"):
        os.kill(os.getpid(), 9)
    if "exit" in asked:
        sys.exit(asked["exit"])
    return {"pid": os.getpid(), "worker_id": context.worker_id, "thread": threading.get_ident()}


def main() -> None:
    endpoint, address = sys.argv[1:3]
    options = dict(option.split("=") for option in sys.argv[3:])
    numbers = {name: int(options[name]) for name in ("concurrency", "mailbox") if name in options}
    words = {name: options[name] for name in ("overflow", "strategy") if name in options}
    with (
        MessageHub(endpoint=endpoint, hello_timeout_seconds=5) as hub,
        hub.serve(address, handle, **numbers, **words) as served,
    ):
        print(served.worker_id, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
