"""`messagehub stop`: end the hub of a directory."""

import os
import signal

from messagehub.cli.options import Dir, Json, Timeout
from messagehub.cli.output import echo, echo_json
from messagehub.cli.probe import hello
from messagehub.cli.session import settings_for
from messagehub.errors import BrokerUnavailable, ConfigurationError, RequestTimeout

STOP_SECONDS = 30.0


def stop(dir: Dir = None, timeout: Timeout = None, as_json: Json = False) -> None:
    """Stop the hub of the directory, as SIGTERM does, and wait until it has ended.

    Requests under way are answered. Producers, consumers and shared memory go on without it.
    """
    from messagehub.client.broker_file import running_broker
    from messagehub.runtime.descriptors import wait_readable

    settings = settings_for(None, dir, timeout)
    running = running_broker(settings)
    if running is None:
        raise BrokerUnavailable(f"no hub runs in {settings.dir}")
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        raise BrokerUnavailable(f"the hub in {settings.dir} has ended meanwhile") from None
    try:
        if hello(settings).broker_id != running.broker_id:  # or the number may be another process's by now
            raise ConfigurationError(f"the broker in {settings.dir} is part of another program: end that one")
        signal.pidfd_send_signal(process, signal.SIGTERM)
        seconds = timeout or STOP_SECONDS
        if not wait_readable([process], seconds):
            raise RequestTimeout(f"the hub, process {running.pid}, has not ended after {seconds:g} s")
    finally:
        os.close(process)
    if as_json:
        echo_json({"dir": str(settings.dir), "pid": running.pid})
    else:
        echo(f"the hub in {settings.dir} has stopped, pid {running.pid}")
