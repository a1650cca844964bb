"""Tables that were published while no broker answered: they are registered when one does.

A broker of this host finds them by itself; one on another host hears of them only from here. Of each channel the
newest is registered. Notes in shared memory say which are not registered yet (`shm.pending_tables`): should this
process end before, the next one that connects registers them.
"""

import logging
from collections import deque

import msgspec

from messagehub.client.connection import Connection
from messagehub.errors import HubError, from_wire, is_unable
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import newest_table
from messagehub.shm.errors import DataBlockError
from messagehub.shm.tables.manifests import generations
from messagehub.shm.tables.pending_tables import forget_pending, may_be_pending, note_pending, pending
from registry import commands, names, replies

log = logging.getLogger("messagehub")

AGAIN_SECONDS = 1.0
NOTED_PER_TURN = 8


class UnregisteredTables:
    def __init__(self, connection: Connection, directory: Directory) -> None:
        self._connection = connection
        self._directory = directory
        self._has_notes = not connection.settings.is_local
        self._waiting: dict[str, commands.RegisterTable] = {}
        self._noted: deque[str] = deque()
        self._is_to_look = self._has_notes and may_be_pending(directory)
        self._registered: dict[str, int] = {}  # generations whose notes are to be removed
        self._is_connected = False
        self._again_at = self._notes_at = 0.0

    def add(self, command: commands.RegisterTable) -> None:
        self._waiting[command.channel] = command
        if self._has_notes:
            try:
                note_pending(self._directory, self._endpoint, command.channel, command.generation)
            except DataBlockError as error:
                said = "the table of channel %r is registered later only if this process lives until then: %s"
                log.warning(said, command.channel, error)
        self._connection.wake()

    def discard(self, channel: str, generation: int | None = None) -> None:
        """Stop registering a channel's table: this generation is registered, or (None) the table was dropped."""
        self._waiting.pop(channel, None)
        if self._has_notes:
            try:
                forget_pending(self._directory, self._endpoint, channel, generation)
            except DataBlockError as error:
                log.debug("the table of channel %r will be registered once more: %s", channel, error)

    @property
    def _endpoint(self) -> str:
        return self._connection.settings.endpoint

    # -- on the I/O thread, which waits for no lock --------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._waiting or self._is_to_look or self._noted or self._registered)

    def topics(self) -> set[bytes]:
        return set()

    def on_connected(self, hello: replies.HelloAck) -> None:  # noqa: ARG002  any broker will do
        self._is_connected, self._is_to_look = True, self._has_notes and may_be_pending(self._directory)
        self._again_at = self._notes_at = 0.0

    def on_disconnected(self) -> None:
        self._is_connected = False

    def on_event(self, topic: bytes, payload: bytes) -> None:
        pass

    def tick(self, now: float) -> float:
        """Return when more is due."""
        if not self._is_connected:
            return now + 60.0
        due = [now + 60.0]
        if self._is_to_look or self._registered or self._noted:
            due.append(self._keep_notes(now))
        if self._waiting:
            if now >= self._again_at:
                self._again_at = now + AGAIN_SECONDS
                for command in list(self._waiting.values()):
                    self._send(command)
            due.append(self._again_at)
        return min(due)

    def _keep_notes(self, now: float) -> float:
        """Read and remove notes. When another process holds their lock, try again later."""
        if now >= self._notes_at:
            try:
                for channel, generation in list(self._registered.items()):
                    forget_pending(self._directory, self._endpoint, channel, generation, lock_seconds=0.0)
                    del self._registered[channel]
                if self._is_to_look:
                    self._noted = deque(pending(self._directory, self._endpoint, lock_seconds=0.0))
                    self._is_to_look = False
                for _ in range(min(NOTED_PER_TURN, len(self._noted))):
                    self._take_over(self._noted[0])
                    self._noted.popleft()
            except DataBlockError as error:
                log.debug("notes of tables cannot be used now: %s", error)
                self._notes_at = now + AGAIN_SECONDS
        return max(now, self._notes_at)

    def _take_over(self, channel: str) -> None:
        """Register a table that a process which has ended left to be registered."""
        if channel in self._waiting:
            return
        try:
            path = self._directory.tables_path(names.check_channel(channel))
        except (HubError, DataBlockError):  # no name that we would have noted
            forget_pending(self._directory, self._endpoint, channel, None, lock_seconds=0.0)
            return
        table = newest_table(self._directory, channel, with_schema=True)
        if table is not None:
            self._waiting[channel] = table
            self._again_at = 0.0
        elif not generations(path):  # else it cannot be read now; the next connection tries again
            forget_pending(self._directory, self._endpoint, channel, None, lock_seconds=0.0)

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
            if self._has_notes:
                self._registered[command.channel] = max(command.generation, self._registered.get(command.channel, 0))
                self._connection.wake()

        copy = msgspec.structs.replace(command)  # whoever sends it gives it an id
        self._connection.submit(copy, done, timeout=self._connection.settings.request_timeout_seconds)
