"""All rings and tables of a channel as one sequence of items. Whoever has the turn at a consumer calls it.

Rule 1: what was lost is counted in `missed` and told as `on_lag` says, never skipped in silence.
Rule 2: data comes from the rings and tables themselves: a broker that stops, starts or never was changes nothing.
"""

import logging
import time
from typing import Any

from messagehub.channels.consumer.attachments import Attachments
from messagehub.channels.consumer.consumer_options import ConsumerOptions
from messagehub.channels.consumer.consumer_share import ConsumerShare
from messagehub.channels.consumer.enrolment import Enrolment, Undecided
from messagehub.channels.consumer.expected_schema import ExpectedSchema
from messagehub.channels.consumer.fast_path import FastPath
from messagehub.channels.consumer.start import Positions
from messagehub.channels.items import AnyRing, LastRead, ReadItem, item_from, newest_of
from messagehub.channels.table_generations import TableGenerations
from messagehub.errors import DataLost, HubError
from messagehub.shm.errors import AssignmentChanged, BlockOnOtherHost, MemberTaken, StreamEnded, UnexpectedSchema
from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.reader import RingReader

log = logging.getLogger("messagehub")


class ChannelReader:
    def __init__(
        self,
        options: ConsumerOptions,
        attached: Attachments,
        tables: TableGenerations,
        expected: ExpectedSchema,
        share: ConsumerShare,
        enrolment: Enrolment,
        fast_path: FastPath,
    ) -> None:
        self.fast_path = fast_path
        self.missed = 0
        self.last = LastRead()
        self._options = options
        self._is_member = options.group is not None
        self._attached = attached
        self._tables = tables
        self._expected = expected
        self._share = share
        self._enrolment = enrolment
        self._stash: tuple[AnyRing, Item | Gap] | None = None  # taken while the rings were armed
        self._sequence = 0
        self._has_read = False
        self._has_told_of_loss = False

    # -- reading -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Prepare to use more than the fast path. The caller has the turn."""
        self.keep_sequence()
        self.fast_path.start()

    def keep_sequence(self) -> None:
        """Note the number of the value that the fast path gave last, which it forgets in `settle`."""
        self._sequence = self.sequence

    def settle(self, wake_fd: int) -> None:
        """Open the fast path, if this consumer has one, before the turn is given back. `wake_fd` ends a sleep."""
        fast_path, attached = self.fast_path, self._attached
        only = attached.readers[0] if len(attached.readers) == 1 else None
        if (
            only is not None
            and self._stash is None
            and self._has_read
            and not self._enrolment.has_news
            and self._expected.is_as_written
            and only.follow(self.last)
        ):
            may_sleep = self._options.follow and not (
                attached.has_tables or attached.look_at is not None or self._enrolment.must_ask()
            )
            fast_path.set(only, (wake_fd, *attached.news_fds()) if may_sleep else None)
        else:
            fast_path.set(None, None)
        fast_path.resume()

    @property
    def sequence(self) -> int:
        """The number of the item that was read last, by any thread."""
        return self.fast_path.sequence or self._sequence

    def next(self) -> tuple[bool, Any]:
        """Return whether something is there, and what."""
        if not self._has_read:
            self._has_read = True
            self._attached.set_waited_for(True)
        while True:
            found = self._take()
            if found is None:
                return self._next_table()
            reader, taken = found
            if isinstance(taken, Item):
                self._sequence = taken.sequence
                self.last.origin = taken.sequence, taken.written_ns, taken.producers
                if self._is_member:
                    self._share.unacknowledged = (reader, taken.sequence)
                return True, self._expected.applied(taken.value)
            self._count(taken)
            if self._options.on_lag == "gap":
                return True, taken

    def _take(self) -> tuple[AnyRing, Item | Gap] | None:
        """Take from the rings in turn: a ring that was read goes to the end of the line."""
        if self._stash is not None:
            found, self._stash = self._stash, None
            return found
        share = self._share
        enrolment = self._enrolment
        if (
            enrolment.has_news
            or share.has_answer
            or (share.is_stale and share.is_wanted())
            or enrolment.must_ask_elsewhere()
        ):
            self.look()
        readers = self._attached.readers
        try:
            for place, reader in enumerate(readers):
                taken = self._taken(reader)
                if taken is not None:
                    if len(readers) > 1:
                        readers.append(readers.pop(place))
                    return reader, taken
        except AssignmentChanged:
            share.supersede()
        return None

    def _taken(self, reader: AnyRing) -> Item | Gap | None:
        """Take from a ring. One of another host that breaks off is asked for again with the next look."""
        try:
            return reader.take()
        except HubError as error:
            if self._goes_on_without(reader, error):
                return None
            raise

    def _goes_on_without(self, reader: AnyRing, error: HubError) -> bool:
        """Let go of a ring of another host that broke off; return whether the others are read without it."""
        if not isinstance(reader, RingReader):
            self._enrolment.doubt()  # before it is let go of: whoever does not find it asks
            self._attached.failed(reader)
        is_skipped = self._attached.skips(error)
        if isinstance(error, BlockOnOtherHost) and not is_skipped:
            self._enrolment.refuse(error)
        return is_skipped

    def _next_table(self) -> tuple[bool, Any]:
        if not self._attached.has_tables:
            return False, None
        try:
            found = self._tables.next()
        except Undecided:
            return False, None
        if found is None:
            return False, None
        self.last.origin, table = found
        self._sequence = self.last.origin[0]
        return True, table

    def _count(self, lost: Gap) -> None:
        self.missed += lost.last - lost.first + 1
        channel = self._options.channel
        happened = f" {lost.why}." if lost.why else ""
        if self._options.on_lag == "raise":
            raise DataLost(
                f"channel {channel!r}: items {lost.first} to {lost.last} were overwritten unread.{happened}",
                first=lost.first,
                last=lost.last,
            )
        if self._options.on_lag == "skip" and not self._has_told_of_loss:
            self._has_told_of_loss = True
            advice = happened or " Give the producer more capacity or when_full='block', or read faster."
            log.warning(
                "channel %r: items %d to %d were overwritten before they were read.%s Reading goes on, and `missed`"
                " counts what is lost; on_lag='raise' or 'gap' tells of every loss",
                channel,
                lost.first,
                lost.last,
                advice,
            )

    # -- waiting -------------------------------------------------------------------------------------------

    def arm(self) -> bool:
        """Have the rings wake whoever sleeps. Return whether there is something to do before sleeping."""
        if self._enrolment.must_ask() or self._enrolment.is_refused:
            self.look()
        if self._share.has_answer or self._enrolment.has_news:
            return True
        if self._share.is_wanted():
            return self._share.ask_at() <= time.monotonic()
        if self._share.is_superseded:
            return False  # the broker's answer wakes us
        for reader in list(self._attached.readers):
            try:
                taken = reader.arm()
            except StreamEnded:
                self._attached.ended(reader)
                self.look()
                return True
            except AssignmentChanged:
                self._share.supersede()
                return True
            except HubError as error:
                if self._goes_on_without(reader, error):
                    return True
                raise
            if taken is not None:
                self._stash = (reader, taken)
                return True
        return False

    def disarm(self) -> None:
        for reader in self._attached.readers:
            reader.disarm()

    def sleep_until(self, deadline: float | None) -> float | None:
        """Return until when to sleep: the deadline, or when something is due before."""
        times = [deadline, self._attached.look_at, self._enrolment.ask_at()]
        times.append(self._share.ask_at() if self._share.is_wanted() else None)
        for reader in self._attached.readers:
            pause = reader.look_seconds()
            times.append(None if pause is None else time.monotonic() + pause)
        return min((each for each in times if each is not None), default=None)

    def after_sleep(self, *, was_woken: bool, has_news: bool) -> None:
        """Look again, if that is due, the sleeper `was_woken`, or the kernel `has_news`."""
        is_due = was_woken or (self._attached.look_at is not None and time.monotonic() >= self._attached.look_at)
        if has_news and self._attached.has_news():
            if self._enrolment.registration is None:  # else this host's directory is all that there is to know
                self._enrolment.doubt()
            is_due = True
        if is_due:
            self.look()

    # -- finding -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Attach to what is here. Where that is unsure, ask first: it may be on another host, or not yet registered."""
        self.fast_path.set(None, None)  # until it is known what is read from now on
        self._enrolment.update()
        self._share.update()
        self._enrolment.catch_up()
        if self._enrolment.is_awaited():
            return  # what is here is attached when it is known that it is not elsewhere
        not_known = self._enrolment.why_unknown()  # before: what is opened from now on may not be attached by this
        try:
            self._attach()
        except (AssignmentChanged, MemberTaken):
            self._share.supersede()
        except Undecided:
            return
        else:
            self._enrolment.attached(not_known)
        if self._enrolment.source is None and self.has_met_any():
            is_known = self._attached.is_listed or self._attached.has_tables
            self._enrolment.source = "files" if is_known else "shm"

    def look_in_passing(self) -> None:
        """As `look`. A consumer that has never read is not one that a blocking producer waits for."""
        if not self._has_read:
            self._attached.set_waited_for(False)
        for reader in list(self._attached.readers):
            failure = None if isinstance(reader, RingReader) else reader.failure
            is_read = self._has_read and reader.has_unread()  # then reading tells of it, after what came before
            if isinstance(failure, BlockOnOtherHost) and not is_read:
                self._goes_on_without(reader, failure)
        self.look()

    def _attach(self) -> None:
        try:
            self._attached.look(self._enrolment.told)
        except UnexpectedSchema as unexpected:
            if not self._enrolment.ask_again(unexpected.schema_hash):
                raise self._expected.unreadable(unexpected.written, unexpected.schema_hash) from None
            self._attach()
        else:
            self._enrolment.told = []

    # -- from any thread -----------------------------------------------------------------------------------

    def newest(self) -> ReadItem | None:
        """Return the newest item of all rings, or the newest table if that is newer."""
        channel = self._options.channel
        found = newest_of(self._attached.readers)
        if self._attached.has_tables:
            try:
                table = self._tables.newest(after_ns=-1 if found is None else found.written_ns)
            except Undecided:
                table = None
            except BlockOnOtherHost as error:
                self._attached.miss_table(error)
                self._enrolment.doubt()
                raise
            if table is not None:
                return item_from(channel, *table)
        if found is None:
            return None
        origin = found.sequence, found.written_ns, found.producers
        return item_from(channel, origin, self._expected.applied(found.value))

    def has_met_any(self) -> bool:
        return self._attached.has_met_any or self._attached.has_tables

    def has_stash(self) -> bool:
        return self._stash is not None

    def has_ended(self) -> bool:
        return self._stash is None and self._attached.has_ended(follow=self._options.follow)

    def is_over(self) -> bool:
        """Ended, and nobody has begun again since."""
        if self.has_ended():
            self.look()
        return self.has_ended() and not self._enrolment.is_asking()

    def lag(self) -> int:
        unread = sum(reader.lag for reader in list(self._attached.readers))
        if self._stash is not None and isinstance(self._stash[1], Item):
            unread += 1
        return unread + self._tables.unread() if self._attached.has_tables else unread

    def schema(self) -> Any:
        """Return the schema or dtype of what is read; None for raw bytes, and while nothing is known of it."""
        if self._options.expected_schema is not None:
            return self._options.expected_schema
        if self._attached.schema is None and self._attached.has_tables:
            return self._tables.schema()
        return self._attached.schema

    @property
    def positions(self) -> Positions:
        return self._attached.positions

    def close(self) -> None:
        self._stash = self._share.unacknowledged = None
        self._attached.close()
