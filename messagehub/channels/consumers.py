"""A consumer: everything of a channel, whoever produces it, as values that share memory with their producers.

Rule 1: the schema hash is compared before the first byte of a payload is used. Data of another schema that the registry
calls compatible is handed out in the expected one.
Rule 2: threads and tasks take turns, and each item goes to one of them.
Rule 3: in a group, an item is done when the next one is asked for (or with `acknowledge`); what a member had not done
when it died goes to another.
Rule 4: `close` may come from anywhere, also while somebody reads. The last one out releases what readers use.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from messagehub.arguments import MOST_SECONDS, seconds
from messagehub.channels.attachments import Attachments, Choice
from messagehub.channels.channel_reader import ChannelReader
from messagehub.channels.consumer_share import ConsumerShare
from messagehub.channels.enrolment import Enrolment, RegistryCalls
from messagehub.channels.expected_schema import ExpectedSchema
from messagehub.channels.group_mates import GroupMate, GroupName, ShareIn
from messagehub.channels.items import ReadItem, item_from, producer_id_of
from messagehub.channels.sleeping import WakeableSleep
from messagehub.channels.start import Positions
from messagehub.channels.table_generations import TableGenerations
from messagehub.channels.turns import Turns
from messagehub.channels.wanted import Wanted
from messagehub.client.registration import Registration
from messagehub.discovery import Source
from messagehub.errors import HubError
from messagehub.runtime.event_loop import LoopShare
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.shm.directory import Directory
from messagehub.shm.errors import HandleClosed
from messagehub.shm.read_results import Gap
from messagehub.shm.tables import TableStore

log = logging.getLogger("messagehub")


class Consumer(ClosedWhenForgotten):
    """Made by `hub.consumer`. Threads and tasks may share it: each item goes to one of them. In a forked child it is
    closed."""

    def __init__(
        self,
        wanted: Wanted,
        directory: Directory,
        registry: RegistryCalls,
        *,
        made_by: float,
        timeout: float,
        arrow_schema: Callable[[str, float], Any],
        listen: Callable[["Consumer"], None],
        forget: Callable[["Consumer"], None],
        keeps: object,
    ) -> None:
        """`made_by` (`time.monotonic()`) bounds the making, `timeout` what is asked later.

        `arrow_schema` gives a registered Arrow schema by its hash, within so many seconds. From `listen` on, until
        `forget`, the broker's events about the channel call `wake`. `keeps` lives as long as this does.
        """
        self.channel = channel = wanted.channel
        self._wanted = wanted
        self._forget = forget
        self._keeps = keeps
        expected = ExpectedSchema(channel, wanted.expected_schema_hash, wanted.expected_schema, registered=arrow_schema)
        choice = Choice(
            wanted.start,
            expected.readable,
            wanted.lossless,
            wanted.verify,
            wanted.group,
            wanted.copy,
            wanted.spin_us,
        )
        self._attached = attached = Attachments(directory, channel, choice)
        self._sleep = WakeableSleep()
        self._share = ConsumerShare(channel, attached, renew=registry.renew, wake=self._sleep.wake)
        self._enrolment = Enrolment(
            wanted,
            directory,
            attached,
            expected,
            self._share,
            registry,
            made_by=made_by,
            timeout=timeout,
            wake=self._sleep.wake,
        )
        store = TableStore(directory.tables_path(channel))
        tables = TableGenerations(
            store, wanted.start, expected, verify=wanted.verify, ask_again=self._enrolment.ask_again
        )
        self._reader = ChannelReader(wanted, attached, tables, expected, self._share, self._enrolment)
        self._loop_share = LoopShare()
        self._turns = Turns()
        self._left_at: Positions | None = None  # where it stood when it was closed
        self._is_closed, self._releasing = False, threading.Lock()
        self._inside: list[None] = []  # one for each call that uses what `close` releases
        self._mate: GroupMate | None = None
        if wanted.group is not None:
            name = GroupName(directory.path, channel, wanted.group)
            self._mate = attached.mate = GroupMate(name, self._keep_up)
        try:
            listen(self)  # before anybody is asked: an event that comes after the answer changes it
            self._reader.look()
        except BaseException:
            self.close()
            raise
        self._enrolment.made()
        self._opened_in = os.getpid()
        if not self._reader.has_met_any():
            log.warning("nobody produces channel %r yet on this host; its consumer waits", channel)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, timeout: float | None = None) -> Any:
        """The next batch, array, bytes or table; None at the timeout.

        Without a timeout: None when the stream has ended (`has_ended`). None too when the consumer is closed meanwhile.
        ChannelClosed when the channel was destroyed and all that is there was read; HandleClosed when the consumer was
        closed before.
        """
        if timeout is not None and (type(timeout) is not float or not 0.0 <= timeout <= MOST_SECONDS):
            timeout = seconds(timeout)
        self._enter()
        try:
            if self._turns.take_now():
                try:
                    return self._read_at_once(timeout)
                finally:
                    self._turns.give()
            deadline = None if timeout is None else time.monotonic() + timeout
            if not self._turns.take(deadline, self._is_unusable):
                self._check_process()
                return None
            try:
                return self._read(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            finally:
                self._turns.give()
        finally:
            self._leave()

    def _read_at_once(self, timeout: float | None) -> Any:
        """With the turn: the shortest way, if there is something to read, or nothing to wait for."""
        if self._mate is None:
            value = self._reader.next_at_once()
            if value is None and timeout != 0 and self._reader.spin():
                value = self._reader.next_at_once()
            if value is not None:
                return value
            if timeout == 0 and self._reader.is_quiet() and self._sleep.is_quiet(self._attached.news_fds()):
                if self.registration is not None:
                    self.registration.check_open()
                return None
        return self._read(timeout)

    def _read(self, timeout: float | None) -> Any:
        """With the turn."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._mate is not None:
            self._mate.is_read_by(threading.current_thread())
        if self._share.unacknowledged is not None:
            self._share.done_with_last()
        while not self._is_closed:
            found, value = self._reader.next()
            if found:
                return value
            if self._has_no_more(deadline):
                return None
            self._check_process()
            if not self._reader.arm():
                until = self._reader.sleep_until(deadline)
                ready = self._sleep.sleep(self._attached.readers, until, self._attached.news_fds())
                if self._was_closed():
                    return None
                if not ready and self._mate is None and (value := self._reader.next_at_once()) is not None:
                    return value  # a ring woke us, and nothing else did
                self._reader.after_sleep(was_woken=self._sleep.was_woken(ready), has_news=bool(ready))
                if self._is_late(deadline):
                    self._reader.disarm()
                    return self._reader.next()[1]
        return None

    async def read_async(self, timeout: float | None = None) -> Any:
        """As `read`, sleeping in the running event loop, which other tasks share however much there is to read."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        self._enter()
        try:
            if self._loop_share.is_due():
                await self._loop_share
            if not self._turns.take_now() and not await self._turns.take_async(deadline, self._is_unusable):
                self._check_process()
                return None
            try:
                found = self._reader.next_at_once() if self._mate is None else None
                return await self._read_async(deadline) if found is None else found
            finally:
                self._turns.give()
        finally:
            self._leave()

    async def _read_async(self, deadline: float | None) -> Any:
        """With the turn."""
        if self._mate is not None:
            self._mate.is_read_by(asyncio.current_task())
        if self._share.unacknowledged is not None:
            self._share.done_with_last()
        while not self._is_closed:
            found, value = self._reader.next()
            if found:
                return value
            if self._has_no_more(deadline):
                return None
            self._check_process()
            if not self._reader.arm():
                until = self._reader.sleep_until(deadline)
                ready = await self._sleep.sleep_async(self._attached.readers, until, self._attached.news_fds())
                self._loop_share.restart()
                if self._was_closed():
                    return None
                self._reader.after_sleep(was_woken=self._sleep.was_woken(ready), has_news=bool(ready))
                if self._is_late(deadline):
                    self._reader.disarm()
                    return self._reader.next()[1]
        return None

    def _has_no_more(self, deadline: float | None) -> bool:
        if self.registration is not None:
            self.registration.check_open()
        return deadline is None and self._reader.is_over()

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and not self._reader.has_stash() and time.monotonic() >= deadline

    def read_item(self, timeout: float | None = None) -> ReadItem | Gap | None:
        """As `read`, with the item's number, time and producer."""
        return self._with_origin(self.read(timeout))

    async def read_item_async(self, timeout: float | None = None) -> ReadItem | Gap | None:
        return self._with_origin(await self.read_async(timeout))

    def latest(self) -> Any:
        """The newest item of all producers, or the newest table if that is newer, wherever this consumer stands.

        A consumer that has never read is one that looks now and then: from here on a producer with when_full=block
        does not wait for it, until it reads. ChannelClosed when the channel was destroyed.
        """
        found = self.latest_item()
        return None if found is None else found.value

    def latest_item(self) -> ReadItem | None:
        """As `latest`, with the item's number, time and producer."""
        self._enter()
        try:
            if self._turns.take_now():
                try:
                    self._reader.look_in_passing()
                finally:
                    self._turns.give()
            else:
                self._check_process()  # who reads now follows the channel, for this thread too
            if self.registration is not None:
                self.registration.check_open()
            return self._reader.newest()
        finally:
            self._leave()

    def acknowledge(self) -> None:
        """In a group: what was read last is done. Asking for the next one says the same."""
        self._enter()
        try:
            self._share.done_with_last()
        finally:
            self._leave()

    def __iter__(self) -> Iterator[Any]:
        """Until the stream has ended (`has_ended`), or the consumer is closed."""
        return self

    def __next__(self) -> Any:
        """Wait for the next item, as `read()` does."""
        try:
            value = self.read()
        except HandleClosed:
            if not self._was_closed():
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
            if not self._was_closed():
                raise
            value = None
        if value is None:
            raise StopAsyncIteration
        return value

    def _with_origin(self, value: Any) -> ReadItem | Gap | None:
        if value is None or isinstance(value, Gap):
            return value
        return item_from(self.channel, self._reader.last.origin, value)

    def _keep_up(self) -> ShareIn | None:
        """For another member of the group in this process, which waits: take the share that holds now, unless somebody
        reads this one, or it is closed."""
        try:
            self._enter()
        except HandleClosed:
            return None
        try:
            if not self._turns.take_now():
                return None
            try:
                if self._share.is_open():
                    self._reader.look()
            except HubError as error:
                log.debug("a member of group %r cannot take its share: %s", self._wanted.group, error)
            finally:
                self._turns.give()
            return self._attached.member_share
        finally:
            self._leave()

    def _is_unusable(self) -> bool:
        return self._is_closed or not self._sleep.is_possible

    def _check_process(self) -> None:
        """Refuse to go on in a forked child: the consumer is the parent's."""
        if not self._sleep.is_possible and not self._is_closed:
            raise HandleClosed("consumer")

    # -- closing while somebody reads ----------------------------------------------------------------------

    def _was_closed(self) -> bool:
        """Meanwhile, by another thread or task."""
        return self._is_closed

    def _enter(self) -> None:
        """Before using what `close` releases. There is no lock, so that a signal handler may close at any moment:
        either `close` sees that somebody is inside, or whoever enters sees that it is closed."""
        self._inside.append(None)
        if self._is_closed:
            self._leave()
            raise HandleClosed("consumer")

    def _leave(self) -> None:
        self._inside.pop()
        if self._is_closed and not self._inside:
            self._release()

    def _release(self) -> None:
        """By whoever comes first."""
        if self._releasing.acquire(blocking=False):
            self._left_at = self._attached.positions
            self._reader.close()
            self._sleep.release()

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
    def sequence(self) -> int:
        """Of the item that was read last: its number in its ring, or the generation of a table; 0 before the first."""
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
        return self._attached.positions if self._left_at is None else self._left_at

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
        return self._is_closed

    def wake(self, *, is_shared_out: bool = False) -> None:
        """From any thread: the channel changed, or is shared out anew within its groups. Look at once."""
        is_of_group = is_shared_out and self._wanted.group is not None
        if is_of_group:
            self._share.is_stale = True
        if not is_of_group or self.registration is None:  # who is not registered has no share, and may get one now
            self._enrolment.doubt()
        self._sleep.wake()

    def close(self) -> None:
        """Values that were handed out stay valid. Whoever reads gets None, and a loop ends. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if self._inside:
                self._sleep.wake()
            else:
                self._release()
            self._enrolment.close()
            self._forget(self)

    async def close_async(self) -> None:
        """As `close`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._is_closed:
            self.acknowledge()
        await self.close_async()

    def _is_forgotten(self) -> bool:
        return not self._is_closed

    def _named(self) -> str:
        return f"the consumer of channel {self.channel!r} (close it, or use `with hub.consumer(…) as consumer:`)"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else (self.source or "waiting for a producer")
        return f"<Consumer {self.channel!r}: {state}>"

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._is_closed:
            self.acknowledge()
        self.close()
