"""Many callers, few sockets: nothing is lost and nothing is mixed up."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import ChannelNotFound
from registry import commands, replies
from tests.conftest import QUICK
from tests.integration.harness import AnyBroker, Peer, Served, eventually, hub_of, open_files

pytestmark = pytest.mark.usefixtures("no_leaks")


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Run in threads that start together; the first failure is raised here."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(30)
            work(number)
        except BaseException as error:  # noqa: BLE001  raised again in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def test_64_threads_that_share_a_client_lose_and_mix_nothing(broker: AnyBroker, peer: Peer) -> None:
    rounds = 15
    by_files: list[str] = []  # discoveries for which a busy broker took too long; their replies come later
    with hub_of(broker, request_timeout_seconds=60.0) as hub:

        def work(number: int) -> None:
            for turn in range(rounds):
                channel = f"c{number}.t{turn}"
                made = hub.register_producer(channel, schema_hash=f"hash-{channel}", metadata={"n": number})
                assert made
                assert made.shm_name == f"/pylabhub_{channel}"
                found = hub.discover(channel)
                assert found is not None
                assert (found.channel, found.schema_hash) == (channel, f"hash-{channel}")
                if found.source == "files":
                    by_files.append(channel)
                assert hub.discover(f"missing{number}.t{turn}") is None
                described = hub.describe(channel)
                assert described is not None
                assert described.channel.producers[f"{channel}/default"].metadata == {"n": number}

        in_threads(64, work)
        metrics = hub.metrics()
        for name in ("timeouts", "disconnects"):
            assert metrics[name] == 0, metrics
        assert metrics["late_replies"] <= len(by_files), metrics
        assert metrics["connects"] == 1
        calls = 64 * rounds
        assert metrics["requests"]["PRODUCER_REGISTER"]["count"] == calls
        assert metrics["requests"]["CHANNEL_DESCRIBE_REQUEST"]["count"] == calls
        assert len(peer.snapshot()) == calls
        theirs = peer.stats()["requests"]
        assert theirs["PRODUCER_REGISTER"]["count"] == calls
        assert theirs["CHANNEL_DESCRIBE_REQUEST"]["count"] == calls


@pytest.mark.parametrize(("transport", "with_events"), [("auto", 1), ("zmq", 2)])
def test_many_threads_share_one_connection_and_at_most_one_for_events(
    served: Callable[..., Served], transport: str, with_events: int
) -> None:
    """Seen from outside: the connections that the broker's process has accepted. The local socket has events too."""
    server = served(**QUICK)

    def accepted() -> int:
        return len([fd for fd in os.listdir(f"/proc/{server.pid}/fd") if is_socket(server.pid, fd)])

    idle = accepted()
    with hub_of(server, transport=transport) as hub:
        in_threads(16, lambda number: [hub.channels() for _ in range(10)])
        eventually(lambda: accepted() - idle == 1)
        before = set(open_files())
        hub.register_producer("a", schema_hash="h")
        watches = [hub.watch(f"w{number}") for number in range(8)]
        in_threads(16, lambda number: [hub.discover("a") for _ in range(10)])
        assert all(watch.wait_current(30) for watch in watches)
        eventually(lambda: accepted() - idle == with_events)
        assert len(set(open_files()) - before) < 10
    eventually(lambda: accepted() == idle)


def is_socket(pid: int, fd: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    except FileNotFoundError:
        return False


def test_callers_that_share_a_wire_each_get_their_own_refusals(broker: AnyBroker) -> None:
    with hub_of(broker, request_timeout_seconds=60.0) as hub:

        def work(number: int) -> None:
            for turn in range(50):
                name = f"n{number}.t{turn}"
                command = commands.DescribeChannel(channel=name)
                with pytest.raises(ChannelNotFound) as caught:
                    hub.ask(command, timeout=60.0)
                assert caught.value.details == {"channel": name}

        in_threads(16, work)
        assert hub.metrics()["requests"]["CHANNEL_DESCRIBE_REQUEST"]["count"] == 16 * 50


def test_callbacks_and_callers_do_not_take_each_others_replies(broker: AnyBroker) -> None:
    """Heartbeats, watches and cache refreshes run on the thread while callers drive the wire themselves."""
    with hub_of(broker, request_timeout_seconds=60.0) as hub, hub.watch() as watch:
        for number in range(50):
            hub.register_producer(f"c{number}", schema_hash="h")
            hub.discover(f"c{number}")

        def work(number: int) -> None:
            for turn in range(20):
                with hub.register_consumer(f"c{turn}", consumer_id=f"k{number}") as consumer:
                    assert isinstance(consumer.ack, replies.ConsumerRegistered)
                    assert consumer.ack.consumer_id == f"k{number}"
                    found = hub.discover(f"c{turn}")
                    assert found is not None
                    assert found.channel == f"c{turn}"

        in_threads(8, work)
        assert hub.metrics()["timeouts"] == 0
        stats = hub.stats()
        assert stats is not None
        assert watch.wait_current(30, revision=stats.revision)
        assert all(not channel.consumers for channel in watch.channels.values())


def test_200_client_processes_lose_and_mix_nothing(served: Callable[..., Served]) -> None:
    """Forked from here, eight at a time; each registers, discovers and leaves one thing behind."""
    server = served(**QUICK)
    running: set[int] = set()

    def client(number: int) -> int:
        with MessageHub(endpoint=server.endpoint, request_timeout_seconds=60.0) as hub:
            channel = f"c{number}"
            hub.create_channel(channel, metadata={"n": number})
            registered = hub.register_producer(channel, schema_hash=f"h{number}", required=True)
            found = hub.discover(channel)
            schema = hub.register_schema(channel, {"title": channel})
            is_right = (
                bool(registered)
                and found is not None
                and found.schema_hash == f"h{number}"
                and found.metadata == {"n": number}
                and [producer.pid for producer in found.producers] == [os.getpid()]
                and hub.schema(channel).schema.schema_hash == schema.schema_hash
            )
            return 0 if is_right else 1

    def reap() -> None:
        pid, status = wait_for_one(running)
        running.discard(pid)
        assert os.waitstatus_to_exitcode(status) == 0

    for number in range(200):
        if len(running) == 8:
            reap()
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = client(number)
            finally:
                os._exit(code)
        running.add(pid)
    while running:
        reap()
    with Peer(server.endpoint) as peer:
        found = peer.snapshot()
        assert {name: channel["metadata"] for name, channel in found.items()} == {
            f"c{number}": {"n": number} for number in range(200)
        }
        assert all(channel["producers"] == {} for channel in found.values())
        assert peer.stats()["schemas"] == 200
        assert peer.counter("internal_errors") == 0


def wait_for_one(pids: set[int]) -> tuple[int, int]:
    """Some child of ours that has ended, within the deadline."""
    ended: list[tuple[int, int]] = []

    def look() -> bool:
        for pid in pids:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append((done, status))
                return True
        return False

    eventually(look, timeout=60)
    return ended[0]


def test_thousands_of_channels_are_watched_over_zeromq_also_after_a_restart(served: Callable[..., Served]) -> None:
    """Unless it is told otherwise, libzmq drops subscriptions beyond a thousand."""
    server = served(**QUICK | {"beacon_seconds": 1.0})
    with hub_of(server, transport="zmq") as hub:
        watches = [hub.watch(f"w{number}") for number in range(1_500)]
        for has_restarted in (False, True):
            if has_restarted:
                server.kill()
                eventually(lambda: not any(watch.is_current for watch in watches))
                server.start()
            until = time.monotonic() + 60
            assert all(watch.wait_current(max(until - time.monotonic(), 0.0)) for watch in watches)
