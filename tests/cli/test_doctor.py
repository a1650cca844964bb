"""`messagehub doctor`: every trouble is made for real, named, and comes with what to do; nothing is changed."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from messagehub.cli.diagnosis.hub_directory import check_owners
from messagehub.cli.diagnosis.machine import check_shared_memory, check_system
from messagehub.shm.locks import OWNER, Descriptor, exclusive, try_lock
from tests import preloaded
from tests.cli.program import Program, Running


def diagnose(program: Program, *arguments: str, **environment: str) -> dict[str, list[dict[str, Any]]]:
    """The findings that are trouble, by check. The machine's own /dev/shm may be small; that is not ours to test."""
    command = [sys.executable, "-m", "messagehub", "doctor", "--json", *arguments]
    done = preloaded.run(command, env=program.environment | environment, timeout=30)
    assert not done.stderr
    report = json.loads(done.stdout)
    troubles = [one for one in report["findings"] if one["severity"] in ("warning", "error")]
    assert done.returncode == (1 if troubles else 0)
    assert report["ok"] is not bool(troubles)
    assert all(one["fix"] for one in report["findings"] if one["severity"] != "ok")
    found: dict[str, list[dict[str, Any]]] = {}
    for one in troubles:
        if one["check"] != "shm":
            found.setdefault(one["check"], []).append(one)
    return found


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_running_hub_is_fine(hub: Program) -> None:
    is_small = any(finding.is_trouble for finding in check_shared_memory())
    text = hub.run("doctor", code=1 if is_small else 0).stdout
    assert "a broker answers at" in text
    assert is_small or text.endswith("all is fine\n")


def test_no_broker_is_an_error_with_the_command_that_starts_one(alone: Program) -> None:
    text = alone.call("doctor", code=1).stdout
    assert f"no broker runs in {alone.dir}" in text
    assert f"fix: messagehub serve --dir {alone.dir}" in text
    assert "does not exist yet; serve makes it" in text
    assert not alone.dir.exists()


def test_a_directory_open_to_others_is_an_error(alone: Program) -> None:
    alone.dir.mkdir()
    alone.dir.chmod(0o755)
    (finding,) = diagnose(alone)["directory"]
    assert "open to other users (mode 755)" in finding["message"]
    assert finding["fix"] == f"chmod 700 {alone.dir}"


@pytest.mark.parametrize("name", ["registry.db", "broker.json", "messagehub.toml", "audit.log", "http.token"])
def test_a_file_that_serve_refuses_for_its_mode_is_an_error(alone: Program, name: str) -> None:
    alone.dir.mkdir(mode=0o700)
    path = alone.dir / name
    path.touch()
    path.chmod(0o666)
    refused = alone.run("serve", "--no-http", code=1)
    (finding,) = [one for one in diagnose(alone)["secrets"] if str(path) in one["message"]]
    assert finding["message"] in refused.stderr
    assert finding["fix"] in refused.stderr
    assert finding["fix"].startswith("chmod ")


def test_a_file_in_place_of_the_directory_is_an_error(alone: Program) -> None:
    alone.dir.write_text("")
    assert "is not a directory" in diagnose(alone)["directory"][0]["message"]


def test_what_a_killed_broker_left_is_told_and_harmless(alone: Program) -> None:
    with alone.serve() as broker:
        broker.end(signal.SIGKILL)
    before = contents(alone.dir)
    found = diagnose(alone)
    assert [one["severity"] for one in found["sockets"]] == ["warning", "warning"]
    assert "is stale" in found["sockets"][0]["message"]
    assert set(found) == {"sockets", "broker"}
    assert contents(alone.dir) == before


def test_a_socket_that_nobody_listens_on_and_one_that_is_none(alone: Program) -> None:
    alone.dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(alone.dir / "broker.sock"))
    (alone.dir / "broker-events.sock").write_text("")
    stale, wrong = diagnose(alone)["sockets"]
    assert (stale["severity"], wrong["severity"]) == ("warning", "error")
    assert "is not a socket" in wrong["message"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE theirs (x)").connection.close(), "another program"),
        (lambda path: path.write_bytes(os.urandom(8192)), "not a usable registry database"),
    ],
    ids=["foreign", "garbage"],
)
def test_a_database_that_is_not_ours_is_an_error_and_stays_as_it_is(alone: Program, make: Any, says: str) -> None:
    alone.dir.mkdir(mode=0o700)
    make(alone.dir / "registry.db")
    before = contents(alone.dir)
    (finding,) = diagnose(alone)["database"]
    assert says in finding["message"]
    assert str(alone.dir / "registry.db") in finding["message"]
    assert "mv " in finding["fix"]
    assert contents(alone.dir) == before


def test_a_damaged_database_is_an_error_and_stays_as_it_is(alone: Program) -> None:
    with alone.serve() as broker:
        assert broker.end(signal.SIGTERM) == 0
    database = alone.dir / "registry.db"
    whole = database.read_bytes()
    database.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    before = contents(alone.dir)
    (finding,) = diagnose(alone)["database"]
    assert finding["severity"] == "error"
    assert contents(alone.dir) == before


def test_a_lock_whose_holder_says_nothing(alone: Program) -> None:
    alone.dir.mkdir(mode=0o700)
    lock = Descriptor.open(str(alone.dir / "broker.lock"), os.O_RDWR | os.O_CREAT)
    assert try_lock(lock.fd, exclusive(OWNER))
    try:
        (finding,) = diagnose(alone)["broker"]
        assert f"a process holds {alone.dir / 'broker.lock'}" in finding["message"]
    finally:
        lock.close()


