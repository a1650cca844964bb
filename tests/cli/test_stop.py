"""`messagehub stop`."""

import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from messagehub import embedded_broker
from tests import preloaded
from tests.cli.program import Program


def test_stop_ends_the_hub_of_the_directory_and_waits(alone: Program) -> None:
    with alone.serve() as broker:
        pid = broker.process.pid
        shown = alone.run("stop").stdout
        assert shown == f"the hub in {alone.dir} has stopped, pid {pid}\n"
        assert broker.end() == 0
        assert "stopping, because SIGTERM came" in broker.err
    told = alone.call("stop", code=3).stderr
    assert "no hub runs in" in told
    assert "nothing to stop" in told
    assert "messagehub serve" not in told, "who wants a hub to be stopped is not told to start one"
    with alone.serve() as broker:
        assert json.loads(alone.call("stop", "--json").stdout)["pid"] == broker.process.pid
        assert broker.end() == 0


def test_a_broker_inside_of_a_program_is_left_alone(alone: Program) -> None:
    with alone.serve() as broker:
        before = (alone.dir / "broker.json").read_text()
        assert broker.end() == 0
    with embedded_broker(dir=alone.dir, endpoint=f"ipc://{alone.dir}/broker.sock"):
        assert "no hub runs in" in alone.call("stop", code=3).stderr
        (alone.dir / "broker.json").write_text(before)
        (alone.dir / "broker.json").chmod(0o600)
        alone.call("stop", code=3)  # the process of the file is gone
        (alone.dir / "broker.json").write_text(json.dumps(json.loads(before) | {"pid": 1}))
        assert "is part of a program" in alone.call("stop", code=3).stderr


def test_only_the_directory_counts(alone: Program) -> None:
    with alone.serve() as broker:
        alone.run("stop", "--dir", str(alone.dir), MESSAGEHUB_ENDPOINT="tcp://127.0.0.1:9")
        assert broker.end() == 0


@pytest.mark.parametrize("command", [[], ["channels"], ["channels", "create"], ["stop"]])
def test_h_is_help(alone: Program, command: list[str]) -> None:
    assert alone.call(*command, "-h").stdout == alone.call(*command, "--help").stdout


def test_at_a_terminal_a_few_short_lines_say_what_to_do(alone: Program) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "messagehub", "serve", "--dir", str(alone.dir), "--http", "127.0.0.1:0"]
    with (alone.place / "log").open("w") as log:
        process = preloaded.Popen(command, stdout=terminal, stderr=log, env=alone.environment)
    os.close(terminal)
    try:
        said = b""
        while b"Ctrl-C" not in said:
            said += os.read(controller, 4096)
        lines = said.decode().splitlines()
        assert lines[0].endswith("is ready")
        assert {line.split()[0] for line in lines[1:]} == {"listens", "web", "directory", "stop"}
        assert max(map(len, lines)) < 100
        token = next(line.split(" in ")[1] for line in lines if "web token" in line)
        assert Path(token).read_text().strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        os.close(controller)
