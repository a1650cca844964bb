"""Groups of subscribers: each message of a topic for one member, by rule, so that nobody is asked per message.

Every member hears every message and keeps those of its share: publisher and number, modulo the number of members.
Shares change with the members, for all of them at the same place in the stream of messages: at a mark that the broker
sends on the same way.

Rule 1: a share is known by its epoch. A new one is proposed whenever a member comes or goes. It begins, and its mark is
sent, when every member has said that it is ready: from then on a member holds back what it hears, until the mark.
Rule 2: a member that finds the mark of the epoch after its own hands out what it held, by its old share, and goes on by
the new one. One that missed a mark asks for it again. It cannot know what of that it held others have, and drops it.
Rule 3: a member goes by its share only for VALID_SECONDS after it last said that it is there. A broker that was started
again does not know who goes by an old share, and begins nothing for so long.
Rule 4: a member that leaves goes by its share until the next one begins. What would have been for one that is gone is
held by all from the proposal on, and shared out when the next share begins.
Rule 5: so no message is handed out twice. A change loses nothing, unless a mark is lost, which the member counts. What
a member had when it was killed, and its share until the broker saw that, is lost with it.
"""

from typing import NamedTuple

from msgspec import Struct, field

from registry.errors import RegistryError

VALID_SECONDS = 3.0
MOST_MEMBERS = 256


class Mark(NamedTuple):
    """A change of shares as the members of a group are told of it.

    Without `members` the next share is only proposed, and `gone` lists those who left the one in force.
    """

    group: str
    epoch: int
    previous: int
    members: list[str] | None
    is_repeated: bool = False
    gone: tuple[str, ...] = ()


class SubscriberGroup(Struct):
    epoch: int = 0
    previous: int = 0
    proposed: int = 0
    sharing: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    leaving: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)


class SubscriberGroups:
    def __init__(self) -> None:
        self.settle_until = 0.0
        """Before this time nothing begins (rule 3)."""
        self.newest_epoch = 0
        """Above every epoch that may still be in use."""
        self._groups: dict[str, SubscriberGroup] = {}
        self._marks: list[Mark] = []

    def take_marks(self) -> list[Mark]:
        marks, self._marks = self._marks, []
        return marks

    def check_room(self, name: str, member_id: str) -> None:
        group = self._groups.get(name)
        if group is not None and member_id not in group.members and len(group.members) >= MOST_MEMBERS:
            raise RegistryError(f"group {name!r} has {MOST_MEMBERS} members, which is the limit", limit=MOST_MEMBERS)

    def join(self, name: str, member_id: str) -> None:
        group = self._groups.setdefault(name, SubscriberGroup())
        group.members.append(member_id)
        self._propose(name, group)

    def end(self, name: str, member_id: str) -> None:
        """Remove a member, which goes by no share any more."""
        group = self._groups[name]
        group.members.remove(member_id)
        is_expected = member_id in group.leaving and member_id not in group.sharing
        group.leaving.discard(member_id)
        if not group.members:
            del self._groups[name]
        elif not is_expected:
            self._propose(name, group)

    def tell(self, name: str, member_id: str, *, ready: int, is_leaving: bool, now: float) -> SubscriberGroup:
        """Take note that a member is there, and ready for an epoch (0: for none)."""
        group = self._groups[name]
        if is_leaving and member_id not in group.leaving:
            group.leaving.add(member_id)
            self._propose(name, group)
        if ready and ready == group.epoch:
            self._marks.append(Mark(name, group.epoch, group.previous, group.sharing, is_repeated=True))
        elif ready and ready == group.proposed:
            group.ready.add(member_id)
            if group.ready >= set(group.members) and now >= self.settle_until:
                group.previous, group.epoch, group.proposed = group.epoch, group.proposed, 0
                group.sharing = [one for one in group.members if one not in group.leaving]
                self._marks.append(Mark(name, group.epoch, group.previous, group.sharing))
        return group

    def _propose(self, name: str, group: SubscriberGroup) -> None:
        self.newest_epoch += 1
        group.proposed, group.ready = self.newest_epoch, set()
        gone = tuple(one for one in group.sharing if one not in group.members)
        self._marks.append(Mark(name, group.proposed, group.epoch, None, gone=gone))
