"""Retained topics at the broker: stored messages go to the topic proxy, and a thread reads pages of them.

Rule 1: a message is sent to its subscribers only when the store has it, in the order of the offsets.
Rule 2: stored messages are never read in the broker's thread, and only what was written is read.
Rule 3: the bytes that wait to be stored are bounded; above that a publisher is told to try again.
Rule 4: the reply to a client that makes a topic a retained one says how long publishers may still take it for plain.
"""

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import zmq

from messagehub import protocol
from messagehub.broker.topics.origins import MessageOrigins
from messagehub.broker.topics.plain import PlainTopics
from messagehub.errors import HubError, RateLimited, StoreError, TopicNotFound
from messagehub.protocol.topic_frames import retained_frames
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.supervision import Supervisor
from messagehub.store import Store, StoredTopicReader
from registry import commands, replies
from registry.events import AnyEvent, MessagesRetained
from registry.records import RetainedTopic
from registry.topics.retained import PLAIN_SECONDS

log = logging.getLogger("messagehub.broker")

MAX_WAITING_BYTES = 64 * 2**20
MAX_READS = 4096
MAX_TAKEN = 64
PAGE_BYTES = 256 * 1024
MOST_TOLD = 65_536
MARGIN_SECONDS = 0.1  # clocks of two hosts may run at slightly different rates
TOPIC_COMMANDS = (commands.ListTopics, commands.KeepTopic, commands.PublishMessages)
READ_COMMANDS = (commands.ReadTopic, commands.DescribeTopic)
_NOBLOCK = int(zmq.NOBLOCK)


class Read(NamedTuple):
    """An answer that is ready to be sent; `ticket` is what the caller gave to find the way back."""

    ticket: Any
    reply: replies.Reply
    payload: bytes


