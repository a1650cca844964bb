"""A member's share of what a group of subscribers hears on one socket: a state machine without sockets or threads.

States: without a share, going by one, and holding back (`awaited` is the epoch that it is ready for).
registry/topics/subscriber_groups.py has the rules.
"""

from collections.abc import Callable

from messagehub.topics.message_fates import Source
from messagehub.topics.messages import Message


class GroupShare:
    def __init__(self, member_id: str, most_held: int, on_lost: Callable[[Message], None] | None = None) -> None:
        """`on_lost` is told of each message of its own that this member does not keep."""
        self.epoch = 0
        self.awaited = 0
        self.lost = 0
        self._member_id = member_id
        self._most_held = most_held
        self._on_lost = on_lost
        self._members: list[str] = []
        self._index: int | None = None
        self._gone: set[int] = set()
        self._held: list[tuple[Message, bool]] = []

    def hold(self, epoch: int) -> None:
        """Be ready for an epoch: hold back the messages that are heard until it begins."""
        if epoch > self.epoch:
            self.awaited = epoch

    def forget(self) -> None:
        """Drop the share, since another broker counts epochs anew, and wait until it gives one."""
        self._lose([message for message, is_mine in self._held if is_mine])
        self._held, self._gone, self._members, self._index = [], set(), [], None
        self.epoch = self.awaited = 0

    def propose(self, epoch: int, previous: int, gone: tuple[str, ...]) -> None:
        """Expect a share that follows the one in force.

        Hold back the part of the members that are gone from here on.
        """
        if previous == self.epoch and epoch > self.epoch:
            self._gone = {self._members.index(one) for one in gone if one in self._members}

    def take(self, message: Message) -> bool:
        """Return whether a message is for this member now. One that is held back may be later."""
        if not self._members:
            return False
        part = _part(message.publisher, message.number, len(self._members))
        is_mine = part == self._index
        if is_mine and not self.awaited:
            return True
        if is_mine or part in self._gone:
            if len(self._held) < self._most_held:
                self._held.append((message, is_mine))
            elif is_mine:
                self._lose([message])
        return False

    def begin(self, epoch: int, previous: int, members: list[str], *, is_repeated: bool) -> list[Message]:
        """Begin the share of a mark that was heard. Return the messages that were held back and are for this member."""
        if epoch <= self.epoch:
            return []
        index = members.index(self._member_id) if self._member_id in members else None
        held = [
            message
            for message, is_mine in self._held
            if is_mine or (index is not None and _part(message.publisher, message.number, len(members)) == index)
        ]
        if is_repeated or previous != self.epoch:
            self._lose(held)
            held = []
        self._held, self._gone = [], set()
        self.epoch, self._members, self._index = epoch, members, index
        if epoch >= self.awaited:
            self.awaited = 0
        return held

    def is_mine(self, source: Source, number: int) -> bool:
        """Return whether a message is for this member, as the share is now."""
        return bool(self._members) and _part(source[1], number, len(self._members)) == self._index

    def holds(self, source: Source, number: int) -> bool:
        """Return whether a message is held back until the next share begins."""
        return any(
            message.number == number and (message.topic, message.publisher, message.is_retained) == source
            for message, _ in self._held
        )

    def _lose(self, messages: list[Message]) -> None:
        self.lost += len(messages)
        if self._on_lost is not None:
            for message in messages:
                self._on_lost(message)

    @property
    def has_part(self) -> bool:
        return self._index is not None


def _part(publisher: bytes, number: int, count: int) -> int:
    """Return which member a message is for: the messages of a publisher go to the members in turn."""
    return (int.from_bytes(publisher, "little") + number) % count
