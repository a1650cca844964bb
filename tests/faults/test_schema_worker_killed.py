"""The process that checks schemas is killed: nobody who registers one notices."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from messagehub.broker.schema_worker import checker
from tests import preloaded
from tests.conftest import QUICK
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import PATIENCE_SECONDS, ROOT, Embedded, Peer, Served, clean_environment, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")


def schema_workers(server: Served) -> list[int]:
    return [pid for pid in descendants(server.pid) if "schema_worker" in command_line(pid)]


def test_a_killed_schema_worker_is_replaced_and_asked_again(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with Peer(server.endpoint) as peer:
        for number in range(3):
            (worker,) = eventually(lambda: schema_workers(server))
            os.kill(worker, signal.SIGKILL)
            reply = peer.ask({"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"title": str(number)}})
            assert reply["type"] == "SCHEMA_REGISTER_ACK", reply
            assert reply["version"] == number + 1
    assert server.stop() == 0
    assert server.log().count("the schema worker is replaced") == 3


def test_many_schemas_at_once_keep_their_own_results_while_schema_workers_are_killed(
    served: Callable[..., Served],
) -> None:
    """Some are larger than a pipe takes at once."""
    server = served(**QUICK)
    titles = {f"s{number}": f"{number}-" + "x" * (number % 10 * 20_000) for number in range(300)}
    with Peer(server.endpoint, zmq.DEALER) as peer:
        for subject, title in titles.items():
            peer.send({"type": "SCHEMA_REGISTER", "id": subject, "subject": subject, "schema": {"title": title}})
        given: dict[str, int] = {}
        for number in range(len(titles)):
            if number % 100 == 50:
                for worker in schema_workers(server):
                    os.kill(worker, signal.SIGKILL)
            reply = peer.receive()
            assert reply["type"] == "SCHEMA_REGISTER_ACK", reply
            given[reply["id"]] = reply["schema_id"]
        assert given.keys() == titles.keys()
        assert len(set(given.values())) == len(titles)
        for subject, title in titles.items():
            found = peer.ask({"type": "SCHEMA_REQUEST", "subject": subject})
            assert found["schema"]["schema_id"] == given[subject]
            assert json.loads(found["schema"]["schema"]) == {"title": title}
    assert server.stop() == 0


HARMFUL = """
import os, time
from messagehub.broker.schema_worker import process
run_check = process.run_check
def run(check, **options):
    if '"endless"' in check.text:
        time.sleep(3600)
    if '"deadly"' in check.text:
        os._exit(1)
    return run_check(check, **options)
process.run_check = run
process.main()
"""


@pytest.mark.parametrize(("harm", "code"), [("endless", "SCHEMA_TOO_COMPLEX"), ("deadly", "RATE_LIMITED")])
def test_small_schemas_whose_results_leave_together_do_not_pay_for_the_one_that_harms(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch, harm: str, code: str
) -> None:
    """Half of them are registered as second versions, whose checks are not light."""
    monkeypatch.setattr(checker, "module_command", lambda *_: [sys.executable, "-c", HARMFUL])
    monkeypatch.setattr(checker, "CHECK_SECONDS", 6.0)  # enough for the small ones on a busy machine
    broker = embedded(**QUICK)
    titles = {f"s{number}": harm if number in (7, 8) else f"{number}" for number in range(20)}
    with Peer(broker.endpoint, zmq.DEALER) as peer:
        for number in range(0, 20, 2):
            peer.ask({"type": "SCHEMA_REGISTER", "subject": f"s{number}", "schema": {"title": "first"}})
        for subject, title in titles.items():
            peer.send({"type": "SCHEMA_REGISTER", "id": subject, "subject": subject, "schema": {"title": title}})
        answers = {reply["id"]: reply for reply in (peer.receive() for _ in titles)}
    for subject, title in titles.items():
        assert answers[subject].get("code") == (code if title == harm else None), answers[subject]


def said_by(command: str, directory: Path) -> Any:
    asked = [sys.executable, "-m", "messagehub", command, "--json", "--dir", str(directory)]
    return json.loads(preloaded.run(asked, timeout=60, env=clean_environment(), cwd=ROOT).stdout)


def test_a_worker_that_cannot_be_started_is_told_by_status_and_doctor(tmp_path: Path) -> None:
    """The interpreter is gone, as after an upgrade of the host."""
    python, directory = tmp_path / "python", tmp_path / "hub"
    python.symlink_to(sys.executable)
    paths = f"{ROOT}:{sysconfig.get_path('purelib')}"
    command = [str(python), "-m", "messagehub", "serve", "--dir", str(directory), "--no-http"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, env=clean_environment() | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=log, text=True
        ) as hub,
    ):
        try:
            assert hub.stdout is not None
            assert " ready: " in hub.stdout.readline(), (tmp_path / "log").read_text()
            assert said_by("status", directory)["problems"] == []
            python.unlink()
            (worker,) = [pid for pid in descendants(hub.pid) if "schema_worker" in command_line(pid)]
            os.kill(worker, signal.SIGKILL)
            with Peer(f"ipc://{directory}/broker.sock") as peer:
                refused = peer.ask({"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"type": "object"}})
                assert (refused["code"], refused["retryable"]) == ("RATE_LIMITED", True)
            (problem,) = eventually(lambda: said_by("status", directory)["problems"])
            assert "schemas cannot be checked, because their process does not start" in problem
            assert said_by("status", directory)["health"] == "degraded"
            found = said_by("doctor", directory)["findings"]
            assert problem in [each["message"] for each in found if each["severity"] == "error"]
            python.symlink_to(sys.executable)
            eventually(lambda: said_by("status", directory)["problems"] == [])
        finally:
            hub.terminate()
            hub.wait(PATIENCE_SECONDS)
