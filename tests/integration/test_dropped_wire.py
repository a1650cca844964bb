"""A caller that drives the wire may drop it while the I/O thread is at work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub.client.connection import Connection
from messagehub.client.event_listeners import EventListeners
from messagehub.settings import Settings
from registry import commands
from tests.conftest import QUICK
from tests.integration.harness import Embedded, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


class Meanwhile(EventListeners):
    """The wire is gone just when the thread asks what to listen to."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        self.asked = 0

    def topics(self) -> set[bytes]:
        self.connection.hello = None
        self.asked += 1
        return super().topics()


def test_events_are_followed_while_the_wire_is_dropped(embedded: Callable[..., Embedded], tmp_path: Path) -> None:
    connection = Connection(Settings.load(endpoint=embedded(**QUICK).endpoint, dir=tmp_path), name="c")
    try:
        connection.request(commands.Ping(), timeout=30)
        hello = connection.hello
        meanwhile = Meanwhile(connection)
        connection.parts = (meanwhile,)
        for turn in range(1, 4):  # a thread that failed would take no further turn
            connection.hello = hello
            connection.wake()
            eventually(lambda turn=turn: meanwhile.asked >= turn)
            assert connection.hello is None
    finally:
        connection.close()
