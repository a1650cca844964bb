"""A subscription under a durable name: the broker stores how far it is, and shares messages among all of that name.

Rule 1: a message is handed to one subscriber at a time, which holds it until it is acknowledged, given back, or its
time (`ack_wait`) is over. What waits in the buffer here is held too, and renewed in time.
Rule 2: at least once: a message comes again until it is acknowledged, and never after that. One that came here again
before its reader acknowledged it is not handed out.
Rule 3: one thread fetches, reads and sends what was acknowledged automatically; nothing of it is lost while the broker
is away, and when the subscription is closed whatever it holds is free for others at once.
Rule 4: what cannot be known to be held any more, because nothing could be renewed in time, is not handed to the reader.
"""

import asyncio
import base64
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, get_args

from messagehub.client.connection import Connection
from messagehub.client.registration import Registration
from messagehub.errors import (
    BrokerUnavailable,
    ConfigurationError,
    Forbidden,
    HubError,
    NotRegistered,
    PositionNotFound,
    TopicNotFound,
    Unauthorized,
)
from messagehub.topics.messages import Message, from_store
from messagehub.topics.retained.acknowledgements import Acknowledgements
from messagehub.topics.subscriptions import Subscription
from registry import commands, replies
from registry.records import DeadLetter, TopicPosition
from registry.services.dead_letters import MOST_PAYLOAD_BYTES
from registry.topics.patterns import Patterns

log = logging.getLogger("messagehub.topics")

BUFFER = 10
"""Small, so that a slow subscriber holds few messages that others of its name could handle."""
MOST_BUFFERED = 1_000
LOOK_SECONDS = 1.0
RETRY_SECONDS = 0.05
ASK_SECONDS = 2.0
CLOSE_SECONDS = 5.0
NOT_ACKNOWLEDGED = "NOT_ACKNOWLEDGED"
"""The code of a dead letter of a topic."""
Ack = Literal["auto", "manual"]
_OVER = (TopicNotFound, PositionNotFound, Forbidden, Unauthorized)
"""Errors that end the subscription, since asking again would not help."""


class Durable(NamedTuple):
    """What `subscribe` was asked for. A setting that is None is that of the position, or the default of a new one."""

    name: str
    ack: Ack
    ack_wait: float | None
    max_unacked: int | None
    max_deliveries: int | None


def durable_options(
    name: str | None,
    *,
    ack: Ack | None,
    ack_wait: float | None,
    max_unacked: int | None,
    max_deliveries: int | None,
) -> Durable | None:
    given = {"ack": ack, "ack_wait": ack_wait, "max_unacked": max_unacked, "max_deliveries": max_deliveries}
    if name is None:
        for option, value in given.items():
            if value is not None:
                raise ConfigurationError(f"{option} is for subscriptions with a durable name: give durable too")
        return None
    if not isinstance(name, str):
        raise ConfigurationError(f"durable is the name of a position, not {name!r}")
    if ack is not None and ack not in get_args(Ack):
        raise ConfigurationError(f"ack is one of {', '.join(get_args(Ack))}, not {ack!r}")
    _check("ack_wait", ack_wait, float, 0.1, 86_400)
    _check("max_unacked", max_unacked, int, 1, 10_000)
    _check("max_deliveries", max_deliveries, int, 1, 2**31 - 1)
    return Durable(name, ack or "auto", ack_wait, max_unacked, max_deliveries)


def _check(option: str, value: float | None, kind: type, least: float, most: float) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        what = "seconds" if kind is float else "a number"
        raise ConfigurationError(f"{option} is {what} from {least:g} to {most:,}, not {value!r}")


def checked_buffer(buffer: int | None) -> int:
    """Return the size of the buffer; refuse a wrong one before the position is made."""
    size = BUFFER if buffer is None else buffer
    if not 1 <= size <= MOST_BUFFERED:
        raise ConfigurationError(f"buffer is from 1 to {MOST_BUFFERED} under a durable name, not {buffer}")
    return size


