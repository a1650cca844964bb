"""`messagehub serve`: the hub on its embedded default."""

import gc
import logging
import signal
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from messagehub.broker import Broker
from messagehub.cli.output import echo
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from messagehub.status import BrokerStatus
from messagehub.store.sqlite import SQLiteStore


def serve(
    endpoint: Annotated[
        str | None,
        typer.Option(help="Where requests arrive, e.g. tcp://127.0.0.1:5570. Default: ipc in the directory."),
    ] = None,
    events_endpoint: Annotated[
        str | None, typer.Option(help="Where events leave. Default: beside the endpoint (tcp: the next port).")
    ] = None,
    dir: Annotated[
        Path | None, typer.Option(help="State, sockets and database; private to you. [env: MESSAGEHUB_DIR]")
    ] = None,
    log: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR. [env: MESSAGEHUB_LOG]")] = None,
) -> None:
    """Start the hub and serve until SIGTERM or Ctrl-C."""
    settings = Settings.load(endpoint=endpoint, events_endpoint=events_endpoint, dir=dir, log=log)
    level = logging.getLevelNamesMapping().get(settings.log.upper())
    if level is None:
        raise ConfigurationError(f"log level {settings.log!r} is not one of DEBUG, INFO, WARNING, ERROR")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    broker = Broker(settings, lambda: SQLiteStore(settings.database_path, sync=settings.store_sync))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: broker.stop())
    status = BrokerStatus.of(settings, broker_id=broker.broker_id)
    status = msgspec.structs.replace(status, endpoint=broker.endpoint, events_endpoint=broker.events_endpoint)
    status.write(settings.status_path)
    gc.collect()
    gc.freeze()
    echo(
        f"messagehub {status.version} ready: endpoint={status.endpoint} events={status.events_endpoint}"
        f" dir={status.dir} pid={status.pid}"
    )
    try:
        broker.run()
    finally:
        settings.status_path.unlink(missing_ok=True)
