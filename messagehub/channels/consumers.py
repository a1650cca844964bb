"""A consumer: everything of a channel, whoever produces it, as values that share memory with their producers.

Rule 1: the schema hash is compared before the first byte of a payload is used. Data of another schema that the registry
calls compatible is handed out in the expected one.
Rule 2: what was lost is counted in `missed` and told as `on_lag` says, never skipped in silence.
Rule 3: data comes from the rings and tables themselves: a broker that stops, starts or never was changes nothing.
Rule 4: in a group, an item is done when the next one is asked for (or with `acknowledge`); what a member had not done
when it died goes to another.
Rule 5: data of another host is an error that names the host. A block of the same name on this host is not that data.
Rule 6: nobody is asked again and again: the kernel tells of this host's directory, the broker's events of the rest.
Rule 7: once it is made, whoever reads never waits for a broker: the background asks, and its answer wakes the reader.
Rule 8: `close` may come from anywhere, also while somebody reads. The last one out releases what readers use.
"""

import asyncio
import contextlib
import copy
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, NamedTuple

from messagehub.arguments import seconds
from messagehub.channels.attachments import Attachments, Choice
from messagehub.channels.expected_schema import ExpectedSchema
from messagehub.channels.hosts import hosts_elsewhere
from messagehub.channels.items import (
    LastRead,
    ReadItem,
    item_from,
    newest_of,
    producer_id_of,
    schema_of_table,
    table_origin,
)
from messagehub.channels.questions import Question, RunLater
from messagehub.channels.start import Positions, Start
from messagehub.channels.turns import Turns
from messagehub.client.heartbeats import Registration
from messagehub.discovery import Discovery, Source
from messagehub.errors import (
    BrokerRequired,
    ChannelNotFound,
    DataLost,
    HubError,
    SchemaMismatch,
    is_unable,
)
from messagehub.runtime.event_loop import LoopShare
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.shm.directory import Directory
from messagehub.shm.entries import block_path
from messagehub.shm.errors import (
    AssignmentChanged,
    HandleClosed,
    MemberTaken,
    PayloadSchemaMismatch,
    StreamEnded,
    TableMissing,
)
from messagehub.shm.locks import Descriptor
from messagehub.shm.read_results import Gap, Item
from messagehub.shm.reader import Copy, RingReader
from messagehub.shm.tables import TableStore
from messagehub.shm.waiting import Sleeper
from registry import replies

log = logging.getLogger("messagehub")

OnLag = Literal["gap", "raise", "skip"]
REASSIGN_SECONDS = 0.05
ASK_SECONDS = 1.0  # so long the broker may take to say where a channel is, and what of it can be read


class _Undecided(Exception):
    """Nobody has said yet whether this can be read."""


class Wanted(NamedTuple):
    """What a consumer asked for."""

    channel: str
    start: Start
    expected_schema_hash: str | None
    expected_schema: Any  # an Arrow schema or a dtype, where one was given
    group: str | None
    on_lag: OnLag
    follow: bool
    lossless: bool
    verify: bool
    copy: Copy = "auto"


