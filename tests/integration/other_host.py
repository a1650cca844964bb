"""A second host on this machine: a process with a hostname and a /dev/shm of its own, on the same network.

`views` is what a user sees of channels, in Python, on the command line and over HTTP; both hosts run the same code.
"""

import functools
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from messagehub import MessageHub
from messagehub.cli import app
from tests.integration.block_processes import Process
from tests.integration.harness import eventually

Json = dict[str, Any]

NAME = "elsewhere"
SETUP = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && hostname "$0" && exec "$@"'


@functools.cache
def _why_not() -> str:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "another host takes a namespace of its own, and that takes root and unshare"
    tried = subprocess.run(_on(NAME, "true"), capture_output=True, text=True, timeout=30, check=False)
    return f"no namespace can be made here: {tried.stderr.strip()}" if tried.returncode else ""


def _on(name: str, *command: str) -> list[str]:
    return ["unshare", "-mu", "sh", "-c", SETUP, name, *command]


class OtherHost(Process):
    """A program on the other host, as `Process`; `hub` is its hub. Skips the test where there can be none."""

    def __init__(self, hub_arguments: Json, text: str, **variables: Any) -> None:
        if reason := _why_not():
            pytest.skip(reason)
        super().__init__(hub_arguments, text, _on(NAME), **variables)


class Views:
    """What one host shows of channels; every answer is plain JSON."""

    def __init__(self, hub: MessageHub, endpoint: str, http: str) -> None:
        self._hub, self._endpoint, self._http = hub, endpoint, http

    def all(self, channel: str) -> dict[str, Json]:
        return {
            "python": self.python(channel),
            "cli": eventually(self._cli_discovery, channel),
            "http": self.http(channel),
        }

    def python(self, channel: str) -> Json:
        """What the broker says; while it takes its time, `discover` says what is on this host."""

        def found() -> Json | None:
            shown: Json = msgspec.to_builtins(self._hub.discover(channel))
            return shown if shown["source"] == "broker" else None

        return eventually(found)

    def _cli_discovery(self, channel: str) -> Json | None:
        shown: Json = self.cli("discover", channel)
        return shown if shown["source"] == "broker" else None

    def cli(self, *arguments: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, [*arguments, "--json", "--endpoint", self._endpoint])
        assert done.exit_code == code, (done.exit_code, done.output)
        return json.loads(done.stdout)

    def http(self, channel: str) -> Json:
        path = f"{self._http}/api/v1/channels/{channel}/discovery"
        with urllib.request.urlopen(path, timeout=30) as answer:
            found: Json = json.load(answer)
            return found


def delete(http: str, path: str, directory: Path) -> tuple[int, Json]:
    """Status and answer of a DELETE with the hub's own token."""
    token = (directory / "http.token").read_text().strip()
    request = urllib.request.Request(http + path, method="DELETE", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
