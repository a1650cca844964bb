"""`messagehub service`: the unit that it writes, and what systemd is told."""

import json
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import Program


@pytest.fixture
def program(alone: Program) -> Program:
    alone.environment["XDG_CONFIG_HOME"] = str(alone.place / "config")
    return alone


def verify(path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_unit_is_written_once_and_removed(program: Program) -> None:
    said = json.loads(program.call("service", "install", "--json").stdout)
    path = Path(said["unit"])
    assert path == program.place / "config" / "systemd" / "user" / "messagehub.service"
    assert f'serve --dir "{program.dir}"' in path.read_text()
    assert f"Environment=MESSAGEHUB_DOMAIN={program.environment['MESSAGEHUB_DOMAIN']}\n" in path.read_text()
    assert said["start"] == "systemctl --user daemon-reload && systemctl --user enable --now messagehub"
    program.call("service", "install")
    path.write_text("another")
    assert "--replace" in program.call("service", "install", code=1).stderr
    program.call("service", "install", "--replace")
    verify(path)
    assert "is removed" in program.call("service", "uninstall").stdout
    assert "there is no unit" in program.call("service", "uninstall", code=1).stderr


def test_a_unit_of_the_host_may_write_only_its_directory(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")  # which everybody may run
    unit = program.call("service", "install", "--print", "--system", "daemon").stdout
    assert "User=daemon\n" in unit
    assert f'ReadWritePaths="{program.dir}" /dev/shm\n' in unit
    path = program.place / "messagehub.service"
    path.write_text(unit)
    verify(path)


def test_a_unit_of_the_host_is_not_written_for_a_user_who_could_not_run_it(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    install = ("service", "install", "--print", "--system", "daemon")
    said = program.call(*install, code=1).stderr
    assert "daemon may not use" in said
    assert "could not start" in said
    del program.environment["MESSAGEHUB_DIR"]
    assert "--dir" in program.call(*install, code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--name", "../evil"), "no name of a unit"),
        (("--system", "no user\nExecStart=/bin/evil", "--print"), "there is no user"),
        (("--dir", "/tmp/a\nExecStart=b", "--print"), "means something else"),
        (("--dir", "/tmp/100%", "--print"), "means something else"),
    ],
)
def test_what_would_say_more_than_a_name_is_refused(program: Program, arguments: tuple[str, ...], said: str) -> None:
    assert said in program.call("service", "install", *arguments, code=1).stderr


def test_systemd_is_told_when_the_hub_is_ready_and_when_it_stops(program: Program) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(program.place / "notify"))
        supervisor.settimeout(60)
        program.environment["NOTIFY_SOCKET"] = str(program.place / "notify")
        with program.serve() as broker:
            assert supervisor.recv(100) == b"READY=1"
            assert broker.end() == 0
            assert supervisor.recv(100) == b"STOPPING=1"


def test_systemd_hears_of_the_hub_as_long_as_it_answers(program: Program) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(program.place / "notify"))
        supervisor.settimeout(60)
        program.environment |= {"NOTIFY_SOCKET": str(program.place / "notify"), "WATCHDOG_USEC": "800000"}
        with program.serve() as broker:
            assert [supervisor.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
            broker.process.send_signal(signal.SIGSTOP)
            while select.select([supervisor], [], [], 1.0)[0]:
                supervisor.recv(100)  # what it had said before
            broker.process.send_signal(signal.SIGCONT)
            assert supervisor.recv(100) == b"WATCHDOG=1"
            assert broker.end() == 0
    assert "WatchdogSec=60\n" in program.call("service", "install", "--print").stdout


def test_logs_are_json_on_request(program: Program) -> None:
    with program.serve("--log-format", "json", "--log", "DEBUG") as broker:
        program.call("status")
        assert broker.end() == 0
        lines = [json.loads(line) for line in broker.err.splitlines()]
    assert all({"time", "level", "logger", "pid", "message"} <= set(line) for line in lines)
    assert {line["pid"] for line in lines} == {broker.process.pid}
    assert f"stopped: dir={program.dir}" in lines[-1]["message"]
    assert "neither text nor json" in program.call("serve", "--log-format", "xml", code=1).stderr