class Consumer(ClosedWhenForgotten):
    """Made by `hub.consumer`. Threads and tasks may share it: each item goes to one of them. In a forked child it is
    closed."""

    def __init__(
        self,
        wanted: Wanted,
        directory: Directory,
        *,
        made_by: float,
        timeout: float,
        discover: Callable[[float], Discovery | None],
        register: Callable[[float], Registration],
        renew: Callable[[Registration, Callable[[HubError | None], None]], None],
        arrow_schema: Callable[[str, float], Any],
        run_later: RunLater,
        listen: Callable[["Consumer"], None],
        forget: Callable[["Consumer"], None],
        keeps: object,
    ) -> None:
        """`made_by` (`time.monotonic()`) bounds the making, `timeout` what is asked later.

        Each within so many seconds, `discover` asks all sources, `register` says who reads, and `arrow_schema` gives a
        registered Arrow schema by its hash. `run_later` runs such a question on another thread.
        `renew` has the broker asked once more for what holds now, and calls back on another thread. From `listen` on,
        until `forget`, the broker's events about the channel call `wake`. `keeps` lives as long as this does.
        """
        self.channel = wanted.channel
        self.source: Source | None = None
        self.sequence = 0
        self.missed = 0
        self.registration: Registration | None = None
        self._wanted = wanted
        self._directory = directory
        self._timeout = timeout
        self._made_by: float | None = made_by
        self._discover, self._register, self._renew = discover, register, renew
        self._forget, self._keeps = forget, keeps
        self._run_later = run_later
        self._where: Question[Discovery | None] = Question(None)
        self._enrolment: Question[None] = Question(None)
        self._readable: Question[bool] = Question(otherwise=False)
        self._has_news = False  # one of them was answered
        self._refusal: HubError | None = None
        self._told: list[str] = []  # the rings that others know of, until they are looked at
        is_member = wanted.group is not None
        self._expected = ExpectedSchema(
            wanted.channel, wanted.expected_schema_hash, wanted.expected_schema, registered=arrow_schema
        )
        choice = Choice(wanted.start, self._expected.readable, wanted.lossless, wanted.verify, is_member, wanted.copy)
        self._attached = Attachments(directory, wanted.channel, choice)
        self._tables = TableStore(directory.tables_path(wanted.channel))
        self._generation = self._before_first_table()
        self._epoch = -1
        self._unacknowledged: tuple[RingReader, int] | None = None
        self._stash: tuple[RingReader, Item | Gap] | None = None
        self._share = LoopShare()
        self._turns = Turns()
        self._wake: Descriptor | None = Descriptor.eventfd()
        self._is_unsure = True  # where the channel is: ask
        self._has_told_of_loss = self._has_told_of_hosts = False
        self._is_stale = self._is_superseded = self._is_asking = self._has_answer = False
        self._asked_at = 0.0
        self._sleeper = Sleeper()
        self._last, self._has_read = LastRead(), False
        self._left_at: Positions | None = None  # where it stood when it was closed
        self._is_closed, self._releasing = False, threading.Lock()
        self._inside: list[None] = []  # one for each call that uses what `close` releases
        try:
            listen(self)  # before anybody is asked: an event that comes after the answer changes it
            self._look()
        except BaseException:
            self.close()
            raise
        self._made_by = None
        self._opened_in = os.getpid()
        if not (self._attached.has_met_any or self._attached.has_tables):
            log.warning("nobody produces channel %r yet on this host; its consumer waits", self.channel)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, timeout: float | None = None) -> Any:
        """The next batch, array, bytes or table; None at the timeout.

        Without a timeout: None when the stream has ended (`has_ended`). None too when the consumer is closed meanwhile.
        ChannelClosed when the channel was destroyed and all that is there was read; HandleClosed when the consumer was
        closed before.
        """
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        self._enter()
        try:
            if not self._turns.take(deadline, self._is_unusable):
                self._check_process()
                return None
            try:
                return self._read(deadline)
            finally:
                self._turns.give()
        finally:
            self._leave()

    def _read(self, deadline: float | None) -> Any:
        """With the turn."""
        self._done_with_last()
        while not self._is_closed:
            found, value = self._next()
            if found:
                return value
            if self._has_no_more(deadline):
                return None
            if not self._arm():
                until = self._sleep_until(deadline)
                fds = [self._wake_fd, *self._attached.news_fds()]
                ready = self._sleeper.sleep(self._attached.readers, until, fds)
                if self._was_closed():
                    return None
                self._after_sleep(ready)
                if self._is_late(deadline):
                    self._disarm()
                    return self._next()[1]
        return None

    async def read_async(self, timeout: float | None = None) -> Any:
        """As `read`, sleeping in the running event loop, which other tasks share however much there is to read."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        self._enter()
        try:
            if self._share.is_due():
                await self._share
            if not self._turns.take_now() and not await self._turns.take_async(deadline, self._is_unusable):
                self._check_process()
                return None
            try:
                return await self._read_async(deadline)
            finally:
                self._turns.give()
        finally:
            self._leave()

    async def _read_async(self, deadline: float | None) -> Any:
        """With the turn."""
        self._done_with_last()
        while not self._is_closed:
            found, value = self._next()
            if found:
                return value
            if self._has_no_more(deadline):
                return None
            if not self._arm():
                ready = await self._sleep_async(self._sleep_until(deadline))
                self._share.restart()
                if self._was_closed():
                    return None
                self._after_sleep(ready)
                if self._is_late(deadline):
                    self._disarm()
                    return self._next()[1]
        return None

    def _has_no_more(self, deadline: float | None) -> bool:
        if self.registration is not None:
            self.registration.check_open()
        return deadline is None and self._is_over()

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and self._stash is None and time.monotonic() >= deadline

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
                    if not self._has_read:
                        self._attached.set_waited_for(False)
                    self._look()
                finally:
                    self._turns.give()
            else:
                self._check_process()  # who reads now follows the channel, for this thread too
            if self.registration is not None:
                self.registration.check_open()
            return self._newest()
        finally:
            self._leave()

    def acknowledge(self) -> None:
        """In a group: what was read last is done. Asking for the next one says the same."""
        self._enter()
        try:
            self._done_with_last()
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

    def _is_over(self) -> bool:
        """Ended, and nobody has begun again since."""
        if self.has_ended:
            self._look()
        return self.has_ended and not self._where.is_asked

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
            self._stash = self._unacknowledged = None
            self._left_at = self._attached.positions
            self._attached.close()
            self._wake = None  # closed by whoever refers to it last

    # -- what it knows -------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Everything was read, nobody produces any more, and a stream was closed while this consumer was there.

        With `follow=False` nobody has to have produced since. Somebody may still begin again.
        """
        return self._stash is None and self._attached.has_ended(follow=self._wanted.follow)

    @property
    def position(self) -> Positions:
        """Give it as `start` to go on after the last item read. It may go through JSON on the way."""
        return self._attached.positions if self._left_at is None else self._left_at

    @property
    def schema(self) -> Any:
        """The Arrow schema or NumPy dtype of what is read; None for raw bytes, and while nothing is known of it."""
        if self._wanted.expected_schema is not None:
            return self._wanted.expected_schema
        known = self._tables.generations() if self._attached.schema is None and self._attached.has_tables else []
        return self._attached.schema if not known else schema_of_table(self._tables, known[-1])

    @property
    def lag(self) -> int:
        """How many items have been written that this consumer has not read, lost ones included."""
        unread = sum(reader.lag for reader in list(self._attached.readers))
        if self._stash is not None and isinstance(self._stash[1], Item):
            unread += 1
        if self._attached.has_tables:
            unread += sum(generation > self._generation for generation in self._tables.generations())
        return unread

    @property
    def written_at(self) -> float:
        """When the item was written that this thread has read last, in seconds since 1970; 0 before the first."""
        return self._last.origin[1] / 1e9

    @property
    def producer_id(self) -> str | None:
        """Who wrote the item that this thread has read last; None before the first, and of a table."""
        return producer_id_of(self.channel, self._last.origin)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def wake(self, *, is_shared_out: bool = False) -> None:
        """From any thread: the channel changed, or is shared out anew within its groups. Look at once."""
        is_of_group = is_shared_out and self._wanted.group is not None
        if is_of_group:
            self._is_stale = True
        if not is_of_group or self.registration is None:  # who is not registered has no share, and may get one now
            self._is_unsure = True
        self._ring()

    def _ring(self) -> None:
        """Wake whoever reads. The descriptor is not closed while it is referred to here, so it is still ours."""
        wake = self._wake
        if wake is not None and wake.fd >= 0:
            os.eventfd_write(wake.fd, 1)

    def close(self) -> None:
        """Values that were handed out stay valid. Whoever reads gets None, and a loop ends. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if self._inside:
                self._ring()
            else:
                self._release()
            if self.registration is not None:
                self.registration.close()
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

    # -- inside --------------------------------------------------------------------------------------------

    def _next(self) -> tuple[bool, Any]:
        """Whether something is there, and what."""
        if not self._has_read:
            self._has_read = True
            self._attached.set_waited_for(True)
        while True:
            found = self._take()
            if found is None:
                return self._next_table()
            reader, taken = found
            if isinstance(taken, Item):
                self.sequence = taken.sequence
                self._last.origin = taken.sequence, taken.written_ns, taken.producers
                if self._wanted.group is not None:
                    self._unacknowledged = (reader, taken.sequence)
                return True, self._expected.applied(taken.value)
            self._count(taken)
            if self._wanted.on_lag == "gap":
                return True, taken

    def _count(self, lost: Gap) -> None:
        self.missed += lost.last - lost.first + 1
        if self._wanted.on_lag == "raise":
            raise DataLost(
                f"channel {self.channel!r}: items {lost.first} to {lost.last} were overwritten unread",
                first=lost.first,
                last=lost.last,
            )
        if self._wanted.on_lag == "skip" and not self._has_told_of_loss:
            self._has_told_of_loss = True
            log.warning(
                "channel %r: items %d to %d were overwritten before they were read. Reading goes on, and `missed`"
                " counts what is lost. Give the producer more capacity or when_full='block', or read faster;"
                " on_lag='raise' or 'gap' tells of every loss",
                self.channel,
                lost.first,
                lost.last,
            )

    def _take(self) -> tuple[RingReader, Item | Gap] | None:
        """From the rings in turn: who was read goes to the end of the line."""
        if self._stash is not None:
            found, self._stash = self._stash, None
            return found
        if self._has_news or self._has_answer or self._wants_share():
            self._look()
        readers = self._attached.readers
        try:
            for place, reader in enumerate(readers):
                taken = reader.take()
                if taken is not None:
                    if len(readers) > 1:
                        readers.append(readers.pop(place))
                    return reader, taken
        except AssignmentChanged:
            self._is_stale = self._is_superseded = True
        return None

    def _next_table(self) -> tuple[bool, Any]:
        """The oldest generation that is newer than the one read last; a superseded one may be gone by then."""
        if not self._attached.has_tables:
            return False, None
        for generation in self._tables.generations():
            if generation > self._generation:
                try:
                    table = self._table(generation)
                except _Undecided:
                    return False, None
                self._generation = self.sequence = generation
                if table is not None:
                    self._last.origin = table_origin(self._tables, generation)
                    return True, table
        return False, None

    def _newest(self) -> ReadItem | None:
        found = newest_of(self._attached.readers)
        known = self._tables.generations() if self._attached.has_tables else []
        if known:
            origin = table_origin(self._tables, known[-1])
            if found is None or origin[1] > found.written_ns:
                with contextlib.suppress(_Undecided):
                    table = self._table(known[-1])
                    if table is not None:
                        return item_from(self.channel, origin, table)
        if found is None:
            return None
        origin = found.sequence, found.written_ns, found.producers
        return item_from(self.channel, origin, self._expected.applied(found.value))

    def _with_origin(self, value: Any) -> ReadItem | Gap | None:
        if value is None or isinstance(value, Gap):
            return value
        return item_from(self.channel, self._last.origin, value)

    def _table(self, generation: int) -> Any:
        """None if it was retired meanwhile. _Undecided where the registry has yet to say whether it can be read."""
        try:
            with self._tables.open(generation) as snapshot:
                written = snapshot.manifest.schema_hash
                if not self._expected.is_readable(written):
                    self._ask_again()
                if not self._expected.is_readable(written):
                    raise self._expected.mismatch(written)
                return self._expected.applied(snapshot.table(verify=self._wanted.verify))
        except TableMissing:
            return None

    def _arm(self) -> bool:
        """Whether there is something to do before sleeping."""
        self._check_process()
        if self._must_ask():
            self._look()
        if self._has_answer or self._has_news:
            return True
        if self._wants_share():
            return self._stale_until() <= time.monotonic()
        if self._is_superseded:
            return False  # the broker's answer wakes us
        for reader in list(self._attached.readers):
            try:
                taken = reader.arm()
            except StreamEnded:
                self._attached.ended(reader)
                self._look()
                return True
            except AssignmentChanged:
                self._is_stale = self._is_superseded = True
                return True
            if taken is not None:
                self._stash = (reader, taken)
                return True
        return False

    def _is_unusable(self) -> bool:
        return self._is_closed or self._wake_fd < 0

    def _check_process(self) -> None:
        """Refuse to go on in a forked child: the consumer is the parent's."""
        if self._wake_fd < 0 and not self._is_closed:
            raise HandleClosed("consumer")

    def _disarm(self) -> None:
        for reader in self._attached.readers:
            reader.disarm()

    def _sleep_until(self, deadline: float | None) -> float | None:
        is_due = self._wants_share()
        times = [deadline, self._attached.look_at, self._stale_until() if is_due else None]
        for reader in self._attached.readers:
            pause = reader.look_seconds()
            times.append(None if pause is None else time.monotonic() + pause)
        return min((each for each in times if each is not None), default=None)

    @property
    def _wake_fd(self) -> int:
        return -1 if self._wake is None else self._wake.fd

    def _wants_share(self) -> bool:
        """Whether the broker is to be asked what is ours. Who is not registered has nothing to ask for."""
        return self._is_stale and not self._is_asking and self.registration is not None

    def _stale_until(self) -> float:
        return self._asked_at + REASSIGN_SECONDS

    def _after_sleep(self, ready: set[int]) -> None:
        is_due = self._attached.look_at is not None and time.monotonic() >= self._attached.look_at
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
            ready.discard(self._wake_fd)
            is_due = True
        if ready and self._attached.has_news():
            self._is_unsure |= self.registration is None  # else this host's directory is all that there is to know
            is_due = True
        if is_due:
            self._look()

    async def _sleep_async(self, until: float | None) -> set[int]:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        own = [fd for reader in self._attached.readers for fd in reader.wake_fds()]
        fds = [self._wake_fd, *self._attached.news_fds(), *own]
        for fd in fds:
            loop.add_reader(fd, woken.set)
        try:
            await asyncio.wait_for(woken.wait(), None if until is None else max(until - time.monotonic(), 0.0))
        except TimeoutError:
            pass  # the caller looks at its deadline
        finally:
            for fd in fds:
                loop.remove_reader(fd)
        return self._sleeper.sleep(self._attached.readers, 0.0, fds[: len(fds) - len(own)])

    # -- finding -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Attach to what is here. Where that is unsure, ask first: it may be on another host, or not yet registered."""
        self._has_news = False
        try:
            self._hear_answers()
        except HubError as refused:
            self._refusal = copy.copy(refused)  # without the frames that it was raised in
            raise
        if self._must_ask() and not self._where.is_asked:
            self._is_unsure = False
            if self._made_by is not None:
                self._hear_where(self._find())
            else:
                self._where.ask(self._find, self._run_later, self._hear)
        if self._refusal is not None:
            raise copy.copy(self._refusal)  # the same, until whoever is asked again says otherwise
        if self._has_answer:
            self._take_share()
        if self._is_stale:
            self._renew_share()
        if self._where.is_asked and not self._where.is_answered:
            return  # what is here is attached when it is known that it is not elsewhere
        try:
            self._attach()
        except (AssignmentChanged, MemberTaken):
            self._is_stale = self._is_superseded = True
        except _Undecided:
            return
        has_data = self._attached.has_met_any or self._attached.has_tables
        if self.source is None and has_data:
            self.source = "shm" if not (self._attached.is_listed or self._attached.has_tables) else "files"

    def _must_ask(self) -> bool:
        """Nobody is asked while something is read: whatever changed elsewhere, it is what the consumer came for. And a
        member of a group gets its share first: the others wait for it."""
        is_dealt = self._is_stale or self._is_asking or self._has_answer
        return self._is_unsure and not (self.registration is not None and (is_dealt or self._attached.readers))

    def _find(self) -> Discovery | None:
        """Ask who knows the channel; refuse what is elsewhere, or cannot be read."""
        try:
            found = self._discover(self._seconds(ASK_SECONDS))
            if found is not None:
                self._check_schema(found)
                self._check_host(found)
        except BaseException:
            self._is_unsure = True  # and asked again, so that the next read says the same
            raise
        return found

    def _hear_answers(self) -> None:
        if self._where.is_answered or self._enrolment.is_answered:
            self._refusal = None
        if self._enrolment.is_answered:
            self._enrolment.take()
        if self._where.is_answered:
            self._hear_where(self._where.take())

    def _hear_where(self, found: Discovery | None) -> None:
        if found is None:
            return
        blocks = (block for block in found.blocks if block.format != "manifest")
        self._told = [block_path(self._directory, block.shm_name) for block in blocks]
        if self.registration is not None:
            return
        if self._made_by is not None:
            self._enrol(found)
        else:
            self._enrolment.ask(lambda: self._enrol(found), self._run_later, self._hear)

    def _hear(self) -> None:
        """On another thread: something that was asked is answered."""
        self._has_news = True
        self._ring()

    def _seconds(self, most: float) -> float:
        """How long what is asked now may take."""
        return most if self._made_by is None else max(self._made_by - time.monotonic(), 0.0)

    def _attach(self) -> None:
        try:
            self._attached.look(self._told)
        except PayloadSchemaMismatch as mismatch:
            if not self._ask_again():
                raise SchemaMismatch(str(mismatch), channel=self.channel) from None
            self._attach()
        else:
            self._told = []

    def _check_schema(self, found: Discovery) -> None:
        """Without a registry's verdict the hashes must be equal. A channel that nobody produces has none."""
        is_readable = found.schema_hash is None or self._expected.is_readable(found.schema_hash)
        if found.source != "broker" and not is_readable:
            raise self._expected.mismatch(found.schema_hash)

    def _check_host(self, found: Discovery) -> None:
        elsewhere = hosts_elsewhere(found, self._directory)
        if elsewhere and not self._has_told_of_hosts:
            self._has_told_of_hosts = True
            names = ", ".join(elsewhere)
            log.warning("channel %r is also produced on %s; what is here is read, that is not", self.channel, names)

    def _enrol(self, found: Discovery) -> None:
        """Register, with the broker or in the directory."""
        try:
            registration = self._register(self._seconds(self._timeout))
            registration.on_ended = _waker(self)
            self.registration = registration
            if self._is_closed:  # meanwhile
                registration.close()
                return
            self._has_answer = self._wanted.group is not None
        except ChannelNotFound:
            pass  # the broker has not seen yet what the directory shows: asked again with the next look
        except HubError as error:
            if self._wanted.group is None or not is_unable(error):
                self._is_unsure = True  # and asked again, so that the next read says the same
                raise
            if self._made_by is None:
                return  # it was there when this consumer was made: as with the channel itself, wait for it
            raise BrokerRequired(
                f"group {self._wanted.group!r} is shared out by the broker, and none answers"
            ) from error
        self.source = found.source
        self._accept()

    def _accept(self) -> bool:
        """Read too what the registry has just called compatible; returns whether that is new."""
        ack = None if self.registration is None else self.registration.ack
        if not isinstance(ack, replies.ConsumerRegistered):
            return False
        return self._expected.accept(ack.schema_hash, timeout=self._seconds(ASK_SECONDS))

    def _ask_again(self) -> bool:
        """Whether the registry, asked once more, calls another schema readable; _Undecided until it has answered."""
        if self._made_by is not None:
            return self._asks_again()
        if self._readable.is_answered:
            return self._readable.take()
        if not self._enrolment.is_asked:
            if self.registration is None or self.registration.ack is None:
                return False
            self._readable.ask(self._asks_again, self._run_later, self._hear)
        raise _Undecided

    def _asks_again(self) -> bool:
        """Ask, and wait for the answer. A refusal is raised."""
        if self.registration is None or self.registration.ack is None:
            return False
        answers: queue.SimpleQueue[HubError | None] = queue.SimpleQueue()
        self._renew(self.registration, answers.put)
        try:
            error = answers.get(timeout=min(ASK_SECONDS, self._seconds(ASK_SECONDS)))
        except queue.Empty:
            return False
        if error is None:
            return self._accept()
        if not is_unable(error) and not isinstance(error, ChannelNotFound):
            raise error
        log.debug("nobody says what else of %r can be read: %s", self.channel, error)
        return False

    def _renew_share(self) -> None:
        """Have the broker asked what is ours; until it answers, everything stays as it is."""
        if self._is_asking or self.registration is None or time.monotonic() < self._stale_until():
            return
        self._asked_at = time.monotonic()
        self._is_asking, self._is_stale = True, False
        self._renew(self.registration, self._on_share)

    def _on_share(self, error: HubError | None) -> None:
        """On the I/O thread: the broker answered, or did not."""
        if error is None:
            self._has_answer = True
        else:
            log.debug("the share of %r stays as it is: %s", self.channel, error)
            self._is_stale |= self._is_superseded  # else the next connection wakes us
        self._is_asking = False
        self._ring()

    def _take_share(self) -> None:
        self._has_answer = False
        ack = self.registration.ack if self.registration is not None else None
        dealt = ack.assignment if isinstance(ack, replies.ConsumerRegistered) else None
        if dealt is None:
            return
        self._is_superseded = False
        if dealt.epoch != self._epoch:
            self._unacknowledged = None
            self._epoch = dealt.epoch
            self._attached.deal(dealt)

    def _before_first_table(self) -> int:
        """The generation before the first one to be read; all that are committed from now on are."""
        known = self._tables.generations()
        if not known:
            return 0
        start = self._wanted.start
        if isinstance(start, int):
            return known[max(len(known) + start, 0)] - 1
        return known[-1] - 1 if start == "latest" else known[0] - 1

    def _done_with_last(self) -> None:
        if self._unacknowledged is not None:
            reader, sequence = self._unacknowledged
            self._unacknowledged = None
            try:
                reader.acknowledge(sequence)
            except AssignmentChanged:
                self._is_stale = self._is_superseded = True


def _waker(consumer: Consumer) -> Callable[[], None]:
    """Wakes it if it still exists: whoever forgets a consumer has it collected at once."""
    referred = weakref.ref(consumer)

    def wake() -> None:
        found = referred()
        if found is not None:
            found.wake()

    return wake
