"""A subscription that shares messages with the others of its group: each message goes to one of them, at most once.

Rule 1: it hears everything, and keeps its share (group_shares.py), of each of the two sockets by itself.
Rule 2: a thread says to the broker again and again that it is there, and that it is ready for a share that is proposed.
Without an answer for as long as the broker said it keeps nothing more, and counts that as lost.
Rule 3: a group is of one host. What is published on other hosts of a site is not shared, since the members there would
get it too, and each message is for one member only.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from messagehub.client.connection import Connection
from messagehub.client.registration import Registration
from messagehub.errors import BrokerUnavailable, HubError, SendTimeout, is_unable
from messagehub.protocol.topic_frames import group_prefix
from messagehub.topics.group_shares import GroupShare
from messagehub.topics.message_fates import NOT_CERTAIN, Fate, Heard, Source, source_of
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Drive, Overflow, Subscription
from registry import commands, replies
from registry.records import AskedMessage
from registry.topics.patterns import Patterns
from registry.topics.subscriber_groups import VALID_SECONDS, Mark

log = logging.getLogger("messagehub.topics")

RENEWALS = 4
"""How often the broker is told within the time that a share holds."""
READY_SECONDS = 0.1
ASK_SECONDS = 1.0
LEAVE_SECONDS = 5.0


class GroupSubscription(Subscription):
    hears_site = False

    def __init__(
        self,
        patterns: Patterns,
        command: commands.RegisterSubscriber,
        *,
        buffer: int,
        buffer_bytes: int,
        overflow: Overflow,
        connection: Connection,
        on_close: Callable[[Subscription], None],
        drive: Drive,
    ) -> None:
        super().__init__(
            patterns, buffer=buffer, buffer_bytes=buffer_bytes, overflow=overflow, on_close=on_close, drive=drive
        )
        self.group = command.name
        self._name = f"{command.name} {','.join(command.patterns)}"
        self.prefixes = (*patterns.prefixes, group_prefix(self._name))
        self._command = command
        self._connection = connection
        self._registration: Registration | None = None
        self._sharing = threading.Lock()
        self._shares = {
            is_retained: GroupShare(command.member_id, buffer, self._lost_own) for is_retained in (False, True)
        }
        self._share_starts: dict[Source, int] | None = {}
        """From which number on its share is the one of now; None: not remembered."""
        self._lost_unheard = 0
        self._valid_until = 0.0
        self._is_told = threading.Event()
        self._has_begun = threading.Event()
        self._is_leaving = False
        self._has_left = threading.Event()
        self._teller: threading.Thread | None = None

    @property
    def lost_in_group(self) -> int:
        """How many messages of its share it dropped, because it did not know whether they were still its own."""
        return self._lost_unheard + sum(share.lost for share in self._shares.values())

    @property
    def reported_as(self) -> tuple[Literal["group"], str]:
        return "group", self.group

    @property
    def lost(self) -> int:
        return super().lost + self.lost_in_group

    def start(self, registration: Registration) -> None:
        self._registration = registration
        self._teller = threading.Thread(target=self._run, name="messagehub-group", daemon=True)
        self._teller.start()

    def await_share(self, seconds: float) -> None:
        if not self._has_begun.wait(seconds):
            raise self.failure or SendTimeout(
                f"group {self.group!r} did not share {self.pattern!r} anew in time: one of its members does not answer"
            )

    def close(self, *, timeout: float = LEAVE_SECONDS) -> None:
        """Give its share to the others, then end. What was in the buffer can still be read."""
        if not self.is_closed and self._begin_leaving():
            self._has_left.wait(min(timeout, LEAVE_SECONDS))
        super().close(timeout=timeout)

    async def close_async(self, *, timeout: float = LEAVE_SECONDS) -> None:
        if not self.is_closed and self._begin_leaving():
            await asyncio.to_thread(self._has_left.wait, min(timeout, LEAVE_SECONDS))
        await super().close_async(timeout=timeout)

    def _begin_leaving(self) -> bool:
        """Return False if there is no share to give to the others: without a broker, or before the first share."""
        self._is_leaving = self._has_begun.is_set() and self._connection.hello is not None
        self._is_told.set()
        return self._is_leaving

    def unregister(self) -> None:
        """End the registration, once the subscription takes no more messages."""
        self.end()
        self._is_told.set()
        if self._teller is not None and self._teller is not threading.current_thread():
            self._teller.join(2 * ASK_SECONDS)  # what it says after that would register us again
        if self._registration is not None:
            self._registration.close()

    def _lose_loop(self) -> None:
        """End; the others of the group get the messages that come from now on."""
        self._warn_of_lost_loop("but the others of its group")
        self._give_up()
        self._lose_buffered("its event loop has ended")

    def abandon(self) -> None:
        super().abandon()
        self._sharing, self._is_told, self._teller = threading.Lock(), threading.Event(), None

    # -- on the receiving thread ---------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        if self.is_closed:
            return False
        with self._sharing:
            if not self._shares[message.is_retained].take(message):
                return False
            if time.monotonic() >= self._valid_until:
                self._lost_unheard += 1
                self._lost_own(message)
                return False
        return super().offer(message)

    def hear_mark(self, mark: Mark, *, is_retained: bool) -> bool:
        if mark.group != self._name or self.is_closed:
            return False
        if mark.members is None:
            with self._sharing:
                self._shares[is_retained].propose(mark.epoch, mark.previous, mark.gone)
            self._is_told.set()  # the thread asks what is proposed
            return False
        with self._sharing:
            share = self._shares[is_retained]
            before = share.epoch
            held = share.begin(mark.epoch, mark.previous, mark.members, is_repeated=mark.is_repeated)
            self.has_new_share = share.epoch != before
            if all(each.epoch for each in self._shares.values()):
                self._has_begun.set()
            if self._is_leaving and not any(each.has_part for each in self._shares.values()):
                self._has_left.set()
        for message in held:
            super().offer(message)
        return bool(held) and self.is_awaited > 0

    def share_starts(self, numbers: dict[Source, int] | None) -> None:
        self.has_new_share = False
        known = self._share_starts
        self._share_starts = None if numbers is None or known is None else known | numbers

    def fate_of(self, asked: AskedMessage, heard: Heard | None) -> Fate:
        fate = super().fate_of(asked, heard)
        if fate.outcome not in ("delivered", "lost"):
            return fate
        number, source, starts = asked.number, source_of(asked), self._share_starts
        with self._sharing:
            share = self._shares[asked.retained]
            if share.holds(source, number):
                return Fate("waiting", "held back until the group has shared its messages anew")
            if starts is None or number < starts.get(source, 0):
                return Fate(
                    "unknown", f"the members of group {self.group!r} have changed since, and with them its share"
                )
            if not share.is_mine(source, number):
                return Fate("other_member", f"it is for another member of group {self.group!r}")
        return fate

    def _lost_own(self, message: Message) -> None:
        self._losses.add_one(message, NOT_CERTAIN)

    # -- on its own thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        seconds = 0.0
        while not self.is_closed:
            self._is_told.wait(seconds)
            self._is_told.clear()
            try:
                seconds = self._tell()
            except HubError as refused:
                seconds = READY_SECONDS
                if not isinstance(refused, BrokerUnavailable) and not is_unable(refused) and not refused.retryable:
                    self.end(refused)
                    self._on_close(self)
            except Exception:  # a defect must not end the renewing
                log.exception("group %r could not be told", self.group)
                self._connection.count_defect()
                seconds = ASK_SECONDS

    def _tell(self) -> float:
        """Tell the broker that we are there, and ready for a share that is proposed.

        Return in how many seconds to do it again.
        """
        asked_at = time.monotonic()
        command = replace(self._command, ready=self._awaited(), leaving=self._is_leaving)
        reply = self._connection.ask(command, replies.SubscriberRegistered, timeout=ASK_SECONDS)
        with self._sharing:
            self._valid_until = asked_at + reply.valid_seconds
            for share in self._shares.values():
                if 0 < reply.proposed < share.epoch:
                    share.forget()
                share.hold(reply.proposed or reply.epoch)  # of which the mark is to come, is on its way, or lost
            is_proposed = reply.proposed not in (0, command.ready)
            is_awaited = bool(self._awaited())
        if is_proposed:
            return 0.0
        return READY_SECONDS if is_awaited else min(reply.valid_seconds, VALID_SECONDS) / RENEWALS

    def _awaited(self) -> int:
        return max(share.awaited for share in self._shares.values())
