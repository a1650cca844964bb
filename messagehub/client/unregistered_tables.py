"""Tables that were published while no broker answered: they are registered when one does.

A broker of this host finds them by itself; one on another host hears of them only from here. Of each channel the
newest is kept, for as long as the process lives.
"""

import logging

import msgspec

from messagehub.client.connection import Connection
from messagehub.errors import HubError, from_wire, is_unable
from registry import commands, replies

log = logging.getLogger("messagehub")

AGAIN_SECONDS = 1.0


class UnregisteredTables:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, commands.RegisterTable] = {}
        self._is_connected = False
        self._again_at = 0.0

    def add(self, command: commands.RegisterTable) -> None:
        self._waiting[command.channel] = command
        self._connection.wake()

    def discard(self, channel: str) -> None:
        """A later generation is registered, or the table was dropped."""
        self._waiting.pop(channel, None)

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._waiting)

    def topics(self) -> set[bytes]:
        return set()

    def on_connected(self, hello: replies.HelloAck) -> None:  # noqa: ARG002  any broker will do
        self._is_connected, self._again_at = True, 0.0

    def on_disconnected(self) -> None:
        self._is_connected = False

    def on_event(self, topic: bytes, payload: bytes) -> None:
        pass

    def tick(self, now: float) -> float:
        if self._is_connected and self._waiting and now >= self._again_at:
            self._again_at = now + AGAIN_SECONDS
            for command in list(self._waiting.values()):
                self._send(command)
        return self._again_at if self._is_connected and self._waiting else now + 60.0

    def _send(self, command: commands.RegisterTable) -> None:
        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:
            if isinstance(reply, replies.Error):
                error = from_wire(reply.code, reply.message, reply.details, retryable=reply.retryable)
            if error is not None and is_unable(error):
                return  # asked again with the next tick
            if error is not None:
                log.warning("the table of channel %r was refused by the broker: %s", command.channel, error.message)
            if self._waiting.get(command.channel) is command:
                del self._waiting[command.channel]

        copy = msgspec.structs.replace(command)  # whoever sends it gives it an id
        self._connection.submit(copy, done, timeout=self._connection.settings.request_timeout_seconds)
