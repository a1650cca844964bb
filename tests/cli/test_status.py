"""`messagehub status`, and `serve` as far as it is seen from outside."""

import os
import signal
import time

from messagehub.version import __version__
from tests.cli.program import Program
from tests.ports import own_endpoint


def test_status_as_json_has_what_scripts_rely_on(hub: Program) -> None:
    hub.call("discover", "status.nowhere", code=1)
    hub.call("discover", "1 is no name", code=1)
    status = hub.call_json("status")
    assert status["health"] == "healthy"
    assert status["endpoint"] == f"ipc://{hub.dir}/broker.sock"
    assert status["events_endpoint"] == f"ipc://{hub.dir}/broker-events.sock"
    assert status["http"] is None
    assert status["dir"] == str(hub.dir)
    assert os.path.exists(f"/proc/{status['pid']}")
    assert status["version"] == status["client_version"] == __version__
    assert status["read_only"] is False
    assert status["revision"] >= 0
    assert status["uptime_seconds"] > 0
    assert set(status["counts"]) == {"channels", "producers", "consumers", "leases", "schemas"}
    assert status["requests"]["by_type"]["DISCOVERY_REQUEST"]["errors"] >= 1, "of the bad name: not found is an answer"
    assert status["requests"]["errors"] >= 1
    assert status["requests"]["by_type"]["DISCOVERY_REQUEST"]["p99_seconds"] > 0


def test_status_for_people_names_the_same(hub: Program) -> None:
    text = hub.call("status").stdout
    fields = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert fields["health"] == "healthy"
    assert fields["endpoint"] == f"ipc://{hub.dir}/broker.sock"
    assert fields["directory"] == str(hub.dir)
    assert fields["version"] == __version__
    assert "REFUSED" not in text, "one screen"
    detailed = hub.call("status", "--requests").stdout
    assert "REFUSED" in detailed
    assert "PING" in detailed


def test_status_without_a_broker_ends_with_3(alone: Program) -> None:
    done = alone.call("status", code=3)
    assert not done.stdout
    assert f"no broker runs in {alone.dir}" in done.stderr
    assert "messagehub serve" in done.stderr


def test_status_as_json_without_a_broker_has_the_same_names(alone: Program) -> None:
    status = alone.call_json("status", code=3)
    assert status["health"] == "unavailable"
    assert status["pid"] is None
    assert status["dir"] == str(alone.dir)
    assert {"endpoint", "events_endpoint", "http", "version", "reason"} <= set(status)


def test_a_stopped_broker_is_given_up_in_time(alone: Program) -> None:
    with alone.serve() as broker:
        broker.process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        assert alone.call_json("status", "--timeout", "0.3", code=3)["health"] == "unavailable"
        assert time.monotonic() - started < 20
        broker.process.send_signal(signal.SIGCONT)
        assert broker.end(signal.SIGTERM) == 0
    assert not (alone.dir / "broker.json").exists()


def test_a_tcp_broker_is_found_by_directory_and_by_endpoint(alone: Program) -> None:
    endpoint = own_endpoint()
    with alone.serve("--endpoint", endpoint) as broker:
        by_directory = alone.call_json("status")
        assert by_directory["endpoint"] == endpoint
        elsewhere = str(alone.place / "elsewhere")
        by_endpoint = alone.json("status", "--dir", elsewhere, MESSAGEHUB_ENDPOINT=endpoint)
        assert by_endpoint["broker_id"] == by_directory["broker_id"]
        assert by_endpoint["events_endpoint"] == by_directory["events_endpoint"]
        assert by_endpoint["dir"] is None
        assert broker.end() == 0


def test_a_second_broker_is_refused_with_1(hub: Program) -> None:
    done = hub.run("serve", code=1)
    assert f"another broker holds directory {hub.dir}" in done.stderr


def test_a_mode_that_lets_nobody_register_is_told(alone: Program) -> None:
    with alone.serve():
        assert "mode " not in alone.call("status").stdout
        alone.call("schemas", "config", "--mode", "READONLY_OVERRIDE")
        assert "mode READONLY_OVERRIDE" in alone.call("status").stdout
        found = alone.call_json("doctor", code=1)["findings"]
        assert [each["check"] for each in found if each["severity"] == "warning"].count("schemas") == 1
