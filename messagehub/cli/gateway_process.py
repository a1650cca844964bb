"""The Arrow Flight gateway beside the broker of a site's member: its address, its secret, and a process that serves.

The process binds its address itself, because Arrow Flight takes no bound socket. So one on any port may get another
port when it is started again, and the site is told each time.
"""

import importlib.util
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from messagehub.cli.http_checks import TOKEN_NAME, check_certificate, make_token
from messagehub.cli.supervised_process import ANSWER_SECONDS, ChildProcess, SupervisedProcess
from messagehub.errors import ConfigurationError
from messagehub.runtime.supervision import Supervisor
from messagehub.security.credentials import new_token
from messagehub.security.private_files import read_private, write_private
from messagehub.setting_checks import host_and_port, is_any_address, is_loopback
from messagehub.settings import Settings

log = logging.getLogger("messagehub.gateway")

SECRET_NAME = "gateway.secret"


class Announce(Protocol):
    def __call__(self, location: str, *, secret: str, certificate: str) -> None:
        """Tell the site where the gateway is."""


def is_available() -> bool:
    """Whether pyarrow is here with Flight, which is not imported for the answer."""
    found = importlib.util.find_spec("pyarrow")
    places = (found.submodule_search_locations or []) if found is not None else []
    return any(os.path.exists(os.path.join(place, "flight.py")) for place in places)


def gateway_address(settings: Settings) -> tuple[str, int]:
    """Return the host and the port, which is 0 for any one."""
    for address, is_chosen in (
        (settings.gateway, True),
        (settings.site_endpoint.removeprefix("tcp://"), False),
        (settings.endpoint.removeprefix("tcp://"), False),
    ):
        found = host_and_port(address) if "://" not in address else None
        if found is not None:
            return found if is_chosen else (found[0], 0)
    return "127.0.0.1", 0


def check_gateway(settings: Settings) -> None:
    """Refuse what the gateway could not serve with, or what would send data in the clear."""
    host, _ = gateway_address(settings)
    if is_any_address(host):
        raise ConfigurationError(
            f"the gateway would serve at {host or 'every address'}, which other hosts cannot connect to: name an"
            " address of this host with --gateway HOST:PORT"
        )
    if settings.http_cert:
        check_certificate(settings.http_cert, settings.http_key)
    elif not is_loopback(host) and not settings.gateway_unencrypted:
        raise ConfigurationError(
            f"the gateway at {host} is not on the loopback interface, and what it sends would not be encrypted: give"
            " it a certificate with --http-cert and --http-key, say --gateway-unencrypted on a network that you trust,"
            " or --no-gateway"
        )


def check_address(settings: Settings) -> None:
    """Refuse an address where nothing can listen, before anything is started: Arrow Flight does not say why."""
    host, port = gateway_address(settings)
    shown = f"{host}:{port}" if port else host
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise ConfigurationError(
            f"the gateway cannot listen at {shown}: {error.strerror}. Name an address of this host and a free port with"
            " --gateway HOST:PORT"
        ) from None


class GatewayProcess(SupervisedProcess):
    def __init__(
        self,
        settings: Settings,
        *,
        announce: Announce,
        supervisor: Supervisor,
        on_answer: Callable[[], None],
        on_failure: Callable[[str], None],
        on_problem: Callable[[str | None], None],
    ) -> None:
        super().__init__(
            "the gateway", settings, log=log, on_answer=on_answer, on_failure=on_failure, on_problem=on_problem
        )
        self._announce = announce
        host, self._port = gateway_address(settings)
        self._host = f"[{host}]" if ":" in host else host
        self._scheme = "grpc+tls" if settings.http_cert else "grpc"
        self.url = self._location(self._port)
        make_token(settings)
        self._served_with = _served_with(settings)
        self._secret = _secret(settings.dir / SECRET_NAME)
        self.start("messagehub-gateway", supervisor)

    def _location(self, port: int) -> str:
        return f"{self._scheme}://{self._host}:{port}"

    def _started(self, settings: Settings) -> ChildProcess:
        arguments = [
            *("--location", self._location(self._port), "--settings", settings.to_json()),
            *("--token-file", str(settings.dir / TOKEN_NAME), "--secret-file", str(settings.dir / SECRET_NAME)),
        ]
        return ChildProcess("messagehub.cluster.gateway.__main__", arguments, fds=[])

    def _replace(self, old: ChildProcess, settings: Settings) -> None:
        """Start it anew where something changed that it serves with: streams break off, and go on at the new one."""
        if _served_with(settings) == self._served_with:
            self._settings = settings
        else:
            super()._replace(old, settings)

    def _serves(self, said: bytes) -> None:
        self.url = self._location(int(said))
        self._served_with = _served_with(self._settings)
        certificate = Path(self._settings.http_cert).read_text() if self._settings.http_cert else ""
        self._announce(self.url, secret=self._secret, certificate=certificate)

    def _why_silent(self) -> str | None:
        try:
            socket.create_connection((self._host.strip("[]"), int(self.url.rpartition(":")[2])), ANSWER_SECONDS).close()
        except OSError as error:
            return str(error)
        return None


def _served_with(settings: Settings) -> tuple[bytes, ...]:
    """Return what a gateway reads when it is started."""
    files = [settings.http_cert, settings.http_key] if settings.http_cert else []
    said = f"{settings.requests_per_second} {settings.log} {settings.audit_bytes}"
    return (said.encode(), *(Path(file).read_bytes() for file in files))


def _secret(path: Path) -> str:
    """Return what hubs of the site sign tokens for this gateway with; made once, readable by its owner only."""
    try:
        write_private(path, f"{new_token()}\n".encode(), replace=False)
    except FileExistsError:
        pass
    return read_private(path).decode().strip()
