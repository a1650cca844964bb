"""The subscribers of this host that read positions: what their home hosts know of them.

Rule 1: a home hears of a member before the member's first request, on the same connection.
Rule 2: its lease is renewed there every third of a term, and the home is told when the member ends. Where neither
comes, since this hub or the connection is gone, the lease runs out, and what the member held is free.
Rule 3: a home that does not know a member, since it was started again, is told of it anew.
"""

from collections.abc import Callable
from time import monotonic

from messagehub.broker.site.home_topics import HomeTopics
from registry import commands
from registry.records import Subscriber
from registry.topics.subscribers import Subscribers

Tell = Callable[[str, commands.AnyCommand], None]


class HomeMembers:
    def __init__(self, home: HomeTopics, subscribers: Callable[[], Subscribers], tell: Tell, host: str) -> None:
        """`subscribers` are those of this host's hub; `tell` sends a command to another home."""
        self._home, self._subscribers, self._host = home, subscribers, host
        self._tell_other = tell
        self._told: dict[str, tuple[str, str]] = {}
        """The home that was told of each member, and the member's lease."""
        self._removals = 0
        self._renew_seconds = home.registry.terms.lease_seconds / 3
        self._renew_at = 0.0

    def check(self, command: commands.AnyCommand, home: str) -> None:
        """Refuse the request of somebody who is not registered here, and see that the home knows who is."""
        if not isinstance(command, commands.FetchMessages | commands.ReturnMessages):
            return
        subscribers = self._subscribers()
        subscribers.check(command.member_id, command.lease)
        if self._told.get(command.member_id) == (home, command.lease) and self._is_known_here(command, home):
            return
        member = subscribers.get(command.member_id)
        assert member is not None
        self._tell(home, _registration(member))
        self._told[command.member_id] = (home, command.lease)

    def forget(self, command: commands.AnyCommand) -> None:
        """The home does not know the member: tell it before the next request."""
        member_id = getattr(command, "member_id", None)
        if member_id is not None:
            self._told.pop(member_id, None)

    def maintain(self) -> None:
        subscribers = self._subscribers()
        if subscribers.removals != self._removals:
            self._removals = subscribers.removals
            for member_id, (home, lease) in list(self._told.items()):
                if subscribers.get(member_id) is None:
                    del self._told[member_id]
                    self._tell(home, commands.UnregisterSubscriber(member_id=member_id, lease=lease))
        if self._told and monotonic() >= self._renew_at:
            self._renew_at = monotonic() + self._renew_seconds
            for home, lease in sorted(set(self._told.values())):
                self._tell(home, commands.Heartbeat(lease=lease))

    def seconds_to_renewal(self) -> float:
        return max(self._renew_at - monotonic(), 0.0) if self._told else self._renew_seconds

    def _is_known_here(self, command: commands.FetchMessages | commands.ReturnMessages, home: str) -> bool:
        return home != self._host or self._home.registry.subscribers.get(command.member_id) is not None

    def _tell(self, home: str, command: commands.AnyCommand) -> None:
        if home != self._host:
            self._tell_other(home, command)
            return
        is_known = self._home.registry.subscribers.get(getattr(command, "member_id", "")) is not None
        if is_known or not isinstance(command, commands.UnregisterSubscriber):
            self._home.apply(command)


def _registration(member: Subscriber) -> commands.RegisterSubscriber:
    return commands.RegisterSubscriber(
        kind=member.kind,
        name=member.name,
        patterns=member.patterns,
        member_id=member.member_id,
        lease=member.lease,
        host=member.host,
        pid=member.pid,
        start_time=member.start_time,
        boot_id=member.boot_id,
    )
