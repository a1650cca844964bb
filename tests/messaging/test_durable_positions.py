"""Durable positions of retained topics between real processes: acknowledged, handed out again, shared, stored."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from messagehub import Keep, MessageHub
from messagehub.errors import (
    ConfigurationError,
    PolicyMismatch,
    PositionNotFound,
    ReceiveTimeout,
    SendTimeout,
    TopicNotFound,
)
from messagehub.topics.messages import Message
from messagehub.topics.retained import durable_subscriptions
from messagehub.topics.retained.durable_subscriptions import DurableSubscription
from messagehub.topics.subscriptions import Subscription
from tests import preloaded
from tests.conftest import QUICK
from tests.integration.harness import ROOT, AnyBroker, Served, clean_environment, end_at_once, eventually, hub_of

SECONDS = 30.0
LONG = 3600.0
"""An `ack_wait` that never passes here: what comes again does so for another reason."""


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    """A broker with a database, which can be killed and started again."""
    return served(**QUICK)


def read(subscription: Subscription, count: int) -> list[Message]:
    return [subscription.receive(SECONDS) for _ in range(count)]


def offsets(messages: list[Message]) -> list[int | None]:
    return [message.offset for message in messages]


def is_silent(subscription: Subscription) -> bool:
    with pytest.raises(ReceiveTimeout):
        subscription.receive(0.2)
    return True


def filled(hub: MessageHub, count: int, topic: str = "orders") -> None:
    hub.topic(topic, keep=10_000).publish_all(list(range(1, count + 1)))


MEMBER = """
import sys, time
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5)
buffer, ack_wait = int(sys.argv[2]), float(sys.argv[3])
subscription = hub.subscribe("orders", durable="billing", ack="manual", buffer=buffer, ack_wait=ack_wait)
for message in subscription:
    print(message.offset, message.deliveries, flush=True)
    if sys.argv[4] == "ack":
        message.ack()
