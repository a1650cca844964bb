"""Tables that were published while no broker answered: they are registered when one does.

A broker of this host finds them by itself; one on another host hears of them only from here. Of each channel the
newest is registered. A note in shared memory says which are still to be (`shm.pending_tables`), so that they are
registered by the next process that connects, should this one end before.
"""

import logging
from collections import deque

import msgspec

from messagehub.client.connection import Connection
from messagehub.errors import HubError, from_wire, is_unable
from messagehub.shm.directory import Directory
from messagehub.shm.entries import newest_table
from messagehub.shm.errors import DataBlockError
from messagehub.shm.pending_tables import forget_pending, note_pending, pending
from registry import commands, names, replies

log = logging.getLogger("messagehub")

AGAIN_SECONDS = 1.0
NOTED_PER_TURN = 8


class UnregisteredTables:
    def __init__(self, connection: Connection, directory: Directory) -> None:
        self._connection = connection
        self._directory = directory
        self._is_noted = not connection.settings.is_local
        self._waiting: dict[str, commands.RegisterTable] = {}
        self._noted: deque[str] = deque()
        self._is_connected = False
        self._again_at = 0.0

    def add(self, command: commands.RegisterTable) -> None:
        self._waiting[command.channel] = command
        if self._is_noted:
            try:
                note_pending(self._directory, self._endpoint, command.channel, command.generation)
            except DataBlockError as error:
                log.warning("the table of channel %r is registered only while this process lives: %s", command.channel,
                            error)  # fmt: skip
        self._connection.wake()

    def discard(self, channel: str, generation: int | None = None) -> None:
        """A later generation is registered, which is this one, or the table was dropped."""
        self._waiting.pop(channel, None)
        self._forget(channel, generation)

    @property
    def _endpoint(self) -> str:
        return self._connection.settings.endpoint

    def _forget(self, channel: str, generation: int | None) -> None:
        if self._is_noted:
            try:
                forget_pending(self._directory, self._endpoint, channel, generation)
            except DataBlockError as error:
                log.debug("the table of channel %r will be registered once more: %s", channel, error)

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._waiting)

    def topics(self) -> set[bytes]:
        return set()

    def on_connected(self, hello: replies.HelloAck) -> None:  # noqa: ARG002  any broker will do
        self._is_connected, self._again_at = True, 0.0
        if self._is_noted:
            self._noted = deque(pending(self._directory, self._endpoint))

    def on_disconnected(self) -> None:
        self._is_connected = False

    def on_event(self, topic: bytes, payload: bytes) -> None:
        pass

    def tick(self, now: float) -> float:
        if self._is_connected and self._noted:
            self._take_over()
        if self._is_connected and self._waiting and now >= self._again_at:
            self._again_at = now + AGAIN_SECONDS
            for command in list(self._waiting.values()):
                self._send(command)
        if self._is_connected and self._noted:
            return now
        return self._again_at if self._is_connected and self._waiting else now + 60.0

    def _take_over(self) -> None:
        """Register what processes that have ended left to be registered, some at a time."""
        for _ in range(min(NOTED_PER_TURN, len(self._noted))):
            channel = self._noted.popleft()
            if channel in self._waiting:
                continue
            try:
                table = newest_table(self._directory, names.check_channel(channel), with_schema=True)
            except (HubError, DataBlockError):
                table = None
            if table is None:
                self._forget(channel, None)
            else:
                self._waiting[channel] = table
                self._again_at = 0.0

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
                self._forget(command.channel, command.generation)

        copy = msgspec.structs.replace(command)  # whoever sends it gives it an id
        self._connection.submit(copy, done, timeout=self._connection.settings.request_timeout_seconds)
