"""Subscribers that share messages with others: who they are, and that they live.

Rule 1: a subscriber belongs to the lease of its process, and ends with it; what it held of a position is free then.
Rule 2: the same member of the same lease saying the same again gets the same answer.
Rule 3: members of a group change their shares together (subscriber_groups.py).
Rule 4: nothing is kept by a store: after a restart of the broker subscribers register again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from registry import commands, names, replies
from registry.channels.leases import Leases, Member
from registry.errors import DuplicateRegistration, InvalidRequest, NotOwner, NotRegistered, RegistryError
from registry.records import MemberStatus, Subscriber
from registry.topics.patterns import Patterns, check_topic
from registry.topics.subscriber_groups import VALID_SECONDS, SubscriberGroups

MOST_SUBSCRIBERS = 20_000


class Subscribers:
    def __init__(self, leases: Leases, *, lease_seconds: float, release: Callable[[str], None]) -> None:
        """`release` is told of members that have ended."""
        self._leases = leases
        self._lease_seconds = lease_seconds
        self._release = release
        self._subscribers: dict[str, Subscriber] = {}
        self._changed: list[str] = []
        self.removals = 0
        """How many subscribers have ended or changed so far."""
        self.groups = SubscriberGroups()

    def decide(self, command: commands.Command, now: float) -> replies.Reply:
        return SUBSCRIBER_COMMANDS[type(command)](self, command, now)

    def get(self, member_id: str) -> Subscriber | None:
        return self._subscribers.get(member_id)

    def of(self, kind: str, name: str, patterns: list[str]) -> list[Subscriber]:
        return [
            one for one in self._subscribers.values() if (one.kind, one.name, one.patterns) == (kind, name, patterns)
        ]

    def every(self) -> list[Subscriber]:
        return list(self._subscribers.values())

    def take_changed(self) -> list[str]:
        """Return the members that have come or gone since the last call."""
        changed, self._changed = self._changed, []
        return changed

    def move(self, leases: Leases, release: Callable[[str], None], *, now: float) -> None:
        """Go on under the leases of a registry that starts over from its store, which knows nothing of subscribers."""
        for one in self._subscribers.values():
            before = self._leases.get(one.lease)
            leases.attach(one.lease, _member(one), now=now)
            leases.hold(one.lease, is_held=before is not None and before.is_held)
        self._leases, self._release = leases, release

    def check(self, member_id: str, lease: str) -> None:
        """Raise unless the member is registered under the lease."""
        present = self._subscribers.get(member_id)
        if present is None:
            raise NotRegistered(f"no subscriber {member_id!r} is registered", member_id=member_id)
        if present.lease != lease:
            raise NotOwner(f"subscriber {member_id!r} belongs to another process", member_id=member_id)

    # -- commands ------------------------------------------------------------------------------------------

    def register(self, command: commands.RegisterSubscriber, now: float) -> replies.Reply:
        names.check_role(command.kind, command.name)
        names.check_role("subscriber", command.member_id)
        Patterns(command.patterns)
        if command.kind == "position":
            if len(command.patterns) > 1:
                raise InvalidRequest("a position is of one topic, not of several patterns", field="patterns")
            check_topic(command.patterns[0])
        present = self._subscribers.get(command.member_id)
        if present is not None and present.lease != command.lease and self._leases.is_alive(present.lease):
            raise DuplicateRegistration(
                f"subscriber {command.member_id!r} is registered by another process already",
                member_id=command.member_id,
                pid=present.pid,
                host=present.host,
            )
        if command.kind == "group":
            self.groups.check_room(_group(command), command.member_id)
        if present is None and len(self._subscribers) >= MOST_SUBSCRIBERS:
            raise RegistryError(
                f"the registry of subscribers is full: {MOST_SUBSCRIBERS} members", limit=MOST_SUBSCRIBERS
            )
        candidate = _subscriber(command, now)
        if present is None or not _says_the_same(present, candidate):
            if present is not None:
                self._remove(present, now)
            self._subscribers[candidate.member_id] = candidate
            self._changed.append(candidate.member_id)
            if candidate.kind == "group":
                self.groups.join(_group(candidate), candidate.member_id)
        reply = replies.SubscriberRegistered(
            kind=command.kind,
            name=command.name,
            member_id=command.member_id,
            lease=command.lease,
            lease_seconds=self._lease_seconds,
        )
        if command.kind == "group":
            group = self.groups.tell(
                _group(candidate), command.member_id, ready=command.ready, is_leaving=command.leaving, now=now
            )
            reply.epoch, reply.proposed = group.epoch, group.proposed
            reply.valid_seconds = min(VALID_SECONDS, self._lease_seconds / 3)
        return reply

    def unregister(self, command: commands.UnregisterSubscriber, now: float) -> replies.Reply:
        self.check(command.member_id, command.lease)
        self._remove(self._subscribers[command.member_id], now)
        return replies.SubscriberUnregistered(member_id=command.member_id)

    def summaries(self, name: str, topic: str, unacked: Mapping[str, int]) -> list[replies.SubscriberSummary]:
        """Return the subscribers of a position, with how many messages each has and did not acknowledge."""
        return [
            replies.SubscriberSummary(
                member_id=one.member_id,
                status=one.status,
                host=one.host,
                pid=one.pid,
                registered_at=one.registered_at,
                unacked=unacked.get(one.member_id, 0),
            )
            for one in self.of("position", name, [topic])
        ]

    # -- what leases and the host watcher say -------------------------------------------------------------------------

    def ended(self, member_id: str, now: float) -> None:
        """End a subscriber whose process is gone or was silent for too long.

        One that is not registered is passed over.
        """
        present = self._subscribers.get(member_id)
        if present is not None:
            self._remove(present, now)

    def mark(self, member_id: str, status: MemberStatus, now: float) -> None:  # noqa: ARG002  as of services
        self._subscribers[member_id] = replace(self._subscribers[member_id], status=status)

    def _remove(self, one: Subscriber, now: float) -> None:
        del self._subscribers[one.member_id]
        self.removals += 1
        self._leases.detach(one.lease, _member(one), now=now)
        self._release(one.member_id)
        if one.kind == "group":
            self.groups.end(_group(one), one.member_id)
        self._changed.append(one.member_id)


SUBSCRIBER_COMMANDS: dict[type[commands.Command], Callable[[Subscribers, Any, float], replies.Reply]] = {
    commands.RegisterSubscriber: Subscribers.register,
    commands.UnregisterSubscriber: Subscribers.unregister,
}


def _group(one: Subscriber | commands.RegisterSubscriber) -> str:
    """Return the key of a group: its name and its patterns, in any order."""
    return f"{one.name} {','.join(sorted(set(one.patterns)))}"


def _member(one: Subscriber) -> Member:
    return Member("subscriber", "", one.member_id)


def _subscriber(command: commands.RegisterSubscriber, now: float) -> Subscriber:
    return Subscriber(
        member_id=command.member_id,
        kind=command.kind,
        name=command.name,
        patterns=command.patterns,
        lease=command.lease,
        host=command.host,
        pid=command.pid,
        start_time=command.start_time,
        boot_id=command.boot_id,
        registered_at=now,
    )


def _says_the_same(present: Subscriber, candidate: Subscriber) -> bool:
    return replace(candidate, status=present.status, registered_at=present.registered_at) == present
