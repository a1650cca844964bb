"""What a user forgets to close is closed when it is collected, and a ResourceWarning names it."""

import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.conftest import QUICK
from tests.integration.harness import Served, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    return served("--no-http", **QUICK)


@pytest.fixture
def other(server: Served) -> Iterator[MessageHub]:
    """Who sees what is registered."""
    with hub_of(server) as hub:
        yield hub


def forget(make: Callable[[], object], times: int = 1) -> None:
    for _ in range(times):
        make()
    gc.collect()


def forget_until(use: Callable[[], object], is_gone: Callable[[], bool]) -> None:
    """A thread that has just served somebody may hold it for a moment longer."""
    use()
    eventually(lambda: gc.collect() >= 0 and is_gone())


def expect_warning(use: Callable[[], object], text: str) -> None:
    with pytest.warns(ResourceWarning) as caught:
        forget_until(use, lambda: any(text in str(warning.message) for warning in caught))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_service_that_nobody_holds_goes_on_until_its_hub_is_closed(server: Served, other: MessageHub) -> None:
    with hub_of(server) as hub:
        forget(lambda: hub.serve("service:echo", lambda message, context: message.payload))
        assert other.request("service:echo", 1, timeout=30) == 1
        gc.collect()
        assert other.request("service:echo", 2, timeout=30) == 2
    assert other.services(timeout=30) == []


def test_forgotten_consumers_leave_no_registration_and_no_descriptor(server: Served, other: MessageHub) -> None:
    with hub_of(server) as hub, hub.producer("a") as producer:
        with hub.consumer("a") as first:  # opens what all of them share
            producer.write(b"1")
            assert first.read(timeout=30) == b"1"
        producer.write(b"2")
        assert other.consumers("a") is not None
        before = descriptors()
        with pytest.warns(ResourceWarning, match=r"the consumer of channel 'a' \(close it.*was never closed"):
            forget(lambda: hub.consumer("a"), times=50)
        eventually(lambda: not other.consumers("a"))
        eventually(lambda: producer.write(b"3") and descriptors() <= before)


def test_a_forgotten_consumer_lets_go_of_a_producer_that_waits_for_it(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("a", capacity=2, when_full="block") as producer:
        consumer = hub.consumer("a", start="oldest")
        producer.write(b"1")
        assert consumer.read(timeout=30) == b"1"
        producer.write(b"2")
        producer.write(b"3")
        with pytest.warns(ResourceWarning) as caught:  # noqa: PT031  a thread may hold it for a moment longer
            del consumer
            eventually(lambda: len(caught))
        assert producer.write(b"4", timeout=30) == 4


def test_a_forgotten_producer_ends_its_stream(server: Served, other: MessageHub) -> None:
    with hub_of(server) as hub, hub.consumer("a") as consumer:
        producer = hub.producer("a")
        producer.write(b"1")
        assert consumer.read(timeout=30) == b"1"
        with pytest.warns(ResourceWarning, match="the producer of channel 'a'") as caught:  # noqa: PT031  as above
            del producer
            eventually(lambda: len(caught))
        assert consumer.read() is None
        assert consumer.has_ended
        eventually(lambda: other.discover("a") is None or not other.discover("a").is_active)
        with hub.producer("a") as again:
            assert again.write(b"2") == 2


def test_forgotten_subscriptions_and_watches_are_closed(server: Served, other: MessageHub) -> None:
    with hub_of(server) as hub:
        hub.connect()
        expect_warning(lambda: hub.subscribe("a.b"), "the subscription to 'a.b'")
        other.topic("kept", keep=10)
        expect_warning(lambda: hub.subscribe("kept", since="oldest"), "the subscription to 'kept'")
        expect_warning(hub.watch, "the watch of 'all channels'")
        with hub.subscribe("a.b") as subscription:
            other.publish("a.b", 1)
            assert subscription.receive(timeout=30).payload == 1


def test_a_subscription_with_a_callback_is_used_although_nobody_holds_it(server: Served, other: MessageHub) -> None:
    heard = threading.Event()
    with hub_of(server) as hub:
        hub.subscribe("a", lambda _: heard.set())
        gc.collect()
        other.publish("a", 1)
        assert heard.wait(30)


def test_a_forgotten_hub_is_closed_with_all_that_it_made(server: Served, other: MessageHub) -> None:
    def use() -> None:
        hub = MessageHub(endpoint=server.endpoint)
        hub.register_producer("registered", schema_hash="h", required=True)
        hub.serve("service:a", lambda message, context: None)
        assert other.request("service:a", 1, timeout=30) is None

    with pytest.warns(ResourceWarning, match="the hub at .*close it, or use `with"):
        forget_until(use, lambda: not other.services() and not other.channels())


def test_what_a_hub_made_keeps_it_alive(server: Served, other: MessageHub) -> None:
    def hub() -> MessageHub:
        return MessageHub(endpoint=server.endpoint)

    made = producer, consumer, subscription, watch, served = (
        hub().producer("a"),
        hub().consumer("a"),
        hub().subscribe("t"),
        hub().watch(),
        hub().serve("service:a", lambda message, context: message.payload),
    )
    pending = hub().begin_request("service:a", 3, timeout=30)
    gc.collect()
    every = [one for one in gc.get_objects() if isinstance(one, MessageHub)]
    hubs = [one for one in every if one.settings.endpoint == server.endpoint and one is not other]
    try:
        assert len(hubs) == 6
        producer.write(b"1")
        assert consumer.read(timeout=30) == b"1"
        other.publish("t", 2)
        assert subscription.receive(timeout=30).payload == 2
        assert watch.wait_current(30)
        assert served.is_registered
        assert pending.result() == 3
    finally:
        for each in made:
            each.close()
        for one in hubs:
            one.close()


def test_what_was_closed_or_never_used_is_collected_in_silence(server: Served) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MessageHub(endpoint=server.endpoint)
        with hub_of(server) as hub:
            for made in (hub.producer("a"), hub.consumer("a"), hub.subscribe("t"), hub.watch()):
                made.close()
            left = [hub.producer("b"), hub.consumer("b"), hub.subscribe("t"), hub.watch()]
        left.clear()
        gc.collect()


FORKED = """
import gc, os, sys, warnings
from messagehub import MessageHub
warnings.simplefilter("error")
hub = MessageHub(dir=sys.argv[1])
producer, consumer = hub.producer("a"), hub.consumer("a")
child = os.fork()
if child == 0:
    sys.unraisablehook = lambda _: os._exit(3)
    del producer, consumer
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.write(b"1")
assert consumer.read(timeout=30) == b"1"
"""


def test_a_forked_child_forgets_what_is_its_parents_in_silence(tmp_path: Path) -> None:
    """And at the end of a process hubs are closed without a warning."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "ResourceWarning" not in run.stderr
