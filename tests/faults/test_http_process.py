"""The HTTP process and its hub: whichever is killed, nothing of it is in the way of the next."""

import http.client
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from messagehub.shm.identity import ProcessIdentity
from tests.faults.chaos.storm import HTTP, command_line, descendants
from tests.integration.harness import PATIENCE_SECONDS, Served, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "hub", "--http", "127.0.0.1:0", with_http=True) as served:
        yield served


def http_pid(hub: Served) -> int:
    found = [pid for pid in descendants(hub.pid) if HTTP in command_line(pid)]
    return found[0] if found else 0


def is_gone(pid: int) -> bool:
    return ProcessIdentity.of(pid) is None


def answers(hub: Served) -> bool:
    connection = http.client.HTTPConnection(urlsplit(hub.http).netloc, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def test_a_killed_hub_starts_again_at_the_address_it_was_given(hub: Served) -> None:
    """Killed while its HTTP process still starts, which is when that one may hold the address longest."""
    hub.arguments = ("--http", urlsplit(hub.http).netloc)
    for _ in range(3):
        before = hub.http
        hub.kill()
        hub.start()
        assert hub.http == before


def test_the_http_process_of_a_killed_hub_ends_even_while_it_is_paused(hub: Served) -> None:
    eventually(answers, hub)
    pid = http_pid(hub)
    os.kill(pid, signal.SIGSTOP)
    hub.kill()
    eventually(is_gone, pid)


def test_a_hub_that_stops_while_its_http_process_starts_again_leaves_none(hub: Served) -> None:
    pid = eventually(http_pid, hub)
    os.kill(pid, signal.SIGKILL)
    again = eventually(lambda: http_pid(hub) not in (0, pid) and http_pid(hub))
    assert hub.stop() == 0
    eventually(is_gone, again)
