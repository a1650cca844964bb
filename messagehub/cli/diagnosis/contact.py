"""The broker: whether one runs, answers, and speaks our version; and if not, where one might be."""

import os
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from messagehub.cli.diagnosis import Finding
from messagehub.cli.http_checks import TOKEN_NAME
from messagehub.cli.http_health import DRAINING, ask
from messagehub.cli.probe import hello_from
from messagehub.cli.session import schema_mode
from messagehub.display.values import duration
from messagehub.errors import BrokerUnavailable, ConfigurationError, HubError, Unauthorized
from messagehub.setting_checks import host_and_port
from messagehub.settings import Settings, default_dir
from messagehub.version import __version__
from registry import commands, replies
from registry.records import SiteHost

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

GATEWAY_SECONDS = 2.0
MOST_GATEWAYS = 32
"""So many gateways are tried."""
MOST_WORKERS = 100
"""So many processes with workers are tried."""


def check_broker(settings: Settings, *, is_held: bool) -> Iterator[Finding]:
    """`is_held` says whether some process holds the lock of the settings' directory."""
    from messagehub.client.broker_file import running_broker

    running = running_broker(settings) if is_held else None
    if settings.is_local and running is None:
        yield _nobody_here(settings) if not is_held else _silent_holder(settings)
        return
    endpoint = running.endpoint if settings.is_local and running is not None else settings.endpoint
    started = time.monotonic()
    try:
        said = hello_from(endpoint, settings, timeout=settings.hello_timeout_seconds)
    except BrokerUnavailable:
        if running is not None and running.endpoint == endpoint:
            yield _stuck(endpoint, running.pid, settings.hello_timeout_seconds)
        else:
            yield _nobody_there(endpoint, running.endpoint if running else None)
        return
    except Unauthorized as error:
        advice = "name your key with key_file and the broker's with server_key; `messagehub keys list` at the hub"
        yield Finding("broker", "error", error.message, advice)
        return
    except HubError as error:
        yield Finding(
            "broker",
            "error",
            f"the process at {endpoint} answers, but not as this version understands: {error.message}",
            "run the same version of messagehub on both sides",
        )
        return
    took = duration(time.monotonic() - started)
    yield Finding("broker", "ok", f"a broker answers at {endpoint} in {took}")
    yield _compare(said.server.rpartition("/")[2], warning=said.warning if isinstance(said.warning, str) else None)
    url = running.http if running is not None and running.broker_id == said.broker_id else None
    yield from _check_health(settings, url)
    if running is not None and url is not None:
        yield from _check_token(settings, running.pid)


def _compare(version: str, *, warning: str | None) -> Finding:
    if warning is not None:
        return Finding("version", "warning", warning, "run the same version of messagehub on both sides")
    if version != __version__:
        return Finding(
            "version",
            "warning",
            f"the broker is messagehub {version}, this program is {__version__}",
            "restart the broker with this version, or use its version here",
        )
    return Finding("version", "ok", f"broker and program are both messagehub {version}")


def _check_token(settings: Settings, pid: int) -> Iterator[Finding]:
    """Whether writes over HTTP have a token: while its file is gone, the hub takes none."""
    path = settings.dir / TOKEN_NAME
    try:
        is_open = b"--http-open" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if is_open or path.exists():
            return
    except OSError:
        return  # of another user, or gone meanwhile
    fix = "restart the hub, which makes a new one; or use one of `messagehub tokens new`"
    yield Finding("http", "warning", f"{path} is gone, so its token is refused over HTTP", fix)


def _draining(url: str) -> Finding:
    fix = f"curl -X DELETE -H 'Authorization: Bearer TOKEN' {url}/api/v1/drain, with the token in http.token"
    return Finding("http", "warning", f"the hub is draining: {DRAINING}", fix)


