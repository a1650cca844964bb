"""A subscription to retained topics: from where the subscriber says, then live, without a gap or a double.

Rule 1: a position is the next offset of a topic. A live message is taken only where it is exactly that and there is
room; anything else only says that there is more, which is then read from the broker's store.
Rule 2: the reader sets the pace: a full buffer takes nothing, and nothing is lost while the store keeps it.
Rule 3: what was removed from the store before it was read, by retention or with its topic, is counted in
`lost_to_retention`.
"""

import threading
from collections.abc import Callable
from typing import Literal

from messagehub.errors import ConfigurationError, HubError, TopicNotFound
from messagehub.protocol.topic_frames import incarnation_bytes
from messagehub.topics.message_fates import FORGOTTEN, REMOVED, TOO_LONG_AGO, Fate, Heard, source_of
from messagehub.topics.messages import Message, from_store
from messagehub.topics.retained.positions import Begin, Since, Start, saved_position
from messagehub.topics.subscriptions import Subscription
from registry.records import AskedMessage, RetainedTopic
from registry.replies import TopicPage
from registry.topics.patterns import Patterns

BUFFER = 1_000
"""Smaller than for other topics: messages that do not fit stay in the store, and are read when there is room."""


class _ReadPosition:
    __slots__ = ("first", "incarnation", "is_exact", "newest", "next", "publisher", "since", "topic")

    def __init__(self, topic: RetainedTopic, begin: Begin) -> None:
        self.topic = topic.name
        self.incarnation = topic.incarnation
        self.publisher = incarnation_bytes(topic.incarnation)
        self.next = begin.offset  # 0: the oldest there is, whatever that is
        self.newest = topic.next_offset
        self.since = begin.since
        self.first: int | None = None
        """The first offset that was read, once it is known."""
        self.is_exact = begin.is_exact and begin.offset > 0 and begin.since is None
        if self.is_exact:
            self.first = begin.offset

    def is_behind(self) -> bool:
        return self.next < self.newest or self.since is not None


