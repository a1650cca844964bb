"""Shares of a group, without sockets: whatever is slow, lost or killed, no message is handed out twice.

One stream of messages and marks; each member reads it at its own pace, from a queue that may drop frames.
"""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagehub.topics.group_shares import GroupShare
from messagehub.topics.messages import Message
from registry.topics.subscriber_groups import Mark, SubscriberGroups
from tests.levels import examples


def message(number: int, publisher: bytes = b"p" * 8) -> Message:
    return Message("t", publisher, number, 1.0, 0, b"", 0, {}, 0)


class Member:
    def __init__(self, name: str) -> None:
        self.name = name
        self.share = GroupShare(name, 100)
        self.queue: deque[Message | Mark] = deque()
        self.got: list[int] = []
        self.is_leaving = False

    def read(self) -> None:
        frame = self.queue.popleft()
        if isinstance(frame, Message):
            if self.share.take(frame):
                self.got.append(frame.number)
        elif frame.members is None:
            self.share.propose(frame.epoch, frame.previous, frame.gone)
        else:
            held = self.share.begin(frame.epoch, frame.previous, frame.members, is_repeated=frame.is_repeated)
            self.got += [each.number for each in held]


class Sharing(RuleBasedStateMachine):
    can_drop = True

    def __init__(self) -> None:
        super().__init__()
        self.groups = SubscriberGroups()
        self.alive: dict[str, Member] = {}
        self.everybody: list[Member] = []
        self.number = 0
        self.count = 0
        self.shared_after: int | None = None

    def send(self, frame: Message | Mark) -> None:
        for member in self.alive.values():
            member.queue.append(frame)

    def mark(self) -> None:
        for mark in self.groups.take_marks():
            self.send(mark)
            if mark.members and self.shared_after is None:
                self.shared_after = self.number

    def tell(self, member: Member) -> None:
        share = member.share
        group = self.groups.tell("g", member.name, ready=share.awaited, is_leaving=member.is_leaving, now=1.0)
        share.hold(group.proposed or group.epoch)
        self.mark()

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.send(message(self.number))

    @rule()
    def join(self) -> None:
        if len(self.alive) < 3:
            self.add_member()

    def add_member(self) -> None:
        self.count += 1
        member = Member(f"m{self.count}")
        self.alive[member.name] = member
        self.everybody.append(member)
        self.groups.join("g", member.name)
        self.mark()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        member = self.choose(data)
        for _ in range(data.draw(st.integers(1, 8))):
            if member.queue:
                member.read()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def say(self, data: st.DataObject) -> None:
        self.tell(self.choose(data))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self.choose(data)
        member.is_leaving = self.can_drop or member.name != "m1"

    @precondition(lambda self: self.alive and self.can_drop)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """What it has not read is lost, and its share until the broker sees that, which is at once here."""
        member = self.choose(data)
        del self.alive[member.name]
        self.groups.end("g", member.name)
        self.mark()

    @precondition(lambda self: self.alive and self.can_drop)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        member = self.choose(data)
        if member.queue:
            del member.queue[data.draw(st.integers(0, len(member.queue) - 1))]

    def choose(self, data: st.DataObject) -> Member:
        return self.alive[data.draw(st.sampled_from(sorted(self.alive)))]

    @invariant()
    def nothing_is_handed_out_twice(self) -> None:
        got = [number for member in self.everybody for number in member.got]
        assert len(got) == len(set(got))

    def teardown(self) -> None:
        """When all have read and said what they can, the group shares again, and in order."""
        self.add_member()
        for _ in range(10):
            for member in list(self.alive.values()):
                while member.queue:
                    member.read()
                self.tell(member)
        staying = [member for member in self.alive.values() if not member.is_leaving]
        before = self.number
        self.publish(6)
        for member in self.alive.values():
            while member.queue:
                member.read()
            mine = [number for number in member.got if number > before]
            assert mine == sorted(mine)
            assert bool(mine) == (member in staying)
        got = sorted(number for member in staying for number in member.got if number > before)
        assert got == list(range(before + 1, before + 7))
        self.nothing_is_handed_out_twice()
        super().teardown()


class Lossless(Sharing):
    """Where no frame is lost and nobody is killed, every message since the first share began is handed out."""

    can_drop = False

    @invariant()
    def nothing_is_counted_as_lost(self) -> None:
        assert sum(member.share.lost for member in self.everybody) == 0

    def teardown(self) -> None:
        super().teardown()
        assert self.shared_after is not None
        got = sorted(number for member in self.everybody for number in member.got)
        assert got == list(range(self.shared_after + 1, self.number + 1))


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=examples(60), stateful_step_count=50)
TestLossless = Lossless.TestCase
TestLossless.settings = settings(max_examples=examples(40), stateful_step_count=50)


def begun(*names: str) -> tuple[GroupShare, ...]:
    shares = tuple(GroupShare(name, 3) for name in names)
    for share in shares:
        share.begin(5, 0, list(names), is_repeated=False)
    return shares


def test_messages_of_a_publisher_go_to_the_members_in_turn() -> None:
    a, b = begun("a", "b")
    taken = [(a.take(message(number)), b.take(message(number))) for number in range(1, 7)]
    assert sorted(taken[:2]) == [(False, True), (True, False)]
    assert taken[:2] * 3 == taken


def test_what_is_held_is_bounded_and_the_rest_counted() -> None:
    (a,) = begun("a")
    a.hold(6)
    assert [a.take(message(number)) for number in range(1, 6)] == [False] * 5
    assert a.lost == 2
    assert [each.number for each in a.begin(6, 5, ["a"], is_repeated=False)] == [1, 2, 3]


def test_after_a_lost_mark_what_was_held_is_dropped_and_counted() -> None:
    for previous, is_repeated in ((5, True), (6, False)):
        (a,) = begun("a")
        a.hold(7)
        a.take(message(1))
        assert a.begin(7, previous, ["a"], is_repeated=is_repeated) == []
        assert (a.lost, a.take(message(2))) == (1, True)


def test_the_part_of_a_member_that_is_gone_is_held_and_shared_out() -> None:
    a, b, c = begun("a", "b", "c")
    for share in (a, b):
        share.propose(6, 5, ("c",))
        share.hold(6)
    for number in range(1, 4):
        a.take(message(number))
        b.take(message(number))
    got = [each.number for share in (a, b) for each in share.begin(6, 5, ["a", "b"], is_repeated=False)]
    assert sorted(got) == [1, 2, 3]
    assert not c.awaited


def test_another_broker_that_counts_from_less_gives_a_new_share() -> None:
    (a,) = begun("a")
    a.forget()
    assert not a.take(message(1))
    a.hold(2)
    a.begin(2, 0, ["a"], is_repeated=False)
    assert a.take(message(2))
