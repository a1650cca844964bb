"""The process of a kernel that was started here."""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping

from jupyter_client.connect import write_connection_file
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.launcher import launch_kernel

from messagehub.jupyter.outputs import KernelNotFound

log = logging.getLogger("messagehub.jupyter")

UNIX_PATH_BYTES = 107


class KernelProcess:
    """A kernel process of our own, in a private directory with its sockets, connection file and log."""

    def __init__(self, name: str, cwd: str | None, env: Mapping[str, str]) -> None:
        try:
            spec = KernelSpecManager().get_kernel_spec(name)
        except NoSuchKernel as missing:
            raise KernelNotFound(f"no kernel {name!r} is installed") from missing
        self.is_interrupted_by_message = spec.interrupt_mode == "message"
        longest = len(os.fsencode(tempfile.gettempdir())) + len("/mhk-12345678/k-5")
        self._directory = tempfile.mkdtemp("", "mhk-", None if longest <= UNIX_PATH_BYTES else "/tmp")
        # Unix sockets: no port that another process can take before the kernel does, or connect to.
        self.connection_file, _ = write_connection_file(
            os.path.join(self._directory, "kernel.json"),
            transport="ipc",
            ip=os.path.join(self._directory, "k"),
            key=uuid.uuid4().hex.encode(),
            kernel_name=name,
        )
        self._command = [
            part.replace("{connection_file}", self.connection_file).replace("{resource_dir}", spec.resource_dir)
            for part in spec.argv
        ]
        if self._command[0] in ("python", "python3"):
            self._command[0] = sys.executable
        self._cwd = cwd
        self._env = {**os.environ, **env}
        self._env |= {key: string.Template(text).safe_substitute(self._env) for key, text in spec.env.items()}
        self._log = os.path.join(self._directory, "kernel.log")
        self._lock = threading.Lock()
        self.pidfd = -1
        self.launch()

    def launch(self) -> None:
        with open(self._log, "wb") as output:
            try:
                self._popen: subprocess.Popen[bytes] = launch_kernel(
                    self._command,
                    stdout=output.fileno(),
                    stderr=output.fileno(),
                    cwd=self._cwd,
                    env=self._env,
                )
            except OSError as missing:
                self.forget()
                raise KernelNotFound(f"kernel {self._command[0]!r} cannot be started: {missing}") from missing
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)

    def interrupt(self) -> None:
        with self._lock:
            self._signal(signal.SIGINT)

    def reap(self) -> str:
        """End what is left of the kernel and its children, and say how it ended.

        The group is killed before its leader is reaped: until then its id cannot belong to anybody else.
        """
        with self._lock:
            self._signal(signal.SIGKILL)
            code = self._popen.wait()
        with open(self._log, "rb") as output:
            output.seek(max(0, os.fstat(output.fileno()).st_size - 500))
            last_words = output.read().decode(errors="replace").strip()
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"kernel {self.pid} ended {ended}" + (f"; it last wrote: {last_words}" if last_words else "")

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.returncode is not None:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # in a process that ignores SIGCHLD the system reaps children itself
            log.debug("kernel %d had left before %s", self.pid, number.name)

    def stop(self, grace_seconds: float) -> None:
        """Give the kernel time to leave by itself, then end it. Harmless when done twice."""
        if self.pidfd < 0:
            return
        leaving = select.poll()
        leaving.register(self.pidfd, select.POLLIN)
        leaving.poll(grace_seconds * 1000)
        self.reap()
        os.close(self.pidfd)
        self.pidfd = -1

    def forget(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