def test_a_broker_that_does_not_answer(alone: Program) -> None:
    with alone.serve() as broker:
        pid = broker.process.pid
        broker.process.send_signal(signal.SIGSTOP)
        (finding,) = diagnose(alone, "--timeout", "0.3")["broker"]
        assert f"(pid {pid}) holds its lock but does not answer" in finding["message"]
        assert finding["fix"] == f"kill -CONT {pid}"
        broker.process.send_signal(signal.SIGCONT)
        (alone.dir / "broker.sock").unlink()
        (finding,) = diagnose(alone)["broker"]
        assert "its socket was deleted" in finding["message"]
        assert broker.end(signal.SIGTERM) == 0


def test_a_broker_of_another_version(alone: Program) -> None:
    code = """
import sys, types
sys.modules["messagehub.version"] = types.ModuleType("messagehub.version")
sys.modules["messagehub.version"].__version__ = "9.9.9"
from messagehub.cli import main
main()
"""
    command = [sys.executable, "-c", code, "serve"]
    with Running(command, alone.environment, alone.place, "other", subprocess.Popen) as broker:
        broker.says("messagehub 9.9.9 ready")
        (finding,) = diagnose(alone)["version"]
        assert finding["severity"] == "warning"
        assert "the broker is messagehub 9.9.9" in finding["message"]
        assert "9.9.9 (this program is" in alone.call("status").stdout
        assert broker.end() == 0


def test_a_broker_elsewhere_is_pointed_out(alone: Program) -> None:
    default = alone.place / ".local" / "state" / "messagehub"
    with alone.serve("--dir", str(default)) as broker:
        (finding,) = diagnose(alone)["broker"]
        assert f"one runs in the default directory {default}" in finding["message"]
        assert f"--dir {default}" in finding["fix"]

        (finding,) = diagnose(alone, "--dir", str(default), MESSAGEHUB_ENDPOINT="tcp://127.0.0.1:9")["broker"]
        assert f"one runs at ipc://{default}/broker.sock" in finding["message"]
        assert "unset MESSAGEHUB_ENDPOINT" in finding["fix"]
        assert broker.end() == 0


def test_an_endpoint_where_nobody_or_something_else_listens(alone: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        (finding,) = diagnose(alone, "--endpoint", endpoint, "--timeout", "0.2")["broker"]
        assert "something listens" in finding["message"]
    (finding,) = diagnose(alone, "--endpoint", endpoint)["broker"]
    assert finding["message"] == f"nobody listens at {endpoint}"


def test_settings_that_cannot_be_used(alone: Program) -> None:
    alone.dir.mkdir(mode=0o700)
    (alone.dir / "messagehub.toml").write_text("colour = 'red'")
    (finding,) = diagnose(alone)["settings"]
    assert "colour" in finding["message"]


def test_missing_java_is_only_information(alone: Program) -> None:
    report = alone.json("doctor", code=1, PATH="/nonexistent")
    (finding,) = [one for one in report["findings"] if one["check"] == "java"]
    assert finding["severity"] == "info"


def test_another_operating_system_is_an_error() -> None:
    (finding,) = check_system("Darwin")
    assert finding.severity == "error"
    assert "this is Darwin" in finding.message


def test_missing_shared_memory_is_an_error(tmp_path: Path) -> None:
    (finding,) = check_shared_memory(tmp_path / "shm")
    assert finding.severity == "error"
    assert "does not exist" in finding.message


@pytest.fixture(scope="module")
def can_mount() -> None:
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")


@pytest.mark.usefixtures("can_mount")
@pytest.mark.parametrize(
    ("options", "severity", "says"),
    [
        ("size=16m", "warning", "/dev/shm has 16 MiB, 16 MiB of it free: too small"),
        ("ro", "error", "/dev/shm cannot be written: EROFS"),
    ],
    ids=["small", "read-only"],
)
def test_shared_memory_that_is_small_or_cannot_be_written(
    options: str, severity: str, says: str, alone: Program
) -> None:
    program = f"{sys.executable} -m messagehub doctor --json"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o {options} tmpfs /dev/shm && {program}"],
        env=alone.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (finding,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "shm"]
    assert finding["severity"] == severity
    assert says in finding["message"]
    assert "mount -o remount" in finding["fix"]


def test_files_that_the_hub_removes_meanwhile_are_no_trouble(tmp_path: Path) -> None:
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            for number in range(50):
                (tmp_path / f"{number}.tmp").touch()
            for number in range(50):
                (tmp_path / f"{number}.tmp").unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(300):
            assert list(check_owners(tmp_path)) == []
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("is_open", [False, True])
def test_a_missing_token_of_http_is_told_while_it_is_needed(alone: Program, is_open: bool) -> None:
    arguments = ["--http", "127.0.0.1:0", *(["--http-open"] if is_open else [])]
    command = [sys.executable, "-m", "messagehub", "serve", *arguments]  # whose command line /proc shows
    with Running(command, alone.environment, alone.place, "serve", popen=subprocess.Popen) as running:
        running.says("ready:")
        (alone.dir / "http.token").unlink(missing_ok=is_open)
        done = json.loads(alone.run("doctor", "--json", code=0 if is_open else 1).stdout)
        warned = [each["message"] for each in done["findings"] if each["severity"] == "warning"]
        assert warned == ([] if is_open else [f"{alone.dir}/http.token is gone, so its token is refused over HTTP"])
        assert running.end() == 0
