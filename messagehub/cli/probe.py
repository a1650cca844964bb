"""First contact with a broker: what it says of itself, and nothing more."""

import time
from typing import TYPE_CHECKING

from messagehub.errors import BrokerUnavailable
from messagehub.settings import Settings

if TYPE_CHECKING:
    from registry.replies import HelloAck


def hello(settings: Settings) -> "HelloAck":
    """The broker's HELLO_ACK; BrokerUnavailable when none comes in time, UnsupportedProtocol when versions clash."""
    from messagehub.status import running_broker

    endpoint = settings.endpoint
    if settings.is_local:
        running = running_broker(settings)
        if running is None:
            raise BrokerUnavailable(f"no broker runs in {settings.dir}", dir=str(settings.dir))
        endpoint = running.endpoint
    return hello_from(endpoint, settings, timeout=settings.hello_timeout_seconds)


def hello_from(endpoint: str, settings: Settings, *, timeout: float) -> "HelloAck":
    import zmq

    from messagehub.client.wire import connected
    from messagehub.credentials import ClientKeys

    keys = None if endpoint.startswith("ipc://") else ClientKeys(settings.server_key, settings.key_file)

    with zmq.Context() as context:
        wire = connected(context, endpoint, deadline=time.monotonic() + timeout, hello_id="cli-hello", keys=keys)
        wire.close()
        return wire.hello
