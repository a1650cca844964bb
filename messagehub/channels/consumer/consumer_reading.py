"""Reading a consumer: threads and tasks take turns, sleep while nothing is there, and are told when it is closed.

Rule 1: each item goes to one of those who read.
Rule 2: `close` may come from anywhere, also while somebody reads. The last one out releases what readers use.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from messagehub.channels.consumer.attachments import Attachments
from messagehub.channels.consumer.channel_reader import ChannelReader
from messagehub.channels.consumer.consumer_share import ConsumerShare
from messagehub.channels.consumer.enrolment import Enrolment
from messagehub.channels.consumer.fast_path import FastPath
from messagehub.channels.consumer.group_mates import GroupMate, GroupName, Reader, ShareIn
from messagehub.channels.consumer.sleeping import WakeableSleep
from messagehub.channels.consumer.start import Positions
from messagehub.channels.consumer.turn_lock import TurnLock
from messagehub.channels.items import ReadItem
from messagehub.errors import HubError
from messagehub.runtime.event_loop import LoopShare, running_loop
from messagehub.shm.errors import HandleClosed

log = logging.getLogger("messagehub")

DECIDE_SECONDS = 2.0
"""So long `latest` waits for an answer where there would be nothing without it."""


class ConsumerReading:
    """It refers to no consumer, so that dropping a consumer frees it at once."""

    def __init__(
        self,
        reader: ChannelReader,
        attached: Attachments,
        share: ConsumerShare,
        enrolment: Enrolment,
        sleep: WakeableSleep,
        group: GroupName | None,
    ) -> None:
        self.is_closed = False
        self._reader = reader
        self._attached = attached
        self._share = share
        self._enrolment = enrolment
        self._fast_path: FastPath = reader.fast_path
        self._sleep = sleep
        self.loop_share = LoopShare()
        self._turns = TurnLock()
        self._left_at: Positions | None = None  # where it stood when it was closed
        self._releasing = threading.Lock()
        self._inside: list[None] = []  # one for each call that uses what `close` releases
        self._mate: GroupMate | None = None
        self._group = group
        if group is not None:
            self._mate = attached.mate = GroupMate(group, self.keep_up)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, timeout: float | None) -> Any:
        """Return what `Consumer.read` returns, where the fast path did not lead to it."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._enter()
        try:
            if self._turns.take_now():
                try:
                    return self._read_by_fast_path(timeout, deadline)
                finally:
                    self._turns.give()
            if not self._turns.take(deadline, self._is_unusable):
                self._check_process()
                return None
            try:
                return self._read(deadline)
            finally:
                self._turns.give()
        finally:
            self._leave()

    def _read_by_fast_path(self, timeout: float | None, deadline: float | None) -> Any:
        """Try the fast path first, and read everything else if it gives nothing. The caller has the turn."""
        fast_path = self._fast_path
        if (value := fast_path.next()) is not None:
            return value
        fast_path.pause()
        if timeout != 0 and (value := fast_path.wait(timeout)) is not None:
            fast_path.resume()
            return value
        if timeout == 0 and fast_path.is_quiet() and self._sleep.is_quiet(self._attached.news_fds()):
            if self._enrolment.registration is not None:
                self._enrolment.registration.check_open()
            fast_path.resume()
            return None
        return self._read(deadline)

    def _read(self, deadline: float | None) -> Any:
        """Read from all rings and tables. The caller has the turn."""
        self._begin()
        try:
            self._done_with_last(threading.current_thread)
            return self._next(deadline)
        finally:
            self._settle()

    def _done_with_last(self, reading: Callable[[], Reader]) -> None:
        """In a group: say that what was read before is done. `reading` gives the thread or task that reads now."""
        if self._mate is not None:
            self._mate.is_read_by(reading())
        if self._share.unacknowledged is not None:
            self._share.done_with_last()

    def _next(self, deadline: float | None) -> Any:
        while True:
            is_done, value = self._next_or_arm(deadline)
            if not is_done:
                readers, until = self._attached.readers, self._reader.sleep_until(deadline)
                ready = self._sleep.sleep(readers, until, self._attached.news_fds())
                is_done, value = self._after_sleep(ready, deadline)
            if is_done:
                return value

    async def _next_async(self, deadline: float | None) -> Any:
        while True:
            is_done, value = self._next_or_arm(deadline)
            if not is_done:
                readers, until = self._attached.readers, self._reader.sleep_until(deadline)
                ready = await self._sleep.sleep_async(readers, until, self._attached.news_fds())
                self.loop_share.restart()
                is_done, value = self._after_sleep(ready, deadline)
            if is_done:
                return value

    def _next_or_arm(self, deadline: float | None) -> tuple[bool, Any]:
        """Return whether the read is done, and its value. If it is not, whatever comes ends the sleep that follows."""
        while not self.is_closed:
            found, value = self._reader.next()
            if found:
                return True, value
            if self._has_no_more(deadline):
                return True, None
            self._check_process()
            if not self._reader.arm():
                return False, None
        return True, None

    def _after_sleep(self, ready: set[int], deadline: float | None) -> tuple[bool, Any]:
        """Return whether the read is done, and its value. `ready`: the descriptors that ended the sleep, but rings'."""
        if self.was_closed():
            return True, None
        if not ready and (value := self._fast_path.next()) is not None:
            self._reader.keep_sequence()
            return True, value  # a ring woke us, and nothing else did
        self._reader.after_sleep(was_woken=self._sleep.was_woken(ready), has_news=bool(ready))
        if not self._is_late(deadline):
            return False, None
        self._reader.disarm()
        return True, self._reader.next()[1]

    def _begin(self) -> None:
        """Prepare to use more than the fast path. The caller has the turn."""
        self._fast_path.pause()
        self._reader.begin()

    def _settle(self) -> None:
        """Open the fast path again, if there is one, before the turn is given back."""
        self._reader.settle(self._sleep.fileno())

    async def read_async(self, timeout: float | None) -> Any:
        """Do as `read` does, sleeping in the running event loop, which other tasks share however much there is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self._enter()
        try:
            if self.loop_share.is_due():
                await self.loop_share
            if (value := self._fast_path.take()) is not None:
                return value
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
        """Read from all rings and tables. The caller has the turn."""
        if (value := self._fast_path.next()) is not None:
            return value
        self._begin()
        try:
            self._done_with_last(asyncio.current_task)
            return await self._next_async(deadline)
        finally:
            self._settle()

    def _has_no_more(self, deadline: float | None) -> bool:
        if self._enrolment.registration is not None:
            self._enrolment.registration.check_open()
        return deadline is None and self._reader.is_over()

    def _is_late(self, deadline: float | None) -> bool:
        return deadline is not None and not self._reader.has_stash() and time.monotonic() >= deadline

    def latest_item(self) -> ReadItem | None:
        """As `latest`, with the item's number, time and producer."""
        self._enter()
        try:
            deadline = time.monotonic() + DECIDE_SECONDS
            while True:
                seen = self._enrolment.changes
                has_looked = self._look_in_passing()
                found = self._reader.newest()
                if found is not None:
                    return found
                may_wait = has_looked or running_loop() is None  # else a task of this loop may be who is to look
                if not (may_wait and self._enrolment.await_change(seen, deadline)):
                    break
            self._enrolment.check_known(seen)  # None says that nobody has anything
            return None
        finally:
            self._leave()

    def _look_in_passing(self) -> bool:
        """Return whether this thread has looked; else somebody reads."""
        has_turn = self._turns.take_now()
        if has_turn:
            try:
                self._begin()
                self._reader.look_in_passing()
            finally:
                self._settle()
                self._turns.give()
        else:
            self._check_process()  # who reads now follows the channel, for this thread too
        if self._enrolment.registration is not None:
            self._enrolment.registration.check_open()
        return has_turn

    def acknowledge(self) -> None:
        """Say that a member of a group is done with what it read last."""
        self._enter()
        try:
            self._share.done_with_last()
        finally:
            self._leave()

    def keep_up(self) -> ShareIn | None:
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
                log.debug("a member of %s cannot take its share: %s", self._group, error)
            finally:
                self._turns.give()
            return self._attached.member_share
        finally:
            self._leave()

    def _is_unusable(self) -> bool:
        return self.is_closed or not self._sleep.is_possible

    def _check_process(self) -> None:
        """Refuse to go on in a forked child: the consumer is the parent's."""
        if not self._sleep.is_possible and not self.is_closed:
            raise HandleClosed("consumer")

    # -- closing while somebody reads ----------------------------------------------------------------------

    def close(self) -> None:
        """End what is read now, and release what it uses."""
        self.is_closed = True
        self._fast_path.close()
        if self._inside:
            self._sleep.wake()
        else:
            self._release()

    def was_closed(self) -> bool:
        """Return whether another thread or task has closed it meanwhile."""
        return self.is_closed

    def _enter(self) -> None:
        """Before using what `close` releases. There is no lock, so that a signal handler may close at any moment:
        either `close` sees that somebody is inside, or whoever enters sees that it is closed."""
        self._inside.append(None)
        if self.is_closed:
            self._leave()
            raise HandleClosed("consumer")

    def _leave(self) -> None:
        self._inside.pop()
        if self.is_closed and not self._inside:
            self._release()

    def _release(self) -> None:
        """Release what readers use. The first caller does it."""
        if self._releasing.acquire(blocking=False):
            self._left_at = self._attached.positions
            self._reader.close()
            self._sleep.release()

    @property
    def position(self) -> Positions:
        """Where the consumer stands, or stood when it was closed."""
        return self._attached.positions if self._left_at is None else self._left_at
