"""A subscription to kept topics: from where the subscriber says, then live, without a gap or a double.

Rule 1: a position is the next offset of a topic. A live message is taken only where it is exactly that and there is
room; anything else only says that there is more, which is then read from the broker's store.
Rule 2: the reader sets the pace: a full buffer takes nothing, and nothing is lost while the store keeps it.
Rule 3: what was removed from the store before it was read is counted in `lost_to_retention`.
"""

import datetime
import threading
from collections.abc import Callable, Mapping
from typing import Literal

from messagehub.errors import ConfigurationError, HubError, TopicNotFound
from messagehub.messaging.subscriptions import Subscription
from messagehub.messaging.topic_messages import Message, from_store
from messagehub.topic_frames import incarnation_bytes
from registry.records import KeptTopic
from registry.replies import TopicPage
from registry.topic_patterns import Pattern

Since = int | float | datetime.datetime | Mapping[str, int] | Literal["now"]
"""The first offset wanted (0: the oldest there is), a time, or the offset for each topic."""


class _Position:
    __slots__ = ("incarnation", "newest", "next", "publisher", "since", "topic")

    def __init__(self, topic: KeptTopic) -> None:
        self.topic = topic.name
        self.incarnation = topic.incarnation
        self.publisher = incarnation_bytes(topic.incarnation)
        self.next = 0  # 0: the oldest there is, whatever that is
        self.newest = topic.next_offset
        self.since: float | None = None

    def is_behind(self) -> bool:
        return self.next < self.newest or self.since is not None


class KeptSubscription(Subscription):
    """Only kept topics; those that come to match later are heard from their first message on."""

    def __init__(
        self,
        pattern: Pattern,
        *,
        buffer: int,
        buffer_bytes: int,
        since: Since,
        on_close: Callable[[Subscription], None],
        on_want: Callable[[], None],
    ) -> None:
        super().__init__(pattern, buffer=buffer, buffer_bytes=buffer_bytes, overflow="drop_newest", on_close=on_close)
        self.lost_to_retention = 0
        self.wants_topics = True
        self._is_exact = "*" not in pattern.text and ">" not in pattern.text
        self._since = _checked(since)
        self._on_want = on_want
        self._positions: dict[str, _Position] = {}
        self._received_to: dict[str, int] = {}
        self._has_begun = self._wants_room = False
        self._moving = threading.Lock()  # positions, and the end of the buffer

    @property
    def lost(self) -> int:
        return self.lost_to_retention

    @property
    def positions(self) -> dict[str, int]:
        """For each topic the offset behind what was received: a later `since` that goes on from here."""
        return dict(self._received_to)

    def abandon(self) -> None:
        super().abandon()
        self._wants_room = False  # nobody reads on for it here

    def _take(self) -> Message | None:
        message = super()._take()
        if message is not None:
            self._received_to[message.topic] = message.number + 1
            if self._wants_room and len(self._buffer) <= self._size // 2:
                self._wants_room = False
                self._on_want()
        return message

    # -- on the receiving thread ---------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        if self.is_closed or not message.is_kept:
            return False
        with self._moving:
            position = self._positions.get(message.topic)
            if position is None or position.publisher != message.publisher:
                self.wants_topics = True
            elif message.number < position.next and position.since is None:
                return False  # read from the store already
            elif message.number == position.next and not position.is_behind() and not self._is_full():
                position.next = position.newest = message.number + 1
                self._append(message)
                return self.is_awaited > 0
            else:
                position.newest = max(position.newest, message.number + 1)
                if not self._has_room_or_waits():
                    return False
        self._on_want()
        return False

    def miss(self, count: int) -> None:
        """Not lost: it is read from the store."""

    # -- on the thread that follows ------------------------------------------------------------------------

    def next_read(self) -> tuple[str, int, float | None, int] | None:
        """Topic, offset, time and how many to read now; None when there is no room, or nothing more to read."""
        with self._moving:
            behind = next((position for position in self._positions.values() if position.is_behind()), None)
            if behind is None or self.is_closed or not self._has_room_or_waits():
                return None
            room = max(self._size - len(self._buffer), 1)
            return behind.topic, behind.next, behind.since, room

    def take_page(self, page: TopicPage) -> None:
        with self._moving:
            position = self._positions.get(page.topic)
            if position is None or position.incarnation != page.incarnation:
                self.wants_topics = True
                return
            first = page.messages[0].offset if page.messages else page.next_offset
            if position.next and position.since is None and first > position.next:
                self._lose(first - position.next)
            position.next, position.since = max(position.next, first), None
            for kept in page.messages:
                self._append(from_store(page.topic, page.incarnation, kept))
                position.next = kept.offset + 1
            if page.messages:
                position.newest = max(position.newest, page.next_offset)
            else:
                position.newest = position.next  # there is no more, whatever was announced: never ask in circles
            if len(self._positions) > 1:  # each topic its turn
                self._positions[page.topic] = self._positions.pop(page.topic)
        self.wake()

    def follow(self, topics: list[KeptTopic]) -> None:
        """All that match now: new ones are begun, deleted ones left, and what has grown is read."""
        with self._moving:
            self.wants_topics = False
            present = {topic.name: topic for topic in topics}
            for name in self._positions.keys() - present.keys():
                del self._positions[name]
            for topic in topics:
                position = self._positions.get(topic.name)
                if position is None or position.incarnation != topic.incarnation:
                    self._positions[topic.name] = self._begin(topic, is_new=position is not None)
                else:
                    position.newest = max(position.newest, topic.next_offset)  # what we heard may be newer
            self._has_begun = True
        if self._is_exact and not topics:
            self.refuse(TopicNotFound(f"topic {self.pattern!r} is not kept, or was deleted", topic=self.pattern))

    def refuse(self, error: HubError) -> None:
        """It is over: what was received can be taken, then the error is raised."""
        self.end(error)
        self._on_close(self)

    def _begin(self, topic: KeptTopic, *, is_new: bool) -> _Position:
        position, since = _Position(topic), self._since
        if isinstance(since, Mapping):
            position.next = since.get(topic.name, 0)
        elif is_new or self._has_begun:
            position.next = 1
        elif since == "now":
            position.next = topic.next_offset
        elif isinstance(since, float):
            position.since = since
        elif isinstance(since, int):
            position.next = since
        if position.next:
            self._received_to[topic.name] = position.next
        return position

    def _lose(self, count: int) -> None:
        self.lost_to_retention += count
        self._warn("they were removed from the kept topic before they were read")

    def _has_room_or_waits(self) -> bool:
        """Where there is none, the reader asks for more when it has taken half."""
        if self._is_full():
            self._wants_room = True
        return not self._is_full()  # once more: the reader may have taken all before it could see that more is wanted


def _checked(since: Since) -> int | float | Mapping[str, int] | Literal["now"]:
    if isinstance(since, datetime.datetime):
        return since.timestamp()
    is_known = since == "now" or (isinstance(since, int | float | Mapping) and not isinstance(since, bool))
    if not is_known or (isinstance(since, int) and since < 0):
        raise ConfigurationError(f"since is an offset, a time or the offset for each topic, not {since!r}")
    return since
