"""Groups of subscribers, as rules of the registry: when a share is proposed, when it begins, who may be a member."""

from typing import Any

import pytest

from registry import commands, replies
from registry.channels.leases import Member, Terms
from registry.errors import InvalidName, RegistryError
from registry.registry import Registry
from registry.topics.subscriber_groups import MOST_MEMBERS, VALID_SECONDS, Mark


@pytest.fixture
def registry() -> Registry:
    return Registry(terms=Terms(heartbeat_seconds=1.0, stall_seconds=4.0, lease_seconds=20.0))


def tell(registry: Registry, member: str, *, now: float = 1.0, **fields: Any) -> replies.SubscriberRegistered:
    command = commands.RegisterSubscriber(
        **{"kind": "group", "name": "g", "patterns": ["t"], "member_id": member, "lease": f"lease-{member}", **fields}
    )
    reply = registry.apply(command, now=now).reply
    assert isinstance(reply, replies.SubscriberRegistered)
    return reply


def marks(registry: Registry) -> list[Mark]:
    return registry.subscribers.groups.take_marks()


def test_a_share_begins_when_every_member_is_ready(registry: Registry) -> None:
    proposed = tell(registry, "a").proposed
    assert marks(registry) == [Mark("g t", proposed, 0, None)]
    begun = tell(registry, "a", ready=proposed)
    assert (begun.epoch, begun.proposed) == (proposed, 0)
    assert marks(registry) == [Mark("g t", proposed, 0, ["a"])]
    following = tell(registry, "b").proposed
    tell(registry, "b", ready=following)
    assert tell(registry, "a").epoch == proposed, "not before the first is ready"
    assert [mark.members for mark in marks(registry)] == [None]
    assert tell(registry, "a", ready=following).epoch == following
    assert marks(registry) == [Mark("g t", following, proposed, ["a", "b"])]


def test_a_lost_mark_is_repeated_for_who_is_still_ready(registry: Registry) -> None:
    epoch = tell(registry, "a").proposed
    tell(registry, "a", ready=epoch)
    marks(registry)
    tell(registry, "a")
    assert marks(registry) == []
    tell(registry, "a", ready=epoch)
    assert marks(registry) == [Mark("g t", epoch, 0, ["a"], is_repeated=True)]


def test_who_leaves_has_its_share_until_the_next_begins_and_who_dies_is_named(registry: Registry) -> None:
    for member in ("a", "b", "c"):
        proposed = tell(registry, member).proposed
    for member in ("a", "b", "c"):
        tell(registry, member, ready=proposed)
    marks(registry)
    leaving = tell(registry, "c", leaving=True).proposed
    assert marks(registry) == [Mark("g t", leaving, proposed, None)]
    for member in ("a", "b", "c"):
        tell(registry, member, ready=leaving, leaving=member == "c")
    assert marks(registry) == [Mark("g t", leaving, proposed, ["a", "b"])]
    registry.apply(commands.UnregisterSubscriber(member_id="c", lease="lease-c"), now=1.0)
    assert marks(registry) == [], "it had left already"
    registry.host_events.died([Member("subscriber", "", "b")], now=1.0)
    (mark,) = marks(registry)
    assert (mark.members, mark.gone) == (None, ("b",))
    assert tell(registry, "a", ready=mark.epoch).epoch == mark.epoch


def test_a_restarted_broker_begins_nothing_before_old_shares_have_run_out(registry: Registry) -> None:
    registry.subscribers.groups.settle_until = 1.0 + VALID_SECONDS
    registry.subscribers.groups.newest_epoch = 1000
    proposed = tell(registry, "a").proposed
    assert proposed > 1000
    assert tell(registry, "a", ready=proposed, now=3.9).epoch == 0
    assert tell(registry, "a", ready=proposed, now=4.0).epoch == proposed


def test_a_silent_member_ends_with_its_lease_and_others_go_on(registry: Registry) -> None:
    tell(registry, "a", now=0.0)
    tell(registry, "b", now=0.0)
    assert tell(registry, "a", now=0.0).valid_seconds <= 20.0 / 3
    tell(registry, "a", now=15.0)
    registry.expire(now=21.0)
    proposed = tell(registry, "a", now=21.0).proposed
    assert tell(registry, "a", now=21.0, ready=proposed).epoch == proposed
    assert marks(registry)[-1].members == ["a"]


def test_patterns_in_any_order_are_one_group_and_names_are_checked(registry: Registry) -> None:
    tell(registry, "a", patterns=["x", "y"])
    tell(registry, "b", patterns=["y", "x"])
    assert {mark.group for mark in marks(registry)} == {"g x,y"}
    for wrong in ({"name": "no name"}, {"patterns": ["a..b"]}, {"member_id": "no name"}):
        with pytest.raises(InvalidName):
            tell(registry, "c", **wrong)


def test_a_group_has_a_bounded_number_of_members(registry: Registry) -> None:
    for number in range(MOST_MEMBERS):
        tell(registry, f"m{number}")
    with pytest.raises(RegistryError):
        tell(registry, "one-more")
    tell(registry, "m0")
