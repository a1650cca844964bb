"""What signals do to a running hub: SIGTERM and Ctrl-C stop it, SIGHUP reloads, SIGUSR1 and SIGUSR2 do nothing.

Rule 1: a handler only notes that a signal came; a thread reloads. A handler may interrupt anything, also itself.
Rule 2: a reload that is refused changes nothing, and the log says why.
Rule 3: when the terminal that the hub was started from is closed, SIGHUP stops the hub, as it stops other programs.
"""

import logging
import os
import queue
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from messagehub.errors import HubError
from messagehub.security.credentials import AccessFile
from messagehub.settings import RELOADABLE, Settings

if TYPE_CHECKING:
    from messagehub.broker.loop import Broker
    from messagehub.cli.gateway_process import GatewayProcess
    from messagehub.cli.http_process import HttpProcess

log = logging.getLogger("messagehub")

CLOSE_SECONDS = 5.0


class Signals:
    def __init__(self, stop: Callable[[str], None]) -> None:
        """`stop` is told why. Before `on_hangup`, while the hub starts, SIGHUP is ignored: what it read is new."""
        self._stop = stop
        ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # as it is under nohup
        self._ends_with_terminal = ends_with_terminal and _has_terminal()
        self._reload: Callable[[], None] = lambda: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: stop(f"{signal.Signals(got).name} came"))
        signal.signal(signal.SIGHUP, lambda *_: self._hang_up())
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    def on_hangup(self, reload: Callable[[], None]) -> None:
        self._reload = reload

    def _hang_up(self) -> None:
        if self._ends_with_terminal and not _has_terminal():
            self._stop("its terminal was closed")
        else:
            self._reload()


class Reloading:
    """Takes over changed settings, in a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        arguments: dict[str, Any],
        *,
        broker: "Broker",
        web: "HttpProcess | None",
        gateway: "GatewayProcess | None",
        is_open: bool,
    ) -> None:
        """`arguments` are those of the command line, which go before the file as they did at the start."""
        self._settings = settings
        self._arguments = arguments
        self._broker = broker
        self._web = web
        self._gateway_process = gateway
        self._is_open = is_open
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = broker.supervisor.start("messagehub-reload", self._run)

    def ask(self) -> None:
        """Safe in a signal handler."""
        self._asked.put(True)

    def close(self) -> None:
        self._asked.put(False)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._asked.get():
            try:
                self._reload()
            except (HubError, OSError) as error:
                log.error("SIGHUP changed nothing: %s", error)

    def _reload(self) -> None:
        settings = Settings.load(**self._arguments)
        if self._web is not None:
            from messagehub.cli.http_checks import check_http, wrong_dates

            check_http(settings, is_open=self._is_open)
            if (said := wrong_dates(settings)) is not None:
                log.warning("%s. Renew it, and send SIGHUP again", said)
            AccessFile(settings.access_path).read()  # an HTTP process could not be started with a damaged one
        if self._gateway_process is not None:
            from messagehub.cli.gateway_process import check_gateway

            check_gateway(settings)
        changed = self._settings.changed(settings)
        taken = [name for name in changed if name in RELOADABLE]
        if bool(settings.http_cert) != bool(self._settings.http_cert):  # the address is https: or http: until the end
            taken = [name for name in taken if name not in ("http_cert", "http_key")]
        waiting = [name for name in changed if name not in taken]
        if waiting:
            log.warning("%s changed, which takes effect when the hub is started again", ", ".join(waiting))
        self._settings = replace(self._settings, **{name: getattr(settings, name) for name in taken})
        logging.getLogger().setLevel(self._settings.log.upper())
        self._broker.reload(self._settings)
        for process in (self._web, self._gateway_process):
            if process is not None:
                process.reload(self._settings)
        news = f", with changes of {', '.join(taken)}" if taken else ""
        log.info("reloaded settings, certificate and tokens%s", news)


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
