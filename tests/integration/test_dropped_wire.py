"""A caller that drives the wire may drop it while the I/O thread is at work."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub.client.connection import Connection
from messagehub.client.event_listeners import EventListeners
from messagehub.errors import BrokerUnavailable
from messagehub.settings import Settings
from registry import commands
from tests.conftest import QUICK
from tests.integration.harness import Served, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


class Interrupted(EventListeners):
    """Something happens just when the thread asks what to listen to."""

    def __init__(self, connection: Connection, interrupt: Callable[[], None]) -> None:
        super().__init__(connection)
        self._interrupt = [interrupt]

    def topics(self) -> set[bytes]:
        if self._interrupt:
            self._interrupt.pop()()
        return super().topics()


@pytest.mark.parametrize("transport", ["auto", "zmq"])
def test_events_are_followed_while_the_wire_is_dropped(
    served: Callable[..., Served], tmp_path: Path, transport: str
) -> None:
    server = served(**QUICK)
    connection = Connection(Settings.load(endpoint=server.endpoint, dir=tmp_path, transport=transport), name="c")

    def ask() -> None:
        with contextlib.suppress(BrokerUnavailable):
            connection.request(commands.Ping(), timeout=5)

    def lose_the_broker() -> None:
        server.kill()
        caller = threading.Thread(target=ask)
        caller.start()
        caller.join(30)

    heard: list[bytes | None] = []
    try:
        connection.ask_hello(timeout=30.0)
        listeners = Interrupted(connection, lose_the_broker)
        connection.listeners = (listeners,)
        listeners.add(b"channel/", heard.append)
        eventually(lambda: connection.hello is None)
        server.start()
        eventually(lambda: any(heard))  # a thread that failed would take no further turn
        assert connection.metrics.all_counters()["defects"] == 0
    finally:
        connection.close()
