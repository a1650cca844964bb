"""First contact with a broker: what it says of itself, and nothing more."""

import time
from typing import TYPE_CHECKING

from messagehub.errors import BrokerUnavailable
from messagehub.settings import Settings

HANDSHAKE_FACTOR = 4.0  # of the time that a client gives: people at a busy host would rather wait than be told wrong

if TYPE_CHECKING:
    from registry.replies import HelloAck


def hello(settings: Settings) -> "HelloAck":
    """The broker's HELLO_ACK; BrokerUnavailable when none comes in time, UnsupportedProtocol when versions clash."""
    from messagehub.client.broker_file import running_broker

    endpoint = settings.endpoint
    if settings.is_local:
        running = running_broker(settings)
        if running is None:
            raise BrokerUnavailable(f"no broker runs in {settings.dir}", dir=str(settings.dir))
        endpoint = running.endpoint
    moment = HANDSHAKE_FACTOR * settings.hello_timeout_seconds
    return hello_from(endpoint, settings, timeout=settings.request_timeout_seconds, handshake_timeout=moment)


def hello_from(
    endpoint: str, settings: Settings, *, timeout: float, handshake_timeout: float | None = None
) -> "HelloAck":
    """Who shakes hands in time is there, and may take the rest of the timeout to answer."""
    import zmq

    from messagehub.client.opening import open_session
    from messagehub.security.credentials import ClientKeys

    keys = None if endpoint.startswith("ipc://") else ClientKeys(settings.server_key, settings.key_file)

    now = time.monotonic()
    shaken_by = None if handshake_timeout is None else now + handshake_timeout
    with zmq.Context() as context:
        session = open_session(
            endpoint,
            lambda: context,
            transport=settings.transport,
            deadline=now + timeout,
            handshake_deadline=shaken_by,
            hello_id="cli-hello",
            keys=keys,
        )
        session.close()
        return session.hello
