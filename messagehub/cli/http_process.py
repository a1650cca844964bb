"""The HTTP process beside the broker: a bound socket, a token, and a watcher that starts it again when it dies.

The socket is bound here, so its address is known before the process runs and stays over restarts.
"""

import errno
import importlib.util
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

from messagehub.broker.place import is_loopback
from messagehub.credentials import new_token
from messagehub.errors import ConfigurationError
from messagehub.private_files import check_private, write_private
from messagehub.settings import Settings
from messagehub.supervision import Supervisor

log = logging.getLogger("messagehub.http")

DEFAULT_ADDRESS = "127.0.0.1:8081"
RESTART_SECONDS = 1.0
STOP_SECONDS = 5.0
BIND_SECONDS = 5.0
"""How long a hub that was killed may keep its address through its HTTP process."""


class HttpProcess:
    def __init__(self, settings: Settings, *, endpoint: str, is_open: bool) -> None:
        is_tls = bool(settings.http_cert)
        _check_certificate(settings)
        self._socket = _bind(settings.http, is_tls=is_tls)
        host, port = self._socket.getsockname()[:2]
        self.url = f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        anonymous = settings.http_anonymous
        if anonymous is None:  # on this host everybody may look, unless told otherwise; from elsewhere nobody
            anonymous = "observe" if is_loopback(host) and not settings.is_shared else ""
        if is_open and not is_loopback(host):
            self._socket.close()
            raise ConfigurationError(
                "--http-open is for the loopback interface: make tokens with `messagehub tokens new`"
            )
        self._command = [
            sys.executable,
            *("-m", "messagehub.admin"),
            *("--parent", str(os.getpid())),
            *("--fd", str(self._socket.fileno())),
            *("--dir", str(settings.dir)),
            *("--endpoint", endpoint),
            *("--anonymous", anonymous),
            *(("--cert", settings.http_cert, "--key", settings.http_key) if is_tls else ()),
            *(() if is_open else ("--token-file", str(_token_file(settings.dir)))),
        ]
        self._is_stopping = threading.Event()
        self._starting = threading.Lock()
        self._process = self._start()
        self._watcher = Supervisor().start("messagehub-http", self._watch)

    def stop(self) -> None:
        with self._starting:  # what is started from now on would be stopped by nobody
            self._is_stopping.set()
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watcher.join(STOP_SECONDS)
        self._socket.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        # In a group of its own: Ctrl-C in a terminal is for the broker, which ends this process.
        return subprocess.Popen(self._command, pass_fds=[self._socket.fileno()], process_group=0)

    def _watch(self) -> None:
        while not self._is_stopping.is_set():
            code = self._process.wait()
            self._is_stopping.wait(RESTART_SECONDS)
            with self._starting:
                if not self._is_stopping.is_set():
                    log.error("the HTTP process ended with %s; starting it again", code)
                    self._process = self._start()


def is_available() -> bool:
    """Whether the `admin` extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("fastapi", "uvicorn"))


def _bind(address: str | None, *, is_tls: bool) -> socket.socket:
    """A chosen address must be free; in place of the default one any port will do."""
    host, _, port = (address or DEFAULT_ADDRESS).rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--http takes HOST:PORT, not {address!r}")
    if not is_tls and not is_loopback(host):
        raise ConfigurationError(
            f"--http {address} is not on the loopback interface: serve HTTPS with --http-cert and --http-key,"
            " or use 127.0.0.1:PORT"
        )
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    deadline = time.monotonic() + (0.0 if address is None else BIND_SECONDS)
    while True:
        try:
            bound.bind((host.strip("[]"), int(port)))
            break
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.05)
            elif address is not None:
                bound.close()
                raise ConfigurationError(f"cannot serve HTTP on {address}: {error.strerror}") from None
            else:
                log.warning("port %s is taken; serving HTTP on another one", port)
                bound.bind((host, 0))
                break
    bound.listen(128)
    return bound


def _check_certificate(settings: Settings) -> None:
    if bool(settings.http_cert) != bool(settings.http_key):
        raise ConfigurationError("--http-cert and --http-key go together")
    if settings.http_cert:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.http_cert, settings.http_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"cannot use {settings.http_cert} and {settings.http_key}: {error}") from None
        check_private(Path(settings.http_key).resolve())


def _token_file(directory: Path) -> Path:
    """Made once, readable by its owner only."""
    path = directory / "http.token"
    try:
        write_private(path, f"{new_token()}\n".encode(), replace=False)
    except FileExistsError:
        check_private(path)
    return path
