"""What a hub asks of the registry: the broker or, where none is able to answer, the directory of this host.

Rule 1: a refusal is raised. That no broker answers is raised where one is required; elsewhere it is one warning,
however many calls go on without it.
Rule 2: whoever has changed a channel here reads the change: the cache forgets what was known before.
"""

import logging
import time
from typing import Literal, TypeVar

from messagehub.arguments import seconds
from messagehub.client.awaited_request import request_async
from messagehub.client.connection import Connection
from messagehub.client.heartbeats import Heartbeats
from messagehub.client.pending_request import Done
from messagehub.client.registration import Registration
from messagehub.discovery import Discovery
from messagehub.discovery.chain import Chain
from messagehub.discovery.listings import Listings
from messagehub.discovery.via_directory import LOCK_SECONDS
from messagehub.errors import (
    BrokerRequired,
    BrokerTimeout,
    BrokerUnavailable,
    ChannelNotFound,
    HubError,
    RequestTimeout,
    from_wire,
    is_unable,
)
from messagehub.runtime.background import BackgroundThreads
from messagehub.runtime.forgotten import run_soon
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.errors import DataBlockError
from messagehub.shm.locks import open_files_limited
from registry import commands, replies

log = logging.getLogger("messagehub")

_AnyReply = TypeVar("_AnyReply", bound=replies.Reply)
_Unable = Literal["absent", "reads", "writes"]
Registering = commands.RegisterProducer | commands.RegisterConsumer


