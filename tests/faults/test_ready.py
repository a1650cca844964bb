""" "ready" is a promise: HTTP answers then, and a part that fails later is told by status, doctor and health."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from messagehub import MessageHub
from messagehub.security.private_files import write_private
from tests import preloaded
from tests.faults.test_http_process import answers, http_pid
from tests.integration.harness import PATIENCE_SECONDS, ROOT, Served, clean_environment, eventually, refused

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "hub", "--http", "127.0.0.1:0", with_http=True) as served:
        yield served


def told(hub: Served, *command: str) -> Any:
    """What a command says as JSON."""
    arguments = [sys.executable, "-m", "messagehub", *command, "--dir", str(hub.dir), "--json"]
    done = preloaded.run(arguments, timeout=60, env=clean_environment(), cwd=ROOT)
    return json.loads(done.stdout)


def http_findings(hub: Served) -> list[str]:
    return [one["severity"] for one in told(hub, "doctor")["findings"] if one["check"] == "http"]


def test_files_where_the_hub_was_started_stand_in_for_no_module(tmp_path: Path) -> None:
    """A user's own grp.py ran inside the hub, which never became ready."""
    started_in = tmp_path / "experiment"
    started_in.mkdir()
    for module in ("grp", "json", "http", "socket", "queue", "decimal", "messagehub", "registry", "uvicorn"):
        (started_in / f"{module}.py").write_text("raise SystemExit('this is no module for a hub')")
    command = [str(Path(sys.executable).with_name("messagehub")), "serve", "--dir", str(tmp_path / "hub")]
    hub = subprocess.Popen(
        [*command, "--http", "127.0.0.1:0"],
        cwd=started_in,
        env={name: value for name, value in clean_environment().items() if name != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert hub.stdout is not None
        assert " ready: " in hub.stdout.readline()
        with MessageHub(dir=tmp_path / "hub") as client:
            client.register_schema("letters", {"type": "object"})
    finally:
        hub.terminate()
        assert hub.wait(PATIENCE_SECONDS) == 0
        hub.stdout.close()


def test_http_answers_at_the_first_attempt_once_the_hub_is_ready(tmp_path: Path) -> None:
    for attempt in range(3):
        with Served(tmp_path / f"hub{attempt}", "--http", "127.0.0.1:0", with_http=True) as served:
            connection = http.client.HTTPConnection(urlsplit(served.http).netloc, timeout=PATIENCE_SECONDS)
            connection.request("GET", "/readyz")
            assert connection.getresponse().status == 200
            connection.close()
            assert told(served, "status")["health"] == "healthy"
            assert http_findings(served) == ["ok"]


def test_a_hub_whose_http_does_not_start_ends_with_1_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "uvicorn.py").write_text("raise ImportError('this installation is broken')\n")
    monkeypatch.setattr(
        "tests.integration.harness.clean_environment", lambda: os.environ | {"PYTHONPATH": f"{broken}:{ROOT}"}
    )
    code, complaint = refused(tmp_path / "hub", "--http", "127.0.0.1:0", with_http=True)
    assert code == 1
    assert "this installation is broken" in complaint
    assert "messagehub: HTTP does not start at http://127.0.0.1:" in complaint
    assert not list((tmp_path / "hub").glob("*.sock"))


def test_an_http_process_that_keeps_dying_is_told_everywhere_and_comes_back(hub: Served) -> None:
    write_private(hub.dir / "access.json", b"damaged")  # which no HTTP process starts with
    os.kill(eventually(http_pid, hub), signal.SIGKILL)
    with MessageHub(dir=hub.dir) as client:
        eventually(lambda: client.health(timeout=5.0)["status"] == "degraded")
        status = told(hub, "status")
        assert status["health"] == "degraded"
        assert f"HTTP does not answer at {hub.http}" in status["problems"][0]
        assert http_findings(hub) == ["error"]
        eventually(lambda: told(hub, "status")["counters"]["http_restarts"] >= 2)
        eventually(lambda: "starting it again in 2 s" in hub.log())  # it is counted before it is logged
        assert hub.log().count("starting it again in 1 s") == 1, "the pause grows"
        (hub.dir / "access.json").unlink()
        eventually(answers, hub)
        eventually(lambda: client.health(timeout=5.0)["status"] == "healthy")
        before = hub.log().count("starting it again in")
        os.kill(eventually(http_pid, hub), signal.SIGKILL)
        eventually(lambda: hub.log().count("starting it again in") > before)
        assert hub.log().count("starting it again in 1 s") == 1, (
            "who answers is healthy before the pause is short again"
        )
        eventually(lambda: client.health(timeout=5.0)["status"] == "healthy")
    assert "degraded" not in httpx.get(f"{hub.http}/readyz", timeout=PATIENCE_SECONDS).json()
    assert told(hub, "status")["problems"] == []
    assert http_findings(hub) == ["ok"]


def test_status_and_doctor_see_an_http_process_that_hangs(hub: Served) -> None:
    pid = eventually(http_pid, hub)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert told(hub, "status", "--timeout", "5")["health"] == "degraded"
        assert [f["check"] for f in told(hub, "doctor", "--timeout", "5")["findings"] if f["severity"] == "error"] == [
            "http"
        ]
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: told(hub, "status")["health"] == "healthy")


@pytest.mark.parametrize("option", ["--http=127.0.0.1:0", "--http-open", "setting"])
def test_http_that_is_asked_for_and_not_installed_is_an_error(tmp_path: Path, option: str) -> None:
    directory = tmp_path / "hub"
    directory.mkdir(mode=0o700)
    if option == "setting":
        (directory / "messagehub.toml").write_text('http = "127.0.0.1:0"\n')
    before = sorted(path.name for path in directory.iterdir())
    program = "import sys; sys.modules['fastapi'] = None; from messagehub.cli import main; main()"
    options = [] if option == "setting" else [option]
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--dir", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'messagehub[admin]'" in done.stderr
    assert sorted(path.name for path in directory.iterdir()) == before
