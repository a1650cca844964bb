"""Watching: a live view of the registry's channels and the events that change it.

Views change on the I/O thread; a user's thread reads the view and takes events from a bounded queue.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext

from messagehub.arguments import checks_arguments
from messagehub.client.connection import Connection
from messagehub.client.replica import Replica
from messagehub.errors import HubError
from messagehub.protocol import Beacon, decode_event
from messagehub.runtime.event_loop import LoopShare, Sleepers
from messagehub.runtime.forgotten import ClosedWhenForgotten
from registry import commands, replies
from registry.events import AnyChannelEvent, AnySchemaEvent, AnyTopicEvent, ServiceChanged, channel_topic
from registry.records import Channel

MAX_QUEUED = 10_000
ALL_CHANNELS = b"channel/"
SECONDS_A_TOPIC = 20e-6
"""So long for each topic the next change of the set waits: building and comparing the set takes about a tenth of it."""


class Watch(ClosedWhenForgotten):
    """Events of one channel, or of all, as an iterator, and what they add up to in `channels`.

    Iterating ends when the watch is closed. `missed` counts events that were dropped because nobody took them.
    """

    def __init__(self, channel: str | None, watches: "Watches", keeps: object) -> None:
        """`keeps` lives as long as the watch does."""
        self.channel = channel
        self._keeps = keeps
        self.reference = weakref.ref(self)
        self.topic = channel_topic(channel).encode() if channel else ALL_CHANNELS
        self.missed = 0
        self.is_closed = False
        self._watches = watches
        self._view = Replica()
        self._is_joining = False
        self._events: deque[AnyChannelEvent] = deque()
        self._changed = threading.Condition()
        self._sleepers = Sleepers()
        self._share = LoopShare()
        self._opened_in = os.getpid()

    @property
    def channels(self) -> dict[str, Channel]:
        return dict(self._view.channels)

    @property
    def is_current(self) -> bool:
        return self._view.is_current

    @property
    def revision(self) -> int:
        return self._view.revision

    @checks_arguments
    def wait_current(self, timeout: float, *, revision: int = 0) -> bool:
        """Until the view is the broker's state, at a revision or later; False at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_current and self.revision >= revision, timeout)

    @checks_arguments
    def get(self, timeout: float | None = None) -> AnyChannelEvent | None:
        """The next event, or None at the timeout or when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self.is_closed, timeout)
            return self._events.popleft() if self._events else None

    @checks_arguments
    async def get_async(self, timeout: float | None = None) -> AnyChannelEvent | None:
        """As `get`, sleeping in the running event loop."""
        import asyncio

        if self._share.is_due():
            await self._share
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:  # also who changes the view without an event wakes us
            with self._changed:
                is_late = deadline is not None and time.monotonic() >= deadline
                if self._events or self.is_closed or is_late:
                    return self._events.popleft() if self._events else None
                woken = self._sleepers.add()
            try:
                async with asyncio.timeout(None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                    await woken
            except TimeoutError:
                pass  # what came in the last moment is taken by the next round
            finally:
                with self._changed:
                    self._sleepers.remove(woken)
            self._share.restart()

    def close(self) -> None:
        self._watches.remove(self)
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
            sleepers = self._sleepers.take()
        self._sleepers.wake(sleepers)

    def _is_forgotten(self) -> bool:
        return not self.is_closed

    def _named(self) -> str:
        return f"the watch of {self.channel or 'all channels'!r} (close it, or use `with hub.watch(…) as watch:`)"

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"revision {self.revision}" if self.is_current else "not current"
        return f"<Watch of {repr(self.channel) if self.channel else 'all channels'}: {state}>"

    def __iter__(self) -> Iterator[AnyChannelEvent]:
        while not self.is_closed or self._events:
            event = self.get()
            if event is not None:
                yield event

    async def __aiter__(self) -> AsyncIterator[AnyChannelEvent]:
        while not self.is_closed or self._events:
            event = await self.get_async()
            if event is not None:
                yield event

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Watch":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def abandon(self) -> None:
        """In a forked child: the parent's lock may be held by a thread that is not here."""
        self._changed = threading.Condition()
        self._sleepers = Sleepers()
        self.is_closed = True

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def restart(self) -> None:
        """Nothing is known until the topic's echo comes."""
        with self._changed:
            self._view.is_current = False
            self._is_joining = False

    def on_message(self, message: AnyChannelEvent | Beacon, topic: bytes, connection: Connection) -> None:
        if isinstance(message, Beacon):
            if topic == self.topic:
                self._view.on_beacon(message, self.channel)
        elif self._view.on_event(message):
            self._queue([message])
        if not self._view.is_current and not self._is_joining:
            self._join(connection)

    def _join(self, connection: Connection) -> None:
        self._is_joining = True
        self._view.begin()
        self._ask(connection, "")

    def _ask(self, connection: Connection, after: str) -> None:
        def done(reply: replies.AnyReply | None, _: HubError | None) -> None:
            if not isinstance(reply, replies.SnapshotPage):
                self._is_joining = False  # the next beacon starts over
                return
            self._queue(self._view.add_page(reply))
            if reply.next is not None:
                self._ask(connection, reply.next)
            else:
                self._is_joining = False

        command = commands.RequestSnapshot(channel=self.channel, after=after)
        connection.submit(command, done, timeout=connection.settings.request_timeout_seconds)

    def _queue(self, happened: list[AnyChannelEvent]) -> None:
        with self._changed:
            self._events.extend(happened)
            while len(self._events) > MAX_QUEUED:
                self._events.popleft()
                self.missed += 1
            self._changed.notify_all()
            sleepers = self._sleepers.take()
        self._sleepers.wake(sleepers)


