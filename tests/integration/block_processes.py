"""What the tests of blocks share: a domain of their own, and other processes that produce and consume in it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from messagehub import MessageHub
from messagehub.shm.channel_directory.directory import Directory
from tests import preloaded
from tests.integration.harness import PATIENCE_SECONDS, ROOT, clean_environment, eventually

PREAMBLE = """
import json, os, sys, time
import numpy as np
import pyarrow as pa
from messagehub import MessageHub

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])

def batch(first, rows=1):
    numbers = list(range(first, first + rows))
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"item {n}" for n in numbers])], schema=SCHEMA)

def say(**what):
    print(json.dumps(what), flush=True)

hub = MessageHub(**json.loads(sys.argv[1]))
"""


class Process:
    """A Python program of its own; it says JSON lines, and is killed at the end if it still runs."""

    def __init__(self, hub_arguments: dict[str, Any], text: str, through: Sequence[str] = (), **variables: Any) -> None:
        """`through` is a program that runs it, with its arguments."""
        program = (
            PREAMBLE + "\n".join(f"{name} = {value!r}" for name, value in variables.items()) + textwrap.dedent(text)
        )
        start = subprocess.Popen if through else preloaded.Popen
        self.popen = start(
            [*through, sys.executable, "-c", program, json.dumps(hub_arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environment(),
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def hear(self) -> dict[str, Any]:
        """What it says next; its end before that is a failure, with its complaint."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            self.popen.wait(PATIENCE_SECONDS)
            assert self.popen.stderr is not None
            raise AssertionError(f"the process ended with {self.popen.returncode}: {self.popen.stderr.read()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self, line: str = "") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait(PATIENCE_SECONDS)

    def finish(self) -> None:
        """It must end by itself, and well."""
        code = self.popen.wait(PATIENCE_SECONDS)
        assert self.popen.stderr is not None
        assert code == 0, self.popen.stderr.read()

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE_SECONDS)
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Place:
    """One hub's directory and one domain, and everything that a test starts in them."""

    def __init__(self, directory: Path, domain: str) -> None:
        self.dir = directory
        self.domain = domain
        self.directory = Directory(domain)
        self._opened: list[Any] = []

    @property
    def arguments(self) -> dict[str, Any]:
        return {"dir": str(self.dir), "domain": self.domain}

    def hub(self) -> MessageHub:
        hub = MessageHub(**self.arguments)
        self._opened.append(hub)
        return hub

    def process(self, text: str, **variables: Any) -> Process:
        process = Process(self.arguments, text, **variables)
        self._opened.append(process)
        return process

    def blocks(self) -> list[str]:
        """Rings of this domain in shared memory."""
        names = [name for name in os.listdir(self.directory.root) if name.endswith(f"@{self.domain}")]
        return names + [str(path) for path in Path(self.directory.path).rglob("*.ring")]

    def remove_channel(self, channel: str) -> None:
        """Remove the channel's directory, in which threads of a hub may be making files meanwhile."""
        path = self.directory.channel_path(channel)

        def is_gone() -> bool:
            shutil.rmtree(path, ignore_errors=True)
            return not os.path.exists(path)

        eventually(is_gone)

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()
        for name in os.listdir(self.directory.root):
            if name.endswith(f"@{self.domain}"):
                os.unlink(os.path.join(self.directory.root, name))
        shutil.rmtree(os.path.dirname(self.directory.path), ignore_errors=True)


@contextlib.contextmanager
def place_in(directory: Path, domain: str) -> Iterator[Place]:
    """While the block runs, brokers and programs that are started live in the domain too."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.environ.get("MESSAGEHUB_DOMAIN")
    os.environ["MESSAGEHUB_DOMAIN"] = domain
    place = Place(directory, domain)
    try:
        yield place
    finally:
        place.close()
        del os.environ["MESSAGEHUB_DOMAIN"]
        if before is not None:
            os.environ["MESSAGEHUB_DOMAIN"] = before