class DurableSubscription(Subscription):
    def __init__(
        self,
        patterns: Patterns,
        position: TopicPosition,
        *,
        buffer: int,
        buffer_bytes: int,
        ack: Ack,
        connection: Connection,
        registration: Registration,
        on_close: Callable[[Subscription], None],
    ) -> None:
        super().__init__(patterns, buffer=buffer, buffer_bytes=buffer_bytes, overflow="drop_newest", on_close=on_close)
        assert isinstance(registration.command, commands.RegisterSubscriber)
        self.durable = position.name
        self.lost_to_retention = 0
        self._position = position
        self._revision = position.revision
        self._connection = connection
        self._registration = registration
        self._member_id, self._lease = registration.command.member_id, registration.command.lease
        self._acknowledgements = Acknowledgements(connection, position, self._member_id, self._lease)
        self._acknowledgements.on_said = self._said
        self._is_auto = ack == "auto"
        self._current: int | None = None  # what the reader has, to be acknowledged when it asks for the next
        self._done: deque[int] = deque()
        self._acknowledged: set[int] = set()  # that may be in the buffer, or on the way there
        self._assigned: deque[replies.Delivery] = deque()  # held by us, and not yet read from the store
        self._unseen: list[int] = []  # held by us at the end, and never handed out
        self._first_offset = 0
        self._renewed_at = 0.0
        self._look_at = 0.0
        self._has_news = self._has_more = True
        self._wanted = threading.Event()
        self._is_leaving = False
        self._fetcher: threading.Thread | None = None

    @property
    def reported_as(self) -> tuple[Literal["durable"], str]:
        return "durable", self.durable

    @property
    def lost(self) -> int:
        return self.lost_to_retention

    def start(self) -> None:
        self._fetcher = threading.Thread(target=self._run, name="messagehub-durable", daemon=True)
        self._fetcher.start()

    def close(self, *, timeout: float = CLOSE_SECONDS) -> None:
        """Acknowledge what is done, give back what is not, and end. Reading ends at once.

        In automatic mode the message that the reader had last is not acknowledged, unless it asked for the next.
        """
        deadline = time.monotonic() + timeout
        self.end()
        if self._calls is not None:
            self._calls.join(timeout)
        self._begin_leaving()
        if self._fetcher is not None and self._fetcher is not threading.current_thread():
            self._fetcher.join(max(deadline - time.monotonic(), 0.0))

    async def close_async(self, *, timeout: float = CLOSE_SECONDS) -> None:
        self.end()
        if self._calls is not None and self._calls.is_in_callback_thread():
            self._begin_leaving()
            if self._fetcher is not None:
                await asyncio.to_thread(self._fetcher.join, timeout)
            return
        if self._calls is not None:
            await self._calls.join_task(timeout)
        await asyncio.to_thread(self.close, timeout=timeout)

    def end(self, failure: HubError | None = None) -> None:
        self._unseen += [message.number for message in self._buffer]
        self._buffer.clear()
        super().end(failure)

    def abandon(self) -> None:
        super().abandon()
        self._buffer.clear()
        self._is_leaving = True
        self._acknowledgements.is_abandoned = True
        self._wanted, self._fetcher = threading.Event(), None

    def _lose_loop(self) -> None:
        """End. Nothing is lost: messages that are not acknowledged come to the next subscriber of the name."""
        self._warn_of_lost_loop("and stay in the store")
        self._give_up()

    def _give_up(self) -> None:
        self.end()
        self._begin_leaving()

    def _begin_leaving(self) -> None:
        """Have the thread acknowledge and unregister. Nothing here waits for the broker."""
        self._is_leaving = True
        self._wanted.set()

    # -- by the reader -------------------------------------------------------------------------------------

    def _take(self) -> Message | None:
        current, self._current = self._current, None
        if current is not None:
            self._done.append(current)
            self._acknowledged.add(current)  # last, see `_forget_acknowledged`
            self._has_news = self._has_news or not self._buffer
            self._wanted.set()
        if self._buffer and time.monotonic() >= self._renewed_at + self._position.ack_wait_seconds:
            self._buffer.clear()
        message = super()._take()
        is_emptied = message is not None
        while message is not None and message.number in self._acknowledged:
            self.received -= 1
            message = super()._take()
        if message is None:
            if is_emptied:  # what was buffered is done, so that nobody else asks for more
                self._has_news = True
                self._wanted.set()
            return None
        if self._is_auto:
            self._current = message.number
        if len(self._buffer) <= self._size // 2:
            self._wanted.set()
        return message

    def _call_failed(self, message: Message) -> None:
        """Do not acknowledge the message: it comes again after `ack_wait`."""
        if self._current == message.number:
            self._current = None

    def _said(self, offset: int, is_done: bool) -> None:
        """Take note that a user acknowledged a message or gave it back, on any thread."""
        if is_done:
            self._acknowledged.add(offset)
        if self._current == offset:
            self._current = None
        self._has_news = True
        self._wanted.set()

    # -- on the receiving thread ---------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        """Take note that there is more in the store; the message itself is fetched."""
        if message.is_retained:
            self._has_news = True
            self._wanted.set()
        return False

    def miss(self, count: int, next_one: Message) -> None:
        """Count nothing: the messages are in the store."""

    # -- on its own thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_leaving:
            self._wanted.wait(None if self.is_closed else max(self._look_at - time.monotonic(), 0.0))
            self._wanted.clear()
            try:
                self._send_done(ASK_SECONDS)
                if not self.is_closed and (self._assigned or self._is_to_fetch()):
                    if not self._assigned:
                        self._fetch()
                    self._read()
            except (BrokerUnavailable, NotRegistered):
                self._look_at = time.monotonic() + RETRY_SECONDS
                self._has_news = True
                self._check_registration()
            except _OVER as over:
                self._refuse(over)
            except HubError as unable:
                self._look_at = time.monotonic() + LOOK_SECONDS
                log.warning("topic %r cannot be read now: %s", self.pattern, unable.message)
            except Exception:  # a defect must not end the reading; the next look is in a second
                self._look_at = time.monotonic() + LOOK_SECONDS
                log.exception("topic %r could not be read", self.pattern)
                self._connection.count_defect()
        self._leave()

    def _leave(self) -> None:
        """Send the last acknowledgements, then unregister, so that no acknowledged message comes again."""
        self._on_close(self)
        unseen = [*self._unseen, *(delivery.offset for delivery in self._assigned)]
        try:
            self._send_done(ASK_SECONDS)
            self._acknowledgements.say_unseen(unseen, ASK_SECONDS)
        except HubError as failed:
            log.warning("%d messages of %r may come again: %s", len(self._done), self.pattern, failed.message)
        self._registration.close()

    def _check_registration(self) -> None:
        """End with the error if the broker refused the registration, which is not tried again."""
        if self._registration.is_closed and not self.is_closed:
            self._refuse(self._registration.error or NotRegistered("the broker does not know this subscriber any more"))

    def _refuse(self, error: HubError) -> None:
        self.end(error)
        self._begin_leaving()

    def _send_done(self, timeout: float) -> None:
        while self._done:
            offsets = list(self._done.copy())
            self._acknowledgements.say_done(offsets, timeout)
            for _ in offsets:
                self._done.popleft()

    def _room(self) -> int:
        return 0 if self._is_full() else self._size - len(self._buffer)

    def _is_to_fetch(self) -> bool:
        room = self._room()
        is_due = time.monotonic() >= self._look_at
        return is_due or (room > 0 and self._has_news) or (self._has_more and room >= max(self._size // 2, 1))

    def _forget_acknowledged(self) -> None:
        """Forget acknowledgements of messages that are not here: the broker knows them, and they do not come again."""
        known = self._acknowledged.copy()  # first: what is acknowledged meanwhile is not forgotten
        here = {message.number for message in self._buffer.copy()}
        here.update(self._done.copy(), (delivery.offset for delivery in self._assigned))
        self._acknowledged.difference_update(known - here)

    def _fetch(self) -> None:
        self._forget_acknowledged()
        self._has_news = False
        of, limit = self._position, self._room()
        asked_at = time.monotonic()
        command = commands.FetchMessages(
            topic=of.topic,
            position=of.name,
            incarnation=of.incarnation,
            member_id=self._member_id,
            lease=self._lease,
            limit=limit,
            first_offset=self._first_offset,
            renew=[message.number for message in self._buffer.copy()],
        )
        fetched = self._connection.ask(command, replies.MessagesFetched, timeout=ASK_SECONDS)
        if fetched.revision != self._revision:  # reset: what was fetched before is not ours any more
            self._revision = fetched.revision
            self._buffer.clear()
            self._acknowledged.clear()
        self._renewed_at = asked_at
        if fetched.passed:
            self.lost_to_retention += fetched.passed
            self._warn("they were removed from the retained topic before they were read")
        self._has_more = bool(fetched.messages) and len(fetched.messages) == limit
        seconds = [LOOK_SECONDS, of.ack_wait_seconds / 3]
        if fetched.wait_seconds is not None:
            seconds.append(max(fetched.wait_seconds, 0.01))
        self._look_at = time.monotonic() + min(seconds)
        self._assigned.extend(fetched.messages)

    def _read(self) -> None:
        while self._assigned and not self.is_closed:
            first = self._assigned[0].offset
            count = _following(self._assigned)
            asked = commands.ReadTopic(topic=self._position.topic, offset=first, limit=count)
            page = self._connection.ask(asked, replies.TopicPage, timeout=ASK_SECONDS)
            if page.incarnation != self._position.incarnation:
                raise TopicNotFound(f"topic {page.topic!r} was deleted and made again", topic=page.topic)
            if page.first_offset > first:  # retention was faster: the next fetch passes over them
                self._first_offset = page.first_offset
                self._has_news = True
                self._wanted.set()
                while self._assigned and self._assigned[0].offset < page.first_offset:
                    self._assigned.popleft()
                continue
            if not page.messages:
                return  # asked again when more is due
            for stored in page.messages:
                delivery = self._assigned.popleft()
                if delivery.dead:
                    self._bury(stored, delivery)
                else:
                    self._add(stored, delivery)

    def _add(self, stored: replies.StoredMessage, delivery: replies.Delivery) -> None:
        of = self._position
        message = from_store(of.topic, of.incarnation, stored, delivery.deliveries, self._acknowledgements)
        with self._changed:
            if self.is_closed:
                self._unseen.append(message.number)
                return
            self._append(message)
        self.wake()

    def _bury(self, stored: replies.StoredMessage, delivery: replies.Delivery) -> None:
        """Report a dead letter, then acknowledge it.

        If this process ends in between, the next subscriber reports it again.
        """
        of, size = self._position, len(stored.payload)
        letter = DeadLetter(
            address=f"topic:{of.topic}",
            code=NOT_ACKNOWLEDGED,
            reason=f"offset {stored.offset} was handed out {delivery.deliveries - 1} times under {of.name!r} and not"
            " acknowledged",
            form="topic",
            sender=of.name,
            attempts=delivery.deliveries - 1,
            headers=stored.headers,
            payload_kind=stored.kind,
            payload_base64=base64.b64encode(stored.payload).decode() if size <= MOST_PAYLOAD_BYTES else None,
            payload_bytes=size,
            offset=stored.offset,
        )
        self._connection.ask(commands.ReportDeadLetter(letter=letter), replies.DeadLetterReported, timeout=ASK_SECONDS)
        self._done.append(stored.offset)
        self._wanted.set()


def _following(assigned: Iterable[replies.Delivery]) -> int:
    """Return how many offsets, from the first on, follow each other without a hole."""
    count, expected = 0, None
    for delivery in assigned:
        if expected not in (None, delivery.offset):
            break
        expected = delivery.offset + 1
        count += 1
    return count
