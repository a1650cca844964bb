"""Groups of subscribers on plain topics, through a real broker and real processes: each message to one member."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import BrokerRequired, ConfigurationError, InvalidName
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Subscription
from tests import preloaded
from tests.conftest import QUICK
from tests.integration.harness import ROOT, AnyBroker, Served, clean_environment, end_at_once, eventually, hub_of

SECONDS = 30.0


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    return served(**QUICK)


def received(*subscriptions: Subscription) -> list[Any]:
    """What is buffered, of each in its order."""
    return [
        subscription.receive(SECONDS).payload for subscription in subscriptions for _ in range(subscription.buffered)
    ]


def all_buffered(count: int, *subscriptions: Subscription) -> bool:
    return sum(subscription.buffered for subscription in subscriptions) == count


def test_each_message_goes_to_one_member_and_members_take_turns(broker: AnyBroker) -> None:
    with hub_of(broker) as one, hub_of(broker) as two, hub_of(broker) as three, hub_of(broker) as publisher:
        members = [hub.subscribe("orders.>", group="workers") for hub in (one, two, three)]
        everybody = one.subscribe("orders.>")
        for n in range(300):
            publisher.publish(f"orders.{n % 2}", n)
        eventually(all_buffered, 300, *members)
        assert [member.buffered for member in members] == [100, 100, 100]
        assert sorted(received(*members)) == list(range(300))
        assert [everybody.receive(SECONDS).payload for _ in range(300)] == list(range(300))
        assert [member.lost for member in members] == [0, 0, 0]


def test_groups_of_other_names_or_patterns_are_independent(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        members = [
            hub.subscribe("orders.*", group="workers"),
            hub.subscribe("orders.*", group="audit"),
            hub.subscribe("orders.eu", group="workers"),
            hub.subscribe(["orders.eu", "other"], group="workers"),
            hub.subscribe(["other", "orders.eu"], group="workers"),
        ]
        for n in range(10):
            hub.publish("orders.eu", n)
        eventually(all_buffered, 40, *members)
        assert [member.buffered for member in members] == [10, 10, 10, 5, 5]


def test_members_come_and_go_while_messages_flow_and_nothing_is_lost_or_doubled(broker: AnyBroker) -> None:
    with hub_of(broker) as publisher, hub_of(broker) as one, hub_of(broker) as two:
        first = one.subscribe("orders", group="workers")
        is_over = threading.Event()
        published = 0

        def publish() -> None:
            nonlocal published
            while not is_over.wait(0.002):  # no faster than all of them can receive in one process
                for _ in range(5):
                    publisher.publish("orders", published)
                    published += 1

        thread = threading.Thread(target=publish)
        thread.start()
        others = []
        for _ in range(8):
            others.append(two.subscribe("orders", group="workers"))
            eventually(lambda: others[-1].buffered > 20)
            if len(others) % 2:
                others[-1].close()
        is_over.set()
        thread.join()
        eventually(all_buffered, published, first, *others)
        assert sorted(received(first, *others)) == list(range(published))
        assert sum(member.lost for member in (first, *others)) == 0


MEMBER = """
import sys
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5)
for message in hub.subscribe("orders", group="workers"):
    print(message.payload, flush=True)
