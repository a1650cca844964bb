"""`messagehub serve`: the hub on its embedded default."""

import gc
import logging
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from messagehub.cli.options import Dir
from messagehub.cli.output import complain, echo
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.cli.http_process import HttpProcess
    from messagehub.status import BrokerStatus


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
    log: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR. [env: MESSAGEHUB_LOG]")
    ] = None,
) -> None:
    """Start the hub and serve until SIGTERM or Ctrl-C.

    The directory holds state, sockets and database and is private to you.
    One line on stdout says when the hub is ready, one on stderr when it has stopped.
    """
    from messagehub.broker import Broker
    from messagehub.status import BrokerStatus
    from messagehub.store.sqlite import SQLiteStore

    if no_http and (http_open or (http, http_cert, http_key) != (None, None, None)):
        raise typer.BadParameter("--no-http goes with no other option about HTTP.")
    settings = Settings.load(
        endpoint=endpoint,
        events_endpoint=events_endpoint,
        http=http,
        http_cert=http_cert,
        http_key=http_key,
        dir=dir,
        curve=curve,
        group=group,
        log=log,
    )
    level = logging.getLevelNamesMapping().get(settings.log.upper())
    if level is None:
        raise ConfigurationError(f"log level {settings.log!r} is not one of DEBUG, INFO, WARNING, ERROR")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    broker = Broker(settings, lambda: SQLiteStore(settings.database_path, sync=settings.store_sync))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: broker.stop())
    status = BrokerStatus.of(settings, broker_id=broker.broker_id)
    with ExitStack() as ending:
        ending.callback(broker.close)
        web = None if no_http else _start_http(settings, broker.local_endpoint, http_open, ending)
        status = msgspec.structs.replace(
            status,
            endpoint=broker.local_endpoint,
            events_endpoint=broker.events_endpoint,
            http=web.url if web else None,
            server_key=broker.server_key,
            remote_endpoint=broker.endpoint if settings.curve else "",
        )
        broker.warm_up()
        status.write(settings.status_path, gid=broker.gid)
        ending.callback(_withdraw, status, settings)
        gc.collect()
        gc.freeze()
        echo(
            f"messagehub {status.version} ready: endpoint={broker.endpoint} events={status.events_endpoint}"
            f" http={status.http} dir={status.dir} pid={status.pid}"
            + (f" server_key={status.server_key}" if status.server_key else "")
        )
        broker.run()
    complain(f"messagehub {status.version} stopped: dir={status.dir} pid={status.pid}")


def _start_http(settings: Settings, endpoint: str, is_open: bool, ending: ExitStack) -> "HttpProcess | None":
    from messagehub.cli.http_process import HttpProcess, is_available

    if not is_available():
        logging.getLogger("messagehub").warning("no HTTP: install messagehub[admin] for it, or say --no-http")
        return None
    web = HttpProcess(settings, endpoint=endpoint, is_open=is_open)
    ending.callback(web.stop)
    return web


def _withdraw(status: "BrokerStatus", settings: Settings) -> None:
    """Remove what we said of ourselves, unless the next broker of the directory has already replaced it."""
    from messagehub.status import running_broker

    if running_broker(settings) in (None, status):
        settings.status_path.unlink(missing_ok=True)
