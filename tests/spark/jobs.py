"""Starting applications (`job`), talking to them, and ending them by pid."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from messagehub.shm.identity import ProcessIdentity
from tests.spark.sessions import ROOT, environment


class RunningJob:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        jvm = ProcessIdentity.of(int(self._hear()["ready"]))
        assert jvm is not None
        self.jvm = jvm

    def ask(self, call: str, **arguments: Any) -> Any:
        """The answer, or the error's text."""
        self.tell(call, **arguments)
        return self.answer()

    def tell(self, call: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"call": call} | arguments) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        heard = self._hear()
        return heard["error"] if "error" in heard else heard["answer"]

    def kill(self) -> None:
        """Driver and JVM at once, as a machine that loses power does."""
        if self.jvm.is_alive():
            os.kill(self.jvm.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(30)

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise AssertionError("the job ended without an answer")


@contextlib.contextmanager
def running(
    master: str, work_dir: Path, options: dict[str, str], *settings: str, prefix: Any = ()
) -> Iterator[RunningJob]:
    arguments = [master, str(work_dir), options["dir"], options["domain"], *settings]
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.spark.job", *arguments],
        cwd=ROOT,
        env=os.environ | environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    job = RunningJob(process)
    try:
        yield job
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    finally:
        job.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
