"""`messagehub stop`."""

import json

import pytest

from messagehub import embedded_broker
from tests.cli.program import Program


def test_stop_ends_the_hub_of_the_directory_and_waits(alone: Program) -> None:
    with alone.serve() as broker:
        pid = broker.process.pid
        shown = alone.run("stop").stdout
        assert shown == f"the hub in {alone.dir} has stopped, pid {pid}\n"
        assert broker.end() == 0
        assert "stopping, because SIGTERM came" in broker.err
    assert "no hub runs in" in alone.call("stop", code=3).stderr
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
