"""Named positions of retained topics, as rules: who holds what, until when, how often, and what is done."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from registry import commands, replies
from registry.channels.leases import Member, Terms
from registry.errors import (
    DuplicateRegistration,
    InvalidName,
    InvalidRequest,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    PositionNotFound,
    Refusal,
    TopicLimitExceeded,
    TopicNotFound,
)
from registry.records import Keep, RetainedMessage
from registry.registry import Registry
from registry.topics.positions import MOST_POSITIONS, SavedPosition
from tests.levels import examples
from tests.registry.observing import whole_state

WAIT = 10.0


class Topic:
    """A registry with one retained topic, at a time that the test says."""

    def __init__(self, **options: Any) -> None:
        self.registry = Registry(terms=Terms(heartbeat_seconds=1.0, stall_seconds=4.0, lease_seconds=1e6))
        self.now = 100.0
        self.apply(commands.KeepTopic(topic="t", keep=Keep()))
        self.open(ack_wait_seconds=WAIT, **options)

    def apply(self, command: commands.Command) -> Any:
        return self.registry.apply(command, now=self.now).reply

    @property
    def incarnation(self) -> int:
        return self.registry.topics.get("t").incarnation

    def open(self, position: str = "p", **options: Any) -> replies.PositionOpened:
        opened: replies.PositionOpened = self.apply(commands.OpenPosition(topic="t", position=position, **options))
        return opened

    def publish(self, count: int) -> None:
        self.apply(commands.PublishMessages(topic="t", messages=[RetainedMessage(payload=b"x")] * count))

    def join(self, member: str, lease: str | None = None) -> None:
        self.apply(
            commands.RegisterSubscriber(
                kind="position", name="p", patterns=["t"], member_id=member, lease=lease or f"lease-{member}"
            )
        )

    def fetch(self, member: str, limit: int = 100, **options: Any) -> replies.MessagesFetched:
        fetched: replies.MessagesFetched = self.apply(
            commands.FetchMessages(
                topic="t",
                position="p",
                incarnation=options.pop("incarnation", self.incarnation),
                member_id=member,
                lease=options.pop("lease", f"lease-{member}"),
                limit=limit,
                **options,
            )
        )
        return fetched

    def got(self, member: str, limit: int = 100, **options: Any) -> list[tuple[int, int]]:
        return [(one.offset, one.deliveries) for one in self.fetch(member, limit, **options).messages]

    def ack(self, *offsets: int) -> int:
        done: replies.MessagesAcknowledged = self.apply(
            commands.AcknowledgeMessages(topic="t", position="p", incarnation=self.incarnation, offsets=list(offsets))
        )
        return done.acknowledged

    def nak(self, member: str, *offsets: int) -> int:
        returned: replies.MessagesReturned = self.apply(
            commands.ReturnMessages(
                topic="t",
                position="p",
                incarnation=self.incarnation,
                member_id=member,
                lease=f"lease-{member}",
                offsets=list(offsets),
            )
        )
        return returned.returned

    def summary(self) -> replies.PositionSummary:
        described: replies.PositionDescription = self.apply(commands.DescribePosition(topic="t", position="p"))
        return described.summary

    def restart(self) -> None:
        """As a broker that was killed and started again, with what its store has."""
        before = self.registry
        self.registry = Registry()
        self.registry.topics.restore(before.topics.every())
        self.registry.positions.restore(before.positions.every(), now=self.now)


@pytest.fixture
def topic() -> Topic:
    made = Topic()
    made.publish(6)
    for member in ("a", "b"):
        made.join(member)
    return made


def test_each_message_is_held_by_one_member_at_a_time(topic: Topic) -> None:
    assert topic.got("a", 2) == [(1, 1), (2, 1)]
    assert topic.got("b", 2) == [(3, 1), (4, 1)]
    assert topic.got("a") == [(5, 1), (6, 1)]
    assert topic.got("b") == []


def test_what_is_not_acknowledged_in_time_is_handed_out_again_the_oldest_first(topic: Topic) -> None:
    topic.got("a", 3)
    assert topic.ack(2) == 1
    topic.now += WAIT
    assert topic.got("b", 3) == [(1, 2), (3, 2), (4, 1)]


def test_the_time_of_a_renewed_message_begins_anew(topic: Topic) -> None:
    topic.got("a", 2)
    topic.now += WAIT - 1
    topic.fetch("a", 0, renew=[2])
    topic.now += 1
    assert topic.got("b", 1) == [(1, 2)]
    topic.now += WAIT
    assert topic.got("b", 2) == [(1, 3), (2, 2)]


def test_nobody_renews_what_another_one_holds(topic: Topic) -> None:
    topic.got("a", 1)
    topic.now += WAIT - 1
    topic.fetch("b", 0, renew=[1])
    topic.now += 1
    assert topic.got("b", 1) == [(1, 2)]


def test_a_message_that_is_given_back_is_handed_out_at_once_and_by_its_holder_only(topic: Topic) -> None:
    topic.got("a", 2)
    assert topic.nak("b", 1) == 0
    assert topic.nak("a", 1) == 1
    assert topic.got("b", 1) == [(1, 2)]


def test_what_a_member_that_ended_held_is_free_at_once(topic: Topic) -> None:
    topic.got("a", 2)
    topic.registry.host_events.died([Member("subscriber", "", "a")], now=topic.now)
    assert topic.got("b", 3) == [(1, 2), (2, 2), (3, 1)]
    topic.apply(commands.UnregisterSubscriber(member_id="b", lease="lease-b"))
    topic.join("c")
    assert topic.got("c", 1) == [(1, 3)]


def test_acknowledging_is_final_and_harmless_to_repeat_whoever_does_it(topic: Topic) -> None:
    topic.got("a", 3)
    assert topic.ack(1, 3, 3) == 2
    before = whole_state(topic.registry)
    assert topic.ack(1, 3, 99) == 0
    assert whole_state(topic.registry) == before
    topic.now += WAIT
    assert topic.got("b", 1) == [(2, 2)]
    assert topic.ack(2) == 1, "late, by the member that had it before"
    assert (topic.summary().acknowledged_to, topic.summary().unacked, topic.summary().lag) == (4, 0, 3)


def test_no_more_than_max_unacked_are_handed_out() -> None:
    topic = Topic(max_unacked=3)
    topic.publish(10)
    topic.join("a")
    topic.join("b")
    assert [offset for offset, _ in topic.got("a")] == [1, 2, 3]
    assert topic.got("b") == []
    topic.ack(2)
    assert topic.got("b") == [(4, 1)]
    topic.now += WAIT
    assert topic.got("b") == [(1, 2), (3, 2), (4, 2)]


def test_after_max_deliveries_a_message_is_dead() -> None:
    topic = Topic(max_deliveries=2)
    topic.publish(1)
    topic.join("a")
    found = []
    for _ in range(3):
        found += topic.fetch("a").messages
        topic.now += WAIT
    assert [(one.deliveries, one.dead) for one in found] == [(1, False), (2, False), (3, True)]


def test_a_fetch_says_when_there_may_be_more(topic: Topic) -> None:
    assert topic.fetch("a", 1).wait_seconds is None
    topic.now += 4
    assert topic.fetch("b", 1).wait_seconds == WAIT - 4


def test_what_retention_removed_is_passed_over_and_counted(topic: Topic) -> None:
    topic.got("a", 2)
    topic.ack(1)
    fetched = topic.fetch("a", 10, first_offset=5)
    assert (fetched.passed, [one.offset for one in fetched.messages]) == (3, [5, 6])
    assert topic.fetch("a", 10, first_offset=999).passed == 2, "no further than the topic"
    assert topic.summary().acknowledged_to == 7


def test_positions_of_two_names_are_independent(topic: Topic) -> None:
    topic.got("a", 6)
    topic.open("q", start=4)
    listed: replies.PositionList = topic.apply(commands.ListPositions(topic="t"))
    assert [(one.position.name, one.acknowledged_to, one.lag) for one in listed.positions] == [("p", 1, 6), ("q", 4, 3)]
    page: replies.PositionList = topic.apply(commands.ListPositions(topic="t", limit=1))
    assert (len(page.positions), page.next) == (1, "p")
    page = topic.apply(commands.ListPositions(topic="t", after="p", limit=1))
    assert ([one.position.name for one in page.positions], page.next) == (["q"], None)


def test_who_reads_and_how_much_each_holds_is_described(topic: Topic) -> None:
    topic.got("a", 2)
    described: replies.PositionDescription = topic.apply(commands.DescribePosition(topic="t", position="p"))
    assert [(one.member_id, one.unacked) for one in described.members] == [("a", 2), ("b", 0)]


def test_an_open_position_stays_as_it_is_and_other_settings_are_refused(topic: Topic) -> None:
    topic.got("a", 2)
    before = whole_state(topic.registry)
    again = topic.open(start=5)
    assert (again.created, again.position.next_offset) == (False, 3)
    assert topic.open(ack_wait_seconds=WAIT).created is False
    with pytest.raises(PolicyMismatch):
        topic.open(ack_wait_seconds=WAIT + 1)
    with pytest.raises(PolicyMismatch):
        topic.open(max_deliveries=5)
    with pytest.raises(InvalidRequest):
        topic.open("q", start=8)
    with pytest.raises(InvalidName):
        topic.open("no name")
    with pytest.raises(TopicNotFound):
        topic.apply(commands.OpenPosition(topic="other", position="p"))
    assert whole_state(topic.registry) == before


def test_a_reset_position_goes_on_there_and_forgets_what_was_handed_out(topic: Topic) -> None:
    revision = topic.fetch("a", 5).revision
    topic.apply(commands.ResetPosition(topic="t", position="p", offset=2))
    fetched = topic.fetch("b", 2)
    assert [(one.offset, one.deliveries) for one in fetched.messages] == [(2, 1), (3, 1)]
    assert fetched.revision > revision
    assert topic.ack(5) == 0, "handed out before the reset"
    with pytest.raises(InvalidRequest):
        topic.apply(commands.ResetPosition(topic="t", position="p", offset=8))


def test_deleting_ends_a_position_and_deleting_the_topic_ends_all(topic: Topic) -> None:
    topic.apply(commands.DeletePosition(topic="t", position="p"))
    for attempt in (lambda: topic.fetch("a"), lambda: topic.ack(1), topic.summary):
        with pytest.raises(PositionNotFound):
            attempt()
    topic.open()
    before = topic.incarnation
    topic.apply(commands.DeleteTopic(topic="t"))
    with pytest.raises(TopicNotFound):
        topic.summary()
    topic.apply(commands.KeepTopic(topic="t", keep=Keep()))
    with pytest.raises(TopicNotFound):
        topic.fetch("a", incarnation=before)
    with pytest.raises(PositionNotFound):
        topic.fetch("a")


def test_only_a_registered_member_of_the_lease_fetches_and_gives_back(topic: Topic) -> None:
    with pytest.raises(NotRegistered):
        topic.fetch("c")
    with pytest.raises(NotOwner):
        topic.fetch("a", lease="lease-b")
    with pytest.raises(NotRegistered):
        topic.nak("c", 1)
    with pytest.raises(DuplicateRegistration):
        topic.join("a", lease="other")
    with pytest.raises(NotOwner):
        topic.apply(commands.UnregisterSubscriber(member_id="a", lease="lease-b"))


def test_a_position_is_of_one_topic() -> None:
    topic = Topic()
    for patterns in (["t", "u"], ["t.*"]):
        command = commands.RegisterSubscriber(
            kind="position", name="p", patterns=patterns, member_id="a", lease="lease-a"
        )
        with pytest.raises((InvalidRequest, InvalidName)):
            topic.apply(command)


def test_a_topic_has_a_bounded_number_of_positions() -> None:
    topic = Topic()
    for number in range(MOST_POSITIONS - 1):
        topic.open(f"p{number}")
    with pytest.raises(TopicLimitExceeded):
        topic.open("one-more")


def test_after_a_restart_what_is_unacknowledged_waits_for_who_may_hold_it(topic: Topic) -> None:
    topic.got("a", 3)
    topic.ack(2)
    topic.now += 5
    topic.restart()
    topic.join("b")
    assert topic.got("b", 1) == [(4, 1)]
    topic.now += WAIT
    assert topic.got("b", 2) == [(1, 2), (3, 2)]


class PositionsHistory(RuleBasedStateMachine):
    """Any history keeps the promises; a model says what is done, held and how often it was handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.topic = Topic(max_unacked=4)
        self.published = 0
        self.acked: set[int] = set()
        self.counts: dict[int, int] = {}
        self.held: dict[int, tuple[str, float]] = {}
        self.alive: set[str] = set()

    @initialize()
    def begin(self) -> None:
        for member in ("a", "b"):
            self.topic.join(member)
            self.alive.add(member)

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        self.topic.publish(count)
        self.published += count

    @rule(member=st.sampled_from("abc"), limit=st.integers(0, 5))
    def fetch(self, member: str, limit: int) -> None:
        before = whole_state(self.topic.registry)
        try:
            given = self.topic.got(member, limit)
        except Refusal:
            assert member not in self.alive
            assert whole_state(self.topic.registry) == before
            return
        assert len(given) <= limit
        assert [offset for offset, _ in given] == sorted(offset for offset, _ in given)
        free = [o for o in sorted(self.counts) if o not in self.acked and not self.is_held(o)]
        assert [o for o, _ in given][: len(free)] == free[:limit], "what is free comes first"
        for offset, deliveries in given:
            assert offset not in self.acked, "nothing that is done comes again"
            assert not self.is_held(offset), "nothing is held twice"
            self.counts[offset] = self.counts.get(offset, 0) + 1
            assert deliveries == self.counts[offset]
            self.held[offset] = (member, self.topic.now + WAIT)

    def is_held(self, offset: int) -> bool:
        return offset in self.held and self.held[offset][1] > self.topic.now

    @rule(offset=st.integers(1, 12))
    def ack(self, offset: int) -> None:
        is_new = offset in self.counts and offset not in self.acked
        assert self.topic.ack(offset) == int(is_new)
        if is_new:
            self.acked.add(offset)
            self.held.pop(offset, None)

    @rule(member=st.sampled_from("ab"), offset=st.integers(1, 12))
    def nak(self, member: str, offset: int) -> None:
        if member in self.alive:
            self.topic.nak(member, offset)
            if self.held.get(offset, ("", 0))[0] in (member, "?"):
                del self.held[offset]

    @rule(member=st.sampled_from("ab"))
    def die(self, member: str) -> None:
        self.topic.registry.host_events.died([Member("subscriber", "", member)], now=self.topic.now)
        self.alive.discard(member)
        self.held = {offset: held for offset, held in self.held.items() if held[0] != member}

    @rule(member=st.sampled_from("ab"))
    def join(self, member: str) -> None:
        self.topic.join(member)
        self.alive.add(member)

    @rule(passing=st.sampled_from([1.0, WAIT / 2, WAIT]))
    def wait(self, passing: float) -> None:
        self.topic.now += passing

    @rule()
    def restart(self) -> None:
        self.topic.restart()
        self.alive.clear()
        unacked = [offset for offset in self.counts if offset not in self.acked]
        self.held = dict.fromkeys(unacked, ("?", self.topic.now + WAIT))

    @invariant()
    def agree(self) -> None:
        unacked = {offset: count for offset, count in self.counts.items() if offset not in self.acked}
        assert len(unacked) <= 4
        ((position, deliveries),) = self.topic.registry.positions.every()
        assert deliveries == unacked
        assert position.next_offset == max(self.counts, default=0) + 1
        summary = self.topic.summary()
        assert summary.acknowledged_to == min(unacked, default=position.next_offset)
        assert summary.lag == self.published - len(self.acked)


TestPositionsHistory = PositionsHistory.TestCase
TestPositionsHistory.settings = settings(max_examples=examples(40), stateful_step_count=40)


def test_a_saved_position_is_restored_as_it_was(topic: Topic) -> None:
    topic.got("a", 3)
    topic.ack(1)
    (saved,) = topic.registry.positions.every()
    assert isinstance(saved, SavedPosition)
    assert saved.deliveries == {2: 1, 3: 1}
