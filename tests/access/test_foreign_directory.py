"""root, or anybody else, in the directory of the user who runs the hub: nothing is left there that stops the hub."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from messagehub.broker.instance_lock import InstanceLock
from messagehub.errors import ConfigurationError
from messagehub.security.credentials import AccessFile, allow_token, server_keys
from messagehub.settings import Settings
from tests.access.test_places import as_nobody, reachable
from tests.cli.program import Program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
NOBODY = 65534


def give_away(path: Path) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, NOBODY, NOBODY)


@pytest.fixture
def service(alone: Program) -> Program:
    """A program, run by root, whose directory belongs to a service user who has listed a token."""
    alone.dir.mkdir(mode=0o700)
    allow_token(AccessFile(alone.dir / "access.json"), "ci", ["observe"])
    server_keys(alone.dir / "keys")
    give_away(alone.dir)
    return alone


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    return Program(tmp_path)


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_uid, path.read_bytes()) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        ["tokens", "new", "x", "--role", "admin"],
        ["tokens", "revoke", "ci"],
        ["keys", "new", "x", "--role", "admin"],
        ["keys", "new", "x"],
        ["keys", "revoke", "x"],
        ["serve", "--no-http"],
    ],
    ids=" ".join,
)
def test_what_writes_is_refused_to_root_with_whom_to_be(service: Program, command: list[str]) -> None:
    before = contents(service.dir)
    refused = service.call(*command, code=1)
    assert "belongs to another user, nobody" in refused.stderr
    assert "sudo -u 'nobody'" in refused.stderr
    assert contents(service.dir) == before


def test_lists_are_shown_to_root_and_write_nothing(service: Program) -> None:
    before = contents(service.dir)
    assert [token["name"] for token in service.call_json("tokens")["tokens"]] == ["ci"]
    assert len(service.call_json("keys")["server_key"]) == 40
    assert contents(service.dir) == before


def findings(program: Program) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(program.call("doctor", "--json", code=1).stdout)["findings"]
    return found


def test_doctor_tells_root_whose_the_directory_is_and_never_to_take_it(service: Program) -> None:
    found = findings(service)
    (directory,) = [one for one in found if one["check"] == "directory"]
    assert directory["severity"] == "info"
    assert f"belongs to user {NOBODY} (nobody)" in directory["message"]
    assert not any("chown 0" in (one["fix"] or "") for one in found)
    assert not any(one["check"] == "secrets" for one in found)


def test_what_root_left_there_is_found_and_named(service: Program) -> None:
    left = service.dir / "access.json"
    os.chown(left, 0, 0)
    trouble = [one for one in findings(service) if one["check"] == "directory" and one["severity"] == "error"]
    assert [one["fix"] for one in trouble] == [f"have root run: chown {NOBODY} {left}"]
    reachable(service.dir)

    def start() -> list[str]:
        try:
            InstanceLock(Settings.load(dir=service.dir))
        except ConfigurationError as error:
            return [error.message]
        return ["started"]

    (said,) = as_nobody(start)
    assert said.endswith(f"have root run chown {NOBODY} {left}")
