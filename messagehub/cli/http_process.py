"""The HTTP process beside the broker: a bound socket, a token, and a thread that keeps one process serving it.

The socket is bound here, so its address is known before the process runs and stays over restarts.

Rule 1: the hub is ready when HTTP answers. A first process that ends before it answers ends the hub.
Rule 2: a process that dies later is started again, after a pause that grows while it keeps dying; until one
answers, the broker is told what is wrong. The pause is short again once one has lived for STEADY_SECONDS.
Rule 3: after a reload the old process serves until the new one does. A new one that does not start changes nothing. A
hub that was draining goes on draining.
Rule 4: a process serves with the settings that it is given, which were checked. It reads no settings of its own: what
somebody has changed since counts after the next reload.
Rule 5: one thread starts and ends all processes: the kernel ends a child with the thread that made it.
"""

import errno
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable

from msgspec.structs import replace

from messagehub.cli.http_checks import TOKEN_NAME, http_address
from messagehub.cli.http_health import ask, why_silent
from messagehub.errors import ConfigurationError
from messagehub.runtime.child_process import module_command
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.supervision import Supervisor
from messagehub.security.credentials import new_token, read_owner_token
from messagehub.security.private_files import write_private
from messagehub.setting_checks import is_loopback
from messagehub.settings import Settings

log = logging.getLogger("messagehub.http")

RESTART_SECONDS = 1.0
RESTART_MAX_SECONDS = 30.0
STEADY_SECONDS = 10.0
START_SECONDS = 60.0
ANSWER_SECONDS = 10.0
STOP_SECONDS = 5.0
BIND_SECONDS = 5.0
"""How long a hub that was killed may keep its address through its HTTP process."""


