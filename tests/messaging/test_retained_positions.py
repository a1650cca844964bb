"""A subscription to retained topics under any order of announcements, lists and pages, some of them lost or late.

The broker is a list here; what is tested is the subscription alone, driven as its two threads drive it.
"""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagehub.topics.messages import Message, from_store
from messagehub.topics.retained.subscriptions import RetainedSubscription
from registry.records import Keep, RetainedTopic
from registry.replies import StoredMessage, TopicPage
from registry.topics.patterns import Patterns
from tests.levels import examples

NAMES = ["a", "b"]


class Broker:
    """One topic: all that was ever published, and how much of it retention has taken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.first = 1

    def record(self) -> RetainedTopic:
        return RetainedTopic(name=self.name, keep=Keep(), incarnation=7, next_offset=self.count + 1)

    def message(self, offset: int) -> StoredMessage:
        return StoredMessage(offset=offset, at=float(offset), kind="bytes", payload=b"%d" % offset)

    def page(self, offset: int, since: float | None, limit: int) -> TopicPage:
        begin = max(offset, self.first, int(since) if since is not None else 0)
        offsets = range(begin, min(begin + limit, self.count + 1))
        return TopicPage(
            topic=self.name,
            incarnation=7,
            first_offset=self.first,
            next_offset=self.count + 1,
            messages=[self.message(offset) for offset in offsets],
        )


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = {name: Broker(name) for name in NAMES}
        self.subscription = RetainedSubscription(
            Patterns(">"), buffer=3, buffer_bytes=10**6, since=0, on_close=lambda _: None, on_want=lambda: None
        )
        self.announced: deque[Message] = deque()
        self.listed: deque[list[RetainedTopic]] = deque()
        self.asked: TopicPage | None = None
        self.received: dict[str, list[int]] = {name: [] for name in NAMES}
        self.subscription.follow([topic.record() for topic in self.topics.values()])

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 5))
    def publish(self, name: str, count: int) -> None:
        topic = self.topics[name]
        for _ in range(count):
            topic.count += 1
            self.announced.append(from_store(name, 7, topic.message(topic.count)))

    @rule(name=st.sampled_from(NAMES), share=st.sampled_from([0.5, 1.0]))
    def retain(self, name: str, share: float) -> None:
        topic = self.topics[name]
        topic.first += int((topic.count + 1 - topic.first) * share)

    @precondition(lambda self: self.announced)
    @rule(is_dropped=st.booleans())
    def announce(self, is_dropped: bool) -> None:
        message = self.announced.popleft()
        if not is_dropped:
            self.subscription.offer(message)

    @rule()
    def ask_list(self) -> None:
        self.listed.append([topic.record() for topic in self.topics.values()])

    @precondition(lambda self: self.listed)
    @rule()
    def answer_list(self) -> None:
        self.subscription.follow(self.listed.popleft())

    @precondition(lambda self: self.asked is None)
    @rule()
    def ask_page(self) -> None:
        wanted = self.subscription.next_read()
        if wanted is not None:
            name, offset, since, limit = wanted
            self.asked = self.topics[name].page(offset, since, limit)

    @precondition(lambda self: self.asked is not None)
    @rule()
    def answer_page(self) -> None:
        assert self.asked is not None
        self.subscription.take_page(self.asked)
        self.asked = None

    @rule(count=st.integers(1, 4))
    def read(self, count: int) -> None:
        for _ in range(count):
            if self.subscription.buffered:
                message = self.subscription.receive(0)
                assert message.payload == b"%d" % message.number
                self.received[message.topic].append(message.number)

    @invariant()
    def each_comes_once_and_in_order(self) -> None:
        for offsets in self.received.values():
            assert offsets == sorted(set(offsets))

    @invariant()
    def the_buffer_is_bounded(self) -> None:
        assert self.subscription.buffered <= 6, "a page may come on top of what another topic announced"

    def teardown(self) -> None:
        """Once nothing more happens, everything is received or counted."""
        while self.announced:
            self.announced.popleft()
        if self.asked is not None:
            self.answer_page()
        while self.listed:
            self.answer_list()
        self.ask_list()
        self.answer_list()
        for _ in range(1000):
            self.read(10)
            self.ask_page()
            if self.asked is None and not self.subscription.buffered:
                break
            if self.asked is not None:
                self.answer_page()
        self.each_comes_once_and_in_order()
        missing = 0
        for name, topic in self.topics.items():
            got = set(self.received[name])
            assert set(range(topic.first, topic.count + 1)) <= got, "nothing that is kept is missing"
            begun_at = min(got, default=topic.count + 1)
            missing += len(set(range(begun_at, topic.count + 1)) - got)
        assert self.subscription.lost >= missing
        for name, offsets in self.received.items():
            position = self.subscription.positions.get(name)
            if offsets:
                assert position == {"offset": offsets[-1] + 1, "incarnation": 7}
            elif position is not None:
                assert position["offset"] <= self.topics[name].count + 1, "who goes on from there misses nothing"


AnyOrder.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60)
TestAnyOrder = AnyOrder.TestCase