class RegistryClient:
    def __init__(
        self,
        connection: Connection,
        heartbeats: Heartbeats,
        chain: Chain,
        listings: Listings,
        background: BackgroundThreads,
        *,
        timeout: float,
    ) -> None:
        """`timeout` is for calls that name none."""
        self.files = chain.files
        self._connection = connection
        self._heartbeats = heartbeats
        self._chain = chain
        self._cache = chain.broker.cache
        self._listings = listings
        self._background = background
        self._timeout = timeout
        self._warned: set[_Unable] = set()

    def limit(self, timeout: float | None) -> float:
        """Return how many seconds a call may take."""
        return self._timeout if timeout is None else seconds(timeout)

    # -- asking --------------------------------------------------------------------------------------------

    def connect(self, *, timeout: float | None = None, required: bool = False) -> bool:
        """Connect now instead of at the first call. Harmless when connected already."""
        return self.reply_or_none(commands.Ping(), replies.Pong, timeout=timeout, required=required) is not None

    def ask(self, command: commands.Command, *, timeout: float | None = None) -> replies.AnyReply:
        """Send any command and return its reply; refusals, timeouts and no broker are raised."""
        return self._connection.request(command, timeout=self.limit(timeout), is_patient=True)

    async def ask_async(self, command: commands.Command, *, timeout: float | None = None) -> replies.AnyReply:
        """As `ask`, to be awaited. It takes a thread only if it has to connect first."""
        limit = self.limit(timeout)
        if self._connection.hello is not None:
            return await request_async(self._connection, command, timeout=limit)
        try:
            return await self._background.call(lambda remaining: self.ask(command, timeout=remaining), timeout=limit)
        except BrokerTimeout:
            raise
        except RequestTimeout as late:
            raise BrokerTimeout(late.message) from None

    def submit(self, command: commands.Command, done: Done, *, timeout: float | None = None) -> None:
        """Send any command without waiting. `done` is called once, on the I/O thread, with the reply or the error."""

        def answered(reply: replies.AnyReply | None, error: HubError | None) -> None:
            if isinstance(reply, replies.Error):
                done(None, from_wire(reply.code, reply.message, reply.details, retryable=reply.retryable))
            else:
                done(reply, error)

        self._connection.submit(command, answered, timeout=self.limit(timeout))
        self._connection.wake()

    def reply(
        self, command: commands.Command, kind: type[_AnyReply], timeout: float | None, *, is_patient: bool = True
    ) -> _AnyReply:
        """As `ask`. A reply of another kind is raised as BrokerUnavailable."""
        reply = self._connection.ask(command, kind, timeout=self.limit(timeout), is_patient=is_patient)
        self._was_able(writes=command.writes)
        channel = getattr(command, "channel", None)
        if command.writes and channel:
            self._cache.changed(channel, getattr(reply, "revision", 0))
        return reply

    def reply_or_none(
        self, command: commands.Command, kind: type[_AnyReply], *, timeout: float | None = None, required: bool = False
    ) -> _AnyReply | None:
        """As `reply`. Without a broker that is required, return what the directory says, or None if it cannot tell."""
        try:
            return self.reply(command, kind, timeout, is_patient=required)
        except HubError as error:
            if required or not is_unable(error):
                raise
            self.warn(error, writes=command.writes)
            return self._reply_of_directory(command, kind)

    def _reply_of_directory(self, command: commands.Command, kind: type[_AnyReply]) -> _AnyReply | None:
        try:
            reply = self.files.ask(command, timeout=0.0)
        except (BrokerRequired, ChannelNotFound, DataBlockError):
            return None
        assert isinstance(reply, kind), reply
        return reply

    def warn(self, error: HubError, *, writes: bool = False) -> None:
        """Log that no broker helps, once until one does, and clean in its place: what died here is listed no longer.

        A broker that refuses what `writes` may answer everything else meanwhile, which is no reason to log it again.
        """
        if not self._warned:
            log.warning("%s; going on without a broker", error.message)
            run_soon(self._clean)
        is_absent = isinstance(error, BrokerUnavailable) and not isinstance(error, BrokerTimeout)
        self._warned.add("absent" if is_absent else "writes" if writes else "reads")

    def _was_able(self, *, writes: bool) -> None:
        self._warned -= {"absent", "writes"} if writes else {"absent", "reads"}

    def _clean(self) -> None:
        report = clean(self.files.directory, now=time.time(), lock_seconds=0.0)
        if report.blocks:
            log.info("removed %d rings whose producers are gone", len(report.blocks))

    # -- finding -------------------------------------------------------------------------------------------

    def discover(
        self, channel: str, timeout: float | None, *, required: bool, expected_schema_hash: str | None = None
    ) -> Discovery | None:
        """Ask all sources in turn.

        With `required`, the broker's absence is raised if none of them knows the channel.
        """
        found, unavailable = self._discover(channel, timeout, expected_schema_hash)
        if unavailable is not None:
            if required and found is None:
                raise unavailable
            self.warn(unavailable)
        return found

    def discover_or_why(self, channel: str, timeout: float) -> tuple[Discovery | None, HubError | None]:
        """As `discover`, with why the broker did not answer: then what was found is on this host."""
        found, unavailable = self._discover(channel, timeout, None)
        if unavailable is not None:
            self.warn(unavailable)
        return found, unavailable

    def _discover(
        self, channel: str, timeout: float | None, expected_schema_hash: str | None
    ) -> tuple[Discovery | None, HubError | None]:
        limit = self._timeout if timeout is None else seconds(timeout)
        found, unavailable = self._chain.discover(channel, timeout=limit, expected_schema_hash=expected_schema_hash)
        if unavailable is None:
            self._was_able(writes=False)
        return found, unavailable

    # -- registering ---------------------------------------------------------------------------------------

    @open_files_limited()
    def register(self, command: Registering, timeout: float | None, *, required: bool) -> Registration:
        """Register with the broker or, while none answers, in the directory."""
        deadline = time.monotonic() + self.limit(timeout)
        registration = self.register_with_broker(command, timeout, required=required)
        if registration.ack is not None:
            return registration
        try:
            taken = self.files.ask(command, timeout=max(deadline - time.monotonic(), LOCK_SECONDS))
        except DataBlockError as error:
            log.warning("nor can the directory in shared memory take it: %s", error)
            return registration
        except ChannelNotFound:
            return registration  # nobody here produces it yet; a broker may know more when one comes
        except BaseException:
            registration.close()
            raise
        self._listings.entered(registration, taken)
        return registration

    def register_with_broker(self, command: Registering, timeout: float | None, *, required: bool) -> Registration:
        """Register with the broker, now or when one comes."""
        registration = self._heartbeats.register(command, timeout=self.limit(timeout), required=required)
        ack = registration.ack
        if isinstance(ack, replies.ProducerRegistered | replies.ConsumerRegistered):
            self._was_able(writes=True)
            self._cache.changed(command.channel, ack.revision)
        elif registration.error is not None:
            self.warn(registration.error, writes=True)
        return registration