class HttpProcess:
    def __init__(
        self,
        settings: Settings,
        *,
        endpoint: str,
        is_open: bool,
        supervisor: Supervisor,
        on_answer: Callable[[], None],
        on_failure: Callable[[str], None],
        on_problem: Callable[[str | None], None],
    ) -> None:
        """When the first process answers, `on_answer` is called; when it does not start, `on_failure` with the reason.

        After that `on_problem` is called with what is wrong, and with None when that is over.
        """
        self._endpoint = endpoint
        self._is_open = is_open
        self._on_answer, self._on_failure, self._on_problem = on_answer, on_failure, on_problem
        self._settings = settings
        self._next_settings: Settings | None = None
        self._socket = _bind(settings)
        host, port = self._socket.getsockname()[:2]
        self._is_loopback = is_loopback(host)
        scheme = "https" if settings.http_cert else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if not is_open:
            _make_token(settings)
        self.restarts = 0
        self._is_stopping = self._has_answered = False
        self._pause = RESTART_SECONDS
        self._child: _Child | None = None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = supervisor.start("messagehub-http", self._run)

    def reload(self, settings: Settings) -> None:
        """Serve with these settings from now on. They were checked; the address stays as it is."""
        self._next_settings = settings
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(2 * STOP_SECONDS)
        os.close(self._wake_fd)
        self._socket.close()

    def _run(self) -> None:
        if not self._has_answered:
            why = self._begin()
            self._has_answered = why is None
            if why is None:
                self._on_answer()
            elif not self._is_stopping:
                self._on_failure(f"HTTP does not start at {self.url}: {why}")
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
                    has_problem = self._wait_to_begin_again(why)
                elif has_problem and why_silent(self.url, timeout=ANSWER_SECONDS) is None:
                    self._on_problem(None)
            elif self._next_settings is not None:
                self._replace(self._child)
            elif self._is_readable(self._child.pid_fd, STEADY_SECONDS if has_problem else None):
                has_problem = self._wait_to_begin_again(f"the process ended with {self._child.code()}")
            elif has_problem and why_silent(self.url, timeout=ANSWER_SECONDS) is None:
                has_problem = False
                self._pause = RESTART_SECONDS
                self._on_problem(None)

    def _begin(self) -> str | None:
        """Start a process; return why it does not serve, or None when it does."""
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
            why = why_silent(self.url, timeout=ANSWER_SECONDS)
        if why is None:
            self._child = child
            log.info("HTTP is at %s, pid %d", self.url, child.pid)
        else:
            child.end()
        return why

    def _why_not_serving(self, child: "_Child") -> str | None:
        """Wait until the process says that it serves; return why it does not."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_stopping:
            left = deadline - time.monotonic()
            if left <= 0:
                return f"the process does not serve after {START_SECONDS:g} s"
            if self._is_readable(child.ready_fd, left):
                return None if os.read(child.ready_fd, 1) else f"the process ended with {child.code()}"
        return "the hub is stopping"

    def _is_readable(self, fd: int, seconds: float | None) -> bool:
        """Wait for the descriptor; False when the time is up or somebody wants something of this thread."""
        ready = wait_readable([fd, self._wake_fd], seconds)
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        return fd in ready

    def _started(self, settings: Settings, *, is_draining: bool = False) -> "_Child":
        anonymous = settings.http_anonymous
        if anonymous is None:  # on this host everybody may look, unless told otherwise; from elsewhere nobody
            anonymous = "observe" if self._is_loopback and not settings.is_shared else ""
        given = replace(settings, endpoint=self._endpoint, http_anonymous=anonymous)
        arguments = [
            *("--settings", given.to_json()),
            *(("--draining",) if is_draining else ()),
            *(() if self._is_open else ("--token-file", str(settings.dir / TOKEN_NAME))),
        ]
        return _Child(self._socket.fileno(), arguments)

    def _wait_to_begin_again(self, why: str) -> bool:
        if self._child is not None:
            self._child.end()
            self._child = None
        self.restarts += 1
        problem = f"HTTP does not answer at {self.url}: {why}"
        log.error("%s; starting it again in %g s", problem, self._pause)
        self._on_problem(f"{problem}; it was started again {self.restarts} times")
        deadline = time.monotonic() + self._pause
        while not self._is_stopping and (left := deadline - time.monotonic()) > 0:
            if wait_readable([self._wake_fd], left):
                os.eventfd_read(self._wake_fd)
        self._pause = min(2 * self._pause, RESTART_MAX_SECONDS)
        return True

    def _replace(self, old: "_Child") -> None:
        settings, self._next_settings = self._next_settings, None
        assert settings is not None
        try:
            new = self._started(settings, is_draining=bool(ask(self.url, timeout=ANSWER_SECONDS).is_draining))
        except OSError as error:
            log.error("HTTP goes on with the settings of before, because no new process can be started: %s", error)
            return
        why = self._why_not_serving(new)
        if why is not None:
            new.end()
            log.error("HTTP goes on with the settings of before, because the new process failed: %s", why)
            return
        self._child, self._settings = new, settings
        old.end()
        log.info("HTTP serves with the settings as they are now, pid %d", new.pid)


class _Child:
    """One HTTP process, and the pipe on which it says that it serves."""

    def __init__(self, socket_fd: int, arguments: list[str]) -> None:
        self.ready_fd, said_fd = os.pipe2(os.O_CLOEXEC)
        own = ["--parent", str(os.getpid()), "--fd", str(socket_fd), "--ready-fd", str(said_fd)]
        try:
            # In a group of its own: Ctrl-C in a terminal is for the broker, which ends this process.
            self._process = subprocess.Popen(
                module_command("messagehub.admin.__main__", *own, *arguments),
                pass_fds=[socket_fd, said_fd],
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


def _bind(settings: Settings) -> socket.socket:
    """A chosen address must be free; in place of the default one any port will do."""
    host, port = http_address(settings)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + (0.0 if settings.http is None else BIND_SECONDS)
    while True:
        try:
            bound.bind((host, port))
            break
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.05)
            elif settings.http is not None:
                bound.close()
                raise ConfigurationError(f"cannot serve HTTP on {settings.http}: {error.strerror}") from None
            else:
                log.warning("port %s is taken; serving HTTP on another one", port)
                bound.bind((host, 0))
                break
    bound.listen(128)
    return bound


def _make_token(settings: Settings) -> None:
    """Made once, readable by its owner only."""
    path = settings.dir / TOKEN_NAME
    try:
        write_private(path, f"{new_token()}\n".encode(), replace=False)
    except FileExistsError:
        read_owner_token(path)
