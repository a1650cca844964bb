"""A real standalone cluster from the installed package: a master and workers, each a JVM, gone afterwards.

With `own_hosts` every worker has its own hostname and its own /dev/shm (this needs root).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.ports import own_ports
from tests.spark.sessions import environment

START_SECONDS = 180.0
SPARK_HOME = Path(pyspark.__file__).parent


def can_have_own_hosts() -> bool:
    return os.geteuid() == 0 and shutil.which("unshare") is not None


class Cluster:
    def __init__(self, directory: Path, own_hosts: bool) -> None:
        self.directory = directory
        self.own_hosts = own_hosts
        self.port = own_ports(1)[0]
        self.url = f"spark://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_master(self) -> None:
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self._start("master", ["org.apache.spark.deploy.master.Master", *arguments], {})
        self._await("master", "New state: ALIVE")

    def start_worker(self, number: int) -> None:
        name = f"worker{number}"
        address = f"127.0.0.{10 + number}"
        work = self.directory / name
        arguments = ["--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work)]
        command = ["org.apache.spark.deploy.worker.Worker", *arguments, self.url]
        self._start(name, command, {"SPARK_LOCAL_IP": address})
        self._await(name, "Successfully registered with master")

    def stop(self, name: str) -> None:
        """The whole process group: a worker's executors are its children."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def _start(self, name: str, command: list[str], more: dict[str, str]) -> None:
        full = [str(SPARK_HOME / "bin" / "spark-class"), *command]
        if self.own_hosts and name != "master":
            setup = f'mount -t tmpfs -o size=64m tmpfs /dev/shm && hostname {name} && exec "$@"'
            full = ["unshare", "-mu", "sh", "-c", setup, "sh", *full]
        settings = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"}
        with (self.directory / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                full,
                env=os.environ | environment() | settings | more,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await(self, name: str, text: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        log = self.directory / f"{name}.log"
        while text not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or self.processes[name].poll() is not None:
                raise AssertionError(f"{name} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)


@contextlib.contextmanager
def standalone(directory: Path, *, own_hosts: bool) -> Iterator[Cluster]:
    cluster = Cluster(directory, own_hosts)
    try:
        cluster.start_master()
        cluster.start_worker(1)
        cluster.start_worker(2)
        yield cluster
    finally:
        for name in list(cluster.processes):
            cluster.stop(name)
