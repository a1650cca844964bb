"""Consumer groups: who reads which part of a channel, by rule, so that nobody is asked per item.

Rule 1: members and blocks, in order, decide everything. Where there are at least as many blocks as members each block
goes to one member; where there are fewer, all members read every block and share its sequences modulo their number.
Rule 2: every change of members, or a new block, begins a new epoch. Epochs only grow: each is the registry's revision,
which only grows, above a floor that the owner of the registry sets (EventLog). No clock takes part in it.
Rule 3: a block that goes away begins no epoch: what it still holds is read to its end by whoever had it.
"""

from collections.abc import Iterable

from registry.channels.state import blocks_of
from registry.records import Channel, Group
from registry.replies import Assignment, Share


def regrouped(channel: Channel, *, epoch: int) -> dict[str, Group]:
    """Return the groups of a channel that begin this epoch; those without members have ended."""
    members: dict[str, list[str]] = {name: [] for name in channel.groups}
    for consumer in channel.consumers.values():
        if consumer.group is not None:
            members.setdefault(consumer.group, []).append(consumer.consumer_id)
    if not members:
        return {}
    blocks = sorted(block.shm_name for producer in channel.producers.values() for block in blocks_of(producer))
    changed = {}
    for name, found in members.items():
        present = channel.groups.get(name)
        if present is None or present.members != found or not set(blocks) <= set(present.blocks):
            following = max(present.epoch + 1 if present else 0, epoch)
            changed[name] = Group(epoch=following, members=found, blocks=blocks)
    return changed


def assignment(group_name: str, group: Group, member: str) -> Assignment:
    """Return one member's part. It shares blocks that are not listed with all members, by `index` and `count`."""
    index, count = group.members.index(member), len(group.members)
    return Assignment(
        group=group_name,
        epoch=group.epoch,
        index=index,
        count=count,
        shares=list(_shares(group.blocks, index, count)),
    )


def _shares(blocks: list[str], index: int, count: int) -> Iterable[Share]:
    for place, block in enumerate(blocks):
        if len(blocks) < count:
            yield Share(shm_name=block, index=index, count=count)
        elif place % count == index:
            yield Share(shm_name=block, index=0, count=1)
        else:
            yield Share(shm_name=block, index=0, count=0)