def _check_health(settings: Settings, url: str | None) -> Iterator[Finding]:
    """What the broker says of itself and its parts; and whether HTTP answers, where the broker knows no trouble."""
    from messagehub.hub import MessageHub

    with MessageHub(settings) as hub:
        health = hub.health(timeout=settings.request_timeout_seconds)
        mode = schema_mode(hub) if health["status"] != "unavailable" else None
        yield from _check_site(hub, settings.request_timeout_seconds)
    if mode not in (None, "READWRITE"):
        yield Finding(
            "schemas",
            "warning",
            f"the mode of all subjects is {mode}, so schemas are not registered as usual",
            "messagehub schemas config --mode READWRITE, when that is over",
        )
    problems: list[str] = health.get("problems", [])
    if url is not None and not any(url in problem for problem in problems):
        http = ask(url, timeout=settings.request_timeout_seconds)
        if http.why_silent is not None:
            problems = [*problems, f"HTTP does not answer at {url}: {http.why_silent}"]
        else:
            yield Finding("http", "ok", f"HTTP answers at {url}")
        if http.is_draining:
            yield _draining(url)
    for problem in problems:
        check = "http" if url is not None and url in problem else "broker"
        check = "gateway" if problem.startswith("the gateway ") else check
        fix = "see the hub's log; it tries again by itself, so restart the hub only if this stays"
        yield Finding(check, "error", problem, fix)
    if health["status"] == "unavailable":
        yield Finding(
            "broker",
            "error",
            f"the broker greets but does not go on: {health['reason']}",
            "see its log; restart it if that goes on",
        )
    elif health["read_only"]:
        yield Finding(
            "store",
            "error",
            "the broker serves reads only, because it could not write its database",
            "free disk space where its directory lies; it goes on by itself",
        )


def _check_site(hub: "MessageHub", timeout: float) -> Iterator[Finding]:
    """Whether the hosts of the site can be reached from here; nothing of a hub that is a member of none."""
    try:
        found = hub.ask(commands.ListHosts(), timeout=timeout)
    except HubError:
        return  # what is wrong with the broker is told elsewhere
    if not isinstance(found, replies.HostList) or found.site is None:
        return
    fix = (
        "open that port between the hosts, or start the hub there with --gateway HOST:PORT, an address that is reached"
    )
    for one in found.hosts[:MOST_GATEWAYS]:
        if one.health in ("left", "lost"):
            said = f"host {one.host} is {one.health}: {one.reason or 'its hub does not run, or cannot reach etcd'}"
            of_site = f"--site {found.site} --etcd URL"
            start, forget = f"messagehub serve {of_site}", f"messagehub site forget {one.host} {of_site}"
            yield Finding("host", "warning", said, f"start its hub: {start}; or, if it will not come back: {forget}")
            continue
        yield from check_topics(one)
        if not one.gateway:
            said = f"host {one.host} runs no gateway, so no other host can read its data"
            yield Finding("gateway", "warning", said, "start its hub without --no-gateway")
            continue
        try:
            _connect(one.gateway)
        except ssl.SSLCertVerificationError as error:
            said = f"the gateway of host {one.host} at {one.gateway} has a wrong certificate: {error.verify_message}"
            yield Finding(
                "gateway", "error", said, "give its hub a certificate for that name (--http-cert), or name it"
            )
        except OSError as error:
            said = f"the gateway of host {one.host} cannot be reached at {one.gateway}: {error}"
            yield Finding("gateway", "error", said, fix)
        else:
            yield Finding("gateway", "ok", f"the gateway of host {one.host} answers at {one.gateway}")
    yield from check_services(hub.services(), str(found.host))


def check_services(services: Iterable[replies.ServiceSummary], host: str) -> Iterator[Finding]:
    """Whether the workers of other hosts can be reached from this one, which is `host`."""
    workers = {worker.tcp_endpoint: worker for service in services for worker in service.workers}
    workers = {endpoint: worker for endpoint, worker in workers.items() if worker.host not in (None, host)}
    alone = sorted({str(worker.host) for worker in workers.values() if worker.tcp_endpoint is None})
    if alone:
        said = f"workers on {', '.join(alone)} name no address for other hosts, so they are called on their host only"
        yield Finding("services", "warning", said, "see their logs: none could listen at the host of --site-endpoint")
    for endpoint, worker in list(workers.items())[:MOST_WORKERS]:
        address = host_and_port((endpoint or "").removeprefix("tcp://"))
        if address is None:
            continue
        try:
            socket.create_connection(address, GATEWAY_SECONDS).close()
        except OSError as error:
            said = f"the workers of process {worker.pid} on host {worker.host} cannot be called from here: {endpoint}"
            fix = "open the ports above 1023 between the hosts: each process with workers listens at one of them"
            yield Finding("services", "error", f"{said} cannot be reached: {error}", fix)