class RetainedSubscription(Subscription):
    """Reads only retained topics; those that come to match later are heard from their first message on."""

    def __init__(
        self,
        patterns: Patterns,
        *,
        buffer: int,
        buffer_bytes: int,
        since: Since,
        on_close: Callable[[Subscription], None],
        on_want: Callable[[], None],
    ) -> None:
        super().__init__(patterns, buffer=buffer, buffer_bytes=buffer_bytes, overflow="drop_newest", on_close=on_close)
        self.lost_to_retention = 0
        self.wants_topics = True
        self._topics = patterns.topics
        self._start = Start(since)
        for topic in self._start.saved or ():
            if not patterns.matches(topic):
                raise ConfigurationError(
                    f"since has a position of topic {topic!r}, which {self.pattern!r} does not match"
                )
        self._on_want = on_want
        self._positions: dict[str, _ReadPosition] = {}
        self._received_to: dict[str, tuple[int, bytes]] = {}
        self._has_begun = self._wants_room = False
        self._moving = threading.Lock()  # positions, and the end of the buffer

    @property
    def reported_as(self) -> tuple[Literal["retained"], None]:
        return "retained", None

    @property
    def lost(self) -> int:
        return self.lost_to_retention

    @property
    def positions(self) -> dict[str, dict[str, int]]:
        """For each topic, the offset after the last message received, and the topic's incarnation.

        A later `since` that goes on from here; plain values, which may be saved as JSON.
        """
        received = self._received_to.copy()
        return {topic: saved_position(offset, int.from_bytes(of, "little")) for topic, (offset, of) in received.items()}

    def _lose_loop(self) -> None:
        """End. Nothing is lost: `positions` says where to go on."""
        self._warn_of_lost_loop("and stay in the store")
        self._give_up()

    def abandon(self) -> None:
        super().abandon()
        self._wants_room = False  # nobody reads on for it here

    def _take(self) -> Message | None:
        message = super()._take()
        if message is not None:
            self._received_to[message.topic] = (message.number + 1, message.publisher)
            if self._wants_room and len(self._buffer) <= self._size // 2:
                self._wants_room = False
                self._on_want()
        return message

    # -- on the receiving thread ---------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        if self.is_closed or not message.is_retained:
            return False
        with self._moving:
            position = self._positions.get(message.topic)
            if position is None or position.publisher != message.publisher:
                self.wants_topics = True
            elif message.number < position.next and position.since is None:
                return False  # read from the store already
            elif message.number == position.next and not position.is_behind() and not self._is_full():
                position.next = position.newest = message.number + 1
                position.is_exact = True
                if position.first is None:
                    position.first = message.number
                self._append(message)
                return self.is_awaited > 0
            else:
                position.newest = max(position.newest, message.number + 1)
                if not self._has_room_or_waits():
                    return False
        self._on_want()
        return False

    def miss(self, count: int, next_one: Message) -> None:
        """Count nothing: the messages are read from the store."""

    def fate_of(self, asked: AskedMessage, heard: Heard | None) -> Fate:  # noqa: ARG002  offsets say it all
        number, source = asked.number, source_of(asked)
        with self._moving:
            position = self._positions.get(asked.topic)
            if not asked.retained or position is None or position.publisher != source[1]:
                return Fate("not_heard", "it reads what is stored, and this message is not of the topic as it is now")
            if position.first is not None and number < position.first:
                return Fate("earlier", f"it began to read at offset {position.first}")
            if number >= position.next:
                return Fate("waiting", f"in the store: it reads on at offset {position.next}")
            if position.first is None:
                return TOO_LONG_AGO
            why = self._losses.why(source, number)
            if why is not None:
                return TOO_LONG_AGO if why is FORGOTTEN else Fate("lost", why)
            if self._is_buffered(source, number):
                return Fate("waiting", "in its buffer: its program has not come to it yet")
        return Fate("delivered", "its program has taken it")

    # -- on the thread that follows ------------------------------------------------------------------------

    def next_read(self) -> tuple[str, int, float | None, int] | None:
        """Return topic, offset, time and number of messages to read now; None without room or with nothing to read."""
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
            if position.is_exact and first > position.next:
                self._lose(first - position.next)
                self._losses.add((page.topic, position.publisher, True), position.next, first - 1, REMOVED)
            if position.first is None:
                position.first = max(position.next, first)
            position.next, position.since, position.is_exact = max(position.next, first), None, True
            self._received_to.setdefault(page.topic, (position.next, position.publisher))  # where a time has led to
            for stored in page.messages:
                self._append(from_store(page.topic, page.incarnation, stored))
                position.next = stored.offset + 1
            if page.messages:
                position.newest = max(position.newest, page.next_offset)
            else:  # there is no more, whatever was announced: never ask in circles
                if position.newest > page.next_offset:
                    self.wants_topics = True  # unless it was announced while the page was on its way
                position.newest = position.next
            if len(self._positions) > 1:  # each topic its turn
                self._positions[page.topic] = self._positions.pop(page.topic)
        self.wake()

    def follow(self, topics: list[RetainedTopic]) -> None:
        """Follow the topics that match now: begin new ones, leave deleted ones, and read those that have grown."""
        try:
            with self._moving:
                self.wants_topics = False
                self._leave_all_but({topic.incarnation for topic in topics})
                for topic in topics:
                    known = self._positions.get(topic.name)
                    if known is None:
                        if not topic.next_offset:
                            continue  # its home host does not answer: followed when it does
                        self._positions[topic.name] = self._begin(topic)
                    else:
                        known.newest = max(known.newest, topic.next_offset)  # what we heard may be newer
                self._has_begun = True
        except ConfigurationError as beyond_the_end:
            self.refuse(beyond_the_end)
            return
        missing = set(self._topics) - {topic.name for topic in topics}
        if missing:
            name = min(missing)
            self.refuse(TopicNotFound(f"topic {name!r} is not retained, or was deleted", topic=name))

    def _leave_all_but(self, incarnations: set[int]) -> None:
        """Leave all other topics, which were deleted. Messages that were known and not read are lost."""
        for name, position in list(self._positions.items()):
            if position.incarnation not in incarnations:
                if position.is_exact and position.newest > position.next:
                    self._lose(position.newest - position.next)
                del self._positions[name]

    def refuse(self, error: HubError) -> None:
        """End with an error, which is raised once all buffered messages were taken."""
        self.end(error)
        self._on_close(self)

    def _begin(self, topic: RetainedTopic) -> _ReadPosition:
        position = _ReadPosition(topic, Begin(1) if self._has_begun else self._start.of(topic))
        if position.next:
            self._received_to[topic.name] = (position.next, position.publisher)
        return position

    def _lose(self, count: int) -> None:
        self.lost_to_retention += count
        self._warn("they were removed from the retained topic before they were read")

    def _has_room_or_waits(self) -> bool:
        """Return whether there is room. If not, the reader asks for more when it has taken half."""
        if self._is_full():
            self._wants_room = True
        return not self._is_full()  # once more: the reader may have taken all before it could see that more is wanted