class Watches:
    """All watches of one client, on its one SUB socket.

    Rule: a watch costs the same however many there are. An event goes to the watches of its topic only, and the set of
    topics is built anew the less often the larger it is.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heard_at = 0.0
        self._beacon_seconds = connection.settings.beacon_seconds
        self._clear()

    def _clear(self) -> None:
        self._by_topic: dict[bytes, dict[weakref.ref[Watch], None]] = {}  # weakly: a forgotten one is to be collected
        self._topics: set[bytes] = set()
        self._is_changed = False
        self._changed_at = 0.0
        self._lock = threading.Lock()

    def add(self, channel: str | None, keeps: object = None) -> Watch:
        """`keeps` lives as long as the watch does."""
        self._connection.check_open()
        watch = Watch(channel, self, keeps)
        with self._lock:
            self._by_topic.setdefault(watch.topic, {})[watch.reference] = None
            self._is_changed = True
        self._connection.wake()
        return watch

    def remove(self, watch: Watch) -> None:
        with self._lock:
            same_topic = self._by_topic.get(watch.topic, {})
            same_topic.pop(watch.reference, None)
            if not same_topic:
                self._by_topic.pop(watch.topic, None)
                self._is_changed = True
        self._connection.wake()

    def close_all(self) -> None:
        for watch in self._every():
            watch.close()

    def forget_parent(self) -> None:
        for watch in self._every(is_forked=True):
            watch.abandon()
        self._clear()

    def _every(self, *, is_forked: bool = False) -> list[Watch]:
        with nullcontext() if is_forked else self._lock:  # a thread that is not in the child may hold it
            references = [reference for same_topic in self._by_topic.values() for reference in same_topic]
        return [watch for reference in references if (watch := reference()) is not None]

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._by_topic)

    def topics(self) -> set[bytes]:
        return self._topics

    def on_connected(self, hello: replies.HelloAck) -> None:
        self._beacon_seconds = hello.beacon_seconds
        self._heard_at = time.monotonic()
        self.on_disconnected()

    def on_disconnected(self) -> None:
        for watch in self._every():
            watch.restart()

    def on_event(self, topic: bytes, payload: bytes) -> None:
        self._heard_at = time.monotonic()
        with self._lock:
            told = [*self._by_topic.get(topic, ())]
            if topic != ALL_CHANNELS and topic.startswith(ALL_CHANNELS):
                told += self._by_topic.get(ALL_CHANNELS, ())
        for reference in told:
            watch = reference()
            if watch is not None:
                message = decode_event(payload)  # for each anew: a view keeps and changes the records in it
                if not isinstance(message, AnySchemaEvent | AnyTopicEvent | ServiceChanged):
                    watch.on_message(message, topic, self._connection)

    def tick(self, now: float) -> float:
        """Follow the topics of new watches. No beacon for three of them: ask whether the broker is still there."""
        limit = 3 * self._beacon_seconds
        if self._by_topic and self._connection.hello is not None and now - self._heard_at > limit:
            self._heard_at = now
            self._connection.suspect()
        due_at = now + (limit if self._by_topic else 60.0)
        return min(due_at, self._follow(now)) if self._is_changed else due_at

    def _follow(self, now: float) -> float:
        """Take over the topics, unless that was done a moment ago; returns when to look again."""
        next_at = self._changed_at + len(self._topics) * SECONDS_A_TOPIC
        if now < next_at:
            return next_at
        with self._lock:
            self._is_changed = False
            self._topics = set(self._by_topic)  # replaced, never changed: it is compared with the one before
        self._changed_at = now
        return now + 60.0
