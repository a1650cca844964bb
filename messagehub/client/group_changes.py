"""Wakes consumers when the broker says that their channel changed, was shared out anew, or when another broker answers.

An event that was missed (before the subscription was in place, say) shows in the revision of the next beacon.
That other consumers come and go is no news: all that it changes for a consumer is its share, which has its own event.
"""

import threading
import weakref
from typing import Protocol

from messagehub.client.connection import Connection
from messagehub.client.discovery_cache import glance_of
from registry import events, replies
from registry.events import channel_topic


def _marks(*kinds: type[events.Event]) -> tuple[bytes, ...]:
    """How events of these kinds begin."""
    return tuple(b'{"type":"%s"' % str(kind.__struct_config__.tag).encode() for kind in kinds)


_SHARED_OUT = _marks(events.GroupAssigned)
_OF_CONSUMERS = _marks(
    events.ConsumerRegistered, events.ConsumerUnregistered, events.ConsumerStalled, events.ConsumerRecovered
)


class GroupMember(Protocol):
    channel: str

    def wake(self, *, is_shared_out: bool) -> None: ...


class GroupChanges:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._members: dict[bytes, list[weakref.ref[GroupMember]]] = {}  # weakly: a forgotten one is to be collected
        self._heard: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def add(self, member: GroupMember) -> None:
        with self._lock:
            topic = channel_topic(member.channel).encode()
            self._members[topic] = [*self._members.get(topic, []), weakref.ref(member)]
        self._connection.wake()

    def remove(self, member: GroupMember) -> None:
        with self._lock:
            topic = channel_topic(member.channel).encode()
            left = [other for other in self._members.get(topic, []) if other() not in (None, member)]
            if left:
                self._members[topic] = left
            else:
                self._members.pop(topic, None)
                self._heard.pop(topic, None)

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._members)

    def topics(self) -> set[bytes]:
        return set(self._members)

    def on_connected(self, _: replies.HelloAck) -> None:
        for members in list(self._members.values()):
            _wake(members, is_shared_out=True)

    def on_disconnected(self) -> None:
        """Shares stay as they are while no broker answers."""

    def on_event(self, topic: bytes, payload: bytes) -> None:
        members = self._members.get(topic)
        if members is None:
            return
        glance = glance_of(payload)
        is_beacon = glance.broker_id is not None
        is_behind = is_beacon and glance.revision != self._heard.get(topic, 0)
        self._heard[topic] = glance.revision
        if is_behind or not (is_beacon or payload.startswith(_OF_CONSUMERS)):
            _wake(members, is_shared_out=is_behind or payload.startswith(_SHARED_OUT))

    def tick(self, now: float) -> float:
        return now + 60.0


def _wake(members: "list[weakref.ref[GroupMember]]", *, is_shared_out: bool) -> None:
    for reference in members:
        member = reference()
        if member is not None:
            member.wake(is_shared_out=is_shared_out)