def check_topics(host: SiteHost) -> Iterator[Finding]:
    """Whether what is published on a host can be heard here."""
    if not host.topics:
        said = f"host {host.host} does not say (yet) where its topics are heard, so no other host hears them"
        yield Finding("topics", "warning", said, "run the same version of messagehub on all hosts")
        return
    address = host_and_port(host.topics.removeprefix("tcp://"))
    assert address is not None
    try:
        socket.create_connection(address, GATEWAY_SECONDS).close()
    except OSError as error:
        said = f"what is published on host {host.host} is not heard here: {host.topics} cannot be reached: {error}"
        yield Finding("topics", "error", said, "open that port between the hosts: it is two above --site-endpoint")


def _connect(gateway: str) -> None:
    """Connect as a reader does. It trusts the certificate that the gateway has, if that is for its name and valid."""
    scheme, _, named = gateway.partition("://")
    address = host_and_port(named)
    assert address is not None
    with socket.create_connection(address, GATEWAY_SECONDS) as link:
        if scheme != "grpc+tls":
            return
        trusts_any = ssl.create_default_context()
        trusts_any.check_hostname, trusts_any.verify_mode = False, ssl.CERT_NONE
        trusts_any.set_alpn_protocols(["h2"])
        with trusts_any.wrap_socket(link) as encrypted:
            certificate = encrypted.getpeercert(binary_form=True)
    assert certificate is not None
    checks = ssl.create_default_context(cadata=certificate)
    checks.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    checks.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(address, GATEWAY_SECONDS) as link,
        checks.wrap_socket(link, server_hostname=address[0]),
    ):
        pass


def _nobody_here(settings: Settings) -> Finding:
    """Report that no broker runs in the directory, and name the default one if a broker runs there."""
    message = f"no broker runs in {settings.dir}"
    try:
        other = default_dir()
    except ConfigurationError:
        other = settings.dir  # this user has no home, and so no other one
    if other != settings.dir and _runs_in(other):
        return Finding(
            "broker",
            "error",
            f"{message}, but one runs in the default directory {other}",
            f"use that one with --dir {other} (or unset MESSAGEHUB_DIR), or start one: messagehub serve --dir"
            f" {settings.dir}",
        )
    return Finding("broker", "error", message, f"messagehub serve --dir {settings.dir}")


def _silent_holder(settings: Settings) -> Finding:
    return Finding(
        "broker",
        "error",
        f"a process holds {settings.lock_path}, but {settings.status_path.name} does not say where it listens",
        f"it may be starting: try again in a moment; else find it with `fuser {settings.lock_path}` and restart it",
    )


def _stuck(endpoint: str, pid: int, timeout: float) -> Finding:
    message = f"the broker (pid {pid}) holds its lock but does not answer at {endpoint} within {timeout:g} s"
    path = Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None
    if path is not None and not path.exists():
        return Finding(
            "broker", "error", f"{message}: its socket was deleted", f"restart it: kill {pid}, then messagehub serve"
        )
    if _state(pid) in ("T", "t"):
        return Finding("broker", "error", f"{message}: it is stopped", f"kill -CONT {pid}")
    return Finding(
        "broker", "error", message, f"look at its log; if it stays silent restart it: kill {pid}, then messagehub serve"
    )


def _nobody_there(endpoint: str, other: str | None) -> Finding:
    """Nothing answers at an endpoint that was asked for by name; `other` is where the directory's broker is."""
    if other is not None:
        source = "unset MESSAGEHUB_ENDPOINT" if os.environ.get("MESSAGEHUB_ENDPOINT") else "leave --endpoint out"
        return Finding(
            "broker",
            "error",
            f"no broker answers at {endpoint}, but one runs at {other}",
            f"{source}, or use --endpoint {other}",
        )
    if _accepts(endpoint):
        return Finding(
            "broker",
            "error",
            f"something listens at {endpoint} but does not answer like a broker",
            "check the address (events have their own); if it is a broker, restart it",
        )
    return Finding("broker", "error", f"nobody listens at {endpoint}", f"messagehub serve --endpoint {endpoint}")


def _accepts(endpoint: str) -> bool:
    """Whether a plain connection to the endpoint is taken."""
    if endpoint.startswith("ipc://"):
        from messagehub.broker.instance_lock import is_listening

        return is_listening(Path(endpoint.removeprefix("ipc://")))
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=0.5).close()
    except OSError:
        return False
    return True


def _runs_in(directory: Path) -> bool:
    from messagehub.client.broker_file import is_held

    try:
        return is_held(directory / "broker.lock")
    except OSError:
        return False


def _state(pid: int) -> str:
    """The process's one-letter state, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