"""


def test_the_others_take_over_the_share_of_a_killed_member(broker: AnyBroker) -> None:
    with hub_of(broker) as hub, hub_of(broker) as publisher:
        survivor = hub.subscribe("orders", group="workers")
        process = preloaded.Popen(
            [sys.executable, "-c", MEMBER, broker.endpoint],
            cwd=ROOT,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said: list[str] = []
        listener = threading.Thread(target=lambda out=process.stdout: said.extend(iter(out.readline, "")))
        listener.start()
        numbers = itertools.count()

        def has_share() -> bool:
            publisher.publish("orders", next(numbers))
            return bool(said)

        try:
            eventually(has_share)
            process.kill()
            process.wait()

            def has_all() -> bool:
                new = [next(numbers) for _ in range(10)]
                for n in new:
                    publisher.publish("orders", n)
                deadline = time.monotonic() + 1.0
                found: list[int] = []
                while len(found) < 10 and time.monotonic() < deadline:
                    found += [payload for payload in received(survivor) if payload >= new[0]]
                return found == new

            assert eventually(has_all)
        finally:
            end_at_once(process)
            process.wait()
            listener.join()
            process.stdout.close()


def test_after_a_restart_of_the_broker_the_group_shares_again_and_nothing_comes_twice(server: Served) -> None:
    with hub_of(server) as one, hub_of(server) as two, hub_of(server) as publisher:
        members = [one.subscribe("orders", group="workers"), two.subscribe("orders", group="workers")]
        found: list[int] = []
        number = 0

        def publish() -> bool:
            nonlocal number
            try:
                publisher.publish("orders", number)
            except BrokerRequired:
                return False
            number += 1
            return True

        for _ in range(100):
            eventually(publish)
        eventually(all_buffered, 100, *members)
        found += received(*members)
        server.kill()
        server.start()

        def shares_again() -> bool:
            nonlocal found
            begin = number
            for _ in range(10):
                eventually(publish)
            deadline = time.monotonic() + 1.0
            new: list[list[int]] = [[], []]
            while sum(map(len, new)) < 10 and time.monotonic() < deadline:
                for index, member in enumerate(members):
                    if member.buffered:
                        payload = member.receive(SECONDS).payload
                        found.append(payload)
                        new[index] += [payload] if payload >= begin else []
                time.sleep(0.005)
            return [len(part) for part in new] == [5, 5]

        assert eventually(shares_again)
        assert len(found) == len(set(found))


def test_retained_topics_are_shared_live_too(broker: AnyBroker) -> None:
    with hub_of(broker) as one, hub_of(broker) as two:
        one.topic("orders.kept", keep=100)
        members = [hub.subscribe("orders.>", group="workers") for hub in (one, two)]
        for n in range(20):
            one.publish("orders.kept", n)
            one.publish("orders.plain", n)
        eventually(all_buffered, 40, *members)
        assert [member.buffered for member in members] == [20, 20]
        assert sorted(received(*members)) == sorted([*range(20), *range(20)])


def test_callbacks_and_async_members_share(broker: AnyBroker) -> None:
    async def run(hub: MessageHub, other: MessageHub) -> tuple[list[int], list[int]]:
        called: list[int] = []
        awaited: list[int] = []

        async def handle(message: Message) -> None:
            awaited.append(message.payload)

        async with other.subscribe("orders", handle, group="workers"):
            with hub.subscribe("orders", lambda message: called.append(message.payload), group="workers"):
                for n in range(40):
                    await hub.publish_async("orders", n)
                async with asyncio.timeout(SECONDS):
                    while len(called) + len(awaited) < 40:
                        await asyncio.sleep(0.01)
        return called, awaited

    with hub_of(broker) as hub, hub_of(broker) as other:
        called, awaited = asyncio.run(run(hub, other))
    assert (len(called), len(awaited)) == (20, 20)
    assert sorted(called + awaited) == list(range(40))


def test_a_forked_child_is_no_member(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        member = hub.subscribe("orders", group="workers")
        pid = os.fork()
        if pid == 0:
            os._exit(0 if member.is_closed else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for n in range(10):
            hub.publish("orders", n)
        eventually(all_buffered, 10, member)


def test_a_closed_hub_leaves_its_groups(broker: AnyBroker) -> None:
    with hub_of(broker) as hub:
        with hub_of(broker) as other:
            gone = other.subscribe("orders", group="workers")
            stays = hub.subscribe("orders", group="workers")
        for n in range(10):
            hub.publish("orders", n)
        eventually(all_buffered, 10, stays)
        assert gone.is_closed


@pytest.mark.parametrize(
    "options",
    [{"local": True}, {"since": 0}, {"overflow": "block"}, {"durable": "billing"}, {"group": 7}, {"ack": "manual"}],
)
def test_what_makes_no_sense_is_refused_by_name(broker: AnyBroker, options: dict[str, Any]) -> None:
    with hub_of(broker) as hub:
        with pytest.raises(ConfigurationError) as refused:
            hub.subscribe("orders", **{"group": "workers", **options})
        assert any(name in str(refused.value) for name in options)
        with pytest.raises(InvalidName):
            hub.subscribe("orders", group="no name")