"""


@contextmanager
def member(broker: AnyBroker, *, buffer: int = 2, ack_wait: float = LONG, mode: str = "hold") -> Iterator[Any]:
    """A process that reads under the durable name; its lines are what it got."""
    process = preloaded.Popen(
        [sys.executable, "-c", MEMBER, broker.endpoint, str(buffer), str(ack_wait), mode],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        end_at_once(process)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


# -- acknowledged and handed out again -------------------------------------------------------------------------


def test_the_next_run_goes_on_where_it_was_acknowledged(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 5)
        with hub.subscribe("orders", durable="billing", ack="manual") as first:
            for message in read(first, 3):
                message.ack()
            assert offsets(read(first, 1)) == [4], "not acknowledged"
        with hub.subscribe("orders", durable="billing", ack="manual") as second:
            again = read(second, 2)
            assert [(message.offset, message.deliveries) for message in again] == [
                (4, 2),
                (5, 1 + (again[1].deliveries > 1)),
            ]
            assert is_silent(second)


def test_asking_for_the_next_acknowledges_automatically(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 5)
        with hub.subscribe("orders", durable="billing") as first:
            for message in first:
                if message.offset == 4:
                    break
        topic = hub.topic("orders")
        assert topic.position("billing").summary.acknowledged_to == 4
        with hub.subscribe("orders", durable="billing") as second:
            assert offsets(read(second, 2)) == [4, 5]
            eventually(lambda: topic.position("billing").summary.acknowledged_to == 5)


def test_what_is_not_acknowledged_in_time_comes_again_before_what_is_new(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 3)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=4.0) as subscription:
            one, two, three = read(subscription, 3)
            assert (one.deliveries, two.deliveries, three.deliveries) == (1, 1, 1)
            two.ack()
            again = read(subscription, 2)
            assert [(message.offset, message.deliveries) for message in again] == [(1, 2), (3, 2)]
            for message in again:
                message.ack()
            assert is_silent(subscription)


def test_given_back_it_comes_again_at_once(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 2)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG, buffer=1) as subscription:
            subscription.receive(SECONDS).nak()
            eventually(lambda: subscription.receive(SECONDS).deliveries == 2)


def test_automatic_acknowledgement_leaves_out_what_was_given_back(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 1)
        with hub.subscribe("orders", durable="billing", ack_wait=LONG) as subscription:
            subscription.receive(SECONDS).nak()
            assert subscription.receive(SECONDS).deliveries == 2


def test_what_waits_in_the_buffer_is_not_handed_out_to_others(broker: AnyBroker) -> None:
    """A slow reader of many has its time for each of them."""
    with hub_of(broker) as hub, hub_of(broker) as other:
        filled(hub, 10)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=4.0, buffer=10) as slow:
            first = slow.receive(SECONDS)
            first.ack()
            with other.subscribe("orders", durable="billing", ack="manual") as second:
                deadline = time.monotonic() + 6.0
                while time.monotonic() < deadline:
                    assert is_silent(second)
                rest = read(slow, 9)
                assert [(message.offset, message.deliveries) for message in rest] == [(n, 1) for n in range(2, 11)]


def test_at_most_max_unacked_are_handed_out(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 10)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG, max_unacked=3) as subscription:
            held = read(subscription, 3)
            assert is_silent(subscription)
            held[1].ack()
            assert offsets(read(subscription, 1)) == [4]


def test_after_max_deliveries_it_is_a_dead_letter_and_the_others_go_on(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("orders", keep=100)
        topic.publish({"poison": True}, headers={"trace": "7"})
        topic.publish("fine")
        with hub.subscribe(
            "orders", durable="billing", ack="manual", ack_wait=LONG, max_deliveries=2, buffer=1
        ) as read_by:
            seen: list[tuple[int | None, int]] = []
            while len(seen) < 3:
                message = read_by.receive(SECONDS)
                seen.append((message.offset, message.deliveries))
                if message.offset == 1:
                    message.nak()
                else:
                    message.ack()
            letters = eventually(lambda: hub.dead_letters("topic:orders").letters)
        assert sorted(seen) == [(1, 1), (1, 2), (2, 1)]
        (letter,) = letters
        assert (letter.form, letter.code, letter.attempts) == ("topic", "NOT_ACKNOWLEDGED", 2)
        assert (letter.headers, letter.payload_kind, letter.sender) == ({"trace": "7"}, "json", "billing")
        assert "offset 1" in letter.reason
        assert topic.position("billing").summary.lag == 0
        assert hub.resend_dead_letters("topic:orders").sent == 1
        with topic.subscribe(since="last") as resent:
            assert (resent.receive(SECONDS).payload, hub.dead_letters().kept) == ({"poison": True}, 0)


def test_an_acknowledged_message_is_on_disk(server: Served) -> None:
    with hub_of(server) as hub:
        filled(hub, 20)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG) as subscription:
            for message in read(subscription, 7):
                message.ack()
            server.kill()
            server.start()
    with hub_of(server) as hub:
        assert hub.topic("orders").position("billing").summary.acknowledged_to == 8


# -- sharing and ends ------------------------------------------------------------------------------------------


def test_two_members_share_the_work_and_each_message_goes_to_one(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub_of(broker) as other:
        topic = hub.topic("orders", keep=1000)
        found: list[tuple[str, int | None]] = []
        with (
            hub.subscribe("orders", lambda m: found.append(("a", m.offset)), durable="billing", buffer=2),
            other.subscribe("orders", lambda m: found.append(("b", m.offset)), durable="billing", buffer=2),
        ):
            for n in range(200):
                topic.publish(n)
            eventually(lambda: len(found) == 200)
            eventually(lambda: topic.position("billing").summary.lag == 0)
        assert sorted(offset or 0 for _, offset in found) == list(range(1, 201))
        assert {who for who, _ in found} == {"a", "b"}


def test_a_killed_member_gives_back_what_it_held_at_once_and_in_order(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 6)
        with member(broker, buffer=2) as process:
            assert [process.stdout.readline().split() for _ in range(2)] == [["1", "1"], ["2", "1"]]
            topic = hub.topic("orders")
            eventually(lambda: [one.pid for one in topic.position("billing").members] == [process.pid])
            process.kill()
            process.wait()
            with hub.subscribe("orders", durable="billing", ack="manual") as survivor:
                found = read(survivor, 6)
        assert sorted(offsets(found), key=lambda n: n or 0) == [1, 2, 3, 4, 5, 6]
        assert {message.offset: message.deliveries > 1 for message in found if message.offset in (1, 2)} == {
            1: True,
            2: True,
        }


def test_a_member_that_lives_on_takes_over_from_a_killed_one(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 1)
        with member(broker, buffer=1) as process:
            assert process.stdout.readline() == "1 1\n"
            with hub.subscribe("orders", durable="billing", ack="manual") as survivor:
                assert is_silent(survivor)
                process.kill()
                message = survivor.receive(SECONDS)
                assert (message.offset, message.deliveries) == (1, 2)


def test_the_broker_killed_between_delivery_and_acknowledgement_loses_neither(server: Served) -> None:
    with hub_of(server) as hub:
        filled(hub, 4)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=3.0, buffer=1) as subscription:
            one, two = read(subscription, 2)
            server.kill()
            with pytest.raises(SendTimeout):
                one.ack(timeout=0.3)
            server.start()
            one.ack(timeout=SECONDS)
            found = {message.offset: message.deliveries for message in read(subscription, 3)}
            assert set(found) == {2, 3, 4}, "the first is done"
            assert found[2] == 2, "counted over the restart"
            assert two.deliveries == 1


def test_members_acknowledge_everything_over_kills_of_the_broker(server: Served) -> None:
    with hub_of(server) as hub:
        filled(hub, 300)
        seen: set[int] = set()
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=1.0) as subscription:
            killer = threading.Thread(target=lambda: [(server.kill(), server.start()) for _ in range(2)])
            killer.start()
            while len(seen) < 300:
                message = subscription.receive(SECONDS)
                message.ack(timeout=SECONDS)
                assert message.offset not in seen, "acknowledged, so it does not come again"
                seen.add(message.offset or 0)
            killer.join()
            assert subscription.lost == 0
        assert hub.topic("orders").position("billing").summary.lag == 0


def test_closing_gives_back_what_is_buffered(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub_of(broker) as other:
        filled(hub, 8)
        with other.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG, buffer=4) as waiting:
            assert offsets(read(waiting, 1)) == [1]
        with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            assert sorted(offset or 0 for offset in offsets(read(subscription, 8))) == list(range(1, 9))


def test_what_was_buffered_and_never_read_is_not_counted_as_delivered(server: Served) -> None:
    # After a restart the broker waits for those who held something: for an `ack_wait` that passes here.
    options: dict[str, Any] = {"durable": "billing", "ack": "manual", "ack_wait": 5, "max_deliveries": 2}
    with hub_of(server) as hub:
        filled(hub, 6)
        for _ in range(4):  # deployed again and again
            with hub.subscribe("orders", **options) as subscription:
                eventually(lambda: subscription.buffered == 6)
    server.kill()
    server.start()
    with hub_of(server) as hub:
        with hub.subscribe("orders", **options) as subscription:
            assert [(message.offset, message.deliveries) for message in read(subscription, 6)] == [
                (offset, 1) for offset in range(1, 7)
            ]
        assert hub.dead_letters().letters == []


@pytest.mark.parametrize("ack", ["manual", "auto"])
def test_what_came_again_before_it_was_acknowledged_is_not_handed_out(broker: AnyBroker, ack: Any) -> None:
    with hub_of(broker) as hub:
        filled(hub, 1)
        with hub.subscribe("orders", durable="billing", ack=ack, ack_wait=0.2) as subscription:
            slow = subscription.receive(SECONDS)
            eventually(lambda: subscription.buffered == 1)  # it came again
            if ack == "manual":
                slow.ack()
            hub.topic("orders").publish("next")
            assert (slow.offset, subscription.receive(SECONDS).offset, subscription.received) == (1, 2, 2)


def test_what_was_acknowledged_comes_again_after_a_reset(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 2)
        with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            for message in read(subscription, 2):
                message.ack()
            hub.topic("orders").reset_position("billing", "oldest")
            assert [message.offset for message in read(subscription, 2)] == [1, 2]


def test_more_is_fetched_at_once_when_all_that_was_buffered_is_done(
    broker: AnyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_subscriptions, "LOOK_SECONDS", LONG)
    with hub_of(broker) as hub:
        filled(hub, 3)
        options = {"durable": "billing", "ack": "manual", "buffer": 1, "ack_wait": LONG}
        with hub.subscribe("orders", **options) as subscription:  # type: ignore[arg-type]
            assert isinstance(subscription, DurableSubscription)
            assert subscription.receive(SECONDS).offset == 1
            eventually(lambda: subscription.buffered == 1)
            # private: nobody but another subscriber could acknowledge what was not handed out yet.
            subscription._buffer[0].ack()
            # private: nothing public tells that the fetching thread waits.
            eventually(lambda: not subscription._wanted.is_set())
            assert subscription.receive(SECONDS).offset == 3


# -- forms of reading ------------------------------------------------------------------------------------------


def test_it_is_read_with_async_for_and_acknowledged_with_await(broker: AnyBroker) -> None:
    async def consume(hub: MessageHub) -> list[int | None]:
        found = []
        async with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            async for message in subscription:
                found.append(message.offset)
                if message.offset == 2 and message.deliveries == 1:
                    await message.nak_async()
                else:
                    await message.ack_async()
                if len(found) == 4:
                    return found
        raise AssertionError("ended early")

    with hub_of(broker) as hub:
        filled(hub, 3)
        assert sorted(offset or 0 for offset in asyncio.run(consume(hub))) == [1, 2, 2, 3]
        assert hub.topic("orders").position("billing").summary.lag == 0


def test_a_callback_that_fails_does_not_acknowledge(broker: AnyBroker) -> None:
    found: list[tuple[int | None, int]] = []

    def handle(message: Message) -> None:
        found.append((message.offset, message.deliveries))
        if message.deliveries == 1 and message.offset == 1:
            raise ValueError("not this time")

    with hub_of(broker) as hub:
        filled(hub, 2)
        with hub.subscribe("orders", handle, durable="billing", ack_wait=4.0):
            eventually(lambda: (1, 2) in found)
            eventually(lambda: hub.topic("orders").position("billing").summary.lag == 0)
        assert sorted(found) == [(1, 1), (1, 2), (2, 1)]


def test_an_async_callback_acknowledges_what_it_has_handled(broker: AnyBroker) -> None:
    async def run(hub: MessageHub) -> list[int | None]:
        found: list[int | None] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            found.append(message.offset)

        async with hub.subscribe("orders", handle, durable="billing"):
            while len(found) < 20:
                await asyncio.sleep(0.01)
            while hub.topic("orders").position("billing").summary.lag:
                await asyncio.sleep(0.01)
        return found

    with hub_of(broker) as hub:
        filled(hub, 20)
        assert asyncio.run(run(hub)) == list(range(1, 21))


def test_an_async_callback_on_its_own_thread_closes_without_waiting_for_itself(broker: AnyBroker) -> None:
    subscribed: list[Subscription] = []
    is_subscribed, is_closed = threading.Event(), threading.Event()

    async def handle(_: Message) -> None:
        assert is_subscribed.wait(SECONDS)
        await subscribed[0].close_async(timeout=LONG)
        is_closed.set()

    with hub_of(broker) as hub:
        filled(hub, 2)
        subscribed.append(hub.subscribe("orders", handle, durable="billing"))
        is_subscribed.set()
        assert is_closed.wait(SECONDS)
        with hub.subscribe("orders", durable="billing", ack="manual") as other:
            assert offsets(read(other, 2)) == [1, 2], "nothing is held any more"


def test_a_forked_child_does_not_read_or_acknowledge_for_its_parent(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 2)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG) as subscription:
            message = subscription.receive(SECONDS)
            pid = os.fork()
            if pid == 0:
                try:
                    message.ack()
                except ConfigurationError:
                    os._exit(7 if subscription.is_closed else 8)
                os._exit(9)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            message.ack()
            assert offsets(read(subscription, 1)) == [2]


# -- where it begins, and what ends it -------------------------------------------------------------------------


def test_a_new_name_begins_at_since_and_an_old_one_where_it_was(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 5)
        for since, first in (
            ("newest", 6),
            ("last", 5),
            (3, 3),
            (None, 1),
            (time.time() - 3600, 1),
            (time.time() + 30, 6),
        ):
            name = f"n{first}{type(since).__name__}"
            hub.subscribe("orders", durable=name, since=since).close()  # type: ignore[arg-type]
            assert hub.topic("orders").position(name).summary.acknowledged_to == first, since
        hub.topic("orders").reset_position("n3int", 4)
        hub.subscribe("orders", durable="n3int", since="oldest").close()
        assert hub.topic("orders").position("n3int").summary.acknowledged_to == 4


def test_messages_that_retention_took_are_counted_and_passed_over(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("orders", keep=Keep(messages=5))
        topic.publish(0)
        hub.subscribe("orders", durable="billing").close()
        topic.publish_all(list(range(1, 20)))
        with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            assert offsets(read(subscription, 5)) == [16, 17, 18, 19, 20]
            assert subscription.lost == subscription.lost_to_retention == 15  # type: ignore[attr-defined]


def test_a_reset_reaches_who_reads(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        filled(hub, 20)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG) as subscription:
            assert offsets(read(subscription, 1)) == [1]
            hub.topic("orders").reset_position("billing", 15)
            found = []
            while 20 not in found:
                found.append(subscription.receive(SECONDS).offset)
            assert found[-6:] == [15, 16, 17, 18, 19, 20]
            assert len(found) <= 6 + 10, "no more than was buffered before the reset"


def test_deleting_the_position_or_the_topic_ends_who_reads_and_old_positions_are_not_used_again(
    broker: AnyBroker,
) -> None:
    with hub_of(broker) as hub:
        filled(hub, 2)
        topic = hub.topic("orders")
        with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            message = read(subscription, 2)[0]
            topic.delete_position("billing")
            with pytest.raises(PositionNotFound):
                subscription.receive(SECONDS)
            with pytest.raises(PositionNotFound):
                message.ack()
        with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            message = read(subscription, 2)[1]
            message.ack()
            topic.delete()
            with pytest.raises(TopicNotFound):
                subscription.receive(SECONDS)
        filled(hub, 3)
        with pytest.raises(TopicNotFound):
            message.ack()
        assert topic.positions() == []
        with hub.subscribe("orders", durable="billing") as subscription:
            assert offsets(read(subscription, 3)) == [1, 2, 3]


def test_positions_survive_a_restart_and_are_listed(server: Served) -> None:
    with hub_of(server) as hub:
        filled(hub, 4)
        with hub.subscribe("orders", durable="billing", ack="manual", ack_wait=LONG, max_deliveries=9) as subscription:
            one, _, three = read(subscription, 3)
            one.ack()
            three.ack()
        hub.subscribe("orders", durable="audit", max_unacked=7).close()
        before = hub.topic("orders").positions()
        server.kill()
        server.start()
    with hub_of(server) as hub:
        after = hub.topic("orders").positions()
        assert after == before
        assert [(one.position.name, one.acknowledged_to, one.lag) for one in after] == [
            ("audit", 1, 4),
            ("billing", 2, 2),
        ]


# -- wrong arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"ack": "manual"},
        {"ack_wait": 5},
        {"max_unacked": 5},
        {"max_deliveries": 5},
        {"durable": 7},
        {"durable": "d", "ack": "sometimes"},
        {"durable": "d", "ack_wait": 0},
        {"durable": "d", "ack_wait": "5"},
        {"durable": "d", "max_unacked": 0},
        {"durable": "d", "max_unacked": 2.5},
        {"durable": "d", "max_deliveries": True},
        {"durable": "d", "overflow": "block"},
        {"durable": "d", "local": True},
        {"durable": "d", "buffer": 0},
        {"durable": "d", "buffer": 100_000},
        {"durable": "d", "since": 99},
    ],
)
def test_what_makes_no_sense_is_refused_by_name(broker: AnyBroker, options: dict[str, Any]) -> None:
    with hub_of(broker) as hub:
        filled(hub, 1)
        with pytest.raises(ConfigurationError) as refused:
            hub.subscribe("orders", **options)
        assert any(name in str(refused.value) for name in options)
        assert hub.topic("orders").positions() == [], "who is refused leaves nothing behind"


def test_a_position_is_of_one_retained_topic_with_one_set_of_settings(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        with pytest.raises(TopicNotFound):
            hub.subscribe("orders", durable="billing")
        filled(hub, 1)
        for pattern in ("orders.>", ["orders", "other"]):
            with pytest.raises(ConfigurationError, match="durable"):
                hub.subscribe(pattern, durable="billing")
        with hub.subscribe("orders", durable="billing", ack_wait=5):
            with pytest.raises(PolicyMismatch, match="ack_wait"):
                hub.subscribe("orders", durable="billing", ack_wait=6)
            hub.subscribe("orders", durable="billing").close()
        with hub.subscribe("orders", since=0) as plain, pytest.raises(ConfigurationError, match="durable"):
            plain.receive(SECONDS).ack()


def test_a_process_that_acknowledges_and_is_killed_repeats_nothing(broker: AnyBroker, tmp_path: Path) -> None:
    with hub_of(broker) as hub:
        filled(hub, 500)
        with member(broker, buffer=10, mode="ack") as process:
            said = [process.stdout.readline().split() for _ in range(100)]
            process.kill()
            process.wait()
            said += [line.split() for line in process.stdout]
        done = {int(offset) for offset, _ in said[:-1]}
        with hub.subscribe("orders", durable="billing", ack="manual") as subscription:
            rest = read(subscription, 500 - len(said))
            assert not done & {message.offset for message in rest}
