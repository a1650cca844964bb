"""`messagehub stop`: end the hub of a directory."""

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from messagehub.cli.options import Dir, Json, seconds
from messagehub.cli.output import echo, echo_json
from messagehub.errors import BrokerUnavailable, ConfigurationError, RequestTimeout
from messagehub.settings import Settings

STOP_SECONDS = 30.0


def stop(
    *,
    dir: Dir = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", parser=seconds, help="How long to wait for its end.")
    ] = STOP_SECONDS,
    as_json: Json = False,
) -> None:
    """Stop the hub of the directory, as SIGTERM does, and wait until it has ended.

    Requests under way are answered. Producers, consumers and shared memory go on without it.
    """
    from messagehub.client.broker_file import running_broker
    from messagehub.runtime.descriptors import wait_readable
    from messagehub.shm.identity import ProcessIdentity

    settings = Settings.for_client(dir=dir)
    running = running_broker(settings)
    if running is None:
        raise BrokerUnavailable(f"no hub runs in {settings.dir}")
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        raise BrokerUnavailable(f"the hub in {settings.dir} has ended meanwhile") from None
    try:
        found = ProcessIdentity.of(running.pid)
        if found is None or found.start_time != running.start_time:
            raise BrokerUnavailable(f"the hub in {settings.dir} is not a process of this host, or is part of a program")
        _ask_to_end(process, settings.dir)
        if not wait_readable([process], timeout):
            raise RequestTimeout(f"the hub, process {running.pid}, has not ended after {timeout:g} s")
    finally:
        os.close(process)
    if as_json:
        echo_json({"dir": str(settings.dir), "pid": running.pid})
    else:
        echo(f"the hub in {settings.dir} has stopped, pid {running.pid}")


def _ask_to_end(process: int, directory: Path) -> None:
    from messagehub.security.private_files import user_name

    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except PermissionError:
        owner = user_name(directory.stat().st_uid)
        raise ConfigurationError(
            f"permission denied: only {owner}, who runs the hub in {directory}, and root may stop it"
        ) from None
