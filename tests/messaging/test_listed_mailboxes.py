"""Whoever lists services sees how full the mailboxes of their workers are."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from messagehub import MessageHub
from registry.replies import WorkerSummary
from tests.integration.harness import Served, eventually


def worker(hub: MessageHub, address: str) -> WorkerSummary:
    (found,) = next(service.workers for service in hub.services() if service.address == address)
    return found


def test_a_mailbox_is_listed_as_of_the_last_heartbeat(tmp_path: Path, served: Callable[..., Served]) -> None:
    server = served(dir=tmp_path / "hub", heartbeat_seconds=0.3)
    go_on = threading.Event()

    def handle(message: Any, context: Any) -> str:
        go_on.wait(30)
        return "done"

    with MessageHub(dir=server.dir) as hub, MessageHub(dir=server.dir) as caller:
        hub.serve("pool:slow", handle, mailbox=50, concurrency=1)
        waiting = [caller.begin_request("pool:slow", number, timeout=30) for number in range(5)]
        eventually(lambda: (found := worker(caller, "pool:slow").mailbox) is not None and found.queued == 4)
        found = worker(caller, "pool:slow").mailbox
        assert found is not None
        assert (found.busy, found.capacity, found.handled) == (1, 50, 1)
        go_on.set()
        assert [reply.result() for reply in waiting] == ["done"] * 5
        eventually(lambda: (found := worker(caller, "pool:slow").mailbox) is not None and found.handled == 5)
