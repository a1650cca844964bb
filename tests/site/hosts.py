"""Hosts of a site on one machine: hubs with directories, domains and host names of their own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from tests import preloaded
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import PATIENCE_SECONDS, Message, Peer, end_at_once, eventually

HOST_LEASE_SECONDS = 3
"""Short, for tests that wait until a host is lost."""
LONG_LEASE_SECONDS = 20
"""For hosts that are not to be lost: a hub of a loaded machine may be late by some seconds."""


class SiteHub:
    """`messagehub serve` on a host of its own."""

    def __init__(
        self,
        directory: Path,
        url: str,
        site: str,
        name: str,
        *arguments: str,
        program: str = "",
        preload: str = "",
        makes_site: bool = False,
        domain: str = "",
        **settings: Any,
    ) -> None:
        """`program` is what Python runs instead of `messagehub`, to change it before; `preload` is a library that all
        processes of the host load before others; `domain` is another one than that of its own."""
        self.program = program
        self.name, self.dir = name, directory / name
        self.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = {"host_lease_seconds": HOST_LEASE_SECONDS, "beacon_seconds": 0.1, **settings}
        lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
        (self.dir / "messagehub.toml").write_text("\n".join(lines) + "\n")
        self.environment = os.environ | {
            "MESSAGEHUB_HOST": name,
            "MESSAGEHUB_DOMAIN": domain or f"pytest-{os.getpid()}-{site[:8]}-{name}",
        }
        # What is forked from a process that runs already would not load it.
        self.starts = subprocess.Popen if preload else preloaded.Popen
        if preload:
            self.environment["LD_PRELOAD"] = preload
        self._command = [
            *("serve", "--dir", str(self.dir), "--site", site, "--etcd", url),
            *("--site-endpoint", "tcp://127.0.0.1:0", *(arguments or ("--no-http", "--no-gateway"))),
            *(["--new-site"] if makes_site else []),
        ]
        self.start()

    def start(self) -> None:
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        with (self.dir / "serve.log").open("ab") as log:
            runs = ["-c", self.program] if self.program else ["-m", "messagehub"]
            self.process = self.starts(
                [sys.executable, *runs, *self._command],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if " ready: " not in ready:
            self.close()
            raise AssertionError(f"the hub does not start: {self.log()}")
        self.ready = ready
        self.endpoint = ready.split("endpoint=")[1].split()[0]
        self.http = ready.split("http=")[1].split()[0]

    def log(self) -> str:
        return (self.dir / "serve.log").read_text()

    def ask(self, message: Message) -> Message:
        with Peer(self.endpoint) as peer:
            return peer.ask(message)

    def hosts(self) -> Message:
        return self.ask({"type": "HOST_LIST_REQUEST"})

    def is_leader(self) -> bool:
        return bool(self.hosts()["role"] == "leader")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            end_at_once(self.process)
        self._wait()


class Site:
    """Some hubs of one site. The first one that starts leads."""

    def __init__(self, directory: Path, url: str, *names: str, **settings: Any) -> None:
        self.name = uuid.uuid4().hex
        self._directory, self._url, self._settings = directory, url, settings
        self.hubs: dict[str, SiteHub] = {}
        self._ending = contextlib.ExitStack()
        for name in names:
            self.add(name)
            if len(self.hubs) == 1:
                eventually(self.hubs[name].is_leader)
        eventually(self._is_known_everywhere)

    def _is_known_everywhere(self) -> bool:
        """Whether every hub has heard of all hosts, and of the one that leads: a hub may refuse commands until then."""
        listed = [hub.hosts()["hosts"] for hub in self.hubs.values()]
        return all(
            {each["host"] for each in hosts} == self.hubs.keys() and any(each["is_leader"] for each in hosts)
            for hosts in listed
        )

    def add(self, name: str, *arguments: str, **settings: Any) -> SiteHub:
        given = {"makes_site": not self.hubs} | self._settings | settings
        hub = SiteHub(self._directory, self._url, self.name, name, *arguments, **given)
        self._ending.callback(hub.close)
        self.hubs[name] = hub
        return hub

    def __getitem__(self, name: str) -> SiteHub:
        return self.hubs[name]

    def close(self) -> None:
        self._ending.close()


@contextlib.contextmanager
def site(directory: Path, url: str, *names: str, **settings: Any) -> Iterator[Site]:
    started = Site(directory, url, *names, **settings)
    try:
        yield started
    finally:
        started.close()


@contextlib.contextmanager
def on(hub: SiteHub) -> Iterator[MessageHub]:
    """A client on the host of a hub."""
    with pytest.MonkeyPatch.context() as patch:
        for key in ("MESSAGEHUB_HOST", "MESSAGEHUB_DOMAIN"):
            patch.setenv(key, hub.environment[key])
        with MessageHub(dir=hub.dir) as client:
            yield client


def bind(hub: SiteHub) -> None:
    """Have something registered in a site, which binds the directory of a hub to it."""
    created = {"type": "CHANNEL_CREATE", "channel": "of_the_site"}
    eventually(lambda: hub.ask(created)["type"] == "CHANNEL_CREATE_ACK")  # once a hub leads
    eventually(lambda: json.loads((hub.dir / "site.json").read_text())["site_id"])


def run_on(hub: SiteHub, *arguments: str) -> tuple[int, str]:
    """Exit code of a command on the host of a hub, and what it said."""
    command = [sys.executable, "-m", "messagehub", *arguments, "--dir", str(hub.dir)]
    with preloaded.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=hub.environment
    ) as ran:
        said, _ = ran.communicate(timeout=2 * PATIENCE_SECONDS)
    return ran.returncode, str(said)


def gateway_of(hub: SiteHub, name: str) -> str:
    """The address of a host's gateway, as a hub knows it."""

    def found() -> str | None:
        listed = {each["host"]: each for each in hub.hosts()["hosts"]}
        return listed[name]["gateway"] or None if name in listed else None

    return eventually(found)


