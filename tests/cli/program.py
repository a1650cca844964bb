"""The real program as a subprocess, in an environment of its own."""

import contextlib
import fcntl
import itertools
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from messagehub.cli import app
from messagehub.shm.channel_directory.directory import Directory
from tests import preloaded
from tests.integration.harness import end_at_once

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0
SETTINGS = """\
beacon_seconds = 0.2
heartbeat_seconds = 0.2
stall_seconds = 15
lease_seconds = 20
"""


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


class Running:
    """A command that stays. Leaving the block ends it, by force if it must."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str],
        place: Path,
        name: str,
        popen: type["subprocess.Popen[Any]"] = preloaded.Popen,
    ) -> None:
        self._stdout, self._stderr = place / f"{name}.out", place / f"{name}.err"
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._stdout.read_text()

    @property
    def err(self) -> str:
        return self._stderr.read_text()

    def says(self, text: str, *, count: int = 1) -> str:
        """All of stdout once the text is in it."""

        def said() -> str:
            if self.process.poll() is not None and self.out.count(text) < count:
                raise AssertionError(f"ended with {self.process.returncode}: {self.err}")
            return self.out if self.out.count(text) >= count else ""

        return str(until(said, f"{text!r} on stdout, which has {self.out!r}"))

    def tells(self, text: str) -> str:
        """All of stderr once the text is in it."""
        return str(until(lambda: self.err if text in self.err else "", f"{text!r} on stderr"))

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)

    def __enter__(self) -> "Running":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            end_at_once(self.process)
            self.process.wait(DEADLINE_SECONDS)


_domains = itertools.count(1)
_command = cache(get_command)


class InProcess(CliRunner):
    """A runner that builds the commands once: that takes 20 ms, and typer's own does so for every call."""

    def invoke(self, app: Typer, *arguments: Any, **options: Any) -> Result:
        with patch("typer.testing._get_command", _command):
            return super().invoke(app, *arguments, **options)


class Program:
    """`messagehub` with one directory as its default."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.dir = place / "hub"
        self.environment = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")} | {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "PYTHONPATH": str(ROOT),
            "MESSAGEHUB_DIR": str(self.dir),
            "MESSAGEHUB_DOMAIN": f"pytest-{os.getpid()}-{next(_domains)}-cli",
        }
        self._started = 0

    def configure(self) -> None:
        """Quick beacons and heartbeats, for the broker and its clients alike."""
        self.dir.mkdir(mode=0o700, exist_ok=True)
        (self.dir / "messagehub.toml").write_text(SETTINGS)

    def remove_blocks(self) -> None:
        """What its domain has left in shared memory."""
        directory = Directory(self.environment["MESSAGEHUB_DOMAIN"])
        for ring in Path(directory.root).glob(f"pylabhub_*@{directory.domain}"):
            ring.unlink()
        shutil.rmtree(Path(directory.path).parent, ignore_errors=True)

    def run(
        self, *arguments: str, code: int = 0, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end and check the exit code."""
        command = [sys.executable, "-m", "messagehub", *arguments]
        done = preloaded.run(command, env=self.environment | environment, input=stdin, timeout=DEADLINE_SECONDS)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def on_a_screen(self, width: int, *arguments: str) -> list[str]:
        """Return the lines that the program prints at a terminal of that width, escapes included."""
        controller, terminal = pty.openpty()
        with open(controller, "rb", buffering=0) as screen:
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
            command = [sys.executable, "-m", "messagehub", *arguments]
            environment = self.environment | {"TERM": "xterm"}
            process = preloaded.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=terminal)
            os.close(terminal)
            printed = bytearray()
            with contextlib.suppress(OSError):  # which says that it has ended
                while more := screen.read(65536):
                    printed += more
            assert process.wait(DEADLINE_SECONDS) == 0
        return printed.decode().splitlines()

    def json(self, *arguments: str, code: int = 0, stdin: str = "", **environment: str) -> Any:
        """Run with --json; stdout is one JSON value, whatever the outcome."""
        return json.loads(self.run(*arguments, "--json", code=code, stdin=stdin, **environment).stdout)

    def call(self, *arguments: str, code: int = 0, stdin: str = "") -> Result:
        """The same in this process: for variants of what `run` shows, since starting Python is most of its cost."""
        done = InProcess().invoke(app, list(arguments), input=stdin, env=self.environment)
        assert done.exit_code == code, f"exit {done.exit_code}\n{done.stdout}\n{done.stderr}"
        return done

    def call_json(self, *arguments: str, code: int = 0, stdin: str = "") -> Any:
        return json.loads(self.call(*arguments, "--json", code=code, stdin=stdin).stdout)

    def start(self, *arguments: str, **environment: str) -> Running:
        self._started += 1
        command = [sys.executable, "-m", "messagehub", *arguments]
        return Running(command, self.environment | environment, self.place, f"{arguments[0]}-{self._started}")

    def serve(self, *arguments: str) -> Running:
        running = self.start("serve", "--no-http", *arguments)
        running.says("ready:")
        return running