class RetainedTopics:
    def __init__(self, store: Store, socket: zmq.Socket[bytes], supervisor: Supervisor, *, is_fresh: bool) -> None:
        """`is_fresh` means that no broker ran here before that may have told publishers which topics are plain."""
        self._supervisor = supervisor
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waiting = 0
        self.counters = {"kept": 0, "kept_reads": 0, "kept_unannounced": 0}
        self._store = store
        self._socket = socket
        self._unwritten: deque[tuple[int, int, list[bytes], int]] = deque()
        self._unwritten_bytes = 0
        self._newest_at = 0.0
        self._asked: queue.SimpleQueue[tuple[Any, commands.Command, str, int] | None] = queue.SimpleQueue()
        self._done: deque[Read] = deque()
        self._thread: threading.Thread | None = None
        self.origins = MessageOrigins()
        self._plain = PlainTopics(self.now)
        self._told_at: dict[str, float] = {}
        self._all_told_at = -inf if is_fresh else time.monotonic()

    # -- which topics are retained -------------------------------------------------------------------------

    def answered(self, command: commands.Command, reply: replies.Reply, happened: Sequence[AnyEvent]) -> None:
        """Follow the registry's reply to one of TOPIC_COMMANDS."""
        if isinstance(command, commands.ListTopics):
            if isinstance(reply, replies.TopicList):
                self._listed(command, reply)
        elif isinstance(reply, replies.TopicRetained):
            reply.settles_in_seconds = self._settles_in(reply.topic.name)
            self._plain.forget(reply.topic.name)
        else:
            self._enqueue(happened)
            self.origins.note_stored(happened, command.id)

    def _listed(self, command: commands.ListTopics, reply: replies.TopicList) -> None:
        if command.publisher is not None and command.process is not None:
            self.origins.note_publisher(command.publisher, command.process)
        if not reply.topics:
            self._tell_plain(command.pattern)
            if command.publisher is not None and not set("*>") & set(command.pattern):
                self._plain.note(command.pattern, command.publisher)
        if command.plain:
            reply.plain = self._plain.find(command.pattern)

    def _tell_plain(self, topic: str) -> None:
        """Note that a client was told that the topic is not retained, and may rely on it for a while.

        A pattern is noted too, and does no harm: it is the name of no topic.
        """
        if len(self._told_at) >= MOST_TOLD:
            self._told_at.clear()
            self._all_told_at = time.monotonic()
        self._told_at[topic] = time.monotonic()

    def _settles_in(self, topic: str) -> float:
        """Return the seconds until every client that was told that the topic is not retained has to ask again."""
        told_at = max(self._told_at.get(topic, -inf), self._all_told_at)
        return max(told_at + PLAIN_SECONDS + MARGIN_SECONDS - time.monotonic(), 0.0)

    # -- what was stored -----------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of day, by which messages are asked for and grow old; it never goes back.

        The broker's own clock would not do: it stands still while the host sleeps.
        """
        self._newest_at = max(self._newest_at, time.time())
        return self._newest_at

    def check_room(self) -> None:
        if self._unwritten_bytes > MAX_WAITING_BYTES:
            raise RateLimited("more is published to retained topics than the disk can store: try again in a moment")

    def _enqueue(self, happened: Sequence[AnyEvent]) -> None:
        for event in happened:
            if isinstance(event, MessagesRetained):
                frames = retained_frames(event)
                size = sum(map(len, frames))
                self._unwritten.append((event.revision, len(event.messages), frames, size))
                self._unwritten_bytes += size

    def release(self, written: int) -> None:
        send = self._socket.send
        while self._unwritten and self._unwritten[0][0] <= written:
            _, messages, frames, size = self._unwritten.popleft()
            self._unwritten_bytes -= size
            self.counters["kept"] += messages
            for frame in frames:
                try:
                    send(frame, _NOBLOCK)
                except zmq.Again:  # subscribers see the gap and read the message from the store
                    self.counters["kept_unannounced"] += 1

    def reset(self) -> None:
        """Discard messages that were not written."""
        self._unwritten.clear()
        self._unwritten_bytes = 0

    # -- reading -------------------------------------------------------------------------------------------

    def ask(self, ticket: Any, command: commands.Command, topic: RetainedTopic) -> None:
        if self.waiting >= MAX_READS:
            raise RateLimited("too many requests wait to read retained topics: try again in a moment")
        if self._thread is None:
            self._thread = self._supervisor.start("messagehub-retained", self._run)
        self.waiting += 1
        self.counters["kept_reads"] += 1
        self._asked.put((ticket, command, topic.name, topic.incarnation))

    def answers(self) -> list[Read]:
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return []
        done = [self._done.popleft() for _ in range(min(len(self._done), MAX_TAKEN))]
        if self._done:
            os.eventfd_write(self.wake_fd, 1)
        self.waiting -= len(done)
        return done

    def wait(self, seconds: float) -> None:
        """Wait until an answer is there, or the seconds have passed."""
        wait_readable([self.wake_fd], seconds)

    def close(self, *, timeout: float) -> None:
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(timeout)
        os.close(self.wake_fd)

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        reader: StoredTopicReader | None = None
        while (asked := self._asked.get()) is not None:
            ticket, command, name, incarnation = asked
            reply: replies.Reply
            try:
                reader = reader or self._store.topic_reader()
                reply = _read(reader, command, name, incarnation)
                payload = protocol.encode_reply(reply, command.id)
            except HubError as refused:
                reply = protocol.error_reply(refused)
                payload = protocol.encode_reply(reply, command.id)
            except Exception as failed:  # a damaged file must not end the reading of others
                log.exception("topic %r cannot be read", name)
                reply = protocol.error_reply(StoreError(f"topic {name!r} cannot be read: {failed!r}"))
                payload = protocol.encode_reply(reply, command.id)
            self._done.append(Read(ticket, reply, payload))
            os.eventfd_write(self.wake_fd, 1)
        if reader is not None:
            reader.close()


def _read(reader: StoredTopicReader, command: commands.Command, name: str, incarnation: int) -> replies.Reply:
    topic = reader.written(incarnation)
    if topic is None:  # its definition is on its way to the disk, or it was deleted a moment ago
        raise TopicNotFound(f"topic {name!r} is not retained", topic=name)
    extent = reader.extent(topic, now=time.time())
    if not isinstance(command, commands.ReadTopic):
        return replies.TopicDescription(
            topic=topic,
            first_offset=extent.first_offset,
            messages=extent.next_offset - extent.first_offset,
            size_bytes=extent.size_bytes,
            oldest_at=extent.oldest_at,
        )
    offset = max(command.offset, extent.first_offset)
    if command.since is not None:
        offset = max(offset, reader.offset_at(topic, command.since, extent))
    limit = min(command.limit, max(extent.next_offset - offset, 0))
    messages = reader.page(topic, offset=offset, limit=limit, max_bytes=PAGE_BYTES) if limit else []
    return replies.TopicPage(
        topic=topic.name,
        incarnation=topic.incarnation,
        first_offset=extent.first_offset,
        next_offset=extent.next_offset,
        messages=messages,
    )
