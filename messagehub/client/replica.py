"""A copy of the registry's channels, kept by events alone; no sockets.

Rule 1: join by subscribing, then seeing the topic's echo, then taking a snapshot; events that come meanwhile wait.
Rule 2: an event applies when its `previous` is the revision we hold of its channel; an older one is already in the
snapshot; anything else is a gap, and a gap means a new snapshot.
Rule 3: a beacon of another broker, or one ahead of what we saw, is a gap too. So is one that says 0, that the channel
is not there, of a channel that we hold: we missed its end.
"""

from bisect import bisect_left

from messagehub.protocol import Beacon
from registry import replies
from registry.channels.state import Channels
from registry.events import AnyChannelEvent

_LAST = "\U0010ffff"


class Replica:
    def __init__(self) -> None:
        self.channels = Channels()
        self.is_current = False
        self.revision = 0
        self._broker_id = ""
        self._pages: list[replies.SnapshotPage] = []
        self._early: list[AnyChannelEvent] | None = None

    def begin(self) -> None:
        """A snapshot is being asked for."""
        self.is_current = False
        self._pages = []
        self._early = []

    def add_page(self, page: replies.SnapshotPage) -> list[AnyChannelEvent]:
        """Take a page; with the last one the view is current. Returns the events that had come after it."""
        self._pages.append(page)
        if page.next is not None or self._early is None:
            return []
        pages, early = self._pages, self._early
        self._pages, self._early = [], None
        self.channels = Channels({channel.name: channel for page in pages for channel in page.channels})
        self.revision = max(page.revision for page in pages)
        self._broker_id = page.broker_id if isinstance(page.broker_id, str) else ""
        self.is_current = True
        ends = [page.next or _LAST for page in pages]
        return [event for event in early if event.revision > self._seen_in(event, pages, ends) and self._apply(event)]

    def on_event(self, event: AnyChannelEvent) -> bool:
        """Whether the event changed the view. A gap shows as `is_current` being false afterwards."""
        if self._early is not None:
            self._early.append(event)
            return False
        return self.is_current and self._apply(event)

    def on_beacon(self, beacon: Beacon, channel: str | None) -> None:
        """A beacon of one channel's topic, or of all of them."""
        if not self.is_current or self._early is not None:
            return
        held = self.revision if channel is None else self._held(channel)
        has_ended = channel is not None and beacon.revision == 0 < held
        if beacon.broker_id != self._broker_id or beacon.revision > held or has_ended:
            self.is_current = False

    def _apply(self, event: AnyChannelEvent) -> bool:
        held = self._held(event.channel)
        if event.revision <= held:
            return False
        if event.previous != held:
            self.is_current = False
            return False
        self.channels.evolve(event)
        self.revision = max(self.revision, event.revision)
        return True

    def _held(self, channel: str) -> int:
        found = self.channels.get(channel)
        return found.revision if found else 0

    def _seen_in(self, event: AnyChannelEvent, pages: list[replies.SnapshotPage], ends: list[str]) -> int:
        """The revision of the page that holds, or would hold, the event's channel."""
        return pages[bisect_left(ends, event.channel)].revision
