"""A consumer: everything of a channel, whoever produces it, as values that share memory with their producers.

Rule 1: the schema hash is compared before the first byte of a payload is used. Data of another schema that the registry
calls compatible is handed out in the expected one.
Rule 2: in a group, an item is done when the next one is asked for (or with `acknowledge`); what a member had not done
when it died goes to another.
How threads and tasks share it, and how it is closed meanwhile, is in `consumer_reading`.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

from messagehub.arguments import MOST_SECONDS, seconds
from messagehub.channels.consumer.attachments import Attachments
from messagehub.channels.consumer.channel_reader import ChannelReader
from messagehub.channels.consumer.consumer_options import ConsumerOptions
from messagehub.channels.consumer.consumer_reading import ConsumerReading
from messagehub.channels.consumer.consumer_share import ConsumerShare
from messagehub.channels.consumer.elsewhere import Elsewhere
from messagehub.channels.consumer.enrolment import Enrolment, RegistryCalls
from messagehub.channels.consumer.expected_schema import ExpectedSchema
from messagehub.channels.consumer.fast_path import FastPath
from messagehub.channels.consumer.group_mates import GroupName
from messagehub.channels.consumer.sleeping import WakeableSleep
from messagehub.channels.consumer.start import Positions
from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.items import ReadItem, item_from, producer_id_of
from messagehub.channels.table_generations import TableGenerations
from messagehub.client.registration import Registration
from messagehub.discovery import Source
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import HandleClosed
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.tables.tables import TableStore

log = logging.getLogger("messagehub")


class Consumer(ClosedWhenForgotten):
    """Made by `hub.consumer`. Threads and tasks may share it: each item goes to one of them. In a forked child it is
    closed."""

    def __init__(
        self,
        options: ConsumerOptions,
        directory: Directory,
        registry: RegistryCalls,
        gateways: GatewayAccess,
        *,
        made_by: float,
        timeout: float,
        arrow_schema: Callable[[str, float], Any],
        listen: Callable[["Consumer"], None],
        forget: Callable[["Consumer"], None],
        keeps: object,
        waiting: set[str],
    ) -> None:
        """`made_by` (`time.monotonic()`) bounds the making, `timeout` what is asked later.

        `arrow_schema` gives a registered Arrow schema by its hash, within so many seconds. From `listen` on, until
        `forget`, the broker's events about the channel call `wake`. `keeps` lives as long as this does. `waiting` are
        the channels of which it was logged that nobody produces them.
        """
        self.channel = channel = options.channel
        self._options = options
        self._forget = forget
        self._keeps = keeps
        expected = ExpectedSchema(
            channel, options.expected_schema_hash, options.expected_schema, registered=arrow_schema
        )
        self._elsewhere = elsewhere = Elsewhere(options, directory, gateways)
        self._attached = attached = Attachments(directory, options, expected.readable, elsewhere)
        self._fast_path = FastPath()
        self._sleep = WakeableSleep(self._fast_path.disturb)
        self._share = ConsumerShare(channel, attached, renew=registry.renew, wake=self._sleep.wake)
        self._enrolment = Enrolment(
            options,
            directory,
            attached,
            expected,
            self._share,
            registry,
            elsewhere,
            made_by=made_by,
            timeout=timeout,
            wake=self._sleep.wake,
        )
        store = TableStore(directory.tables_path(channel), elsewhere.fetch_parts)
        tables = TableGenerations(
            store, elsewhere, options.start, expected, verify=options.verify, ask_again=self._enrolment.ask_again
        )
        self._reader = ChannelReader(options, attached, tables, expected, self._share, self._enrolment, self._fast_path)
        group = None if options.group is None else GroupName(directory.path, channel, options.group)
        self._reading = ConsumerReading(self._reader, attached, self._share, self._enrolment, self._sleep, group)
        try:
            listen(self)  # before anybody is asked: an event that comes after the answer changes it
            self._reader.look()
        except BaseException:
            self.close()
            raise
        self._enrolment.made()
        self._opened_in = os.getpid()
        if self._reader.has_met_any():
            waiting.discard(channel)
        else:
            level = logging.DEBUG if channel in waiting else logging.WARNING
            waiting.add(channel)
            where = elsewhere.where_nobody_produces()
            log.log(level, "nobody produces channel %r yet %s; its consumer waits", channel, where)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, timeout: float | None = None) -> Any:
        """The next batch, array, bytes or table; None at the timeout.

        Without a timeout: None when the stream has ended (`has_ended`). None too when the consumer is closed meanwhile.
        ChannelClosed when the channel was destroyed and all that is there was read; HandleClosed when the consumer was
        closed before.
        """
        if timeout is not None and (type(timeout) is not float or not 0.0 <= timeout <= MOST_SECONDS):
            timeout = seconds(timeout)
        value = self._fast_path.take()
        return self._reading.read(timeout) if value is None else value

    async def read_async(self, timeout: float | None = None) -> Any:
        """As `read`, sleeping in the running event loop, which other tasks share however much there is to read."""
        if timeout is not None:
            timeout = seconds(timeout)
        if not self._reading.loop_share.is_due() and (value := self._fast_path.take()) is not None:
            return value
        return await self._reading.read_async(timeout)

    def read_item(self, timeout: float | None = None) -> ReadItem | Gap | None:
        """As `read`, with the item's number, time and producer."""
        return self._with_origin(self.read(timeout))

    async def read_item_async(self, timeout: float | None = None) -> ReadItem | Gap | None:
        return self._with_origin(await self.read_async(timeout))

    def latest(self) -> Any:
        """The newest item of all producers, or the newest table if that is newer, wherever this consumer stands.

        None: nobody has anything. BlockOnOtherHost or BrokerUnavailable where another host may, and cannot be asked, or
        where what the hub tells is yet to be looked at by a task that reads in the event loop that runs here.

        A consumer that has never read is one that looks now and then: from here on a producer with when_full=block
        does not wait for it, until it reads. ChannelClosed when the channel was destroyed.
        """
        found = self.latest_item()
        return None if found is None else found.value

    def latest_item(self) -> ReadItem | None:
        """As `latest`, with the item's number, time and producer."""
        return self._reading.latest_item()

    def acknowledge(self) -> None:
        """Say that a member of a group is done with what it read last. Asking for the next item says the same."""
        self._reading.acknowledge()

    def __iter__(self) -> Iterator[Any]:
        """Until the stream has ended (`has_ended`), or the consumer is closed."""
        return self

    def __next__(self) -> Any:
        """Wait for the next item, as `read()` does."""
        value = self._fast_path.take()
        if value is not None:
            return value
        try:
            value = self._reading.read(None)
        except HandleClosed:
            if not self._reading.was_closed():
                raise
            value = None
        if value is None:
            raise StopIteration
        return value

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            value = await self.read_async()
        except HandleClosed:
            if not self._reading.was_closed():
                raise
            value = None
        if value is None:
            raise StopAsyncIteration
        return value

    def _with_origin(self, value: Any) -> ReadItem | Gap | None:
        if value is None or isinstance(value, Gap):
            return value
        return item_from(self.channel, self._reader.last.origin, value)

    # -- what it knows -------------------------------------------------------------------------------------

    @property
    def registration(self) -> Registration | None:
        """Its registration as a member of the channel; None until somebody knows the channel."""
        return self._enrolment.registration

    @property
    def source(self) -> Source | None:
        """Who knows of the channel: `broker`, `files` or `shm`; None until somebody does."""
        return self._enrolment.source

    @property
    def block_sources(self) -> dict[str, Literal["shm", "flight"]]:
        """How each ring that is read now is read, by block id: from shared memory, or from another host."""
        return self._attached.sources

    @property
    def unreachable(self) -> dict[str, str]:
        """The hosts that have data of the channel and cannot be read now, and why. They are tried again."""
        return dict(self._elsewhere.missing.why)

    @property
    def sequence(self) -> int:
        """The number in its ring of the item that was read last, or the generation of a table; 0 before the first."""
        return self._reader.sequence

    @property
    def missed(self) -> int:
        """How many items were overwritten before they were read."""
        return self._reader.missed

    @property
    def has_ended(self) -> bool:
        """Everything was read, nobody produces any more, and a stream was closed while this consumer was there.

        With `follow=False` nobody has to have produced since. Somebody may still begin again.
        """
        return self._reader.has_ended()

    @property
    def position(self) -> Positions:
        """Give it as `start` to go on after the last item read. It may go through JSON on the way."""
        return self._reading.position

    @property
    def schema(self) -> Any:
        """The Arrow schema or NumPy dtype of what is read; None for raw bytes, and while nothing is known of it."""
        return self._reader.schema()

    @property
    def lag(self) -> int:
        """How many items have been written that this consumer has not read, lost ones included."""
        return self._reader.lag()

    @property
    def written_at(self) -> float:
        """When the item was written that this thread has read last, in seconds since 1970; 0 before the first."""
        return self._reader.last.origin[1] / 1e9

    @property
    def producer_id(self) -> str | None:
        """Who wrote the item that this thread has read last; None before the first, and of a table."""
        return producer_id_of(self.channel, self._reader.last.origin)

    @property
    def is_closed(self) -> bool:
        return self._reading.is_closed

    def wake(self, *, is_shared_out: bool = False) -> None:
        """Look at once: the channel changed, or is shared out anew within its groups. Any thread may call this."""
        is_of_group = is_shared_out and self._options.group is not None
        if is_of_group:
            self._share.is_stale = True
        if not is_of_group or self.registration is None:  # who is not registered has no share, and may get one now
            self._enrolment.doubt()
        self._sleep.wake()

    def close(self) -> None:
        """Values that were handed out stay valid. Whoever reads gets None, and a loop ends. Idempotent."""
        if not self._reading.is_closed:
            self._reading.close()
            self._enrolment.close()
            self._forget(self)

    async def close_async(self) -> None:
        """As `close`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._reading.is_closed:
            self.acknowledge()
        await self.close_async()

    def _is_forgotten(self) -> bool:
        return not self._reading.is_closed

    def _named(self) -> str:
        return f"the consumer of channel {self.channel!r} (close it, or use `with hub.consumer(…) as consumer:`)"

    def __repr__(self) -> str:
        state = "closed" if self._reading.is_closed else (self.source or "waiting for a producer")
        return f"<Consumer {self.channel!r}: {state}>"

    def _repr_html_(self) -> str:
        from messagehub.display.records import consumer_html

        return consumer_html(self, self._options.group)

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._reading.is_closed:
            self.acknowledge()
        self.close()
