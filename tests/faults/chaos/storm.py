"""A storm: everybody works; every few moments somebody is killed, paused or restarted, in an order fixed by a seed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.chaos.history import History, Writer
from tests.integration.harness import PATIENCE_SECONDS, ROOT, Served, clean_environment, eventually

ROLES = (
    *("schemas", "channels", "produce", "consume-1", "consume-2", "work", "member-1", "member-2"),
    *("publish", "read_tables", "watch", "discover", "admin"),
    *("publish_plain", "hear_plain", "publish_retained", "replay", "serve", "call", "flood"),
)
HTTP = "messagehub.admin"
PAUSE_SECONDS = 0.3
START_SECONDS = 120.0


class Storm:
    def __init__(self, directory: Path, domain: str, seed: int, *, with_spark: bool) -> None:
        self.directory = directory
        self.domain = domain
        self.history = History(directory / "history")
        self._chance = random.Random(seed)
        self._log = Writer(self.history.next_file("storm"), "storm")
        self._log.note("seed", seed=seed)
        self.roles = [*ROLES, "spark"] if with_spark else list(ROLES)
        # A driver takes long to come back, so it is struck seldom; its workers more often.
        self._targets = [*ROLES, *["broker"] * 3, "schema worker", "http"] * 3 + (
            ["worker"] * 6 + ["spark"]
        ) * with_spark
        self.broker = Served(directory, "--http", "127.0.0.1:0", with_http=True)
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def begin(self) -> None:
        """Spark first, and alone until its first job is done: a driver that is killed before proves nothing.

        HTTP too starts slowly, and must have promised something before it is struck.
        """
        for role in sorted(self.roles, key=lambda role: role != "spark"):
            self._start(role)
            if role == "spark":
                eventually(lambda: list(self.history.lines("spark", "published")), timeout=START_SECONDS)
        eventually(lambda: list(self.history.lines("admin", "schema")), timeout=START_SECONDS)

    def rage(self, seconds: float) -> int:
        """Returns how often it struck. What it does depends on the seed alone; when, also on the machine."""
        deadline = time.monotonic() + seconds
        strikes = 0
        while time.monotonic() < deadline:
            time.sleep(self._chance.uniform(0.05, 0.4))
            target = self._chance.choice(self._targets)
            action = self._chance.choice(["kill", "kill", "pause", "stop"])
            self._log.note("strike", target=target, action=action)
            self._strike(target, action)
            strikes += 1
        return strikes

    def stop_writing(self) -> None:
        """What was written so far is what must be done."""
        self._finish("work", self._processes.pop("work"), signal.SIGKILL)

    def end(self) -> None:
        """Everybody is killed; nobody may have ended before, by its own judgement."""
        for role, process in self._processes.items():
            self._finish(role, process, signal.SIGKILL)
        self._processes.clear()

    def ask_everybody(self) -> None:
        """Have them write where they are to their complaints."""
        for process in self._processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1.0)

    def said_by(self, role: str) -> str:
        """The end of what each process of a role wrote and complained."""
        return "\n".join(
            f"{name}, code {process.poll()}: {self.history.end_of(Path(str(process.args)).stem)}\n"
            f"{Path(str(process.args)).read_text()[-2000:]}"
            for name, process in self._processes.items()
            if name.partition("-")[0] == role
        )

    def close(self) -> None:
        self.broker.close()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
        self._log.close()

    # -- striking ------------------------------------------------------------------------------------------

    def _strike(self, target: str, action: str) -> None:
        if target == "broker":
            self._strike_broker(action)
        elif target == "schema worker":
            self._kill_one(self.broker.pid, "schema_worker")
        elif target == "http":
            self._strike_http(action)
        elif target == "worker":
            self._kill_one(self._processes["spark"].pid, "-m pyspark")
        elif action == "pause":
            self._pause(self._processes[target].pid)
        else:
            number = signal.SIGKILL if action == "kill" or target == "spark" else signal.SIGTERM
            self._finish(target, self._processes[target], number)
            self._start(target)

    def _strike_broker(self, action: str) -> None:
        if action == "pause":
            self._pause(self.broker.pid)
            return
        if action == "kill":
            self.broker.kill()
        else:
            code = self.broker.stop()
            assert code == 0, f"a stopped broker ended with {code}: {self.broker.log()[-2000:]}"
        self.broker.start()

    def _strike_http(self, action: str) -> None:
        """The broker starts it again when it was killed, and so it does when it ended as if asked to."""
        found = [pid for pid in descendants(self.broker.pid) if HTTP in command_line(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                if action == "pause":
                    self._pause(pid)
                else:
                    os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGTERM)

    def _pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.01, PAUSE_SECONDS))
        os.kill(pid, signal.SIGCONT)

    def _kill_one(self, ancestor: int, command: str) -> None:
        """One of a process's descendants, by a word of its command line."""
        found = [pid for pid in descendants(ancestor) if command in command_line(pid)]
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(found), signal.SIGKILL)

    # -- processes -----------------------------------------------------------------------------------------

    def _start(self, role: str) -> None:
        path = self.history.next_file(role.partition("-")[0])
        complaints = (self.directory / f"{path.stem}.err").open("w")
        rings = {"MESSAGEHUB_PURE_PYTHON": self._chance.choice(["0", "1"])}  # in C and in Python, side by side
        with complaints:
            self._processes[role] = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.chaos.roles", role, str(self.directory), self.domain, str(path)],
                stdout=complaints,
                stderr=complaints,
                text=True,
                cwd=ROOT,
                env=clean_environment() | rings,
                start_new_session=True,  # Spark's JVM and workers go with their driver
            )
        self._processes[role].args = str(self.directory / f"{path.stem}.err")

    def _finish(self, role: str, process: subprocess.Popen[str], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            code = process.wait(PATIENCE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._log.note("ended", target=role, pid=process.pid, code=code)
        assert code == -number, f"{role} ended with {code}: {Path(str(process.args)).read_text()[-3000:]}"


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
