"""A producer, consumer, worker or subscriber of this process, as its user holds it."""

from collections.abc import Callable
from typing import Protocol

from messagehub.arguments import checks_arguments
from messagehub.client.registration_state import RegistrationState
from messagehub.errors import ChannelClosed, Evicted, HubError
from registry import commands, replies
from registry.events import channel_topic

END_SECONDS = 2.0
"""So long closing waits for the broker; what it has not answered by then is said again in the background."""

Register = commands.RegisterProducer | commands.RegisterConsumer | commands.RegisterWorker | commands.RegisterSubscriber
Ack = replies.ProducerRegistered | replies.ConsumerRegistered | replies.WorkerRegistered | replies.SubscriberRegistered
Member = tuple[type[Register], str, str | None]


class Ending(Protocol):
    """Who ends registrations."""

    lease: str

    def end(self, registration: "Registration", *, timeout: float) -> None:
        """Unregister, now or when a broker answers again."""


class Registration:
    """A producer, consumer, worker or subscriber of this process.

    True while the hub knows it; closing it twice is harmless.
    """

    def __init__(self, command: Register, owner: Ending) -> None:
        self.command = command
        has_no_channel = isinstance(command, commands.RegisterWorker | commands.RegisterSubscriber)
        self.topic = None if has_no_channel else channel_topic(self.channel).encode()
        self.ack: Ack | None = None
        self.error: HubError | None = None
        self.on_ended: Callable[[], None] | None = None
        self.state = RegistrationState()
        self._local: Ack | None = None
        self._leave: Callable[[], None] | None = None
        self._owner = owner

    @property
    def channel(self) -> str:
        """Of a worker the address that it serves, of a subscriber what it shares; no channel is named so."""
        command = self.command
        if isinstance(command, commands.RegisterSubscriber):
            return f"{command.kind}:{command.name}"
        return command.address if isinstance(command, commands.RegisterWorker) else command.channel

    @property
    def member(self) -> Member:
        """Which producer or consumer of which channel, which worker of which address, or which subscriber."""
        command = self.command
        if isinstance(command, commands.RegisterWorker):
            return type(command), command.address, command.worker_id
        if isinstance(command, commands.RegisterSubscriber):
            return type(command), self.channel, command.member_id
        if isinstance(command, commands.RegisterProducer):
            return type(command), command.channel, command.producer_id
        return type(command), command.channel, command.consumer_id

    @property
    def is_closed(self) -> bool:
        return self.state.is_closed

    @property
    def local(self) -> Ack | None:
        """What the directory of this host said to it, if it is listed there."""
        return self._local

    @property
    def source(self) -> str | None:
        """Who has it: `broker`, or `files` while only the directory of this host does. None when nobody has it."""
        if self.is_closed:
            return None
        if self.ack is not None:
            return "broker"
        return "files" if self._local is not None else None

    def check_open(self) -> None:
        """Raise ChannelClosed when the channel was destroyed while it was used, Evicted when the member was evicted."""
        if self.error is not None and self.has_ended:
            raise type(self.error)(self.error.message, **self.error.details)  # a new one: a traceback holds its frames

    @property
    def has_ended(self) -> bool:
        """Whether its channel was destroyed, or its member was evicted."""
        return isinstance(self.error, ChannelClosed | Evicted)

    @property
    def is_evicted(self) -> bool:
        return isinstance(self.error, Evicted)

    def is_told_by(self, notice: replies.Notice) -> bool:
        """Return whether a notice that a member was evicted is about this registration, and not about one before."""
        if isinstance(self.ack, replies.ProducerRegistered):
            mine = "PRODUCER_UNREGISTERED", self.ack.producer_id
        elif isinstance(self.ack, replies.ConsumerRegistered):
            mine = "CONSUMER_UNREGISTERED", self.ack.consumer_id
        else:
            return False
        return mine == (notice.event, notice.member) and self.ack.revision < notice.revision

    def tell_end(self) -> None:
        """Tell whoever uses it that it has ended."""
        if self.on_ended is not None:
            self.on_ended()

    @property
    def shm_name(self) -> str | None:
        taken = self.ack or self._local
        return getattr(taken, "shm_name", None)

    def unregistration(self) -> commands.Command:
        """The command that ends it, with the same priority, so that it does not overtake the registration."""
        command, lease = self.command, self._owner.lease
        if isinstance(command, commands.RegisterWorker):
            return commands.UnregisterWorker(worker_id=command.worker_id, lease=lease, priority=command.priority)
        if isinstance(command, commands.RegisterSubscriber):
            return commands.UnregisterSubscriber(member_id=command.member_id, lease=lease, priority=command.priority)
        if isinstance(command, commands.RegisterProducer):
            return commands.UnregisterProducer(
                channel=command.channel, producer_id=command.producer_id, lease=lease, priority=command.priority
            )
        return commands.UnregisterConsumer(
            channel=command.channel, consumer_id=command.consumer_id, lease=lease, priority=command.priority
        )

    def list_here(self, taken: Ack, leave: Callable[[], None] | None = None) -> None:
        """The directory of this host shows it from now on; `leave` ends that."""
        self._local, self._leave = taken, leave
        self.state.is_listed = True

    @checks_arguments
    def close(self, *, timeout: float = END_SECONDS) -> None:
        """Unregister with the broker first: a directory that shows it no more would look like its death.

        A broker that has not answered by the timeout is told in the background.
        """
        self._owner.end(self, timeout=min(timeout, END_SECONDS))
        self.leave_directory()

    def leave_directory(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
            self._local = None  # who closes the hub may have to enter it again, for a broker that is away

    def abandon(self) -> None:
        """In a forked child: it is the parent's."""
        self.state.end()
        self._leave = None

    def __bool__(self) -> bool:
        return self.source is not None

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def close_async(self) -> None:
        """As `close`, while the event loop goes on."""
        import asyncio  # takes longer to load than all else that a registration needs

        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "Registration":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else (self.source or "waiting for a broker")
        return f"<{type(self.command).__name__} {self.channel!r}: {state}>"
