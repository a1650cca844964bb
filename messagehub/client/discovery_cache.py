"""Discovery from memory: after the first discovery of a channel the client watches it.

Rule 1: an entry answers only while beacons confirm its revision; silence for one and a half beacons ends that.
Rule 2: any event or beacon with another revision makes the entry unusable until it was asked for again.
Rule 3: what this process itself just changed is never answered from before the change.
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

import msgspec

from messagehub.client.connection import Connection
from messagehub.errors import HubError
from messagehub.runtime.event_loop import Sleepers
from registry import commands, replies
from registry.events import channel_topic

MAX_FOLLOWED = 4096
FRESH_BEACONS = 1.5
SUBSCRIBE_SECONDS = 0.02
Shown = TypeVar("Shown")


class Glance(msgspec.Struct):
    """All that the cache needs of an event or a beacon."""

    revision: int
    broker_id: str | None = None


glance_of = msgspec.json.Decoder(Glance).decode


class Entry(Generic[Shown]):
    __slots__ = ("found", "fresh_until", "is_asked", "least_revision", "revision")

    def __init__(self, found: Shown | None, revision: int) -> None:
        self.found = found
        self.revision = revision
        self.fresh_until = 0.0
        self.is_asked = False
        self.least_revision = 0


class DiscoveryCache(Generic[Shown]):
    def __init__(self, connection: Connection, present: Callable[[replies.Discovered], Shown]) -> None:
        """`present` turns a reply into what callers are given, once per reply."""
        self._connection = connection
        self._present = present
        self._entries: dict[str, Entry[Shown]] = {}
        self._topics: set[bytes] = set()
        self._unsubscribed: list[str] = []
        self._subscribe_at = 0.0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sleepers = Sleepers()
        self.heard = 0
        """How often anything was heard that may change an answer: an event, or another connection."""
        self._broker_id = ""
        self._beacon_seconds = connection.settings.beacon_seconds

    def get(self, channel: str) -> Shown | None:
        """The newest answer, if it is known to be the newest."""
        entry = self._entries.get(channel)
        return entry.found if entry is not None and entry.fresh_until > monotonic() else None

    def follow(self, channel: str, found: Shown | None = None, revision: int = 0) -> None:
        """Watch a channel from now on. What was just found is good once a beacon confirms it.

        Past the limit further channels are simply asked for each time. Subscribing is left to the I/O thread, for many
        channels at once, so that following costs a caller next to nothing.
        """
        with self._lock:
            entries = self._entries
            if channel in entries or len(entries) >= MAX_FOLLOWED:
                return
            entries[channel] = Entry(found, revision)
            is_first = not self._unsubscribed
            self._unsubscribed.append(channel)
        if is_first:
            self._subscribe_at = monotonic() + SUBSCRIBE_SECONDS
            self._connection.wake()

    def changed(self, channel: str, revision: int) -> None:
        entry = self._entries.get(channel)
        if entry is not None:
            entry.least_revision = max(entry.least_revision, revision)
            entry.fresh_until = 0.0

    def follows(self, channel: str) -> bool:
        return channel in self._entries

    def wait(self, seconds: float, since: int) -> None:
        """Until `heard` is not `since` any more, or the seconds have passed."""
        with self._changed:
            self._changed.wait_for(lambda: self.heard != since, seconds)

    def end_waits(self) -> None:
        """Have everybody who waits look again: the connection was closed, and nothing more will be heard."""
        self._tell_waiting()

    async def wait_async(self, seconds: float, since: int) -> None:
        """As `wait`, sleeping in the running event loop."""
        import asyncio

        with self._changed:
            if self.heard != since:
                return
            woken = self._sleepers.add()
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            pass
        finally:
            with self._changed:
                self._sleepers.remove(woken)

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._entries)

    def topics(self) -> set[bytes]:
        return self._topics

    def on_connected(self, hello: replies.HelloAck) -> None:
        if hello.broker_id != self._broker_id:
            for entry in list(self._entries.values()):  # another broker may give a revision to something else
                entry.found, entry.revision, entry.least_revision = None, 0, 0
        self._broker_id, self._beacon_seconds = hello.broker_id, hello.beacon_seconds
        self._end_freshness()

    def on_disconnected(self) -> None:
        self._end_freshness()

    def on_event(self, topic: bytes, payload: bytes) -> None:
        if topic not in self._topics:
            return
        channel = topic.decode()[len("channel/") : -1]
        entry, glance = self._entries[channel], glance_of(payload)
        if glance.broker_id is not None and glance.broker_id != self._broker_id:
            entry.fresh_until = 0.0
            self._connection.suspect()
            self._tell_waiting()
        elif entry.found is not None and entry.revision == glance.revision >= entry.least_revision:
            entry.fresh_until = monotonic() + FRESH_BEACONS * self._beacon_seconds
        elif glance.revision > (entry.revision if entry.found else 0):
            entry.fresh_until = 0.0
            entry.least_revision = max(entry.least_revision, glance.revision)
            self._ask(channel, entry)
            self._tell_waiting()

    def tick(self, now: float) -> float:
        if not self._unsubscribed:
            return now + 60.0
        if now < self._subscribe_at:
            return self._subscribe_at
        with self._lock:
            added, self._unsubscribed = self._unsubscribed, []
        self._topics = self._topics.union(channel_topic(channel).encode() for channel in added)
        return now + 60.0

    def _ask(self, channel: str, entry: Entry[Shown]) -> None:
        if entry.is_asked:
            return

        def done(reply: replies.AnyReply | None, _: HubError | None) -> None:
            entry.is_asked = False
            if not isinstance(reply, replies.Discovered):
                entry.found = None  # the next event, or a caller, asks again
            elif reply.revision < entry.least_revision:
                self._ask(channel, entry)  # sent before the event that we saw
            else:
                entry.found, entry.revision = self._present(reply), reply.revision
                entry.fresh_until = monotonic() + FRESH_BEACONS * self._beacon_seconds

        entry.is_asked = True
        timeout = self._connection.settings.request_timeout_seconds
        self._connection.submit(commands.Discover(channel=channel), done, timeout=timeout)

    def _end_freshness(self) -> None:
        for entry in list(self._entries.values()):
            entry.fresh_until = 0.0
            entry.is_asked = False
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        with self._changed:
            self.heard += 1
            self._changed.notify_all()
            sleepers = self._sleepers.take()
        self._sleepers.wake(sleepers)
