"""Publishing to a retained topic: acknowledged when stored, at most once stored, however often it has to be sent.

Rule 1: of one client and topic one request is under way at a time, so that numbers reach the broker in order; what
other threads publish meanwhile goes with the next one. That is also what makes many threads fast.
Rule 2: a request whose reply was lost is sent again under the same number, and the broker knows it.
Rule 3: every caller has its own deadline. One that drives the request and gives up leaves it to the others in it.
Rule 4: a host that is lost is waited for like any other. The error at the deadline says so if nothing can be stored.
Rule 5: nobody is refused for what another one publishes: of a refused request each part is sent by itself.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from messagehub.client.connection import Connection
from messagehub.errors import (
    BrokerUnavailable,
    HomeHostUnavailable,
    HubError,
    MessageTooLarge,
    RateLimited,
    SendTimeout,
)
from registry import commands, replies
from registry.records import RetainedMessage
from registry.topics.retained import size_bytes

MAX_BATCH = 500
MAX_BATCH_BYTES = 512 * 1024
MAX_RETAINED_BYTES = 700 * 1024
RETRY_SECONDS = 0.02
RETRY_HOME_SECONDS = 0.1
LEAST_SECONDS = 0.2
"""A host that is lost is not asked again within less: without an answer it would not be known what is stored."""


class _Entry:
    """The messages that one caller publishes in one call."""

    __slots__ = ("error", "is_abandoned", "is_alone", "messages", "offset", "size_bytes")

    def __init__(self, messages: Sequence[RetainedMessage], size_bytes: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.offset: int | None = None
        self.error: HubError | None = None
        self.is_abandoned = False
        self.is_alone = False  # it was refused together with others, of which any may be the reason

    def is_done(self) -> bool:
        return self.offset is not None or self.error is not None


class RetainedPublisher:
    """Publishes to one topic for one client.

    It numbers under a name of its own, so that two clients are never mixed up. The name begins with the id of its
    client, so that the broker can tell whose messages they are.
    """

    def __init__(self, connection: Connection, topic: str, *, client: str) -> None:
        self._connection = connection
        self._topic = topic
        self._publisher = f"{client}.{os.urandom(8).hex()}"
        self._next_number = 1
        self._queue: deque[_Entry] = deque()
        self._batch: list[_Entry] = []
        self._command: commands.PublishMessages | None = None
        self._may_be_stored = False
        """Whether the request under way may have reached the home host."""
        self._is_driven = False
        self._late_because: HomeHostUnavailable | None = None
        """Why nothing was stored for a while."""
        self._changed = threading.Condition()

    def publish(self, messages: Sequence[RetainedMessage], *, timeout: float) -> int:
        """Store all messages, and return the offset of the first."""
        size = sum(map(size_bytes, messages))
        check_retained_size(max(len(message.payload) for message in messages))
        entry = _Entry(messages, size)
        deadline = time.monotonic() + timeout
        with self._changed:
            self._queue.append(entry)
        while not entry.is_done():
            with self._changed:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait_for(
                    lambda: entry.is_done() or not self._is_driven, remaining
                ):
                    entry.is_abandoned = True
                    said = f"no reply for {self._topic!r} came in {timeout} s: the messages may be stored"
                    raise SendTimeout(said + self._reason())
                if entry.is_done():
                    break
                self._is_driven = True
                self._next_batch()
            try:
                self._drive(deadline)
            except SendTimeout:
                entry.is_abandoned = not entry.is_done()
                if entry.is_abandoned:
                    raise
            finally:
                with self._changed:
                    self._is_driven = False
                    self._changed.notify_all()
        if entry.error is not None:
            raise entry.error
        assert entry.offset is not None
        return entry.offset

    # -- by the one that drives ----------------------------------------------------------------------------

    def _next_batch(self) -> None:
        """Return the request under way or, if nobody waits for it any more, the next one."""
        if self._batch and not all(entry.is_abandoned for entry in self._batch):
            return
        self._batch, size, count = [], 0, 0
        while self._queue:
            entry = self._queue[0]
            is_too_much = size + entry.size_bytes > MAX_BATCH_BYTES or count + len(entry.messages) > MAX_BATCH
            if self._batch and (is_too_much or entry.is_alone or self._batch[0].is_alone):
                break
            self._queue.popleft()
            if not entry.is_abandoned:
                self._batch.append(entry)
                size, count = size + entry.size_bytes, count + len(entry.messages)
        self._command = commands.PublishMessages(
            topic=self._topic,
            messages=[message for entry in self._batch for message in entry.messages],
            publisher=self._publisher,
            number=self._next_number,
        )
        self._next_number += count
        self._may_be_stored = False

    def _drive(self, deadline: float) -> None:
        assert self._command is not None
        error: HubError | None = None
        offset = 0
        try:
            offset = self._send(self._command, deadline)
        except SendTimeout:
            raise
        except HubError as refused:
            error = refused
        if error is not None and len(self._batch) > 1:
            for entry in reversed(self._batch):
                entry.is_alone = True
                self._queue.appendleft(entry)
            self._batch, self._command = [], None
            return
        for entry in self._batch:
            if error is not None:
                entry.error = error
            else:
                entry.offset = offset
                offset += len(entry.messages)
        self._batch, self._command = [], None

    def _send(self, command: commands.PublishMessages, deadline: float) -> int:
        """Send the request until it is stored or refused, or until the deadline."""
        limit = self._connection.settings.request_timeout_seconds
        why: HubError | None = None
        is_lost = False
        while (remaining := deadline - time.monotonic()) > (LEAST_SECONDS if is_lost else 0.0):
            try:
                reply = self._connection.ask(command, replies.MessagesRetained, timeout=min(remaining, limit))
                self._late_because = None
                return reply.offset
            except (BrokerUnavailable, RateLimited, HomeHostUnavailable) as failed:
                why = failed
                if isinstance(failed, HomeHostUnavailable):
                    self._late_because = failed
                is_lost = bool(failed.details.get("lost"))
                self._may_be_stored |= not is_lost and not isinstance(failed, RateLimited)
                pause = RETRY_HOME_SECONDS if isinstance(failed, HomeHostUnavailable) else RETRY_SECONDS
                time.sleep(max(min(pause, deadline - time.monotonic()), 0.0))
        if is_lost and why is not None and not self._may_be_stored and len(self._batch) == 1:
            raise why
        raise SendTimeout(
            f"no reply for {self._topic!r} came in time: the messages may be stored{self._reason()}"
        ) from why

    def _reason(self) -> str:
        """Name the home host that does not answer, where that is the reason."""
        return f". {self._late_because.message}" if self._late_because is not None else ""


def pieces(messages: Sequence[RetainedMessage]) -> Iterator[list[RetainedMessage]]:
    """Yield as many messages at once as go into one request."""
    piece: list[RetainedMessage] = []
    size = 0
    for message in messages:
        size += size_bytes(message)
        if piece and (len(piece) >= MAX_BATCH or size > MAX_BATCH_BYTES):
            yield piece
            piece, size = [], size_bytes(message)
        piece.append(message)
    yield piece


def check_retained_size(size_bytes: int) -> None:
    if size_bytes > MAX_RETAINED_BYTES:
        raise MessageTooLarge(
            f"the payload has {size_bytes} bytes, a retained topic takes {MAX_RETAINED_BYTES}: put larger data into a"
            " channel (hub.producer), and the channel's name into the message",
            size_bytes=size_bytes,
            limit_bytes=MAX_RETAINED_BYTES,
        )
