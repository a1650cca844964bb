"""What must hold of a broker whatever happened to it; checked at the end of a test that ran one."""

import json
from pathlib import Path
from typing import Any

import zmq

from tests.integration.harness import AnyBroker, Peer, Served, eventually

ANSWER_SECONDS = 10.0


def gauge(peer: Peer, name: str) -> int:
    """How much of something a broker has now."""
    return int(peer.stats()["gauges"][name])


def check_broker(broker: AnyBroker) -> None:
    """Fail unless everything that the broker keeps belongs to somebody who is registered.

    A broker without members has no leases, no watched processes and no owners. One that has ended, is paused or does
    not answer in plain ZeroMQ is passed over.
    """
    endpoint = _endpoint(broker)
    if endpoint is None:
        return
    found: list[str] = []

    def is_true() -> bool:
        found[:] = kept_in_vain(endpoint)
        return not found

    try:
        eventually(is_true, timeout=ANSWER_SECONDS)
    except AssertionError:
        raise AssertionError(f"the broker keeps what belongs to nobody: {found}") from None


def kept_in_vain(endpoint: str) -> list[str]:
    """What a broker keeps beyond its members; nothing when it does not answer."""
    with Peer(endpoint, zmq.DEALER) as peer:
        peer.send({"type": "STATS_REQUEST"})
        if peer.hears_nothing(1.0):
            return []
        stats = peer.receive()
        workers = _workers(peer)
    if stats["type"] != "STATS_RESPONSE":
        return []
    members = stats["producers"] + stats["consumers"] + workers
    counters, gauges = stats["counters"], stats["gauges"]
    kept = {
        "leases": stats["leases"],
        "watched processes": gauges["watched_processes"],
        "lease owners": gauges.get("lease_owners", 0),
    }
    wrong = [f"{count} {what} for {members} members" for what, count in kept.items() if count > members]
    if counters["threads_restarted"]:
        wrong.append(f"{counters['threads_restarted']} threads failed and were started again")
    return wrong


def _workers(peer: Peer) -> int:
    count = 0
    after: str | None = ""
    while after is not None:
        page = peer.ask({"type": "SERVICE_LIST_REQUEST", "prefix": "id:", "after": after})
        if page["type"] == "ERROR":
            return count
        count += sum(len(service["workers"]) for service in page["services"])
        after = page["next"]
    return count


def _endpoint(broker: AnyBroker) -> str | None:
    """Where a local peer needs no key; None when the broker does not run."""
    if not isinstance(broker, Served):
        return broker.endpoint if Path(broker.endpoint.removeprefix("ipc://")).exists() else None
    if broker.process is None or broker.process.poll() is not None or _is_paused(broker.pid):
        return None
    try:
        status: dict[str, Any] = json.loads((broker.dir / "broker.json").read_text())
    except FileNotFoundError:
        return None
    return str(status["endpoint"])


def _is_paused(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
