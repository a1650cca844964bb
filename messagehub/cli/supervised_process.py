"""A process beside the broker that serves something, and the thread that keeps one such process serving.

Rule 1: the hub is ready when the process answers. A first process that ends before it answers ends the hub, unless a
signal has ended it.
Rule 2: a process that dies later is started again, after a pause that grows while it keeps dying; until one
answers, the broker is told what is wrong. The pause is short again once one has lived for STEADY_SECONDS.
Rule 3: a process serves with the settings that it is given, which were checked. It reads no settings of its own: what
somebody has changed since counts after the next reload.
Rule 4: one thread starts and ends all processes: the kernel ends a child with the thread that made it.
"""

import logging
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from messagehub.runtime.child_process import module_command
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.supervision import Supervisor
from messagehub.settings import Settings

RESTART_SECONDS = 1.0
RESTART_MAX_SECONDS = 30.0
STEADY_SECONDS = 10.0
MOST_KILLED = 3
"""So often one is started again that a signal has ended before it served: that is no mistake in the settings."""
START_SECONDS = 60.0
ANSWER_SECONDS = 10.0
STOP_SECONDS = 5.0
SAID_BYTES = 64


class SupervisedProcess(ABC):
    def __init__(
        self,
        title: str,
        settings: Settings,
        *,
        log: logging.Logger,
        on_answer: Callable[[], None],
        on_failure: Callable[[str], None],
        on_problem: Callable[[str | None], None],
    ) -> None:
        """When the first process answers, `on_answer` is called; when it does not start, `on_failure` with the reason.

        After that `on_problem` is called with what is wrong, and with None when that is over. `title` is what people
        call it. Nothing runs before `start`.
        """
        self.url = ""
        self.restarts = 0
        self._title = title
        self._log = log
        self._on_answer, self._on_failure, self._on_problem = on_answer, on_failure, on_problem
        self._settings = settings
        self._next_settings: Settings | None = None
        self._is_stopping = self._has_answered = False
        self._was_killed = False
        self._pause = RESTART_SECONDS
        self._child: ChildProcess | None = None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self, name: str, supervisor: Supervisor) -> None:
        self._thread = supervisor.start(name, self._run)

    def reload(self, settings: Settings) -> None:
        """Serve with these settings from now on. They were checked; the address stays as it is."""
        self._next_settings = settings
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(2 * STOP_SECONDS)
        os.close(self._wake_fd)

    # -- what each kind of process does in its own way -----------------------------------------------------

    @abstractmethod
    def _started(self, settings: Settings) -> "ChildProcess":
        """Start a process."""

    @abstractmethod
    def _why_silent(self) -> str | None:
        """Return why the process does not answer within ANSWER_SECONDS, or None if it does."""

    def _serves(self, said: bytes) -> None:  # noqa: B027  most say nothing of interest
        """Take note of what the process says when it begins to serve."""

    def _replace(self, old: "ChildProcess", settings: Settings) -> None:
        """Have a process with other settings in place of the one that serves."""
        old.end()
        self._child = None
        self._settings = settings

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._has_answered:
            why = self._begin()
            for _ in range(MOST_KILLED):
                if why is None or not self._was_killed or self._is_stopping:
                    break
                self._log.error("%s does not start: %s; starting it again", self._title, why)
                why = self._begin()
            self._has_answered = why is None
            if why is None:
                self._on_answer()
            elif not self._is_stopping:
                self._on_failure(f"{self._title} does not start at {self.url}: {why}")
        if self._has_answered:
            self._keep_serving()
        if self._child is not None:
            self._child.end()

    def _keep_serving(self) -> None:
        has_problem = False
        while not self._is_stopping:
            if self._child is None:
                why = self._begin()
                if why is not None:
                    has_problem = self._is_stopping or self._wait_to_begin_again(why)
                elif has_problem and self._why_silent() is None:
                    self._on_problem(None)
            elif self._next_settings is not None:
                settings, self._next_settings = self._next_settings, None
                self._replace(self._child, settings)
            elif self._is_readable(self._child.pid_fd, STEADY_SECONDS if has_problem else None):
                has_problem = self._wait_to_begin_again(f"the process ended with {self._child.code()}")
            elif has_problem and self._why_silent() is None:
                has_problem = False
                self._pause = RESTART_SECONDS
                self._on_problem(None)

    def _begin(self) -> str | None:
        """Start a process; return why it does not serve, or None when it does."""
        self._was_killed = False
        if self._child is not None:
            self._child.end()
            self._child = None
        if self._next_settings is not None:
            self._settings, self._next_settings = self._next_settings, None
        try:
            child = self._started(self._settings)
        except OSError as error:
            return f"the process cannot be started: {error}"
        why = self._why_not_serving(child)
        if why is None and not self._has_answered:
            why = self._why_silent()
        if why is None:
            self._child = child
            self._log.info("%s is at %s, pid %d", self._title, self.url, child.pid)
        else:
            child.end()
        return why

    def _why_not_serving(self, child: "ChildProcess") -> str | None:
        """Wait until the process says that it serves; return why it does not."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_stopping:
            left = deadline - time.monotonic()
            if left <= 0:
                return f"the process does not serve after {START_SECONDS:g} s"
            if self._is_readable(child.ready_fd, left):
                said = os.read(child.ready_fd, SAID_BYTES)
                if not said:
                    code = child.code()
                    self._was_killed = code < 0
                    return f"the process ended with {code}"
                self._serves(said)
                return None
        return "the hub is stopping"

    def _is_readable(self, fd: int, seconds: float | None) -> bool:
        """Wait for the descriptor; False when the time is up or somebody wants something of this thread."""
        ready = wait_readable([fd, self._wake_fd], seconds)
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        return fd in ready

    def _wait_to_begin_again(self, why: str) -> bool:
        if self._child is not None:
            self._child.end()
            self._child = None
        self.restarts += 1
        problem = f"{self._title} does not answer at {self.url}: {why}"
        self._log.error("%s; starting it again in %g s", problem, self._pause)
        self._on_problem(f"{problem}; it was started again {self.restarts} times")
        deadline = time.monotonic() + self._pause
        while not self._is_stopping and (left := deadline - time.monotonic()) > 0:
            if wait_readable([self._wake_fd], left):
                os.eventfd_read(self._wake_fd)
        self._pause = min(2 * self._pause, RESTART_MAX_SECONDS)
        return True


class ChildProcess:
    """One process, and the pipe on which it says that it serves."""

    def __init__(self, module: str, arguments: list[str], *, fds: list[int]) -> None:
        """Call `main()` of a module of ours in a process that inherits `fds`."""
        self.ready_fd, said_fd = os.pipe2(os.O_CLOEXEC)
        own = ["--parent", str(os.getpid()), "--ready-fd", str(said_fd)]
        try:
            # In a group of its own: Ctrl-C in a terminal is for the broker, which ends this process.
            self._process = subprocess.Popen(
                module_command(module, *own, *arguments),
                pass_fds=[*fds, said_fd],
                process_group=0,
            )
        except OSError:
            os.close(self.ready_fd)
            raise
        finally:
            os.close(said_fd)
        self.pid = self._process.pid
        self.pid_fd = os.pidfd_open(self.pid)

    def code(self) -> int:
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        self.code()
        os.close(self.pid_fd)
        os.close(self.ready_fd)
