"""Where one message of a topic went: what each subscription says of it, told only when somebody asks."""

import os
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from messagehub import MessageHub
from messagehub.broker.topics.message_traces import MessageTraces
from messagehub.broker.topics.origins import MOST_REQUESTS, MessageOrigins
from messagehub.broker.topics.subscriptions import MOST_ASKED, ReportedSubscriptions
from messagehub.errors import Forbidden, InvalidRequest, TopicNotFound
from messagehub.topics import reports
from messagehub.topics.message_fates import FORGOTTEN, MOST_PUBLISHERS, MOST_RANGES, Heard, LostMessages
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Subscription
from registry import commands, replies
from registry.access import Rights, check
from registry.events import MessagesRetained
from registry.records import AskedMessage, PublisherProcess, RetainedMessage, SubscriptionState
from registry.registry import Registry
from registry.topics.patterns import Patterns
from tests.integration.harness import Served, eventually


@pytest.fixture(autouse=True)
def _frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes report more often, so that tests are quick."""
    monkeypatch.setattr(reports, "REPORT_SECONDS", 0.2)
    monkeypatch.setattr(reports, "ALIVE_SECONDS", 0.3)
    monkeypatch.setattr(reports, "ASKED_SECONDS", 0.1)


def outcomes(trace: replies.MessageTrace) -> list[tuple[str, str]]:
    return [(one.patterns[0], one.outcome) for one in trace.subscriptions]


def test_a_plain_message_is_followed_to_every_subscription(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as sender, MessageHub(dir=server.dir) as reader:
        every = reader.subscribe("orders.>")
        oldest = reader.subscribe("orders.eu", buffer=2)
        newest = reader.subscribe("orders.*", buffer=2, overflow="drop_newest")
        ended = reader.subscribe("orders.eu", buffer=1, overflow="disconnect")
        sent = [sender.publish("orders.eu", number) for number in range(4)]
        first = every.receive(timeout=30)
        rest = [every.receive(timeout=30) for _ in range(2)]
        assert [first.number, *(each.number for each in rest)] == sent[:3]
        eventually(lambda: newest.lost == 2 and every.buffered == 1 and ended.is_closed)
        late = reader.subscribe("orders.>")
        publisher = first.publisher.hex()

        def trace(number: int) -> replies.MessageTrace:
            return sender.trace_message("orders.eu", publisher=publisher, number=number, timeout=30)

        begun = trace(sent[0])
        assert begun.is_complete
        assert begun.published_by is not None
        assert (begun.published_by.pid, begun.offset) == (os.getpid(), None)
        assert outcomes(begun) == [
            ("orders.>", "delivered"),
            ("orders.eu", "lost"),
            ("orders.*", "waiting"),
            ("orders.>", "earlier"),
        ]
        assert "drop_oldest" in str(begun.subscriptions[1].reason)
        eventually(lambda: [one.ended_by for one in trace(sent[0]).ended] == ["SUBSCRIBER_TOO_SLOW"])
        last = trace(sent[3])
        assert outcomes(last) == [
            ("orders.>", "waiting"),
            ("orders.eu", "waiting"),
            ("orders.*", "lost"),
            ("orders.>", "earlier"),
        ]
        assert "drop_newest" in str(last.subscriptions[2].reason)
        assert outcomes(trace(sent[3] + 1)) == [(pattern, "not_heard") for pattern, _ in outcomes(last)]
        assert sender.trace_message("cars", publisher=publisher, number=1, wait=False).subscriptions == []
        assert oldest.lost == 2
        late.close()
        eventually(lambda: ("orders.>", "closed") in [(one.patterns[0], str(one.ended_by)) for one in trace(1).ended])


def test_what_is_lost_on_the_way_is_told_apart(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as sender, MessageHub(dir=server.dir) as reader:
        every = reader.subscribe("a")
        sender.publish("a", 1)
        first = every.receive(timeout=30)
        # private: what libzmq drops between two processes cannot be caused in a test that takes seconds
        numbered = sender._parts.topics.publisher._numbered["a"]
        numbered.number += 3
        sender.publish("a", 2)
        assert every.receive(timeout=30).number == 5
        publisher = first.publisher.hex()
        found = {
            number: sender.trace_message("a", publisher=publisher, number=number, timeout=30).subscriptions[0]
            for number in (1, 2, 4, 5)
        }
        assert {number: one.outcome for number, one in found.items()} == {
            1: "delivered",
            2: "lost",
            4: "lost",
            5: "delivered",
        }
        assert "did not reach" in str(found[4].reason)
        assert every.lost_in_transit == 3


def test_a_message_of_a_group_is_of_one_member(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as sender, MessageHub(dir=server.dir) as one, MessageHub(dir=server.dir) as other:
        members = [hub.subscribe("jobs", group="workers") for hub in (one, other)]
        numbers = [sender.publish("jobs", number) for number in range(4)]
        got = [[member.receive(timeout=30) for _ in range(2)] for member in members]
        publisher = got[0][0].publisher.hex()
        for number in numbers:
            said = sender.trace_message("jobs", publisher=publisher, number=number, timeout=30)
            expected = ["delivered" if number in [m.number for m in mine] else "other_member" for mine in got]
            assert [each.outcome for each in said.subscriptions] == expected
        members[1].close()

        def left() -> list[str]:
            said = sender.trace_message("jobs", publisher=publisher, number=numbers[0], timeout=30)
            return [each.outcome for each in said.subscriptions]

        eventually(lambda: left() == ["unknown"])


def test_a_retained_message_is_followed_by_its_offset(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as sender, MessageHub(dir=server.dir) as reader:
        topic = sender.topic("jobs", keep=100)
        offsets = [topic.publish(number) for number in range(5)]
        oldest, late = reader.subscribe("jobs", since="oldest", buffer=2), reader.subscribe("jobs", since="newest")
        live = reader.subscribe("jobs")
        worker = reader.subscribe("jobs", durable="worker", ack="manual", max_deliveries=1, ack_wait=4.0, since=2)
        assert oldest.receive(timeout=30).offset == offsets[0]
        held = worker.receive(timeout=30)
        assert held.offset == 2
        held.ack()
        one = sender.trace_message("jobs", offset=offsets[0], timeout=30)
        assert [each.outcome for each in one.subscriptions] == ["delivered", "earlier", "not_heard"]
        assert [(each.position, each.outcome) for each in one.positions] == [("worker", "earlier")]
        assert one.published_by is not None
        assert (one.published_by.pid, one.offset, one.is_complete) == (os.getpid(), 1, True)
        assert one.published_at is not None
        exchanges = sender.trace(one.correlation_id)
        assert [(each["name"], each["offset"], each["messages"]) for each in exchanges if each["side"] == "broker"] == [
            ("jobs", 1, 1)
        ]
        last = sender.trace_message("jobs", offset=offsets[4], timeout=30)
        assert [each.outcome for each in last.subscriptions] == ["waiting", "earlier", "not_heard"]
        assert "in the store" in str(last.subscriptions[0].reason)
        (acknowledged,) = sender.trace_message("jobs", offset=2, wait=False).positions
        assert acknowledged.outcome == "acknowledged"

        def buried() -> list[tuple[str, int]]:
            worker.receive(timeout=30) if worker.buffered else None
            return [
                (each.outcome, each.dead_letter or 0)
                for each in sender.trace_message("jobs", offset=3, wait=False).positions
            ]

        eventually(lambda: [outcome for outcome, _ in buried()] == ["dead_letter"])
        (letter,) = [each for each in sender.dead_letters() if each.offset == 3]
        assert buried() == [("dead_letter", letter.number)]
        offset = topic.publish("new")
        assert (late.receive(timeout=30).offset, live.receive(timeout=30).offset) == (offset, offset)
        new = sender.trace_message("jobs", offset=offset, timeout=30)
        assert [each.outcome for each in new.subscriptions] == ["waiting", "delivered", "delivered"]
        with pytest.raises(InvalidRequest, match="no message at offset 7"):
            sender.trace_message("jobs", offset=7)
        with pytest.raises(TopicNotFound):
            sender.trace_message("other", offset=1)
        with pytest.raises(InvalidRequest, match="`publisher` and `number`"):
            sender.trace_message("jobs", offset=1, number=1)


def test_what_a_durable_reader_holds_is_shown_with_its_process(served: Callable[..., Served]) -> None:
    server = served()
    with MessageHub(dir=server.dir) as hub:
        topic = hub.topic("jobs", keep=100)
        topic.publish(1)
        topic.publish(2)
        worker = topic.subscribe(durable="worker", ack="manual", buffer=1)
        worker.receive(timeout=30)
        (held,) = hub.trace_message("jobs", offset=1, wait=False).positions
        assert (held.outcome, held.deliveries, held.pid) == ("handed_out", 1, os.getpid())
        assert 0 < (held.again_in_seconds or 0) <= 30
        worker.close()
        (free,) = hub.trace_message("jobs", offset=1, wait=False).positions
        assert (free.outcome, free.deliveries, free.pid, free.again_in_seconds) == ("handed_out", 1, None, 0.0)


def test_a_process_that_was_killed_is_shown_as_ended() -> None:
    """By its last report; what became of one message there is not known."""
    told = ReportedSubscriptions()
    say(told, "one", SubscriptionState(patterns=["a"], received=7, began_at=1.0))
    say(told, "other", SubscriptionState(patterns=["a"], began_at=2.0))
    say(told, "other")
    assert [(one.began_at, one.ended_by) for one in told.ended("a")] == [(2.0, "closed")]
    say(told, "one", SubscriptionState(patterns=["a"], began_at=1.0, ended_by="SUBSCRIBER_TOO_SLOW"))
    assert [one.ended_by for one in told.ended("a")] == ["closed", "SUBSCRIBER_TOO_SLOW"]
    assert told.ended("b") == []


def test_only_what_somebody_asks_for_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ReportedSubscriptions()
    state = SubscriptionState(patterns=["a"])
    assert say(told, "one", state).asked == []
    traces = MessageTraces(told, MessageOrigins(), time.monotonic)
    for number in range(MOST_ASKED + 3):
        traces.trace(commands.TraceMessage(topic="a", publisher="0" * 16, number=number), [], Registry())
    assert [one.number for one in say(told, "one", state).asked] == list(range(3, MOST_ASKED + 3))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 20)
    assert say(told, "one", state).asked == []


def test_whoever_may_observe_a_topic_may_trace_its_messages() -> None:
    rights = Rights.parse(["observe:orders.*"])
    check(rights, commands.TraceMessage(topic="orders.eu", offset=1))
    with pytest.raises(Forbidden):
        check(rights, commands.TraceMessage(topic="cars", offset=1))


def test_losses_are_remembered_within_bounds() -> None:
    lost, source = LostMessages(), ("t", b"p" * 8, False)
    lost.add(source, 1, 1, "slow")
    lost.add(source, 2, 3, "slow")
    assert [lost.why(source, number) for number in range(1, 5)] == ["slow", "slow", "slow", None]
    for number in range(10, 10 + 2 * MOST_RANGES, 2):
        lost.add(source, number, number, "slow")
    assert (lost.why(source, 2), lost.why(source, 12), lost.why(source, 13)) == (FORGOTTEN, "slow", None)
    for publisher in range(12):
        for number in range(1, 2 * MOST_RANGES, 2):
            lost.add(("t", publisher.to_bytes(8, "big"), True), number, number, "slow")
    assert lost.why(("t", (11).to_bytes(8, "big"), True), 2 * MOST_RANGES - 1) == "slow"
    assert lost.why(("t", (11).to_bytes(8, "big"), True), 1) == FORGOTTEN
    for number in range(MOST_PUBLISHERS):
        lost.add(("t", number.to_bytes(8, "big"), False), 1, 1, "slow")
    assert lost.why(source, 12) == FORGOTTEN
    assert lost.why(("t", (5).to_bytes(8, "big"), False), 1) == "slow"


def test_requests_that_stored_messages_are_remembered_within_bounds() -> None:
    origins = MessageOrigins()
    for number in range(MOST_REQUESTS + 1):
        origins.note_stored([stored(2 * number + 1, "ab.cd")], f"id{number}")
    origins.note_publisher("ab", PublisherProcess(program="p.py", host="h", pid=1))
    assert origins.stored_by("t", 1, 1) is None
    newest = origins.stored_by("t", 1, 2 * MOST_REQUESTS + 2)
    assert newest is not None
    assert (newest.offset, newest.correlation_id) == (2 * MOST_REQUESTS + 1, f"id{MOST_REQUESTS}")
    process = origins.process_of(newest.publisher)
    assert process is not None
    assert process.program == "p.py"
    assert origins.stored_by("t", 2, 3) is None


def test_what_a_callback_was_stopped_before_is_lost() -> None:
    """A subscription that nobody reads: the oldest of its full buffer are dropped, whoever published them."""

    subscription = Subscription(Patterns("t"), buffer=2, overflow="drop_oldest", on_close=lambda _: None)
    for number in range(1, 6):
        subscription.offer(Message("t", b"p" * 8, number, 1.0, 0, b"", 0, {}, 0))
    asked = AskedMessage(topic="t", publisher=(b"p" * 8).hex(), number=3)
    assert subscription.lost == 3
    assert subscription.fate_of(asked, None).outcome == "not_heard"
    heard = Heard(1, 6, is_first_certain=True, is_of_site=False)
    assert subscription.fate_of(asked, heard).outcome == "lost"
    for number, outcome in ((4, "waiting"), (6, "not_heard")):
        assert subscription.fate_of(replace(asked, number=number), heard).outcome == outcome
    forgotten = Heard(4, 6, is_first_certain=False, is_of_site=False)
    assert subscription.fate_of(asked, forgotten).outcome == "unknown"


def say(told: ReportedSubscriptions, lease: str, *states: SubscriptionState) -> replies.SubscriptionsNoted:
    reply = told.report(commands.ReportSubscriptions(lease=lease, subscriptions=list(states)), [], Registry())
    assert isinstance(reply, replies.SubscriptionsNoted)
    return reply


def stored(offset: int, publisher: str) -> MessagesRetained:
    messages = [RetainedMessage(payload=b"1"), RetainedMessage(payload=b"2")]
    event = MessagesRetained(
        name="t", incarnation=1, offset=offset, total_bytes=1, messages=messages, publisher=publisher, number=1
    )
    event.at = 5.0
    return event
