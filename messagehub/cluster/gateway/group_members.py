"""The members of groups that read the rings of this host from elsewhere: what one acknowledges finds its stream.

Rule 1: a share has one stream. The member that opens it again (its connection broke off, or its process was started
anew) takes it over at once, though nobody has noticed yet that the older stream has no reader.
Rule 2: who is a member, and of what, is the broker's decision. Here it counts that the group's file is of that epoch.
"""

import threading
import weakref
from typing import NamedTuple, Protocol

from messagehub.flight.messages import FlightTicket
from messagehub.shm.errors import NothingThere


class MemberStream(Protocol):
    def acknowledge(self, sequence: int) -> None: ...

    def leave(self) -> None: ...


class _Place(NamedTuple):
    path: str
    channel: str
    group: str
    epoch: int
    member: int
    consumer_id: str


class GroupMembers:
    """Any thread may use it. It keeps no stream alive."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._streams: weakref.WeakValueDictionary[_Place, MemberStream] = weakref.WeakValueDictionary()

    def make_room(self, path: str, ticket: FlightTicket) -> None:
        """Have the older stream of this member, if there is one, give up its share."""
        with self._changing:
            older = self._streams.pop(_place(path, ticket), None)
        if older is not None:
            older.leave()

    def add(self, path: str, ticket: FlightTicket, stream: MemberStream) -> None:
        with self._changing:
            self._streams[_place(path, ticket)] = stream

    def acknowledge(self, path: str, ticket: FlightTicket) -> None:
        """Raise NothingThere where the member has no stream now: it says it again when it has one."""
        with self._changing:
            stream = self._streams.get(_place(path, ticket))
        if stream is None:
            raise NothingThere(path)
        stream.acknowledge(ticket.done)


def _place(path: str, ticket: FlightTicket) -> _Place:
    member = ticket.member
    assert member is not None
    return _Place(path, ticket.channel, member.group, member.epoch, member.index, ticket.consumer_id)
