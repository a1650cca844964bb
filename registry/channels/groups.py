"""Consumer groups: who reads which part of a channel, by rule, so that nobody is asked per item.

Rule 1: members and blocks, in order, decide everything. Where there are at least as many blocks as members each block
goes to one member, of its own host where the numbers allow that; where there are fewer, all members read every block
and share its sequences modulo their number.
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
    members: dict[str, dict[str, str | None]] = {name: {} for name in channel.groups}
    for consumer in channel.consumers.values():
        if consumer.group is not None:
            members.setdefault(consumer.group, {})[consumer.consumer_id] = consumer.host
    if not members:
        return {}
    blocks = sorted(
        (block.shm_name, block.host) for producer in channel.producers.values() for block in blocks_of(producer)
    )
    names = {name for name, _ in blocks}
    changed = {}
    for name, found in members.items():
        present = channel.groups.get(name)
        if present is None or present.members != [*found] or not names <= set(present.blocks):
            following = max(present.epoch + 1 if present else 0, epoch)
            changed[name] = Group(epoch=following, members=[*found], blocks=_near([*found.values()], blocks))
    return changed


def _near(hosts: list[str | None], blocks: list[tuple[str, str | None]]) -> list[str]:
    """Return the blocks in the order in which they are dealt to members on these hosts: as many as can be to a member
    of their own host. Where they are all on one host, the order is that of their names."""
    if not hosts or len(blocks) < len(hosts):
        return [name for name, _ in blocks]
    by_host: dict[str | None, list[str]] = {}
    for name, host in reversed(blocks):
        by_host.setdefault(host, []).append(name)
    turns = [hosts[place % len(hosts)] for place in range(len(blocks))]
    dealt = [by_host[host].pop() if by_host.get(host) else None for host in turns]
    rest = sorted((name for names in by_host.values() for name in names), reverse=True)
    return [rest.pop() if name is None else name for name in dealt]


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
