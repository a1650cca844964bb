"""What a user's test suite relies on: fixtures of our own, and a shared hub that follows an embedded broker."""

import os
import subprocess
import sys
from pathlib import Path

from messagehub import MessageHub, embedded_broker
from tests.integration.harness import ROOT, clean_environment

CONFTEST = 'pytest_plugins = ["messagehub.testing"]\n'
TESTS = """
import subprocess
import sys

import pytest

from messagehub import MessageHub

seen = []


def place_order(number):
    MessageHub.get_instance().publish("orders", number)


@pytest.mark.parametrize("turn", [1, 2])
def test_code_that_uses_the_shared_hub(hub, broker, turn):
    assert MessageHub.get_instance() is hub
    assert hub.settings.endpoint == broker
    assert broker not in seen
    assert hub.topics() == [], "what the test before stored is gone"
    hub.topic("orders", keep=10)
    place_order(turn)
    assert [message.payload for message in [hub.subscribe("orders", since="oldest").receive(30)]] == [turn]
    hub.producer("ring", capacity=4, page_size=64).write(b"x")
    seen.append(broker)


def test_a_child_process_finds_the_same_broker(hub):
    program = "from messagehub import MessageHub; print(MessageHub().topic('t', keep=5).describe().messages)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "0\\n"
    assert [topic.name for topic in hub.topics()] == ["t"]


def test_without_fixtures_nothing_is_set(monkeypatch):
    import os
    assert not [name for name in os.environ if name.startswith("MESSAGEHUB_")]
"""


def test_a_suite_with_the_plugin_has_a_broker_for_each_test_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_orders.py").write_text(TESTS)
    environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
    environment = {name: value for name, value in environment.items() if not name.startswith("MESSAGEHUB_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ran:
        try:
            said, _ = ran.communicate(timeout=110)
        finally:
            ran.kill()
    assert ran.returncode == 0, said
    assert "4 passed" in said
    own = f"test-{ran.pid}-*"  # other suites with the plugin may run at the same time
    left = [*Path("/dev/shm").glob(f"*@{own}"), *Path(f"/dev/shm/messagehub-{os.geteuid()}").glob(own)]
    assert left == []


def test_the_shared_hub_follows_an_embedded_broker_that_is_started_anew(no_leaks: None) -> None:
    hubs = []
    for _ in range(2):
        with embedded_broker() as endpoint:
            hubs.append(MessageHub.get_instance(endpoint=endpoint))
            assert MessageHub.get_instance() is hubs[-1]
            hubs[-1].publish("t", 1)
    assert hubs[0] is not hubs[1]
    assert MessageHub.get_instance().settings.endpoint != hubs[1].settings.endpoint


def test_the_shared_hub_of_an_endpoint_where_an_embedded_broker_ended_stays_one(no_leaks: None, tmp_path: Path) -> None:
    """As when a program goes on with a broker of its own process after one that was embedded."""
    endpoint = f"ipc://{tmp_path}/broker.sock"
    for _ in range(2):
        with embedded_broker(endpoint=endpoint):
            pass
        hub = MessageHub.get_instance(endpoint=endpoint)
        assert MessageHub.get_instance() is hub
        assert MessageHub.get_instance(endpoint=endpoint) is hub
        with embedded_broker(endpoint=endpoint):
            assert hub.health(timeout=30.0)["status"] == "healthy"
        assert MessageHub.get_instance(endpoint=endpoint) is not hub, "its broker has ended"
        MessageHub.reset_instance()