def await_known(hub: SiteHub, name: str) -> None:
    """Wait until a hub has heard of a host that has just joined."""
    eventually(lambda: name in [each["host"] for each in hub.hosts()["hosts"]])


def gateway_pid(hub: SiteHub) -> int:
    """The process of a hub's gateway, once there is one."""

    def found() -> int | None:
        pids = descendants(hub.process.pid)
        return next((pid for pid in pids if "messagehub.cluster.gateway" in command_line(pid)), None)

    return eventually(found)


def serving_gateway(hub: SiteHub) -> str:
    """Where the gateway of a hub that was started again serves. It may have the port of the one before."""
    pid = gateway_pid(hub)
    said = eventually(lambda: re.search(rf"the gateway is at (\S+), pid {pid}$", hub.log(), re.MULTILINE))
    return said[1]


class Elsewhere:
    """A process on the host of a hub that does as it is told: `hub` is its client there."""

    PROGRAM = """
import json, sys, time
import numpy as np, pyarrow as pa
from messagehub import MessageHub
hub = MessageHub(dir=sys.argv[1])
names = dict(hub=hub, np=np, pa=pa, time=time)
for line in sys.stdin:
    try:
        exec(json.loads(line), names)
        said = "done"
    except Exception as error:
        said = repr(error)
    print(json.dumps(said), flush=True)
hub.close()
"""

    def __init__(self, hub: SiteHub) -> None:
        self.process = hub.starts(
            [sys.executable, "-c", self.PROGRAM, str(hub.dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=hub.environment,
        )

    def do(self, code: str) -> None:
        """Run the lines there, and fail if they do."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(textwrap.dedent(code)), file=self.process.stdin, flush=True)
        said = self.process.stdout.readline()
        assert said == '"done"\n', said

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()


@contextlib.contextmanager
def process_on(hub: SiteHub) -> Iterator[Elsewhere]:
    started = Elsewhere(hub)
    try:
        yield started
    finally:
        started.close()


def producing(hub: MessageHub, channel: str, *names: str) -> None:
    """Wait until a hub knows that a channel is produced on these hosts, and on no others."""

    def hosts() -> set[str | None]:
        found = hub.discover(channel)
        return {producer.host for producer in found.producers} if found is not None else set()

    eventually(lambda: hosts() == set(names))


def await_producers(hub: SiteHub, channel: str, *names: str) -> None:
    """As `producing`, for clients that have yet to ask their hub."""

    def hosts() -> set[str | None]:
        found = hub.ask({"type": "DISCOVERY_REQUEST", "channel": channel})
        return {producer["host"] for producer in found.get("producers", ())}

    eventually(lambda: hosts() == set(names))
