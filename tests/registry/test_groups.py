"""Consumer groups: shares by rule, epochs that only grow."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry import commands, events
from registry.channels.groups import assignment
from registry.channels.leases import Member
from registry.records import Group
from registry.registry import Registry


def member(name: str, **fields: Any) -> commands.RegisterConsumer:
    return commands.RegisterConsumer(channel="work", consumer_id=name, group="crew", lease=name, **fields)


def producing(*names: str) -> Registry:
    registry = Registry()
    for name in names:
        registry.apply(
            commands.RegisterProducer(
                channel="work", schema_hash="h", access="shared", producer_id=name, lease=f"lease-{name}"
            ),
            now=1.0,
        )
    return registry


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 200))
def test_every_sequence_of_every_block_belongs_to_exactly_one_member(blocks: int, members: int, sequence: int) -> None:
    group = Group(epoch=1, members=[f"m{n}" for n in range(members)], blocks=[f"/b{n}" for n in range(blocks)])
    for block in group.blocks:
        owners = [
            name
            for name in group.members
            for share in assignment("g", group, name).shares
            if share.shm_name == block and share.count and sequence % share.count == share.index
        ]
        assert len(owners) == 1, (block, owners)


def test_blocks_are_dealt_out_where_there_are_enough_of_them() -> None:
    group = Group(epoch=1, members=["a", "b"], blocks=["/x", "/y", "/z"])
    mine = {name: [s.shm_name for s in assignment("g", group, name).shares if s.count] for name in group.members}
    assert mine == {"a": ["/x", "/z"], "b": ["/y"]}


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=6), st.lists(st.sampled_from("xyz"), max_size=4))
def test_blocks_are_dealt_to_members_of_their_own_host_where_the_numbers_allow_it(
    blocks: list[str], members: list[str]
) -> None:
    registry = Registry()
    for number, host in enumerate(blocks):
        command = commands.RegisterProducer(
            channel="work",
            schema_hash="h",
            access="shared",
            producer_id=f"p{number}",
            lease=f"l{number}",
            host=host,
            shm_name=f"/b{number}",
        )
        registry.apply(command, now=1.0)
    for number, host in enumerate(members):
        registry.apply(member(f"m{number}", host=host), now=2.0)
    group = registry.channels["work"].groups.get("crew")
    if group is None or len(blocks) < len(members):
        return
    assert sorted(group.blocks) == sorted(f"/b{number}" for number in range(len(blocks)))
    near = sum(
        members[place % len(members)] == blocks[int(block.removeprefix("/b"))]
        for place, block in enumerate(group.blocks)
    )
    places = [members[place % len(members)] for place in range(len(blocks))]
    assert near == sum(min(blocks.count(host), places.count(host)) for host in "xyz")


def test_joining_leaving_and_dying_begin_new_epochs_and_a_new_block_does_too() -> None:
    registry = producing("left")
    epochs = [registry.apply(member("a"), now=2.0).reply.assignment.epoch]  # type: ignore[attr-defined]
    epochs.append(registry.apply(member("b"), now=2.0).reply.assignment.epoch)  # type: ignore[attr-defined]
    (event,) = [
        e
        for e in registry.host_events.died([Member("consumer", "work", "a")], now=2.0)
        if isinstance(e, events.GroupAssigned)
    ]
    assert event.assigned.members == ["b"]
    epochs.append(event.assigned.epoch)
    command = commands.RegisterProducer(
        channel="work", schema_hash="h", access="shared", producer_id="right", lease="lease-right"
    )
    (event,) = [e for e in registry.apply(command, now=2.0).events if isinstance(e, events.GroupAssigned)]
    epochs.append(event.assigned.epoch)
    assert epochs == sorted(set(epochs))


def test_saying_the_same_again_begins_no_epoch() -> None:
    registry = producing("left")
    first = registry.apply(member("a"), now=2.0)
    again = registry.apply(member("a"), now=9.0)
    assert again.events == []
    assert again.reply.assignment == first.reply.assignment  # type: ignore[attr-defined]


def test_a_block_that_goes_away_begins_no_epoch() -> None:
    registry = producing("left", "right")
    registry.apply(member("a"), now=2.0)
    happened = registry.host_events.died([Member("producer", "work", "right")], now=3.0)
    assert not [event for event in happened if isinstance(event, events.GroupAssigned)]


def test_a_group_without_members_is_gone() -> None:
    registry = producing("left")
    registry.apply(member("a"), now=2.0)
    registry.apply(commands.UnregisterConsumer(channel="work", consumer_id="a", lease="a"), now=3.0)
    assert registry.channels["work"].groups == {}


def test_epochs_grow_over_a_registry_that_forgot_them_by_its_floor() -> None:
    before = producing("left").apply(member("a"), now=100.0).reply.assignment.epoch  # type: ignore[attr-defined]
    empty = producing("left")
    empty.log.epoch_floor = before
    after = empty.apply(member("a"), now=1.0).reply.assignment.epoch  # type: ignore[attr-defined]
    assert after > before


def test_a_restored_registry_deals_anew() -> None:
    registry = producing("left")
    registry.apply(member("a"), now=2.0)
    restored = Registry()
    restored.restore(registry.channels.values(), revision=registry.revision, now=500.0)
    restored_group = restored.channels["work"].groups["crew"]
    assert restored_group.members == ["a"]
    registry.channels["work"].groups = {}
    restored.restore(registry.channels.values(), revision=registry.revision, now=900.0)
    assert restored.channels["work"].groups["crew"].epoch > restored_group.epoch


def test_epochs_grow_whatever_the_clock_does() -> None:
    """Also for a group that ended and begins again, and over a registry that forgot it."""
    registry = producing("left")
    epochs = []
    for now in (5e9, 2.0, 9e9, 1.0):
        epochs.append(registry.apply(member("a"), now=now).reply.assignment.epoch)  # type: ignore[attr-defined]
        registry.apply(commands.UnregisterConsumer(channel="work", consumer_id="a", lease="a"), now=now)
    registry.apply(member("a"), now=1.0)
    restored = Registry()
    channel = registry.channels["work"]
    epochs.append(channel.groups["crew"].epoch)
    channel.groups = {}
    restored.restore([channel], revision=registry.revision, now=0.5)
    epochs.append(restored.channels["work"].groups["crew"].epoch)
    epochs.append(restored.apply(member("b"), now=0.1).reply.assignment.epoch)  # type: ignore[attr-defined]
    assert epochs == sorted(set(epochs))
