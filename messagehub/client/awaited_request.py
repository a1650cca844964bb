"""A request that is awaited in an event loop: the I/O thread sends it, and no thread waits for its reply."""

import contextlib
import time

from messagehub import protocol
from messagehub.client.connection import GRACE_SECONDS, Connection
from messagehub.errors import BrokerTimeout, HubError
from registry import commands, replies


async def request_async(connection: Connection, command: commands.Command, *, timeout: float) -> replies.AnyReply:
    """As `Connection.request`, over a connection that is there: an ERROR reply, a timeout and a lost one are raised."""
    import asyncio  # loaded by whoever runs an event loop; nobody else is to load it

    loop = asyncio.get_running_loop()
    answered: asyncio.Future[tuple[replies.AnyReply | None, HubError | None]] = loop.create_future()

    def settle(reply: replies.AnyReply | None, error: HubError | None) -> None:
        if not answered.done():
            answered.set_result((reply, error))

    def done(reply: replies.AnyReply | None, error: HubError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and whoever waited in it
            loop.call_soon_threadsafe(settle, reply, error)

    started, refusal = time.monotonic(), ""
    connection.check_presence()
    connection.submit(command, done, timeout=timeout)
    connection.wake()
    in_doubt = loop.call_later(GRACE_SECONDS, connection.suspect)
    try:
        await asyncio.wait([answered], timeout=timeout)
        reply, error = answered.result() if answered.done() else (None, None)
        if error is not None and not isinstance(error, BrokerTimeout):
            raise error
        if reply is None:
            connection.metrics.count("timeouts")
            connection.suspect()
            raise BrokerTimeout("the broker did not answer in time", endpoint=connection.settings.endpoint)
        return protocol.unwrap(reply)
    except HubError as raised:
        refusal = raised.code
        raise
    finally:
        in_doubt.cancel()
        connection.account(command, command.id or "", refusal, started)
