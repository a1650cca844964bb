"""What must hold of a broker whatever happened to it; checked at the end of a test that ran one."""

import os
from pathlib import Path

import zmq

from messagehub.shm.channel_directory.directory import Directory
from tests.integration.harness import Peer


def gauge(peer: Peer, name: str) -> int:
    """How much of something a broker has now."""
    return int(peer.stats()["gauges"][name])


def kept_in_vain(endpoint: str, domain: str = "") -> list[str]:
    """What a broker keeps that belongs to nobody; nothing when it does not answer in plain ZeroMQ.

    A broker without members has no leases, no watched processes and no owners; without connections to its events or
    its local socket it has no subscriptions; and it watches no directory of channels that is gone.
    """
    with Peer(endpoint, zmq.DEALER) as peer:
        peer.send({"type": "STATS_REQUEST"})
        if peer.hears_nothing(1.0):
            return []
        stats = peer.receive()
        workers = _workers(peer)
        hello = peer.ask({"type": "HELLO"})
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
    is_silent = connections(hello.get("endpoints", {}).get("events", "")) == 0 and not gauges["local_connections"]
    if gauges["subscriptions"] and is_silent:
        wrong.append(f"{gauges['subscriptions']} subscriptions of nobody")
    if domain and gauges["watched_directories"] > (existing := _directories(domain)):
        wrong.append(f"{gauges['watched_directories']} watched directories where {existing} exist")
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


def connections(endpoint: str) -> int | None:
    """How many peers are connected, as the kernel says; None where it is no ipc endpoint."""
    if not endpoint.startswith("ipc://"):
        return None
    sockets = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(each[5] == "03" and each[7:] == [endpoint.removeprefix("ipc://")] for each in sockets)  # 03: connected


def _directories(domain: str) -> int:
    """How many directories a broker may watch: each channel's, and that of its tables."""
    directory = Directory(domain)
    return sum(1 + os.path.isdir(directory.tables_path(channel)) for channel in directory.channels())
