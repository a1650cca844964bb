"""The process that judges schemas is killed: nobody who registers one notices."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.conftest import QUICK
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import Peer, Served, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


def judges(server: Served) -> list[int]:
    return [pid for pid in descendants(server.pid) if "broker.judging" in command_line(pid)]


def test_a_killed_judge_is_replaced_and_asked_again(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with Peer(server.endpoint) as peer:
        for number in range(3):
            (judge,) = eventually(lambda: judges(server))
            os.kill(judge, signal.SIGKILL)
            reply = peer.ask({"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"title": str(number)}})
            assert reply["type"] == "SCHEMA_REGISTER_ACK", reply
            assert reply["version"] == number + 1
    assert server.stop() == 0
    assert server.log().count("the schema judge is replaced") == 3
