"""A consumer is woken from other threads: never through a stranger's descriptor, never late for a broker's sake."""

import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.conftest import QUICK
from tests.integration.harness import Served, eventually, hub_of

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_waking_a_consumer_that_is_being_closed_writes_to_no_other_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("a"):
        consumer = hub.consumer("a")
        write, opened = os.eventfd_write, []

        def write_late(fd: int, value: int) -> None:
            """Between looking at the descriptor and writing to it, the consumer is closed and its number given away."""
            patch.setattr(os, "eventfd_write", write)
            closing = threading.Thread(target=consumer.close)
            closing.start()
            closing.join(30.0)
            opened.extend(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(20))
            write(fd, value)

        with monkeypatch.context() as patch:
            patch.setattr(os, "eventfd_write", write_late)
            consumer.wake()
        assert opened
        assert not select.select(opened, [], [], 0)[0]
        for fd in opened:
            os.close(fd)
        consumer.wake()  # of a closed one: nothing


def test_a_read_in_a_group_does_not_wait_for_a_broker_that_hangs(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with hub_of(server, request_timeout_seconds=60.0) as hub, hub.producer("a") as producer:
        consumer = hub.consumer("a", group="g", start="oldest")
        producer.write(b"1")
        assert consumer.read(timeout=30.0) == b"1"
        server.signal(signal.SIGSTOP)
        try:
            for number in range(2, 6):
                consumer.wake()  # as when the group is shared out anew
                producer.write(b"%d" % number)
                assert consumer.read(timeout=30.0) == b"%d" % number
            assert hub.metrics()["timeouts"] == 0, "nobody waited for the broker"
        finally:
            server.signal(signal.SIGCONT)
        other = hub_of(server)
        with other as second, second.consumer("a", group="g", start="oldest") as member:
            eventually(lambda: _shared_out(producer, consumer, member))


def _shared_out(producer: object, *members: object) -> bool:
    """Whether each of them got something of what is written now."""
    got = []
    for number in range(20):
        producer.write(b"%d" % number)  # type: ignore[attr-defined]
    for member in members:
        got.append(0)
        while member.read(timeout=0.05) is not None:  # type: ignore[attr-defined]
            got[-1] += 1
    return all(got)
