"""SIGSTOP of the broker: calls end at their deadlines, not later, and everything goes on after SIGCONT."""

import signal
import threading
import time
from collections.abc import Callable

import pytest

from messagehub.errors import BrokerUnavailable
from tests import preloaded
from tests.integration.harness import Peer, Served, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")

NEVER_SECONDS = 600.0
TERMS = {"heartbeat_seconds": 0.2, "stall_seconds": 20.0, "lease_seconds": 40.0, "beacon_seconds": 0.1}
SLACK_SECONDS = 20.0
"""For a loaded machine; far below what a call without a deadline would take."""


def test_calls_end_at_their_deadline_and_recover(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server, request_timeout_seconds=NEVER_SECONDS) as hub, hub.watch() as watch:
        registration = hub.register_producer("a", schema_hash="h", required=True)
        assert hub.discover("a") is not None
        assert watch.wait_current(30)
        server.signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                hub.create_channel("later", timeout=0.5)
            assert time.monotonic() - started < 0.5 + SLACK_SECONDS
            for call in (
                lambda: hub.health(timeout=0.3)["status"] == "unavailable",
                lambda: hub.discover("unknown", timeout=0.3) is None,
                lambda: hub.channels(timeout=0.3) is not None,
                lambda: hub.register_producer("b", schema_hash="h", timeout=0.3).source in (None, "files"),
                lambda: hub.discover("c", wait=True, timeout=0.3) is None,
            ):
                started = time.monotonic()
                assert call()
                assert time.monotonic() - started < 0.3 + SLACK_SECONDS
        finally:
            server.signal(signal.SIGCONT)
        eventually(lambda: hub.health()["status"] == "healthy")
        eventually(lambda: bool(registration) and {it.channel for it in hub.channels()} >= {"a", "b"})
        with Peer(server.endpoint) as peer:
            eventually(lambda: watch.is_current and set(watch.channels) == set(peer.snapshot()))
        assert hub.create_channel("after").channel == "after"


def test_concurrent_callers_all_end_at_their_own_deadlines(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server, request_timeout_seconds=NEVER_SECONDS) as hub:
        hub.connect(timeout=30)
        server.signal(signal.SIGSTOP)
        late: list[float] = []
        try:

            def call(number: int) -> None:
                timeout = 0.2 + 0.02 * number
                started = time.monotonic()
                assert hub.stats(timeout=timeout) is None
                late.append(time.monotonic() - started - timeout)

            threads = [threading.Thread(target=call, args=(number,)) for number in range(32)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            server.signal(signal.SIGCONT)
        assert len(late) == 32
        assert max(late) < SLACK_SECONDS
        eventually(lambda: hub.stats(timeout=5.0) is not None)


def test_a_memory_answer_is_not_given_for_longer_than_beacons_allow(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server, request_timeout_seconds=0.3) as hub:
        hub.register_producer("a", schema_hash="h")

        def source() -> str | None:
            found = hub.discover("a")
            return found.source if found is not None else None

        eventually(lambda: source() == "broker")
        server.signal(signal.SIGSTOP)
        try:
            eventually(lambda: source() == "files")
        finally:
            server.signal(signal.SIGCONT)
        eventually(lambda: source() == "broker")


def test_closing_a_client_of_a_paused_broker_does_not_hang(served: Callable[..., Served]) -> None:
    server = served(**TERMS)
    with hub_of(server) as hub:
        for number in range(20):
            hub.register_producer(f"c{number}", schema_hash="h")
        server.signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            hub.close()
            assert time.monotonic() - started < 2 * SLACK_SECONDS
        finally:
            server.signal(signal.SIGCONT)


def test_a_paused_client_is_stalled_not_robbed_and_comes_back_by_itself(served: Callable[..., Served]) -> None:
    import os
    import subprocess
    import sys

    from tests.integration.harness import ROOT, clean_environment

    server = served(heartbeat_seconds=0.1, stall_seconds=0.5, lease_seconds=1.5, beacon_seconds=0.1)
    script = (
        "import sys\nfrom messagehub import MessageHub\n"
        "hub = MessageHub(endpoint=sys.argv[1])\n"
        "hub.register_producer('a', schema_hash='h', required=True)\n"
        "print('ready', flush=True)\nsys.stdin.read()\nhub.close()\n"
    )
    client = preloaded.Popen(
        [sys.executable, "-c", script, server.endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        cwd=ROOT,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    try:
        assert client.stdout.readline() == "ready\n"
        with Peer(server.endpoint) as peer:

            def status() -> str:
                reply = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "a"})
                return str(reply.get("status") or reply["code"])

            os.kill(client.pid, signal.SIGSTOP)
            eventually(lambda: status() == "stalled")
            over = time.monotonic() + 3 * 1.5  # its process lives, so its lease does not end
            eventually(lambda: status() != "stalled" or time.monotonic() > over)
            assert status() == "stalled"
            os.kill(client.pid, signal.SIGCONT)
            eventually(lambda: status() == "active")
            client.stdin.close()
            assert client.wait(30) == 0
            eventually(lambda: status() == "CHANNEL_NOT_FOUND")
    finally:
        client.kill()
        client.wait(30)
        client.stdout.close()
