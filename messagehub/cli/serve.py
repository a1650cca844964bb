"""`messagehub serve`: the hub on its embedded default."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from messagehub.cli.options import Dir
from messagehub.cli.output import complain, echo
from messagehub.cli.reload import Reloading, Signals
from messagehub.cli.systemd_service import Watchdog, notify_supervisor
from messagehub.errors import ConfigurationError
from messagehub.runtime.logs import set_up
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.broker.loop import Broker
    from messagehub.cli.gateway_process import Announce, GatewayProcess
    from messagehub.cli.http_process import HttpProcess
    from messagehub.client.broker_file import BrokerStatus
    from messagehub.cluster.membership import SiteMembership


def serve(
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where requests arrive, e.g. tcp://127.0.0.1:5570. Default: ipc in the directory."
            " [env: MESSAGEHUB_ENDPOINT]",
        ),
    ] = None,
    events_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where events leave. Default: beside the endpoint (tcp: the next port)."),
    ] = None,
    dir: Dir = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where HTTP is served, on loopback. Default: 127.0.0.1:8081, or another port if that is taken."
            " [env: MESSAGEHUB_HTTP]",
        ),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")] = False,
    http_open: Annotated[
        bool, typer.Option("--http-open", help="Let writes over HTTP go without the token in DIR/http.token.")
    ] = False,
    http_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="A certificate chain: serve HTTPS, beyond loopback too.")
    ] = None,
    http_key: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's private key.")] = None,
    curve: Annotated[
        bool | None,
        typer.Option("--curve", help="Ask peers on TCP for keys, listed with `messagehub keys`: beyond loopback too."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let the users of a group of this host use the hub.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Be a member of this site: its hubs share one registry, in etcd."),
    ] = None,
    new_site: Annotated[
        bool, typer.Option("--new-site", help="Make the site if it is not there, though etcd has other ones.")
    ] = False,
    etcd: Annotated[
        str | None, typer.Option(metavar="URL[,URL...]", help="The members of etcd that hold the site's registry.")
    ] = None,
    etcd_user: Annotated[str | None, typer.Option(metavar="NAME", help="The user of etcd.")] = None,
    etcd_password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The password of etcd's user, in the first line.")
    ] = None,
    etcd_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificates that those of etcd's members are signed by.")
    ] = None,
    etcd_cert: Annotated[str | None, typer.Option(metavar="FILE", help="A certificate to show to etcd.")] = None,
    etcd_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key.")] = None,
    site_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where other hubs of the site reach this one, tcp://HOST:PORT. Default: five ports above --endpoint.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where other hosts of the site read the data of this one, by Arrow Flight. Default: the host of"
            " --site-endpoint, any port.",
        ),
    ] = None,
    gateway_unencrypted: Annotated[
        bool | None,
        typer.Option("--gateway-unencrypted", help="Let the gateway serve beyond loopback without --http-cert."),
    ] = None,
    no_gateway: Annotated[
        bool, typer.Option("--no-gateway", help="Let no other host read the data of this one.")
    ] = False,
    log: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR. [env: MESSAGEHUB_LOG]")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text, or json: an object a line, for log collectors.")
    ] = None,
) -> None:
    """Start the hub and serve until SIGTERM or Ctrl-C; SIGHUP reloads settings and certificate.

    The directory holds state, sockets and database and is private to you.
    When the hub is ready, HTTP included, stdout says so: in one line, at a terminal in a few.
    When it has stopped, a line on stderr does.
    """
    from messagehub.client.broker_file import BrokerStatus
    from messagehub.security.credentials import AccessFile

    asks_for_http = http_open or (http, http_cert, http_key) != (None, None, None)
    if no_http and asks_for_http:
        raise typer.BadParameter("--no-http goes with no other option about HTTP.")
    if no_gateway and (gateway is not None or gateway_unencrypted):
        raise typer.BadParameter("--no-gateway goes with no other option about the gateway.")
    arguments = {
        "endpoint": endpoint,
        "events_endpoint": events_endpoint,
        "http": http,
        "http_cert": http_cert,
        "http_key": http_key,
        "dir": dir,
        "curve": curve,
        "group": group,
        "site": site,
        "etcd": etcd,
        "etcd_user": etcd_user,
        "etcd_password_file": etcd_password_file,
        "etcd_ca": etcd_ca,
        "etcd_cert": etcd_cert,
        "etcd_key": etcd_key,
        "site_endpoint": site_endpoint,
        "gateway": gateway,
        "gateway_unencrypted": gateway_unencrypted,
        "log": log,
        "log_format": log_format,
    }
    settings = Settings.load(**arguments)
    set_up(settings.log, settings.log_format)
    if settings.dir.is_dir():
        AccessFile(settings.access_path).read()  # a damaged one is refused before anything starts
    has_http = not no_http and _can_serve_http(settings, asks_for_http=asks_for_http, is_open=http_open)
    has_gateway = _can_run_gateway(settings, is_left_out=no_gateway)

    failures: list[str] = []
    with ExitStack() as ending:
        broker, membership = _broker(settings, ending, runs_gateway=has_gateway, may_make_site=new_site)
        signals = Signals(broker.stop)

        def give_up(why: str) -> None:
            failures.append(why)
            broker.stop(why)

        ending.callback(broker.close)
        ready = ReadyLine("broker", *(["http"] if has_http else []), *(["gateway"] if has_gateway else []))
        web = None
        if has_http:
            web = _start_http(settings, broker, is_open=http_open, ready=ready, give_up=give_up, ending=ending)
        gateway_process = (
            _start_gateway(
                settings, broker, announce=membership.set_gateway, ready=ready, give_up=give_up, ending=ending
            )
            if membership is not None and has_gateway
            else None
        )
        status = msgspec.structs.replace(
            BrokerStatus.of(settings, broker_id=broker.broker_id),
            endpoint=broker.local_endpoint,
            events_endpoint=broker.events_endpoint,
            http=web.url if web else None,
            server_key=broker.server_key,
            remote_endpoint=broker.endpoint if settings.curve else "",
        )
        reloading = Reloading(settings, arguments, broker=broker, web=web, gateway=gateway_process, is_open=http_open)
        signals.on_hangup(reloading.ask)
        ending.callback(reloading.close)
        broker.warm_up()
        status.write(settings.status_path, gid=broker.gid)
        ending.callback(_withdraw, status, settings)
        gc.collect()
        gc.freeze()
        ready.line = _ready_text(status, broker.endpoint, membership, is_for_a_person=sys.stdout.isatty())
        ready.has("broker")
        ending.callback(notify_supervisor, "STOPPING=1")
        ending.callback(Watchdog(settings, broker.local_endpoint, broker.supervisor).close)
        broker.run()
    if failures:
        raise ConfigurationError(f"{failures[0]}; what it wrote to stderr says more")
    stopped = f"messagehub {status.version} stopped: dir={status.dir} pid={status.pid}"
    if settings.log_format == "json":
        logging.getLogger("messagehub").info("%s", stopped)
    else:
        complain(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {stopped}")


def _broker(
    settings: Settings, ending: ExitStack, *, runs_gateway: bool, may_make_site: bool
) -> "tuple[Broker, SiteMembership | None]":
    """Return a broker on its own, with SQLite, or one that is a member of a site, and its membership."""
    from messagehub.broker.loop import Broker

    if may_make_site and not settings.site:
        raise typer.BadParameter("--new-site is for a hub of a site: it goes with --site.")
    if not settings.site:
        from messagehub.cluster.site_file import leave_unbound, refuse_bound
        from messagehub.store.sqlite import SQLiteStore

        refuse_bound(settings)
        if not settings.database_path.exists() and (settings.dir / "http.token").exists():
            said = "%s is gone, though a hub ran there before: beginning with an empty registry"
            logging.getLogger("messagehub").warning(said, settings.database_path)

        def open_store() -> SQLiteStore:
            leave_unbound(settings)
            return SQLiteStore(settings.database_path, sync=settings.store_sync)

        return Broker(settings, open_store), None
    try:
        from messagehub.cluster.membership import SiteMembership
    except ImportError as missing:
        said = f"a site takes grpcio and protobuf: pip install 'messagehub[site]' ({missing})"
        raise ConfigurationError(said) from None
    membership = SiteMembership(settings, runs_gateway=runs_gateway, may_make_site=may_make_site)
    ending.callback(membership.close)
    return Broker(settings, membership.open_store, membership.member), membership


class ReadyLine:
    """The line on stdout that says that the hub is ready, printed when each part of it is."""

    def __init__(self, *parts: str) -> None:
        self.line = ""
        self._missing = set(parts)
        self._printing = threading.Lock()

    def has(self, part: str) -> None:
        """From any thread."""
        with self._printing:
            self._missing.discard(part)
            if not self._missing:
                notify_supervisor("READY=1")
                try:
                    echo(self.line)
                except OSError as error:  # whoever was to read it has left: the hub serves all the same
                    logging.getLogger("messagehub").warning("%s, but stdout cannot be written: %s", self.line, error)


def _ready_text(
    status: "BrokerStatus", endpoint: str, membership: "SiteMembership | None", *, is_for_a_person: bool
) -> str:
    """One line with everything, for programs; a few short ones for a person at a terminal."""
    if not is_for_a_person:
        key = f" server_key={status.server_key}" if status.server_key else ""
        return (
            f"messagehub {status.version} ready: endpoint={endpoint} events={status.events_endpoint}"
            f" http={status.http} dir={status.dir} pid={status.pid}{key}{_site_field(membership)}"
        )
    lines = [f"messagehub {status.version} is ready", f"  listens at   {endpoint}"]
    if status.server_key:
        lines.append(f"  its key is   {status.server_key}")
    if status.http is not None:
        lines += [f"  web page     {status.http}/", f"  web token    in {status.dir}/http.token"]
    else:
        lines.append("  web page     none: this hub serves no HTTP")
    if membership is not None:
        made = f", which is new: {membership.beside.text()}" if membership.beside is not None else ""
        lines.append(f"  site         {membership.site}{made}")
    lines += [f"  directory    {status.dir}", "  stop it      Ctrl-C here, or `messagehub stop` in another terminal"]
    return "\n".join(lines)


def _site_field(membership: "SiteMembership | None") -> str:
    if membership is None:
        return ""
    return f" site={membership.site}" + (" new_site=yes" if membership.beside is not None else "")


def _can_serve_http(settings: Settings, *, asks_for_http: bool, is_open: bool) -> bool:
    from messagehub.cli.http_checks import check_http, is_available, wrong_dates

    if is_available():
        check_http(settings, is_open=is_open)
        if (said := wrong_dates(settings)) is not None:
            logging.getLogger("messagehub").warning("%s. Renew it, and send SIGHUP", said)
        return True
    if asks_for_http or settings.http or settings.http_cert:
        raise ConfigurationError("HTTP was asked for and is not installed: pip install 'messagehub[admin]'")
    logging.getLogger("messagehub").warning("no HTTP: install messagehub[admin] for it, or say --no-http")
    return False


def _start_http(
    settings: Settings,
    broker: "Broker",
    *,
    is_open: bool,
    ready: ReadyLine,
    give_up: Callable[[str], None],
    ending: ExitStack,
) -> "HttpProcess":
    from messagehub.cli.http_process import HttpProcess

    web = HttpProcess(
        settings,
        endpoint=broker.local_endpoint,
        is_open=is_open,
        supervisor=broker.supervisor,
        on_answer=partial(ready.has, "http"),
        on_failure=give_up,
        on_problem=partial(broker.note_problem, "http"),
    )
    ending.callback(web.stop)
    broker.add_counters(lambda: {"http_restarts": web.restarts})
    return web


def _can_run_gateway(settings: Settings, *, is_left_out: bool) -> bool:
    from messagehub.cli.gateway_process import check_address, check_gateway, is_available

    if is_left_out and not settings.site:
        raise typer.BadParameter("--no-gateway is for a hub of a site: it goes with --site.")
    if is_left_out or not settings.site:
        return False
    if is_available():
        check_gateway(settings)
        check_address(settings)
        return True
    if settings.gateway:
        raise ConfigurationError("a gateway was asked for, and pyarrow is not installed with Arrow Flight")
    logging.getLogger("messagehub").warning(
        "no gateway: pyarrow is not installed with Arrow Flight, or say --no-gateway"
    )
    return False


def _start_gateway(
    settings: Settings,
    broker: "Broker",
    *,
    announce: "Announce",
    ready: ReadyLine,
    give_up: Callable[[str], None],
    ending: ExitStack,
) -> "GatewayProcess":
    from messagehub.cli.gateway_process import GatewayProcess

    process = GatewayProcess(
        settings,
        announce=announce,
        supervisor=broker.supervisor,
        on_answer=partial(ready.has, "gateway"),
        on_failure=give_up,
        on_problem=partial(broker.note_problem, "gateway"),
    )
    ending.callback(process.stop)
    broker.add_counters(lambda: {"gateway_restarts": process.restarts})
    return process


def _withdraw(status: "BrokerStatus", settings: Settings) -> None:
    """Remove what we said of ourselves, unless the next broker of the directory has already replaced it."""
    from messagehub.client.broker_file import running_broker

    if running_broker(settings) in (None, status):
        settings.status_path.unlink(missing_ok=True)
