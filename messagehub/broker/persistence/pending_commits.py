"""Changes that are not on disk yet: the records that they are of, and the replies that would show them."""

from collections.abc import Callable
from typing import NamedTuple

from messagehub.broker.event_publisher import key
from registry import commands, names, replies
from registry.events import AnyEvent, service_topic

_LOOKS_AT_NOTHING = (
    commands.Heartbeat
    | commands.Hello
    | commands.Ping
    | commands.Stats
    | commands.Trace
    | commands.RegisterSubscriber
    | commands.UnregisterSubscriber
    | commands.ReportSubscriptions
    | commands.ListSubscriptions
    | commands.ListHosts
    | commands.RequestGateway
)


_SERVICES = service_topic("").removesuffix("/")


class HeldReply(NamedTuple):
    """An answer that waits until the store has written `revision`."""

    revision: int
    path: list[bytes]
    command: commands.AnyCommand
    received_at: float
    reply: replies.Reply
    payload: bytes
    is_change: bool


class PendingCommits:
    def __init__(self) -> None:
        self.newest = 0
        """The newest revision that was given to the store."""
        self.changed: dict[str, int] = {}
        """The revision of the newest change of each record, by name."""
        self.is_uncertain = False
        """Whether the store failed and cannot be read, so that nobody knows which of the changes it has."""
        self._held: list[HeldReply] = []

    def note(self, emitted: list[AnyEvent]) -> None:
        for event in emitted:
            self.changed[key(event)] = event.revision

    def hold(self, answer: HeldReply) -> None:
        self._held.append(answer)

    def read_by(self, command: commands.AnyCommand, *, revision: int) -> int:
        """Return the newest unwritten revision that the answer to this command may show.

        A command that names no record may show any change.
        """
        if isinstance(command, _LOOKS_AT_NOTHING):
            return 0
        if isinstance(command, commands.ServiceCommand):
            return self._service_read_by(command)
        if isinstance(command, commands.RequestSchema) and command.subject is not None:
            by_name = command.schema_id is None and command.schema_hash is None and command.guid is None
            name = command.subject if by_name else None
        else:
            name = getattr(command, "channel", None) or getattr(command, "subject", None)
        if name is None and (topic := getattr(command, "topic", None)) is not None:
            return self.changed.get(f"topic/{topic}/", 0)
        return revision if name is None else self.changed.get(names.logical(name), 0)

    def _service_read_by(self, command: commands.ServiceCommand) -> int:
        """As `read_by`. Changes of services are written in a site only: elsewhere no service waits for a disk."""
        address = getattr(command, "address", None)
        if address is not None:
            return self.changed.get(service_topic(address), 0)
        if isinstance(command, commands.ListServices):
            services = (revision for name, revision in self.changed.items() if name.startswith(_SERVICES))
            return max(services, default=0)
        return 0

    def release(self, written: int, leave: Callable[[HeldReply], None]) -> None:
        """Send the replies that waited for revisions up to `written`, which are on disk now."""
        if self.newest <= written:
            self.changed.clear()
        if self._held:
            waiting = []
            for held in self._held:
                if held.revision <= written:
                    leave(held)
                else:
                    waiting.append(held)
            self._held = waiting

    def undo(self) -> list[HeldReply]:
        """Return the replies that must not be sent. The changes are uncertain until `settle`."""
        held, self._held = self._held, []
        self.is_uncertain = True
        return held

    def settle(self) -> None:
        """Forget all pending changes: the registry is what the store holds."""
        self.changed.clear()
        self.is_uncertain = False
