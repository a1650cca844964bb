"""The HTTP process beside the broker: a bound socket, a token, and a process that serves it (`supervised_process`).

The socket is bound here, so its address is known before the process runs and stays over restarts.

Rule: after a reload the old process serves until the new one does. A new one that does not start changes nothing. A
hub that was draining goes on draining.
"""

import errno
import logging
import socket
import time
from collections.abc import Callable

from msgspec.structs import replace

from messagehub.cli.http_checks import TOKEN_NAME, http_address, make_token
from messagehub.cli.http_health import ask, why_silent
from messagehub.cli.supervised_process import ANSWER_SECONDS, ChildProcess, SupervisedProcess
from messagehub.errors import ConfigurationError
from messagehub.runtime.supervision import Supervisor
from messagehub.setting_checks import is_loopback
from messagehub.settings import Settings

log = logging.getLogger("messagehub.http")

BIND_SECONDS = 5.0
"""How long a hub that was killed may keep its address through its HTTP process."""


class HttpProcess(SupervisedProcess):
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
        super().__init__("HTTP", settings, log=log, on_answer=on_answer, on_failure=on_failure, on_problem=on_problem)
        self._endpoint = endpoint
        self._is_open = is_open
        self._socket = _bind(settings)
        host, port = self._socket.getsockname()[:2]
        self._is_loopback = is_loopback(host)
        scheme = "https" if settings.http_cert else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if not is_open:
            make_token(settings)
        self.start("messagehub-http", supervisor)

    def stop(self) -> None:
        super().stop()
        self._socket.close()

    def _why_silent(self) -> str | None:
        return why_silent(self.url, timeout=ANSWER_SECONDS)

    def _started(self, settings: Settings, *, is_draining: bool = False) -> ChildProcess:
        anonymous = settings.http_anonymous
        if anonymous is None:  # on this host everybody may look, unless told otherwise; from elsewhere nobody
            anonymous = "observe" if self._is_loopback and not settings.is_shared else ""
        given = replace(settings, endpoint=self._endpoint, http_anonymous=anonymous)
        socket_fd = self._socket.fileno()
        arguments = [
            *("--fd", str(socket_fd), "--settings", given.to_json()),
            *(("--draining",) if is_draining else ()),
            *(() if self._is_open else ("--token-file", str(settings.dir / TOKEN_NAME))),
        ]
        return ChildProcess("messagehub.admin.__main__", arguments, fds=[socket_fd])

    def _replace(self, old: ChildProcess, settings: Settings) -> None:
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
